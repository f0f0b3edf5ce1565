"""Latency rows: a lease beside enqueues and scans, and the slowest page of the scans."""

from __future__ import annotations

from collections.abc import Collection

from tests.bench.peers.generator import Generator
from tests.bench.peers.rows import Aim, Measurements, Row
from tests.bench.peers.servers import Fastjournald, Server

LEASES = 1_000
LEASE = f"take:1:1:{LEASES}"
"""Load whose latency is measured."""
STREAM = "put:1:256:0"
SCAN = "scan:1:256:0"

TURN = "longest turn ms"
"""Upper bound of the histogram's bucket that has the longest turn of the event loop."""

ROWS = (
    Row(
        "lease-p99",
        "p99 of a lease beside enqueues and scans",
        "p99 us",
        (Aim(3_000), Aim(10, unit=TURN)),
    ),
    Row("slowest-page", "slowest page of 256 keys beside them", "us", (Aim(20_000),)),
)


def measure_latency(
    generator: Generator, server: Server, keys: Collection[str], into: Measurements
) -> None:
    """Measure a filled server once; what is enqueued beside is taken again."""
    if not any(row.key in keys for row in ROWS):
        return
    background = (STREAM, SCAN) if server.has_scans else (STREAM,)
    before = server.turns() if isinstance(server, Fastjournald) else {}
    lease, stream, *scans = generator.run(server, LEASE, *background).roles
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
    if stream.operations > LEASES:
        generator.run(server, f"take:1:64:{stream.operations - LEASES}")
