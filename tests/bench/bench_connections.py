"""Requests a second and processor time a request of clients that wait for each of their replies.

    python -m tests.bench.bench_connections [--vs OTHER/bin/python] [--rounds N] [--seconds S]

Every row is a number of connections, each with one request under way (or one window of requests),
bodies of 100 bytes, policy ``always``, on /var/tmp. The processor time is the daemon's, user and
system, from /proc. ``--vs`` names the interpreter of another checkout, whose rounds alternate with
ours; the last columns are ours divided by theirs, in the median of the rounds. The generator is one
process with one epoll, and sends requests that were encoded before.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from fastjournal.protocol import Flag, Function, Request, encode_request
from tests.bench.paced import processor_seconds

BODY = b"x" * 100
SUCCESS_BYTES = 17
TICKS = os.sysconf("SC_CLK_TCK")
DIRECTORY = "/var/tmp"
PREPARED = 30_000


class Daemon:
    """A daemon of a checkout.

    Args:
        python: Its interpreter.
        directory: Directory of its log.
        policy: When it syncs.
    """

    def __init__(self, python: str, directory: Path, policy: str) -> None:
        ready = directory / "ready"
        self._process = subprocess.Popen(
            [
                *(python, "-P", "-c", "from fastjournald.main import main; main()"),
                *("--cmdlog-path", str(directory / "log"), "--ready-file", str(ready)),
                *("--listen", "127.0.0.1:0", "--cmdlog-sync", policy),
            ],
            stderr=subprocess.DEVNULL,
        )
        while not ready.exists():
            time.sleep(0.02)
        host, _, port = ready.read_text().split()[0].rpartition(":")
        self.address = (host, int(port))
        self.clients: dict[int, list[socket.socket]] = {}

    def processor_seconds(self) -> float:
        """Return the time that it had of the processors, user and system."""
        return processor_seconds(self._process.pid)

    def connect(self, number: int) -> list[socket.socket]:
        """Return so many connections, always the same."""
        if number not in self.clients:
            self.clients[number] = clients = []
            for _ in range(number):
                client = socket.create_connection(self.address)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients.append(client)
        return self.clients[number]

    def stop(self) -> None:
        """End it."""
        for clients in self.clients.values():
            for client in clients:
                client.close()
        self._process.terminate()
        self._process.wait()


class Requests:
    """Encoded SETs, each of a resource of its own; or NOPs.

    Args:
        what: "set" or "nop".
        window: Requests that are sent at once.
    """

    _serial = 0

    def __init__(self, what: str, window: int) -> None:
        self._what = what
        self._window = window

    def prepare(self, number: int) -> Iterator[bytes]:
        """Return so many windows."""
        return iter([b"".join(self._one() for _ in range(self._window)) for _ in range(number)])

    def _one(self) -> bytes:
        Requests._serial += 1
        serial = Requests._serial
        if self._what == "nop":
            return encode_request(Request(Function.NOP.value, serial & 0xFFFF))
        now = time.time_ns() // 1000
        key = b"example.org:128:%016d:%d" % (now, serial)
        uri = b"https://example.org/some/page/%d.html" % serial
        set_ = Function.SET.value
        return encode_request(
            Request(set_, serial & 0xFFFF, Flag.PERSIST.value, now, key, uri, 1, BODY)
        )


def load(
    daemon: Daemon, connections: int, requests: Requests, window: int, seconds: float
) -> tuple[float, float]:
    """Return requests a second, and microseconds of the daemon's processor time a request."""
    clients = daemon.connect(connections)
    frames = requests.prepare(max(1, PREPARED // window))
    missing: dict[int, int] = {}
    by_descriptor = {client.fileno(): client for client in clients}
    done = 0
    with select.epoll() as epoll:
        for client in clients:
            epoll.register(client.fileno(), select.EPOLLIN)
        before, started = daemon.processor_seconds(), time.perf_counter()
        under_way = 0
        over = started + seconds
        for client in clients:
            client.sendall(next(frames))
            missing[client.fileno()] = window * SUCCESS_BYTES
            under_way += 1
        while under_way:
            for descriptor, _ in epoll.poll():
                client = by_descriptor[descriptor]
                left = missing[descriptor] - len(client.recv(missing[descriptor]))
                if not left:
                    done += window
                    frame = next(frames, None) if time.perf_counter() < over else None
                    left = window * SUCCESS_BYTES
                    if frame is None:
                        under_way -= 1
                    else:
                        client.sendall(frame)
                missing[descriptor] = left
        taken = time.perf_counter() - started
        used = daemon.processor_seconds() - before
    return done / taken, used / done * 1e6


ROWS = [
    ("NOP, 1 connection", 1, "nop", 1),
    ("SET with URI, 1 connection", 1, "set", 1),
    ("SET with URI, 10 connections", 10, "set", 1),
    ("SET with URI, 50 connections", 50, "set", 1),
    ("NOP, 50 connections", 50, "nop", 1),
    ("SET with URI, 1 connection, windows of 256", 1, "set", 256),
    ("SET with URI, 50 connections, windows of 16", 50, "set", 16),
]


def main() -> None:
    """Run the rounds and print medians and ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--vs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--policy", default="always")
    parser.add_argument("--directory", default=DIRECTORY)
    options = parser.parse_args()
    pythons = [sys.executable] + ([options.vs] if options.vs else [])
    with ExitStack() as stack:
        daemons = []
        for python in pythons:
            name = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
            daemon = Daemon(python, Path(name), options.policy)
            stack.callback(daemon.stop)
            daemons.append(daemon)
        for name, connections, what, window in ROWS:
            found: list[list[tuple[float, float]]] = [[] for _ in daemons]
            for round_ in range(options.rounds + 1):
                order = range(len(daemons))
                for at in order if round_ % 2 else reversed(order):
                    requests = Requests(what, window)
                    figures = load(daemons[at], connections, requests, window, options.seconds)
                    if round_:
                        found[at].append(figures)
            print(report(name, found), flush=True)


def report(name: str, found: list[list[tuple[float, float]]]) -> str:
    """Return a row."""
    rates = [statistics.median(rate for rate, _ in rounds) for rounds in found]
    times = [statistics.median(used for _, used in rounds) for rounds in found]
    cells = [f"{rate:7.0f}/s {used:6.1f} us" for rate, used in zip(rates, times, strict=True)]
    if len(found) > 1:
        pairs = [(a[0] / b[0], a[1] / b[1]) for a, b in zip(*found, strict=True)]
        rate = statistics.median(rate for rate, _ in pairs)
        used = statistics.median(used for _, used in pairs)
        cells.append(f"rate x {rate:.2f}, processor x {used:.2f}")
    return f"{name:45}" + " | ".join(cells)


if __name__ == "__main__":
    main()
