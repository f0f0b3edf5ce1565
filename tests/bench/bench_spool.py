"""Spool and forwarder: cost of an append, group commit, throughput of the forwarder, latency.

    python -m tests.bench.bench_spool [--only append,durable,forward,drop-ins,latency] [--rounds 5]

Each figure is the best of the rounds, for other work on the machine only adds; the figures of one
table alternate. Costs are processor time, which other programs change less than the clock on the
wall; throughputs and latencies are wall time, and worth something on a quiet machine only.

    append    processor time of ``Spool.append`` of 100 bytes with a URI; beside ``os.write`` of as
              many bytes, and an INSERT into SQLite (WAL)
    durable   appends a second, each on the disk when it returns: by one thread, and by 16
    forward   ``fj-forwarder`` from a full spool to a daemon that syncs: processor time of each of
              them for a record, without their starts, and records a second
    drop-ins  many files of one record each, delivered and deleted
    latency   from the append to the notification of a listener: idle, and at a rate
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from fastjournal.client.core.address import parse_address
from fastjournal.protocol import ClientConnection, Flag, Function, Query, Request, encode_request
from fastjournal.protocol.constants import QUERY_SHIFT
from fastjournal.spool import Spool
from fastjournal.spool.format import FILE_HEADER, encode_record
from tests.bench.one_connection import DIRECTORY
from tests.bench.paced import processor_seconds
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed

APPENDS = 20_000
DURABLE_SECONDS = 1.5
THREADS = 16
RECORDS = (2_000, 102_000)
"""Records of a short and a long run: their difference leaves out the start of the forwarder."""
DROP_INS = 20_000
IDLE_APPENDS = 200
IDLE_GAP_S = 0.02
WARM_UP = 5
RATES = (1_000, 10_000)
RATE_SECONDS = 3.0
START_SECONDS = 60.0
VALUE = b"x" * 100
URI = "https://example.org/some/page/%d.html"
RECORD_BYTES = 232
"""Bytes of such an append in its slot."""


Store = Callable[[int], object]
"""Stores the record of this number."""


class Opening(Protocol):
    """Opens a store in a directory."""

    def __call__(self, directory: Path, *, durable: bool) -> AbstractContextManager[Store]: ...


# --- what stores a record --------------------------------------------------------------------


@contextmanager
def spooling(directory: Path, *, durable: bool) -> Iterator[Store]:
    """Give ``Spool.append``."""
    with Spool(directory / "spool", durable=durable) as spool:
        yield lambda number: spool.append(domain="pages", uri=URI % number, value=VALUE)


@contextmanager
def writing(directory: Path, *, durable: bool) -> Iterator[Store]:
    """Give one ``os.write`` of as many bytes."""
    descriptor = os.open(directory / "plain", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    record = bytes(RECORD_BYTES)

    def store(_: int) -> None:
        os.write(descriptor, record)
        if durable:
            os.fdatasync(descriptor)

    try:
        yield store
    finally:
        os.close(descriptor)


@contextmanager
def inserting(directory: Path, *, durable: bool) -> Iterator[Store]:
    """Give an INSERT into SQLite in WAL mode, a transaction each."""
    connection = sqlite3.connect(
        directory / "table.db", isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
    connection.execute("CREATE TABLE work (id INTEGER PRIMARY KEY, uri TEXT, body BLOB)")
    insert = "INSERT INTO work (uri, body) VALUES (?, ?)"
    try:
        yield lambda number: connection.execute(insert, (URI % number, VALUE))
    finally:
        connection.close()


@contextmanager
def in_directory(opening: Opening, parent: str, *, durable: bool) -> Iterator[Store]:
    """Give a store in a directory of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="spool-", dir=parent) as directory,
        opening(Path(directory), durable=durable) as store,
    ):
        yield store


STORES: dict[str, Opening] = {
    "Spool.append": spooling,
    "os.write": writing,
    "SQLite (WAL)": inserting,
}


# --- append ----------------------------------------------------------------------------------


def report_appends(rounds: int) -> None:
    """Print what a record costs in each store, and how many times that of ``Spool.append``."""
    best = dict.fromkeys(STORES, float("inf"))
    for _ in range(rounds):
        for name, opening in STORES.items():
            with in_directory(opening, "/dev/shm", durable=False) as store:
                store(0)
                started = time.process_time()
                for number in range(APPENDS):
                    store(number)
                cost = (time.process_time() - started) / APPENDS
            best[name] = min(best[name], cost)
    for name, cost in best.items():
        print(f"append: {name}: {cost * 1e6:.1f} us, {cost / best['Spool.append']:.2f} times")


def report_durable(rounds: int) -> None:
    """Print how many records a second each store makes durable."""
    for threads in (1, THREADS):
        best = dict.fromkeys(STORES, 0.0)
        for _ in range(rounds):
            for name, opening in STORES.items():
                # one connection of SQLite serves one thread at a time
                if threads == 1 or opening is not inserting:
                    best[name] = max(best[name], durable_rate(opening, threads))
        for name, rate in best.items():
            if rate:
                print(f"durable, {threads} threads: {name}: {rate:,.0f} a second")


def durable_rate(opening: Opening, threads: int) -> float:
    """Return the records a second of so many threads, each of which waits for its record."""
    counts = [0] * threads
    with in_directory(opening, DIRECTORY, durable=True) as store:
        store(0)
        end = time.monotonic() + DURABLE_SECONDS

        def run(thread: int) -> None:
            while time.monotonic() < end:
                counts[thread] += 1
                store(counts[thread])

        started = time.monotonic()
        running = [threading.Thread(target=run, args=(each,)) for each in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return sum(counts) / (time.monotonic() - started)


# --- forwarder and daemon --------------------------------------------------------------------


def forward(records: int, *, drop_ins: bool = False) -> tuple[float, float, float]:
    """Empty a spool of so many records; return processor seconds of both, and wall seconds."""
    with tempfile.TemporaryDirectory(prefix="spool-", dir=DIRECTORY) as name:
        directory = Path(name)
        fill = put_drop_ins if drop_ins else append_records
        fill(directory, records)
        with DaemonProcess(directory, own_interpreter=True) as daemon:
            daemon_before = processor_seconds(daemon.pid)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            started = time.monotonic()
            command = [installed("fj-forwarder"), "--spool", directory / "spool", "--once"]
            command += ["--server", daemon.address, "--log-level", "warning"]
            subprocess.run(command, check=True)
            wall = time.monotonic() - started
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            return used, processor_seconds(daemon.pid) - daemon_before, wall


def append_records(directory: Path, records: int) -> None:
    """Append so many records to a new spool."""
    with spooling(directory, durable=False) as store:
        for number in range(records):
            store(number)


def put_drop_ins(directory: Path, records: int) -> None:
    """Put so many drop-ins of one record into a new spool."""
    spool, now_us = directory / "spool", time.time_ns() // 1000
    spool.mkdir()
    for number in range(records):
        key, uri = b"d:128:%016d:%d" % (now_us, number), URI.encode() % number
        at = now_us + number - records
        request = Request(Function.SET, 0, Flag.PERSIST, at, key, uri, 1, VALUE)
        data = FILE_HEADER + encode_record(encode_request(request))
        (spool / ".new.tmp").write_bytes(data)
        (spool / ".new.tmp").rename(spool / f"20261120T080000Z-{number}.fjs")


def report_drop_ins(rounds: int) -> None:
    """Print how many drop-ins the forwarder delivers in a second, and what one costs it."""
    taken = [forward(DROP_INS, drop_ins=True) for _ in range(rounds)]
    used, _, wall = map(min, zip(*taken, strict=True))
    print(f"drop-ins: {DROP_INS / wall:,.0f} a second, {used / DROP_INS * 1e6:.0f} us each")


def report_forwarding(rounds: int) -> None:
    """Print what a record costs the forwarder and the daemon, and how many go in a second."""
    short, long = RECORDS
    few = [forward(short) for _ in range(rounds)]
    many = [forward(long) for _ in range(rounds)]
    both = zip(zip(*few, strict=True), zip(*many, strict=True), strict=True)
    forwarder, daemon, wall = ((min(m) - min(f)) / (long - short) for f, m in both)
    print(f"forward: fj-forwarder {forwarder * 1e6:.1f} us of processor time a record")
    print(f"forward: fastjournald {daemon * 1e6:.1f} us of processor time a record")
    print(f"forward: {1 / wall:,.0f} records a second")


# --- latency ---------------------------------------------------------------------------------


def append_at(directory: str, gap_s: float, count: int, first: int = 0) -> None:
    """Append so many records, one after each gap; late ones are caught up."""
    with Spool(directory) as spool:
        started = time.monotonic()
        for number in range(count):
            early = started + number * gap_s - time.monotonic()
            if early > 0.0005 or gap_s > 0.001:
                time.sleep(max(0.0, early))
            spool.append(domain="pages", uri=URI % (first + number), value=VALUE)


class Listener:
    """A connection that hears of every entry of the domain."""

    def __init__(self, address: str) -> None:
        target = parse_address(address)
        self._socket = socket.create_connection((target.host, target.port))
        self._connection = ClientConnection()
        flags = Flag.LISTEN | Query.RANGE << QUERY_SHIFT
        request = Request(Function.GET, 1, flags, key=b"pages:", second_key=b"pages;", count=1)
        self._socket.sendall(encode_request(request))
        self._socket.settimeout(START_SECONDS)
        while not self._connection.next_events():
            self._connection.receive_data(self._socket.recv(1 << 16))

    def hear(self, count: int) -> list[float]:
        """Return the latencies of so many entries, in seconds, sorted."""
        latencies: list[float] = []
        while len(latencies) < count:
            self._connection.receive_data(self._socket.recv(1 << 16))
            now_us = time.time_ns() // 1000
            for told in self._connection.next_events():
                for pair in told.pairs or ():
                    stamp = pair.key.split(b":", 3)[3].partition(b"-")[0]
                    latencies.append((now_us - int(stamp, 16)) / 1e6)
        return sorted(latencies)


def latencies_at(gap_s: float, count: int) -> tuple[list[float], float]:
    """Return sorted latencies, and the share of a processor that the forwarder took."""
    with tempfile.TemporaryDirectory(prefix="spool-", dir=DIRECTORY) as name:
        directory = Path(name)
        spool = str(directory / "spool")
        with DaemonProcess(directory, own_interpreter=True) as daemon:
            command = [installed("fj-forwarder"), "--spool", spool]
            command += ["--server", daemon.address, "--log-level", "warning"]
            forwarder = subprocess.Popen(command)
            try:
                listener = Listener(daemon.address)
                append_at(spool, 0.1, WARM_UP, count)  # it is connected from here on
                listener.hear(WARM_UP)
                used, started = processor_seconds(forwarder.pid), time.monotonic()
                arguments = (spool, gap_s, count)
                producer = multiprocessing.get_context("spawn").Process(
                    target=append_at, args=arguments
                )
                producer.start()
                found = listener.hear(count)
                share = (processor_seconds(forwarder.pid) - used) / (time.monotonic() - started)
                producer.join()
            finally:
                forwarder.terminate()
                forwarder.wait(START_SECONDS)
    return found, share


def report_latencies(rounds: int) -> None:
    """Print how long it takes from an append until a listener hears of it."""
    loads = [("idle", IDLE_GAP_S, IDLE_APPENDS)]
    loads += [(f"{rate:,} a second", 1 / rate, int(rate * RATE_SECONDS)) for rate in RATES]
    for what, gap_s, count in loads:
        best: list[float] = []
        for _ in range(rounds):
            found, share = latencies_at(gap_s, count)
            if not best or found[count * 99 // 100] < best[count * 99 // 100]:
                best = found
        p50, p99 = (best[count * part // 100] * 1000 for part in (50, 99))
        print(
            f"latency, {what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {best[-1] * 1000:.1f} ms;"
            f" forwarder {share:.0%} of a processor",
            flush=True,
        )


REPORTS = {
    "append": report_appends,
    "durable": report_durable,
    "forward": report_forwarding,
    "drop-ins": report_drop_ins,
    "latency": report_latencies,
}


def main() -> None:
    """Run the benchmarks that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(REPORTS), help="some of: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", file=sys.stderr)
    for name in options.only.split(","):
        REPORTS[name](options.rounds)


if __name__ == "__main__":
    main()
