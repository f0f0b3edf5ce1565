#!/bin/sh
# Spools each line of standard input as work on a URI, durably and without fastjournal:
#   sh producer.sh SPOOL URI <lines
# The timestamp has whole seconds and the number of the line: POSIX knows no finer clock.
set -euC # -C: nothing that is there is written to
umask 077 # nobody else reads the file before chmod
export LC_ALL=C
spool=$1 uri=$2

# scheme://user@host:port/... gives "host:port", or "host:" without a port
form='^([a-z][a-z0-9+.-]*:)?//([^/?#]*@)?'
form=$form'([[][0-9a-f:.]+[]]|[0-9a-z_][0-9a-z_-]*([.][0-9a-z_-]+)*)[.]?(:(0*([0-9]+))?)?([/?#].*)?$'
host=$(printf '%s\n' "$uri" | tr A-Z a-z | sed -nE "s!$form!\\3:\\7!p")
port=${host##*:}
[ -n "$host" ] && [ ${#port} -le 5 ] && [ "${port:-0}" -le 65535 ] || {
    echo "producer: no host in $uri (IDNA form, xn--..., if not ASCII)" >&2; exit 64
}
domain=$(printf %s "$host" | sed 's/[][]//g; s/:$//; s/:/%3A/g')

hex() { od -An -v -tx1 | tr -d ' \n'; }
bytes() { printf %s "$1" | sed 's/../0x& /g'; }
sized() { printf "%0$2x%s" $((${#1} / 2)) "$1"; } # the size in hex digits, then the bytes

crc32c() {
    crc=4294967295
    for byte in $(bytes "$1"); do
        crc=$((crc ^ byte))
        for _ in 1 2 3 4 5 6 7 8; do crc=$(((crc >> 1) ^ (0x82F63B78 & -(crc & 1)))); done
    done
    printf %08x $((crc ^ 4294967295))
}

random=$(od -An -N8 -tx1 /dev/urandom | tr -d ' ') seconds=$(date +%s)
all=$(printf 'fjsp' | hex)00000001 count=0
while IFS= read -r line || [ -n "$line" ]; do
    count=$((count + 1))
    timestamp=$((seconds * 1000000 + count))
    key=$(printf '%s:128:%016d:%x-%s' "$domain" $timestamp $timestamp "$random" | hex)
    [ ${#key} -le 8192 ] && [ ${#uri} -le 4096 ] || { # the key is in hex
        echo 'producer: the key or the URI is over 4096 bytes' >&2; exit 64
    }
    frame=464a000100020000$(printf '0287%016x' $timestamp) # SET: KEY16, VALUE u32, RANGE, PERSIST
    frame=$frame$(sized "$key" 4)$(sized "$(printf %s "$uri" | hex)" 4)
    frame=$frame$(sized "01$(printf %s "$line" | hex)" 8) # type 1: bytes
    record=$(sized "$frame" 8)
    all=$all$(printf P | hex)$record$(crc32c "$record")
done

name=$(date -u +%Y%m%dT%H%M%SZ)-sh-$random.fjs
temporary=$spool/.$name.tmp
trap 'rm -f "$temporary"' EXIT
for byte in $(bytes "$all"); do printf '\\%03o' "$byte"; done | { printf "$(cat)"; } >"$temporary"
chmod 660 "$temporary" # whatever the umask
sync "$temporary"
ln "$temporary" "$spool/$name"
sync "$spool" # the name survives a power cut, too
