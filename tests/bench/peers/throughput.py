"""Throughput rows: enqueue, move, lease and complete, each server once in a round."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from tests.bench.peers.rows import (
    BEANSTALKD,
    GENERATOR,
    LUA,
    PROCESSOR,
    RATE,
    STREAMS,
    Aim,
    Measurements,
    Row,
    note_limits,
    rounds_until,
)
from tests.bench.peers.servers import SERVERS, Beanstalkd, Generator, Server


class Scenario(msgspec.Struct, frozen=True):
    """Throughput of one way to use a queue.

    Args:
        row: Row of the table.
        role: Kind, connections and window of the generator.
        count: Operations of a round.
        slow_count: Those of beanstalkd, which syncs for each job by itself.
        policy: Sync policy.
    """

    row: Row
    role: str
    count: int
    slow_count: int
    policy: str = "always"


SCENARIOS = (
    Scenario(
        Row(
            "enqueue-1",
            "enqueue, 1 connection, one at a time",
            aims=(Aim(1.0, STREAMS),),
        ),
        "put:1:1",
        count=2_000,
        slow_count=1_280,
    ),
    Scenario(
        Row(
            "enqueue-50",
            "enqueue, 50 connections, one at a time",
            aims=(Aim(0.95, STREAMS), Aim(1.1, LUA)),
        ),
        "put:50:1",
        count=20_000,
        slow_count=2_560,
    ),
    Scenario(
        Row(
            "enqueue-256",
            "enqueue, 1 connection, windows of 256",
            aims=(Aim(1.1, STREAMS), Aim(1.4, LUA), Aim(25, BEANSTALKD)),
        ),
        "put:1:256",
        count=40_960,
        slow_count=2_560,
    ),
    Scenario(
        Row("move-256", "enqueue again, the URI waits, windows of 256", aims=(Aim(1.5, LUA),)),
        "move:1:256",
        count=20_480,
        slow_count=0,
    ),
    Scenario(
        Row(
            "take-64",
            "lease 64 + complete, 1 connection",
            aims=(Aim(1.0, STREAMS), Aim(1.2, LUA)),
        ),
        "take:1:64",
        count=20_480,
        slow_count=2_560,
    ),
    Scenario(
        Row("take-1", "lease 1 + complete, 1 connection", aims=(Aim(1.0, STREAMS),)),
        "take:1:1",
        count=1_000,
        slow_count=640,
    ),
    Scenario(
        Row(
            "enqueue-50-interval",
            "enqueue, 50 connections, synced at intervals",
            aims=(Aim(0.65, STREAMS),),
        ),
        "put:50:1",
        count=20_000,
        slow_count=20_000,
        policy="interval",
    ),
)
"""The same job on Redis is the server ``Redis, Lua``; streams and beanstalkd have no URI."""

INTERVAL_SHARE = 0.2
"""Share of the time that is kept for the policy ``interval``."""

ROWS = tuple(each.row for each in SCENARIOS)


def measure_throughput(
    generator: Generator,
    directory: Path,
    rounds: int,
    keys: Collection[str],
    into: Measurements,
    *,
    seconds: float,
) -> None:
    """Measure scenarios, each server once in a round; the first round warms up.

    Args:
        generator: Loads the servers.
        directory: Files of the servers.
        rounds: Rounds that count.
        keys: Rows that are measured.
        into: Gets the values.
        seconds: Fewer rounds are measured if they took longer.
    """
    end = time.monotonic() + seconds
    for policy, until in (("always", end - seconds * INTERVAL_SHARE), ("interval", end)):
        scenarios = [each for each in SCENARIOS if each.policy == policy and each.row.key in keys]
        if not scenarios:
            continue
        with running(directory, policy) as servers:
            for number in rounds_until(until, rounds + 1, least=2):
                measured = into if number else Measurements()
                note_limits(directory, measured)
                for scenario in scenarios:
                    for server in servers:
                        measure_round(generator, server, scenario, measured)


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


def measure_round(
    generator: Generator, server: Server, scenario: Scenario, measured: Measurements
) -> None:
    """Measure operations a second, and the processor time of server and generator.

    Jobs enqueued for a figure are taken again, jobs to be taken or moved are enqueued before, and
    no job is left at the end.
    """
    kind = scenario.role.partition(":")[0]
    if kind == "move" and not server.has_uris:
        return
    count = scenario.slow_count if isinstance(server, Beanstalkd) else scenario.count
    if kind != "put":
        generator.run(server, f"put:1:256:{count}")
    processor = server.processor_seconds()
    run = generator.run(server, f"{scenario.role}:{count}")
    used = server.processor_seconds() - processor
    if kind != "take":
        generator.run(server, f"take:1:64:{count}")
    generator.run(server, "empty:1:1:1")
    key, name = scenario.row.key, server.name
    measured.add(key, name, RATE, run.roles[0].rate)
    measured.add(key, name, PROCESSOR, used / count * 1e6)
    measured.add(key, name, GENERATOR, run.processor_share)
