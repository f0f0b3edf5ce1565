"""Group commit under clients that each wait for their reply: throughput, latency, batch sizes.

    python -m tests.bench.bench_commit [--vs CHECKOUT] [--clients 1 50] [--sync-ms 0 5]

Each client sends one SET with a URI and a 100-byte value, and the next one when its reply is there,
policy ``always``. Meanwhile one more client asks for NOPs, ten milliseconds apart: it shows for how
long a sync holds up those who wait for no sync. With ``--sync-ms`` each fdatasync takes so much
longer. ``--vs`` names another checkout, whose daemon is measured in turns with this one. The
histogram says how many requests each write to the log held, as a share of all requests.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from fastjournal.client.core.address import parse_address
from fastjournal.protocol import Flag, Function, Request, encode_request
from tests.bench.one_connection import BODY, DIRECTORY, SUCCESS_BYTES
from tests.bench.paced import processor_seconds

ROUNDS = 5
ROUND_SECONDS = 1.5
WARM_UP_SECONDS = 0.5
START_SECONDS = 60.0
BOUNDS = (1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 49, 50)
NOP_SECONDS = 0.01
ROOT = Path(__file__).parents[2]


PROGRAM = """
import pathlib, sys, time
from fastjournal.disk import OsFile
from fastjournald.main import main
batches_file, sync_seconds = sys.argv[1], float(sys.argv[2]) / 1000
del sys.argv[1:3]
write, sync, batches = OsFile.write, OsFile.sync, []
def noted_write(file, data):
    write(file, data)
    batches.append(len(data))
def delayed_sync(file):
    sync(file)
    if sync_seconds:
        time.sleep(sync_seconds)
OsFile.write, OsFile.sync = noted_write, delayed_sync
try:
    main()
finally:
    pathlib.Path(batches_file).write_text(" ".join(map(str, batches)))
"""
"""The daemon of any checkout, whose disk is slower, and which notes the size of each write."""


class Round:
    """Figures of one load of a daemon."""

    def __init__(self) -> None:
        self.requests = 0
        self.seconds = 0.0
        self.processor_seconds = 0.0
        """Processor time of the daemon."""
        self.latencies: list[float] = []
        self.nops: list[float] = []
        self.batches: Counter[int] = Counter()
        """Writes to the log, by the requests that they held."""


class DelayedDaemon:
    """A daemon of a checkout, on a log of its own.

    Args:
        checkout: Where it comes from.
        directory: For its files.
        sync_ms: Added to each fdatasync.
    """

    def __init__(self, checkout: Path, directory: Path, sync_ms: float) -> None:
        self._batches = directory / "batches"
        ready = directory / "ready"
        command = [
            *(sys.executable, "-P", "-c", PROGRAM, self._batches, str(sync_ms)),
            *("--cmdlog-path", directory / "log", "--ready-file", ready),
            *("--listen", "127.0.0.1:0", "--cmdlog-clean-int", "0", "--log-level", "warning"),
        ]
        path = f"{checkout}:{checkout / 'daemon'}"
        self._process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path})
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the daemon did not start")
            time.sleep(0.02)
        self.address = ready.read_text().split()[0]

    def processor_seconds(self) -> float:
        """Return the processor time that it has used so far."""
        return processor_seconds(self._process.pid)

    def stop(self) -> list[int]:
        """Stop it, and return the bytes of each write to the log."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(START_SECONDS)
        return [int(line) for line in self._batches.read_text().split()]


def connect(address: str) -> socket.socket:
    """Return a connection."""
    target = parse_address(address)
    connection = socket.create_connection((target.host, target.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def frame(number: int) -> bytes:
    """Encode a SET, as long as every other one."""
    return encode_request(
        Request(
            Function.SET.value,
            0,
            Flag.PERSIST.value,
            time.time_ns() // 1000,
            b"example.org:128:0000000000000001:%012d" % number,
            b"https://example.org/some/page/%012d.html" % number,
            1,
            BODY,
        )
    )


def ask_for_nops(address: str, latencies: list[float], ended: threading.Event) -> None:
    """Send a NOP now and then."""
    nop = encode_request(Request(Function.NOP.value, 0, 0))
    with connect(address) as connection:
        while not ended.wait(NOP_SECONDS):
            started = time.perf_counter()
            connection.sendall(nop)
            missing = SUCCESS_BYTES
            while missing:
                missing -= len(connection.recv(missing))
            latencies.append(time.perf_counter() - started)


def load(address: str, clients: int, seconds: float, result: Round, frames: list[bytes]) -> None:
    """Let so many clients ask, each for itself, until the time is over."""
    poll = select.epoll()
    connections = {}
    started_at = {}
    for _ in range(clients):
        connection = connect(address)
        connections[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)
    start = time.perf_counter()
    for number, connection in connections.items():
        started_at[number] = time.perf_counter()
        connection.send(frames.pop())
    left = clients
    while left:
        for number, _ in poll.poll():
            connection = connections[number]
            if len(connection.recv(SUCCESS_BYTES)) < SUCCESS_BYTES:
                raise RuntimeError("not the whole reply to a SET, or an error")
            now = time.perf_counter()
            result.latencies.append(now - started_at[number])
            result.requests += 1
            if now - start > seconds:
                left -= 1
            else:
                started_at[number] = now
                connection.send(frames.pop())
    result.seconds += time.perf_counter() - start
    for connection in connections.values():
        connection.close()


def measure(checkout: Path, clients: int, sync_ms: float) -> Round:
    """Return one round on a fresh daemon."""
    result = Round()
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        daemon = DelayedDaemon(checkout, Path(name), sync_ms)
        try:
            frames = [frame(number) for number in range(150_000)]
            load(daemon.address, clients, WARM_UP_SECONDS, Round(), frames)
            ended = threading.Event()
            nops = threading.Thread(target=ask_for_nops, args=(daemon.address, result.nops, ended))
            nops.start()
            used = daemon.processor_seconds()
            load(daemon.address, clients, ROUND_SECONDS, result, frames)
            result.processor_seconds = daemon.processor_seconds() - used
            ended.set()
            nops.join()
        finally:
            written = daemon.stop()
    # the first write has the start of the segment; from then on all SETs take as much
    sizes = written[1:]
    requests = 150_000 - len(frames)
    each = sum(sizes) / requests
    result.batches.update(max(1, round(size / each)) for size in sizes)
    return result


def histogram(batches: Counter[int]) -> str:
    """Return the share of requests by the size of their batch."""
    total = sum(size * count for size, count in batches.items())
    parts = []
    below = 0
    for bound in (*BOUNDS, max(batches)):
        requests = sum(size * count for size, count in batches.items() if below < size <= bound)
        if requests:
            name = f"{bound}" if bound == below + 1 else f"{below + 1}-{bound}"
            parts.append(f"{name}: {requests / total:.0%}")
        below = max(bound, below)
    return ", ".join(parts)


def percentile(values: list[float], part: float) -> float:
    """Return a percentile in milliseconds."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def report(what: str, rounds: list[Round]) -> float:
    """Print the rounds of one daemon; return its median throughput."""
    rates = [each.requests / each.seconds for each in rounds]
    latencies = [latency for each in rounds for latency in each.latencies]
    nops = [latency for each in rounds for latency in each.nops]
    batches: Counter[int] = Counter()
    for each in rounds:
        batches.update(each.batches)
    median = statistics.median(rates)
    used = statistics.median(each.processor_seconds / each.requests for each in rounds)
    print(
        f"{what}: {median:,.0f}/s ({min(rates):,.0f} to {max(rates):,.0f}), "
        f"{1e6 * used:.0f} us of processor time for each"
    )
    for kind, times in (("SET", latencies), ("NOP", nops)):
        print(f"  {kind} p50 {percentile(times, 0.5):.2f} ms, p99 {percentile(times, 0.99):.2f} ms")
    mean = sum(size * count for size, count in batches.items()) / batches.total()
    print(f"  requests a write: mean {mean:.1f}; {histogram(batches)}", flush=True)
    return median


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description="Measure group commit.")
    parser.add_argument("--vs", metavar="CHECKOUT", type=Path, help="another checkout")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--sync-ms", type=float, nargs="+", default=[0, 5])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    for sync_ms in given.sync_ms:
        for clients in given.clients:
            print(f"== {clients} clients, a sync takes {sync_ms:g} ms longer")
            ours, theirs = [], []
            for _ in range(given.rounds):
                ours.append(measure(ROOT, clients, sync_ms))
                if given.vs:
                    theirs.append(measure(given.vs, clients, sync_ms))
            rate = report("this checkout", ours)
            if theirs:
                pairs = [
                    mine.requests / mine.seconds / (other.requests / other.seconds)
                    for mine, other in zip(ours, theirs, strict=True)
                ]
                ratio = rate / report("the other one", theirs)
                print(f"ratio {ratio:.2f} (pairs {min(pairs):.2f} to {max(pairs):.2f})")


if __name__ == "__main__":
    main()
