"""Source files of this project that a request enters, from the bytes on the socket to the reply.

    python -m tests.bench.entered_files DIRECTORY [--calls]

Runs a daemon on a log in the directory, with a profiler on its event loop, and asks it from a
thread: requests on an open connection that has sent such requests before, one after the other. A
file counts if one of its functions is running when the bytes are received, or is called or resumed
until the reply is sent. Whatever happens to run at the same time (timers) is not in every sample,
so samples are intersected. Prints JSON: request to the files, as paths below the checkout, the
calls of functions of the project in the shortest sample, and how often such a call entered another
file than the call before it. ``--calls`` prints the calls themselves, one a line.
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
from functools import cache, partial
from itertools import pairwise
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


class Sample:
    """What one request entered.

    Args:
        files: Files of the project.
        calls: Calls in order, each with its file, or none.
    """

    def __init__(self, files: frozenset[str], calls: list[tuple[str, str]]) -> None:
        self.files = files
        self.calls = [call for call in calls if call[0]]

    @property
    def file_changes(self) -> int:
        """Calls that entered another file than the call before."""
        return sum(one[0] != other[0] for one, other in pairwise(self.calls))


class EventLoopProfile:
    """Source files that the thread which created this enters between a ``recv`` and a ``send``.

    Those of Internet sockets count, by whatever variant of the two; others wake the event loop.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._files: set[str] = set()
        self._calls: list[tuple[str, str]] = []
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
            code = frame.f_code
            self._files.add(code.co_filename)
            self._calls.append((code.co_filename, code.co_qualname))
        elif event == "c_call" and _is_of_client(argument, "send"):
            self._socket = None

    def take(self) -> Sample:
        """Return what was entered since the last time."""
        files, self._files = self._files, set()
        calls, self._calls = self._calls, []
        # the program's main function is below everything that runs
        entered = frozenset(name for file in files if (name := _name_of(file)) not in ("", MAIN))
        return Sample(entered, [(_name_of(file), called) for file, called in calls])


@cache
def _name_of(file: str) -> str:
    """Return the path of a file below the checkout; empty: it is no source of the project."""
    path = Path(file).resolve()
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
    return name if name.startswith(SOURCES) else ""


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
        self.entered: dict[str, list[Sample]] = {}

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


def ask_daemon(ready_file: Path, profile: EventLoopProfile, *, shows_calls: bool) -> None:
    """Wait for the daemon of this process, ask it, print what was entered, and stop it."""
    try:
        while not ready_file.exists():
            time.sleep(0.01)
        asker = Asker(ready_file.read_text().split()[0], profile)
        asker.ask_all()
        entered = {}
        for name, samples in asker.entered.items():
            shortest = min(samples[WARM_UP:], key=lambda sample: len(sample.calls))
            entered[name] = {
                "files": sorted(
                    frozenset.intersection(*[each.files for each in samples[WARM_UP:]])
                ),
                "calls": len(shortest.calls),
                "file_changes": shortest.file_changes,
            }
            if shows_calls:
                print(name, *map(" ".join, shortest.calls), sep="\n    ")
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
    return {name: entered["files"] for name, entered in json.loads(done.stdout).items()}


def main() -> None:
    """Be the daemon and the client."""
    directory = Path(sys.argv[1])
    ready_file = directory / "ready"
    profile = EventLoopProfile()
    ask = partial(ask_daemon, ready_file, profile, shows_calls="--calls" in sys.argv)
    Thread(target=ask, daemon=True).start()
    options = ("--cmdlog-path", str(directory / "log"), "--ready-file", str(ready_file))
    run_daemon([*options, "--listen", "127.0.0.1:0", "--log-level", "warning"])


if __name__ == "__main__":
    main()
