"""Source files of this project that a request enters, from the bytes on the socket to the reply.

    python -m tests.bench.entered_files DIRECTORY

Runs a daemon on a log in the directory, with a profiler on its event loop, and asks it from a
thread: requests on an open connection that has sent such requests before, one after the other. A
file counts if one of its functions is running when the bytes are received, or is called or resumed
until the reply is sent. Whatever happens to run at the same time (timers) is not in every sample,
so samples are intersected. Prints JSON: request to the files, as paths below the checkout.
"""

from __future__ import annotations

import _socket
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

from fastjournal.keys import build_journal_key
from fastjournal.protocol import ClientConnection, encode_request
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Reply, Request
from fastjournald.main import main as run_daemon

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("fastjournal/", "daemon/", "client/")
MAIN = "daemon/fastjournald/main.py"

SET_INTO_EMPTY = "persistent SET with a URI into an empty domain"
SET_BESIDE = "persistent SET with a URI beside a waiting entry"
NEXT = "NEXT"
DELETE = "DELETE that completes a job"
GET = "GET"

WARM_UP = 3
SAMPLES = 10
SECONDS_MAX = 120.0


class EventLoopProfile:
    """Source files that the thread which created this enters between a ``recv`` and a ``send``.

    Those of Internet sockets count, by whatever variant of the two; others wake the event loop.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._files: set[str] = set()
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._socket is None:
            if event == "c_return" and _is_of_client(argument, "recv"):
                self._socket = argument.__self__
                below: FrameType | None = frame
                while below is not None:
                    self._files.add(below.f_code.co_filename)
                    below = below.f_back
        elif event == "call":
            self._files.add(frame.f_code.co_filename)
        elif event == "c_call" and _is_of_client(argument, "send"):
            self._socket = None

    def take(self) -> frozenset[str]:
        """Return the project's files that were entered since the last time."""
        files, self._files = self._files, set()
        below = {
            str(path.relative_to(ROOT))
            for path in (Path(file).resolve() for file in files)
            if path.is_relative_to(ROOT)
        }
        # the program's main function is below everything that runs
        return frozenset(file for file in below if file.startswith(SOURCES) and file != MAIN)


def _is_of_client(function: Any, name: str) -> bool:
    """Whether a function of C is this method of an Internet socket."""
    connected = getattr(function, "__self__", None)
    return (
        function.__name__.startswith(name)
        and isinstance(connected, _socket.socket)
        and connected.family == socket.AF_INET
    )


class Asker:
    """A client that notes which files each of its requests enters."""

    def __init__(self, address: str, profile: EventLoopProfile) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._connection = ClientConnection()
        self._profile = profile
        self.entered: dict[str, list[frozenset[str]]] = {}

    def ask(self, name: str, function: Function, **fields: Any) -> Reply:
        """Ask once; note the files under ``name``."""
        request = Request(int(function), timestamp=time.time_ns() // 1000, **fields)
        data = encode_request(request)
        self._socket.sendall(data)
        received = self._socket.recv(1 << 16)
        self.entered.setdefault(name, []).append(self._profile.take())
        self._connection.receive_data(received)
        (reply,) = self._connection.next_events()
        assert isinstance(reply, Reply)
        assert not reply.error, reply.error
        return reply

    def ask_all(self) -> None:
        """Carry out jobs, each from its SET to the DELETE that completes it."""
        for number in range(WARM_UP + SAMPLES):
            key = self._set(SET_INTO_EMPTY, b"%d" % number)
            beside = self._set(SET_BESIDE, b"%d beside" % number)
            self.ask("DELETE of a waiting entry", Function.DELETE, key=beside)
            self.ask(GET, Function.GET, flags=int(Flag.DATA), key=key)
            work = self.ask(NEXT, Function.NEXT, flags=int(Flag.DATA), count=1)
            assert work.pairs is not None
            (pair,) = work.pairs
            flags, token = int(Flag.WORKED_ON), work.timeout
            self.ask(DELETE, Function.DELETE, flags=flags, key=pair.key, timeout=token)

    def _set(self, name: str, rest: bytes) -> bytes:
        """Store a job; return its key."""
        key = build_journal_key(b"domain", rest)
        self.ask(
            name,
            Function.SET,
            flags=int(Flag.PERSIST),
            key=key,
            second_key=b"uri:" + rest,
            value_type=int(ValueType.BUFFER),
            value=b"body",
        )
        return key


def ask_daemon(ready_file: Path, profile: EventLoopProfile) -> None:
    """Wait for the daemon of this process, ask it, print what was entered, and stop it."""
    try:
        while not ready_file.exists():
            time.sleep(0.01)
        asker = Asker(ready_file.read_text().split()[0], profile)
        asker.ask_all()
        entered = {
            name: sorted(frozenset.intersection(*samples[WARM_UP:]))
            for name, samples in asker.entered.items()
        }
        print(json.dumps(entered), flush=True)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def measure(directory: Path) -> dict[str, list[str]]:
    """Return the files that each request enters; a daemon runs in the directory meanwhile."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.entered_files", str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        timeout=SECONDS_MAX,
    )
    entered: dict[str, list[str]] = json.loads(done.stdout)
    return entered


def main() -> None:
    """Be the daemon and the client."""
    directory = Path(sys.argv[1])
    ready_file = directory / "ready"
    profile = EventLoopProfile()
    Thread(target=ask_daemon, args=(ready_file, profile), daemon=True).start()
    options = ("--cmdlog-path", str(directory / "log"), "--ready-file", str(ready_file))
    run_daemon([*options, "--listen", "127.0.0.1:0", "--log-level", "warning"])


if __name__ == "__main__":
    main()
