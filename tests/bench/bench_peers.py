"""Throughput, latency, memory and start beside Redis and beanstalkd, in interleaved rounds.

    python -m tests.bench.bench_peers [--rounds 5] [--jobs 1000000] [--json FILE]

All servers run on this machine, with their files on one disk, bodies of 100 bytes, and are loaded
over loopback by ``peers/load.c``, which checks every reply. The same job is done by fastjournald
and by Redis with the scripts of ``peers/redis_queue.py``; a Redis stream and beanstalkd have no
deduplication key. In each round every server has its turn, so that a machine whose speed drifts
favours none; a figure is the median of the rounds, a ratio that of the medians. The first round
warms up and does not count. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tests.bench.one_connection import DIRECTORY
from tests.bench.peers.generator import Generator
from tests.bench.peers.servers import SERVERS, Beanstalkd, Server

SMALL = 10_000
"""Waiting jobs of the small queue that growth is measured against."""

BACKGROUND = ("put:1:256:0", "scan:1:256:0")
"""Load beside which the latency of a lease is measured."""


class Scenario(msgspec.Struct, frozen=True):
    """Throughput of one way to use a queue.

    Args:
        name: Row of the table.
        role: Kind, connections and window of the generator.
        count: Operations of a round.
        policy: Of the syncs.
    """

    name: str
    role: str
    count: int
    policy: str = "always"


SCENARIOS = (
    Scenario("enqueue, 1 connection, one at a time", "put:1:1", 2_000),
    Scenario("enqueue, 50 connections, one at a time", "put:50:1", 20_000),
    Scenario("enqueue, 1 connection, windows of 256", "put:1:256", 40_960),
    Scenario("lease 64 + complete, 1 connection", "take:1:64", 20_480),
    Scenario("lease 1 + complete, 1 connection", "take:1:1", 1_000),
    Scenario("enqueue, 50 connections, synced at intervals", "put:50:1", 20_000, "interval"),
)

SLOW = 8
"""beanstalkd syncs for each job by itself: it does so many times fewer in a round."""


class Row(msgspec.Struct):
    """One measured value of one server, all rounds of it."""

    scenario: str
    server: str
    unit: str
    values: list[float]

    @property
    def median(self) -> float:
        """Middle of the rounds."""
        return statistics.median(self.values)


class Measurements:
    """Values of all rounds, by scenario, server and unit."""

    def __init__(self) -> None:
        self._values: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)

    def add(self, scenario: str, server: str, unit: str, value: float) -> None:
        """Take the value of a round."""
        self._values[scenario, server, unit].append(value)

    def rows(self) -> list[Row]:
        """Return them in the order in which they came."""
        return [Row(*names, values) for names, values in self._values.items()]


# --- throughput ---------------------------------------------------------------------------------


def measure_throughput(generator: Generator, directory: Path, rounds: int) -> list[Row]:
    """Measure all scenarios, each server once in a round."""
    measured = Measurements()
    for policy in ("always", "interval"):
        scenarios = [each for each in SCENARIOS if each.policy == policy]
        with running(directory, policy) as servers:
            for number in range(rounds + 1):
                limits = {"syncs": syncs_a_second(directory), "echo round trips": echoes_a_second()}
                for scenario in scenarios:
                    for server in servers:
                        rate, processor = measure_round(generator, server, scenario)
                        if number:
                            measured.add(scenario.name, server.name, "a second", rate)
                            measured.add(scenario.name, server.name, "processor us", processor)
                if number:
                    for what, rate in limits.items():
                        measured.add(f"machine: {what}", "limit", "a second", rate)
    return measured.rows()


@contextmanager
def running(directory: Path, policy: str) -> Iterator[list[Server]]:
    """Start all servers that are installed."""
    with ExitStack() as stack:
        servers = []
        for kind in SERVERS:
            if kind.is_installed():
                server = kind(directory, policy)
                stack.callback(server.stop)
                server.start()
                servers.append(server)
        yield servers


def measure_round(generator: Generator, server: Server, scenario: Scenario) -> tuple[float, float]:
    """Return operations a second, and microseconds of the server's processor time for each.

    What is enqueued for a figure is taken again, and what is to be taken is enqueued before.
    """
    count = scenario.count
    if isinstance(server, Beanstalkd) and scenario.policy == "always":
        count = max(count // SLOW, 1) // 64 * 64
    taking = scenario.role.startswith("take")
    if taking:
        generator.run(server, f"put:1:256:{count}")
    processor = server.processor_seconds()
    (figures,) = generator.run(server, f"{scenario.role}:{count}")
    used = server.processor_seconds() - processor
    if not taking:
        generator.run(server, f"take:1:64:{count}")
    return figures.rate, used / count * 1e6


# --- growth, latency, memory, start -------------------------------------------------------------


def measure_large(generator: Generator, directory: Path, rounds: int, jobs: int) -> list[Row]:
    """Fill each server with waiting jobs; measure what that costs it."""
    measured = Measurements()
    for kind in SERVERS:
        if kind.is_installed():
            server = kind(directory, "always")
            try:
                measure_filled(generator, server, measured, rounds, jobs)
            finally:
                server.stop()
    return measured.rows()


def measure_filled(
    generator: Generator, server: Server, measured: Measurements, rounds: int, jobs: int
) -> None:
    """Measure one server with few and with many waiting jobs, and start it again."""
    server.start(lax=True)
    empty = server.resident_bytes()
    generator.run(server, f"put:1:256:{SMALL}")
    server.stop()
    server.start()
    small = enqueue_rates(generator, server, rounds)
    server.stop()
    server.start(lax=True)
    generator.run(server, f"put:1:256:{jobs}")
    measured.add("memory of a job", server.name, "bytes", (server.resident_bytes() - empty) / jobs)
    server.stop()
    for _ in range(rounds):
        seconds = server.start()
        measured.add("start, a job", server.name, "us", seconds / jobs * 1e6)
        server.stop()
    server.start()
    large = enqueue_rates(generator, server, rounds)
    for before, after in zip(small, large, strict=True):
        measured.add(f"enqueue at {jobs:,} against {SMALL:,}", server.name, "ratio", after / before)
    for _ in range(rounds):
        background = BACKGROUND if server.has_scans else BACKGROUND[:1]
        lease, *others = generator.run(server, "take:1:1:1000", *background)
        measured.add("lease beside enqueues and scans", server.name, "p99 us", lease.p99_us)
        for scan in others[1:]:
            measured.add("slowest page beside enqueues", server.name, "us", scan.max_us)


def enqueue_rates(generator: Generator, server: Server, rounds: int) -> list[float]:
    """Return enqueues a second of some rounds; what they enqueue is taken again."""
    count = 2_560 if isinstance(server, Beanstalkd) else 20_480
    rates = []
    for _ in range(rounds):
        rates.append(generator.run(server, f"put:1:256:{count}")[0].rate)
        generator.run(server, f"take:1:64:{count}")
    return rates


# --- the machine --------------------------------------------------------------------------------


def syncs_a_second(directory: Path, count: int = 500) -> float:
    """Return how many appends of 200 bytes the disk takes, each with fdatasync."""
    path = directory / "syncs"
    with open(path, "wb", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(count):
            file.write(bytes(200))
            os.fdatasync(file.fileno())
        seconds = time.perf_counter() - started
    path.unlink()
    return count / seconds


def echoes_a_second(count: int = 2_000) -> float:
    """Return round trips of 17 bytes over loopback, between two threads of Python."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    with client, peer:
        for each in (client, peer):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def echo() -> None:
            while data := peer.recv(64):
                peer.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        started = time.perf_counter()
        for _ in range(count):
            client.sendall(bytes(17))
            client.recv(64)
        seconds = time.perf_counter() - started
        client.shutdown(socket.SHUT_WR)
        thread.join()
    return count / seconds


# --- output -------------------------------------------------------------------------------------


def show(rows: list[Row], console: Console) -> None:
    """Print a line for each scenario and server, with the ratio of ours to it."""
    table = Table("scenario", "server", "unit", "median", "min", "max", "fastjournald is")
    ours = {(row.scenario, row.unit): row.median for row in rows if row.server == "fastjournald"}
    for row in rows:
        mine = ours.get((row.scenario, row.unit))
        ratio = f"{mine / row.median:.2f} x" if mine and row.median else ""
        low, high = min(row.values), max(row.values)
        figures = (
            f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in (row.median, low, high)
        )
        table.add_row(row.scenario, row.server, row.unit, *figures, ratio)
    console.print(table)


def commit() -> str:
    """Return the commit that is measured."""
    command = ("git", "describe", "--always", "--dirty")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Measure, print, and write the values of all rounds as JSON."""
    parser = argparse.ArgumentParser(description="Measure fastjournald beside its peers.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="waiting jobs; 0: none")
    parser.add_argument("--json", type=Path, help="file for the values of all rounds")
    given = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 140)
    for kind in SERVERS:
        if not kind.is_installed():
            console.print(f"{kind.name}: {kind.program} is not installed, and left out")
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        generator = Generator(Path(name))
        (throughput := Path(name) / "throughput").mkdir()
        rows = measure_throughput(generator, throughput, given.rounds)
        if given.jobs:
            (large := Path(name) / "large").mkdir()
            rows += measure_large(generator, large, given.rounds, given.jobs)
    show(rows, console)
    if given.json:
        result = {"commit": commit(), "rows": rows}
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")


if __name__ == "__main__":
    main()
