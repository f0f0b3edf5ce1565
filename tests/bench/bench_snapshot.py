"""How long a snapshot takes, and what it costs others.

    python -m tests.bench.bench_snapshot [ENTRIES]

The live index of so many jobs with a URI is measured, a tenth of which are leased. Snapshots are
taken of an idle daemon, and while two connections keep it busy: they SET jobs that take the URIs of
others, NEXT leases, and DELETE ends leases. Reported are the seconds of a snapshot, the requests
during snapshots and between them, by the second and by the second of the daemon's processor, which
other load on the machine does not change; the longest turns of the event loop by its histogram; and
by how much the memory of the idle daemon grew.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fastjournal.protocol import Flag, Function, Request, encode_request
from tests.bench.paced import (
    SUCCESS_BYTES,
    bucket_counts,
    processor_seconds,
)
from tests.integration.daemon_process import DaemonProcess
from tests.integration.raw_client import RawClient, build

CONNECTIONS = 2
FILL_WINDOW = 64
DIRECTORY = "/var/tmp"
INDEXES = 2
TURNS = "fastjournal_turn_seconds"
INDEX_SECONDS_MAX = 1800.0
BUSY_WINDOW = 64
BESIDE_SECONDS = 4.0
URIS = 50_000
"""URIs of the jobs of busy connections: each is taken again soon."""


class Busy:
    """A connection that sends windows of requests one behind the other, and counts the replies."""

    def __init__(self, address: str, number: int) -> None:
        self.done = 0
        """Replies so far."""
        self._client = RawClient(address)
        self._number = number
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        client, at = self._client, 0
        while not self._ends.is_set():
            sets = [
                encode_request(
                    job(
                        b"busy:1:0:%d/%d" % (self._number, at + n),
                        (at + n) * 7 % URIS + self._number * URIS,
                    )
                )
                for n in range(BUSY_WINDOW)
            ]
            at += BUSY_WINDOW
            client.socket.sendall(b"".join(sets))
            self._receive(BUSY_WINDOW)
            leased = client.ask(build(Function.NEXT, b"busy", count=BUSY_WINDOW))
            self.done += 1
            ends = [
                encode_request(
                    build(Function.DELETE, pair.key, flags=Flag.WORKED_ON, timeout=leased.timeout)
                )
                for pair in leased.pairs or ()
            ]
            client.socket.sendall(b"".join(ends))
            self._receive(len(ends))

    def _receive(self, number: int) -> None:
        left = number * SUCCESS_BYTES
        while left:
            left -= len(self._client.socket.recv(left))
        self.done += number


def job(key: bytes, uri: int) -> Request:
    """Build the SET of a job."""
    return build(
        Function.SET, key, b"v" * 100, uri=b"https://example.org/%d" % uri, flags=Flag.PERSIST
    )


def measure_index(entries: int) -> None:
    """Print what the live index of so many entries costs."""
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        options = ("--http", "127.0.0.1:0", "--cmdlog-clean-int", "0", "--cmdlog-sync", "os")
        with (
            DaemonProcess(Path(name), *options, own_interpreter=True) as daemon,
            RawClient(daemon.address) as asking,
        ):
            # beside other load it takes minutes
            asking.socket.settimeout(INDEX_SECONDS_MAX)
            for first in range(0, entries, FILL_WINDOW):
                numbers = range(first, min(first + FILL_WINDOW, entries))
                asking.send(*(job(b"fill:1:0:%d" % n, CONNECTIONS * URIS + n) for n in numbers))
                left = len(numbers) * SUCCESS_BYTES
                while left:
                    left -= len(asking.socket.recv(left))
            for _ in range(entries // 10_000):
                asking.ask(build(Function.NEXT, b"fill", count=1000, timeout=3_600_000_000))
            snapshots_of(daemon, asking, entries)


def snapshots_of(daemon: DaemonProcess, asking: RawClient, entries: int) -> None:
    """Take snapshots of an idle daemon, and of a busy one."""
    http = re.findall(r"http=(\S+)", daemon.said())[0]
    resident = memory_of(daemon)

    def seconds() -> float:
        began = time.perf_counter()
        reply = asking.ask(build(Function.SNAPSHOT, count=1))
        assert not reply.error, reply.error
        return time.perf_counter() - began

    peaks: list[int] = []
    before = bucket_counts(http, TURNS)
    used = processor_seconds(daemon.pid)
    idle = [sampled(daemon, seconds, peaks) for _ in range(INDEXES)]
    used = (processor_seconds(daemon.pid) - used) / INDEXES
    print(
        f"{entries} entries, idle: {text_of(idle)} s, {used:.2f} s of a processor, "
        f"turns {longest(before, bucket_counts(http, TURNS))}"
    )
    growth = (max(peaks) - resident) / entries
    print(f"memory: {resident >> 20} MiB, grew by at most {growth:.1f} bytes an entry")
    busy = [Busy(daemon.address, number) for number in range(CONNECTIONS)]
    time.sleep(2)
    taken, beside, during = [], list[Rate](), list[Rate]()
    turns_beside, turns_during = list[str](), list[str]()
    for _ in range(INDEXES):
        before = bucket_counts(http, TURNS)
        beside.append(rate_of(daemon, busy, lambda: time.sleep(BESIDE_SECONDS)))
        between = bucket_counts(http, TURNS)
        during.append(rate_of(daemon, busy, lambda: taken.append(seconds())))
        turns_beside.append(longest(before, between))
        turns_during.append(longest(between, bucket_counts(http, TURNS)))
    print(f"busy: {text_of(taken)} s")
    for name, rates, lengths in (
        ("between", beside, turns_beside),
        ("during", during, turns_during),
    ):
        print(
            f"{name}: {text_of([rate.by_second for rate in rates])} requests a second, "
            f"{text_of([rate.by_processor for rate in rates])} a second of the processor; "
            f"turns {', '.join(lengths)}"
        )
    for each in busy:
        each.stop()
    print(f"load {os.getloadavg()[0]:.1f}")


class Rate(NamedTuple):
    """Requests of busy connections."""

    by_second: float
    by_processor: float
    """By the second of the daemon's processor."""


def rate_of(daemon: DaemonProcess, busy: list[Busy], do: Callable[[], object]) -> Rate:
    """Return the rate of the requests while something is done."""
    done, began, used = (
        sum(each.done for each in busy),
        time.perf_counter(),
        processor_seconds(daemon.pid),
    )
    do()
    number = sum(each.done for each in busy) - done
    return Rate(
        number / (time.perf_counter() - began), number / (processor_seconds(daemon.pid) - used)
    )


def sampled(daemon: DaemonProcess, ask: Callable[[], float], peaks: list[int]) -> float:
    """Call it, and note the largest memory of the daemon meanwhile."""
    ends = threading.Event()

    def look() -> None:
        while not ends.wait(0.02):
            peaks.append(memory_of(daemon))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        return ask()
    finally:
        ends.set()
        thread.join()


def memory_of(daemon: DaemonProcess) -> int:
    """Return the resident memory of the daemon in bytes."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


def longest(before: dict[float, int], after: dict[float, int]) -> str:
    """Tell how many turns were longer than some milliseconds, between two looks."""
    bounds, total = sorted(after), max(after.values()) - max(before.values())
    told = []
    for bound in bounds:
        longer = total - (after[bound] - before[bound])
        if 0.004 < bound < 0.2 and longer:
            told.append(f"{longer} over {bound * 1000:.1f} ms")
    return f"({', '.join(told) or 'none over 4.1 ms'} of {total})"


def text_of(figures: list[float]) -> str:
    """Tell the median, and from where to where figures go."""
    middle = statistics.median(figures)
    return f"{middle:.4g} ({min(figures):.4g} to {max(figures):.4g})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure snapshots.")
    parser.add_argument("entries", nargs="?", type=int, default=1_000_000)
    measure_index(parser.parse_args().entries)
