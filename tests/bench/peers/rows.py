"""Rows of the comparison with peers: keys, aims, measured values, limits of the machine, rounds."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

OURS = "fastjournald"
PURE = "fastjournald, pure"
"""Without native leaves."""
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
        most: The ratio has to be at most the limit.
    """

    limit: float
    peer: str = ""
    unit: str = ""
    least: bool = False
    most: bool = False


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
        if (self.aim.peer and not self.aim.most) or self.aim.least:
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


# --- limits of the machine ------------------------------------------------------------------------

MACHINE = "machine"
SYNCS = "appends of 200 bytes with fdatasync a second"
ECHOES = "echo round trips over loopback a second"
OTHER_WORK = "processors busy with other work"

OTHER_WORK_MAX = 0.2
"""Median of the processors that others use on a quiet machine."""
SPREAD_MAX = 1.0
"""Spread of the limits on a quiet machine, as a share of their medians."""

FIGURE_SPREAD_MAX = 0.5
"""The same of a figure of fastjournald."""
FIGURES = (RATE, "us", "p99 us", "ratio")
"""Units of the figures that each round measures."""

SAMPLE_S = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


def note_limits(directory: Path, into: Measurements) -> None:
    """Measure the limits of the machine once, while the servers have nothing to do."""
    into.add(MACHINE, "", OTHER_WORK, other_work())
    into.add(MACHINE, "", SYNCS, syncs_a_second(directory))
    into.add(MACHINE, "", ECHOES, echoes_a_second())


def other_work(seconds: float = SAMPLE_S) -> float:
    """Return how many processors are busy, with what other machines on the same host take."""
    before = busy_seconds()
    started = time.perf_counter()
    time.sleep(seconds)
    return (busy_seconds() - before) / (time.perf_counter() - started)


def busy_seconds() -> float:
    """Return the seconds that all processors were busy or not to be had (steal) so far."""
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user
    fields = [int(field) for field in Path("/proc/stat").read_text().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS


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


def described() -> str:
    """Return processors, system and interpreter."""
    return (
        f"{os.cpu_count()} processors, {platform.system()} {platform.release().partition('-')[0]}, "
        f"{interpreter()}"
    )


_PROBE = """
import platform, sysconfig
options = str(sysconfig.get_config_var("CONFIG_ARGS")) + str(sysconfig.get_config_var("CFLAGS"))
is_optimised = "--enable-optimizations" in options or "-fprofile-use" in options
try:
    from fastjournal import _native
except ImportError:
    reason = "the checkout has none"
else:
    reason = _native.reason
print(
    f"Python {platform.python_version()}",
    f"({'' if is_optimised else 'no '}profile-guided optimisation in its build options)",
    f"without native leaves ({reason})" if reason else "with native leaves",
)
"""


def interpreter(python: str = sys.executable, environment: Mapping[str, str] = os.environ) -> str:
    """Return the version of an interpreter, and whether it is optimised and runs native leaves.

    Builds without profile-guided optimisation are a fifth slower.

    Args:
        python: The interpreter of a checkout.
        environment: Variables that it is started with.
    """
    command = [python, "-P", "-c", _PROBE]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def disturbances(report: Report) -> list[str]:
    """Return the reasons why the machine was not quiet; none: it was."""
    reasons = []
    other = report.find(MACHINE, "", OTHER_WORK)
    if other is not None and other.median > OTHER_WORK_MAX:
        reasons.append(f"other work kept {other.median:.1f} processors busy")
    for name, unit in (("syncs", SYNCS), ("echo round trips", ECHOES)):
        limit = report.find(MACHINE, "", unit)
        if limit is not None and limit.spread > SPREAD_MAX:
            reasons.append(f"{name} a second went from {_range(limit)}")
    ours = [each for each in report.measured if each.server == OURS and each.unit in FIGURES]
    wide = [each.row for each in ours if each.spread > FIGURE_SPREAD_MAX]
    if wide:
        reasons.append(
            f"{len(wide)} of {len(ours)} figures of {OURS} spread over more than "
            f"{FIGURE_SPREAD_MAX:.0%} of their median ({', '.join(wide)})"
        )
    rounds = min((len(each.values) for each in ours), default=report.rounds)
    if rounds < report.rounds:
        reasons.append(f"only {rounds} of {report.rounds} rounds were done in time")
    return reasons


def _range(limit: Measured) -> str:
    return f"{min(limit.values):,.0f} to {max(limit.values):,.0f}"


def rounds_until(
    end: float, number: int, *, least: int = 1, clock: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """Yield the numbers of rounds, while one more as long as the longest ends in time.

    Args:
        end: Seconds of the clock.
        number: Rounds at most.
        least: Rounds at least, in time or not.
        clock: Returns the present in seconds.
    """
    longest = 0.0
    for each in range(number):
        began = clock()
        if each >= least and began + longest > end:
            return
        yield each
        longest = max(longest, clock() - began)
