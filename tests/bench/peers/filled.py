"""Rows of a large queue: growth, memory, start and latency of servers with many waiting jobs."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from tests.bench.peers.rows import STREAMS, Aim, Measurements, Row, note_limits, rounds_until
from tests.bench.peers.servers import SERVERS, Beanstalkd, Fastjournald, Figures, Generator, Server

SMALL = 10_000
"""Waiting jobs of the small queue that growth is measured against."""

ROWS = (
    Row("growth", f"enqueue at many jobs against {SMALL:,}", "ratio", (Aim(0.85, least=True),)),
    Row("memory", "resident memory of a waiting job", "bytes", (Aim(560),)),
    Row("memory-domains", f"the same, {SMALL:,} in 1,000 domains", "bytes", (Aim(620),)),
    Row("start", "start, a waiting job", "us", (Aim(4),)),
    Row("start-small", f"start, a waiting job of {SMALL:,}", "us", (Aim(12),)),
)


def measure_filled(
    generator: Generator,
    directory: Path,
    rounds: int,
    jobs: int,
    keys: Collection[str],
    into: Measurements,
    *,
    seconds: float,
) -> None:
    """Fill each server with waiting jobs, and measure it once in a round, behind a start.

    The server with few jobs goes on all the time.

    Args:
        generator: Loads the servers.
        directory: Files of the servers.
        rounds: Rounds that count.
        jobs: Waiting jobs.
        keys: Rows that are measured.
        into: Gets the values.
        seconds: Fewer rounds are measured if they took longer.
    """
    end = time.monotonic() + seconds
    if not any(row.key in keys for row in ROWS + LATENCY_ROWS):
        return
    with ExitStack() as stack:
        pairs = []
        for kind in SERVERS:
            if kind.is_installed():
                (small_directory := directory / f"{kind.__name__}-small").mkdir()
                small, large = kind(small_directory, "always"), kind(directory, "always")
                stack.callback(small.stop)
                stack.callback(large.stop)
                fill(generator, small, SMALL)
                small.start()
                grown = fill(generator, large, jobs)
                if "memory" in keys:
                    into.add("memory", large.name, "bytes", grown / jobs)
                if "memory-domains" in keys and isinstance(large, Fastjournald):
                    (spread_directory := directory / f"{kind.__name__}-spread").mkdir()
                    grown = fill(generator, kind(spread_directory, "always"), SMALL, "spread")
                    into.add("memory-domains", large.name, "bytes", grown / SMALL)
                pairs.append((small, large))
        for number in rounds_until(end, rounds):
            note_limits(directory, into)
            for small, large in pairs:
                start_seconds = large.start()
                if "start" in keys:
                    into.add("start", large.name, "us", start_seconds / jobs * 1e6)
                if "start-small" in keys:
                    small.stop()
                    into.add("start-small", small.name, "us", small.start() / SMALL * 1e6)
                if "growth" in keys:
                    # neither is always the first
                    in_turn = (small, large) if number % 2 else (large, small)
                    rates = {server: enqueue_rate(generator, server) for server in in_turn}
                    into.add("growth", large.name, "ratio", rates[large] / rates[small])
                measure_latency(generator, large, keys, into)
                large.stop()


def fill(generator: Generator, server: Server, jobs: int, kind: str = "put") -> int:
    """Enqueue jobs without syncs, stop the server, and return the resident bytes that they took.

    A scan of all keys comes before, so that the index that it needs counts too.

    Args:
        generator: Loads the server.
        server: It has no jobs.
        jobs: Number of jobs.
        kind: How they are enqueued: ``put`` or ``spread``.
    """
    server.start(lax=True)
    empty = server.resident_bytes()
    generator.run(server, f"{kind}:1:256:{jobs}")
    if server.has_scans:
        generator.run(server, f"scan:1:256:{max(jobs // 256, 1)}")
    grown = server.resident_bytes() - empty
    server.stop()
    return grown


def enqueue_rate(generator: Generator, server: Server) -> float:
    """Return enqueues a second; what they enqueue is taken again."""
    count = 2_560 if isinstance(server, Beanstalkd) else 20_480
    rate = generator.run(server, f"put:1:256:{count}").roles[0].rate
    generator.run(server, f"take:1:64:{count}")
    return rate


# --- latency --------------------------------------------------------------------------------------

LEASES = 1_000
"""Leases whose latency is measured, one after the other."""
FEW_LEASES = 300
"""Leases beside which other pages are measured."""
STREAM = "put:1:256:0"
SCAN = "scan:1:256:0"
OTHER_SCANS = {"slowest-page-all": "scan:1:0:0", "slowest-page-regex": "search:1:0:0"}
"""Scans that only fastjournald has, by their row."""

TURN = "longest turn ms"
"""Upper bound of the histogram's bucket that has the longest turn of the event loop."""

LATENCY_ROWS = (
    Row(
        "lease-p99",
        "p99 of a lease beside enqueues and scans",
        "p99 us",
        (Aim(1.0, STREAMS, most=True), Aim(10, unit=TURN)),
    ),
    Row("slowest-page", "slowest page of 256 keys beside them", "us", (Aim(20_000),)),
    Row("slowest-page-all", "slowest page with count 0", "us", (Aim(20_000),)),
    Row("slowest-page-regex", "slowest page of REGEX, one match in ten", "us", (Aim(20_000),)),
)


def measure_latency(
    generator: Generator, server: Server, keys: Collection[str], into: Measurements
) -> None:
    """Measure a filled server once; what is enqueued beside is taken again."""
    if not any(row.key in keys for row in LATENCY_ROWS):
        return
    background = (STREAM, SCAN) if server.has_scans else (STREAM,)
    before = server.turns() if isinstance(server, Fastjournald) else {}
    lease, *scans = lease_beside(generator, server, LEASES, *background)
    if isinstance(server, Fastjournald):
        after = server.turns()
        longest = min(
            bound
            for bound in after
            if after[bound] - before[bound] == after[float("inf")] - before[float("inf")]
        )
        into.add("lease-p99", server.name, TURN, longest * 1e3)
    into.add("lease-p99", server.name, "p99 us", lease.p99_us)
    for scan in scans:
        into.add("slowest-page", server.name, "us", scan.max_us)
    for key, pages in OTHER_SCANS.items():
        if key in keys and isinstance(server, Fastjournald):
            _, scan = lease_beside(generator, server, FEW_LEASES, STREAM, pages)
            into.add(key, server.name, "us", scan.max_us)


def lease_beside(
    generator: Generator, server: Server, leases: int, *background: str
) -> list[Figures]:
    """Return the figures of leases and scans beside a stream, whose jobs are taken again."""
    lease, stream, *scans = generator.run(server, f"take:1:1:{leases}", *background).roles
    if stream.operations > leases:
        generator.run(server, f"take:1:64:{stream.operations - leases}")
    return [lease, *scans]
