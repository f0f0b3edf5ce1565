"""Stands for the interpreter of Spark's workers: a fork of ``python_workers.py`` does the work.

Run with the path of the socket of that process, then with the arguments that Spark gives an
interpreter. The fork gets the standard streams, the environment and the directory of this process,
which ends with its exit code; and the fork is ended when this process is.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> int:
    """Let a fork run; return its exit code."""
    place, *args = sys.argv[1:]
    if args[:1] != ["-m"]:
        # a question of Spark to the interpreter itself
        os.execv(sys.executable, [sys.executable, *args])
    message = json.dumps({"args": args, "cwd": os.getcwd(), "env": dict(os.environ)})
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(place)
        socket.send_fds(channel, [message.encode()], [0, 1, 2])
        return int(channel.recv(16) or b"1")


if __name__ == "__main__":
    sys.exit(main())
