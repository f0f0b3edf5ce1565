#!/bin/sh
# Spools each line of standard input as work on a URI, without fastjournal:
#   sh producer.sh SPOOL URI <lines
# The timestamp has whole seconds and the number of the line: POSIX knows no finer clock.
set -eu
export LC_ALL=C
spool=$1 uri=$2

host=${uri#*://} host=${host%%[/?#]*} host=${host##*@}
domain=$(printf %s "$host" | tr A-Z a-z | sed 's/[][]//g; s/[.:]$//; s/:/%3A/g')
[ "$host" != "$uri" ] && [ -n "$domain" ] || { echo "producer: no host in $uri" >&2; exit 64; }

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

all=$(printf 'fjsp' | hex)00000001 count=0 seconds=$(date +%s)
while IFS= read -r line || [ -n "$line" ]; do
    count=$((count + 1))
    timestamp=$((seconds * 1000000 + count))
    key=$(printf '%s:128:%016d:%x-sh-%s-%d' "$domain" $timestamp $timestamp "$(uname -n)" $$ | hex)
    value=01$(printf %s "$line" | hex)
    frame=464a000100020000$(printf '0287%016x' $timestamp) # SET: KEY16, VALUE u32, RANGE, PERSIST
    frame=$frame$(sized "$key" 4)$(sized "$(printf %s "$uri" | hex)" 4)$(sized "$value" 8)
    record=$(sized "$frame" 8)
    all=$all$(printf P | hex)$record$(crc32c "$record")
done

name=$(date -u +%Y%m%dT%H%M%SZ)-sh-$(uname -n)-$$.fjs
umask 077 # nobody reads it before it is whole
for byte in $(bytes "$all"); do printf '\\%03o' "$byte"; done | { printf "$(cat)"; } \
    >"$spool/.$name.tmp"
chmod 660 "$spool/.$name.tmp"
ln "$spool/.$name.tmp" "$spool/$name"
rm "$spool/.$name.tmp"
