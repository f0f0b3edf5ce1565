#!/usr/bin/env bash
# beanstalkd: a job of the largest size that is accepted is gone after a restart, and so are those
# behind it in the binlog.
#
# Version: beanstalkd 1.12-2+b1 (Debian 12).
# Behaviour: `-z BYTES` is the largest body of a job. A `put` of a body of exactly so many bytes is
#   accepted (INSERTED). At a start the binlog is read with the same bound, but there the body is
#   counted with its CR LF: the record is refused, with a line on standard error, and reading of
#   that file ends. The job, and each job that was put later, is lost. A body of two bytes less is
#   kept, and so are those behind it.
# Output seen:
#   z=100, body of 100: put INSERTED, before the restart 3 jobs, after it 1
#   z=100, body of 98: put INSERTED, before the restart 3 jobs, after it 3
# Needs: bash, python3, apt-get and dpkg-deb of Debian 12. Fails if the output differs.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq beanstalkd=1.12-2+b1
dpkg-deb -x beanstalkd_*.deb package
cat >restart.py <<'PYTHON'
import os
import socket
import subprocess
import time

with socket.create_server(("127.0.0.1", 0)) as free:
    PORT = free.getsockname()[1]


def start(directory):
    line = ["package/usr/bin/beanstalkd", "-l", "127.0.0.1", "-p", str(PORT), "-z", "100"]
    process = subprocess.Popen([*line, "-f", "0", "-b", directory], stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            return process, socket.create_connection(("127.0.0.1", PORT), 5)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def ask(client, request):
    client.sendall(request)
    return client.recv(65_536).decode().split()


def jobs(client):
    words = ask(client, b"stats\r\n")
    while "draining:" not in words:
        words += client.recv(65_536).decode().split()
    return int(words[words.index("current-jobs-ready:") + 1])


for size in (100, 98):
    directory = f"binlog-{size}"
    os.mkdir(directory)
    process, client = start(directory)
    answers = []
    for body in (b"before", bytes(size).replace(b"\0", b"x"), b"behind"):
        answers.append(ask(client, b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))[0])
    before = jobs(client)
    client.close()
    process.terminate()
    process.wait()
    process, client = start(directory)
    after = jobs(client)
    client.close()
    process.terminate()
    process.wait()
    told = f"before the restart {before} jobs, after it {after}"
    print(f"z=100, body of {size}: put {answers[1]}, {told}")
PYTHON
python3 restart.py | tee output
diff output - <<'EXPECTED'
z=100, body of 100: put INSERTED, before the restart 3 jobs, after it 1
z=100, body of 98: put INSERTED, before the restart 3 jobs, after it 3
EXPECTED
