"""Limits of the machine beside the figures: syncs, round trips, other work on its processors."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from pathlib import Path

from tests.bench.peers.rows import OURS, RATE, Measured, Measurements, Report

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
        f"Python {platform.python_version()}"
    )


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
