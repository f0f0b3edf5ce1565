"""Rows of the comparison with peers: keys, aims, measured values, and the JSON of a run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec

OURS = "fastjournald"
STREAMS = "Redis, streams"
LUA = "Redis, Lua"
BEANSTALKD = "beanstalkd"

RATE = "a second"
PROCESSOR = "processor us"
"""Unit of the server's processor time for an operation."""
GENERATOR = "generator share"
"""Unit of the share of one processor that the load generator had."""


class Aim(msgspec.Struct, frozen=True):
    """Limit that the median of a row has to keep.

    Args:
        limit: Least ratio to a peer, or greatest value.
        peer: Server that the ratio is to; empty: the value itself is limited.
        unit: Unit of the value; empty: that of the row.
        least: The value itself has to be at least the limit.
    """

    limit: float
    peer: str = ""
    unit: str = ""
    least: bool = False


class Row(msgspec.Struct, frozen=True):
    """Row of the table.

    Args:
        key: Word that chooses it on the command line.
        title: Text of the table.
        unit: Unit of its value.
        aims: Limits that it has to keep.
    """

    key: str
    title: str
    unit: str = RATE
    aims: tuple[Aim, ...] = ()


class Measured(msgspec.Struct):
    """One measured value of one server, all rounds of it."""

    row: str
    server: str
    unit: str
    values: list[float]

    @property
    def median(self) -> float:
        """Middle of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Distance of the greatest from the least value, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


class Report(msgspec.Struct):
    """Run of the benchmark, as its JSON has it."""

    commit: str
    machine: str
    rounds: int
    jobs: int
    """Waiting jobs of the large queue."""
    seconds: float
    """Duration of the run."""
    missing: list[str]
    """Peers that are not installed."""
    measured: list[Measured]

    def find(self, row: str, server: str, unit: str) -> Measured | None:
        """Return a measured value; None: it was not measured."""
        for each in self.measured:
            if (each.row, each.server, each.unit) == (row, server, unit):
                return each
        return None


class Verdict(msgspec.Struct, frozen=True):
    """Aim of a row with its measured value."""

    row: Row
    aim: Aim
    value: float

    @property
    def met(self) -> bool:
        """Whether the aim is met."""
        if self.aim.peer or self.aim.least:
            return self.value >= self.aim.limit
        return self.value <= self.aim.limit


class Measurements:
    """Values of all rounds, by row, server and unit."""

    def __init__(self) -> None:
        self._values: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)

    def add(self, row: str, server: str, unit: str, value: float) -> None:
        """Take the value of a round."""
        self._values[row, server, unit].append(value)

    def measured(self) -> list[Measured]:
        """Return them in the order in which they came."""
        return [Measured(*names, values) for names, values in self._values.items()]


def chosen(rows: Iterable[Row], only: Collection[str]) -> list[Row]:
    """Return the rows with these keys, or all if none is named.

    Raises:
        ValueError: A key is that of no row.
    """
    rows = list(rows)
    unknown = set(only) - {row.key for row in rows}
    if unknown:
        raise ValueError(f"no row has the key {', '.join(sorted(unknown))}")
    return [row for row in rows if not only or row.key in only]


def verdicts(report: Report, rows: Iterable[Row]) -> list[Verdict]:
    """Return the aims of the rows that were measured, each with its value."""
    found = []
    for row in rows:
        for aim in row.aims:
            unit = aim.unit or row.unit
            ours = report.find(row.key, OURS, unit)
            peer = report.find(row.key, aim.peer, unit) if aim.peer else None
            if ours is None or (aim.peer and (peer is None or not peer.median)):
                continue
            value = ours.median / peer.median if peer is not None else ours.median
            found.append(Verdict(row, aim, value))
    return found
