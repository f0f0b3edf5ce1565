"""Throughput, latency, memory and start beside Redis and beanstalkd, in interleaved rounds.

    python -m tests.bench.bench_peers [--rounds 5] [--jobs 1000000] [--only ROW,ROW]
        [--minutes 25] [--json FILE]

All servers run on this machine, with their files on one disk, bodies of 100 bytes, and are loaded
over loopback by ``peers/load.c``, which checks every reply. The same job is done by fastjournald
and by Redis with the scripts of ``peers/redis_queue.py``; a Redis stream and beanstalkd have no
deduplication key. Where native leaves run, fastjournald without them has a column, too. In each
round every server has its turn, so that a machine whose speed drifts favours none; a figure is the
median of the rounds, a ratio that of the medians. The first round of the throughput warms up and
does not count. Each round measures the limits of the machine too, and the report says if other work
disturbed it. Peers that are not installed are left out.
``peers/page.py`` writes docs/performance.md from the JSON: ``make bench-peers`` does both.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec

from tests.bench.one_connection import DIRECTORY
from tests.bench.peers.filled import measure_filled
from tests.bench.peers.page import ROWS, render
from tests.bench.peers.rows import Measurements, Report, chosen, described
from tests.bench.peers.servers import SERVERS, FastjournaldPure, Generator
from tests.bench.peers.throughput import measure_throughput

THROUGHPUT_SHARE = 0.4
"""Share of the time that the throughput has at most."""


def commit() -> str:
    """Return the commit that is measured."""
    command = ("git", "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def measure(rounds: int, jobs: int, keys: set[str], minutes: float) -> Report:
    """Run the benchmark.

    Args:
        rounds: Rounds that count.
        jobs: Waiting jobs of the large queue; 0: leave its rows out.
        keys: Those of the rows that are measured.
        minutes: A slow machine measures fewer rounds, so that it takes about as long.
    """
    seconds = minutes * 60
    measured = Measurements()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as name:
        generator = Generator(Path(name))
        (throughput := Path(name) / "throughput").mkdir()
        share = seconds * THROUGHPUT_SHARE if jobs else seconds
        measure_throughput(generator, throughput, rounds, keys, measured, seconds=share)
        if jobs:
            (large := Path(name) / "large").mkdir()
            left = started + seconds - time.monotonic()
            measure_filled(generator, large, rounds, jobs, keys, measured, seconds=left)
    peers = (kind for kind in SERVERS if kind is not FastjournaldPure)
    missing = [kind.name for kind in peers if not kind.is_installed()]
    taken = time.monotonic() - started
    return Report(commit(), described(), rounds, jobs, taken, missing, measured.measured())


def main() -> None:
    """Measure, print, and write the values of all rounds as JSON."""
    parser = argparse.ArgumentParser(description="Measure fastjournald beside its peers.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="waiting jobs; 0: none")
    parser.add_argument("--only", default="", help="keys of rows, with commas between them")
    parser.add_argument("--minutes", type=float, default=25, help="fewer rounds if it takes longer")
    parser.add_argument("--json", type=Path, help="file for the values of all rounds")
    given = parser.parse_args()
    try:
        rows = chosen(ROWS, [key for key in given.only.split(",") if key])
    except ValueError as error:
        parser.error(f"{error}; there are {', '.join(row.key for row in ROWS)}")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
    for kind in SERVERS:
        if not kind.is_installed():
            missing = "no native leaves are loaded" if kind is FastjournaldPure else "not installed"
            print(f"{kind.name} is left out: {missing}")
    report = measure(given.rounds, given.jobs, {row.key for row in rows}, given.minutes)
    print(render(report))
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


if __name__ == "__main__":
    main()
