#!/usr/bin/env bash
# dash: `trap "" CHLD` does not reach the programs that it starts, as an ignored signal does elsewhere.
#
# Versions: dash 0.5.12-2 and bash 5.2.15-2+b13 (Debian 12).
# Behaviour: a signal that a shell ignores (`trap "" SIGNAL`) is ignored by the program that it
#   executes. For SIGHUP both shells do so. For SIGCHLD bash does and dash does not: the program
#   starts with the default. A program that is started with SIGCHLD ignored gets no exit status of its
#   children, so the same script hides failures of a job runner under bash and not under dash.
# Output seen:
#   bash HUP ignored
#   bash CHLD ignored
#   dash HUP ignored
#   dash CHLD default
# Needs: bash, python3, apt-get and dpkg-deb of Debian 12. Fails if the output differs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq dash=0.5.12-2 bash=5.2.15-2+b13
for package in dash bash; do
	dpkg-deb -x "$package"_*.deb package
done
cat >told.py <<'PYTHON'
import signal
import sys

handler = signal.getsignal(getattr(signal, f"SIG{sys.argv[1]}"))
print("ignored" if handler is signal.SIG_IGN else "default")
PYTHON
for shell in bash dash; do
	for name in HUP CHLD; do
		program=$(find package -path "*bin/$shell" -type f)
		echo "$shell $name $("$program" -c "trap '' $name; exec python3 told.py $name")"
	done
done | tee output
diff output - <<'EXPECTED'
bash HUP ignored
bash CHLD ignored
dash HUP ignored
dash CHLD default
EXPECTED
