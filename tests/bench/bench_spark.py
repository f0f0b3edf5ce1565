"""Spark package: records a processor second, wall time and memory.

    python -m tests.bench.bench_spark [export|view|nightly|events] [RECORDS] [DIRECTORY]
        [--log] [--master MASTER]

One day of records, in segments of 16 MiB as the daemon writes them: of eighteen records eight are
entries with a URI and 100 bytes, four of them are leased together and completed, the last one takes
the URI of the first one, and three stay live. The snapshot has a live index. The directory keeps
the log for another run. Measured is, each in a process of its own:

    export   the Parquet export of the snapshot
    view     the view entries of the snapshot, or with ``--log`` of its log: ``load``, ``count``
             and a write of all columns to nowhere; 1 GiB of heap, which is Spark's default, and
             a session that has run one job
    nightly  ``fj-nightly``, as a user runs it, over snapshot and archive
    events   the archive becomes the table of events, and nothing else

Processor time is that of all processes, Java's included. The memory is the largest sum over the
processes, sampled, and of each process the most; pages that they share count once (PSS).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import google_crc32c

from fastjournal.cmdlog.archive import ArchivedSegment
from fastjournal.cmdlog.format.endings import REPLACED
from fastjournal.cmdlog.format.layout import SegmentInfo, segment_name
from fastjournal.cmdlog.live_index import RUN_ENTRIES_MAX, LiveIndexWriter
from fastjournal.cmdlog.snapshot import begin_snapshot
from fastjournal.disk import OsDisk
from fastjournal.testing.logs import SegmentBuilder
from tests.integration.programs import installed

DAY = "2026-11-20"
BEGIN_US = int(datetime.fromisoformat(DAY).replace(tzinfo=UTC).timestamp()) * 1_000_000
DAY_US = 86_400_000_000
SEGMENT_GROUPS = 4_000
ENTRIES, LEASES, LIVE = 8, 4, 3
"""Entries of a group, those of them that are leased and completed, and that stay."""
RECORDS = ENTRIES + 2 + 2 * LEASES
DOMAINS = 200
SAMPLE_SECONDS = 0.1

EXPORT = """
import sys
from fastjournal.spark import export_snapshot
if __name__ == "__main__":
    print(export_snapshot(sys.argv[1], sys.argv[2]).rows, "live entries")
"""
VIEW = """
import sys, time
from fastjournal.spark import start_session
if __name__ == "__main__":
    place, master = sys.argv[1:]
    spark = start_session(master)
    spark.range(1).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    def measured(name, work):
        began = time.monotonic()
        result = work()
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        return result
    frame = measured("load", lambda: spark.read.format("fastjournal").load(place, view="entries"))
    print(measured("count", frame.count), "live entries")
    measured("write", lambda: frame.write.format("noop").mode("overwrite").save())
    spark.stop()
"""
EVENTS = """
import sys
from fastjournal.disk import OsDisk
from fastjournal.spark.history.archive_taking import take_archive
from fastjournal.spark.history.event_files import open_events
if __name__ == "__main__":
    print(take_archive(OsDisk(), sys.argv[1], open_events(sys.argv[2])[1]), "events")
"""


# --- the log --------------------------------------------------------------------------------------


def write_segment(
    directory: Path, number: int, of: int, groups: int
) -> tuple[SegmentInfo, array[int]]:
    """Write segment ``number`` of ``of``; return its facts and its live records."""
    live: array[int] = array("Q")
    draw = random.Random(number)
    begin = BEGIN_US + (number - 1) * DAY_US // of
    step = DAY_US // of // (groups + 1)
    builder = SegmentBuilder(number - 1, now_us=begin, ids_from=number << 32)
    for group in range(groups):
        builder.now_us = begin + group * step
        jobs = []
        for index in range(ENTRIES):
            serial = (number << 32) + group * ENTRIES + index
            key = b"host%03d.example:128:%016d:%d" % (
                draw.randrange(DOMAINS),
                builder.now_us,
                serial,
            )
            page = serial - index if index == ENTRIES - 1 else serial
            uri = b"https://host.example/some/page/%d" % page
            if index >= ENTRIES - LIVE:
                live.append(len(builder.data))
            jobs.append((builder.entry(key, uri=uri, value=bytes(100), arrival=serial), key))
        builder.complete(*jobs[0], how=REPLACED + 1)
        builder.now_us += draw.randrange(step // 3)
        leased = jobs[1 : LEASES + 1]
        builder.lease([job for job, _ in leased], builder.now_us + 60_000_000)
        builder.now_us += draw.randrange(min(step // 3, 50_000_000))
        for job, key in leased:
            builder.complete(job, key)
    data = bytes(builder)
    (directory / segment_name(number)).write_bytes(data)
    crc32c = google_crc32c.value(data)
    facts = SegmentInfo(number, len(data), crc32c, begin, builder.now_us, len(builder.offsets))
    return facts, live


def write_day(directory: Path, records: int) -> None:
    """Write log and snapshot of a day of about so many records."""
    log = directory / "log"
    log.mkdir(parents=True)
    groups = min(SEGMENT_GROUPS, max(records // RECORDS, 1))
    count = max(round(records / RECORDS / groups), 1)
    with ProcessPoolExecutor() as pool:
        tasks = [pool.submit(write_segment, log, n, count, groups) for n in range(1, count + 1)]
        segments = [task.result() for task in tasks]
    infos = [info for info, _ in segments]
    taken_us = BEGIN_US + DAY_US + 1_000_000
    partial = begin_snapshot(OsDisk(), str(log), str(directory / "snapshots"), infos, taken_us)
    writer = LiveIndexWriter(partial.create_live_index().write, taken_us, infos)
    for info, live in segments:
        for first in range(0, len(live), RUN_ENTRIES_MAX):
            writer.add_run(info.number, live[first : first + RUN_ENTRIES_MAX], {})
    partial.finish(writer.finish())


def link_archive(directory: Path) -> Path:
    """Return an archive with all segments: a run before has unlinked its own."""
    archive = directory / "archive"
    shutil.rmtree(archive, ignore_errors=True)
    archive.mkdir()
    for path in (directory / "log").glob("*.log"):
        crc32c = google_crc32c.value(path.read_bytes())
        os.link(path, archive / ArchivedSegment(int(path.stem), crc32c).name)
    return archive


# --- what a run takes -----------------------------------------------------------------------------

_SYSCALL = ctypes.CDLL(None).syscall
"""For kcmp, which Python does not have."""


def looked_at(process: int) -> tuple[dict[str, int], dict[int, float]]:
    """Return proportional bytes by process, and processor seconds; of it and its descendants."""
    sizes, seconds = dict[str, int](), dict[int, float]()
    todo = [(process, 0)]
    while todo:
        one, parent = todo.pop()
        if _share_memory(one, parent):
            # vfork: a child of Java, until it runs a program of its own
            continue
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            name = f"{one} {Path(f'/proc/{one}/comm').read_text().strip()}"
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += ((int(child), one) for child in (task / "children").read_text().split())
        except OSError:
            # it has ended
            continue
        kib = sum(int(line.split()[1]) for line in rollup.splitlines() if "Pss:" in line)
        sizes[name] = kib * 1024
        seconds[one] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return sizes, seconds


def _share_memory(one: int, other: int) -> bool:
    """Return whether two processes have one address space, whose pages would count twice."""
    number = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
    same_memory = 1
    return number is not None and not _SYSCALL(number, one, other, same_memory, 0, 0)


def run(arguments: list[str], directory: Path, records: int) -> None:
    """Run a command and print what it takes."""
    began, spent = time.monotonic(), dict[int, float]()
    highest, tops, at = 0, dict[str, int](), 0.0
    with subprocess.Popen(arguments, env={**os.environ, "TMPDIR": str(directory)}) as process:
        while process.poll() is None:
            sizes, seconds = looked_at(process.pid)
            if sum(sizes.values()) > highest:
                highest, at = sum(sizes.values()), time.monotonic() - began
            tops = {name: max(sizes.get(name, 0), tops.get(name, 0)) for name in {*sizes, *tops}}
            spent |= seconds
            time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        sys.exit(process.returncode)
    wall, busy = time.monotonic() - began, sum(spent.values())
    print(f"{wall:.1f} s, {busy:.1f} s of processor time, {records / busy:,.0f} records each")
    print("seconds of each process:", end=" ")
    print(*(f"{one:.1f}" for one in sorted(spent.values(), reverse=True) if one > 0.5))
    print(
        f"{highest / 2**20:,.0f} MiB at most, after {at:.0f} s; at most in each process:", end=" "
    )
    largest = sorted(tops.items(), key=lambda one: -one[1])
    print(*(f"{name} {size >> 20}" for name, size in largest if size >> 20 > 20), sep=", ")


def measure(given: argparse.Namespace, directory: Path) -> None:
    """Print what the chosen work takes."""
    if not (directory / "log").exists():
        write_day(directory, given.records)
    (snapshot,) = map(str, (directory / "snapshots").glob("*Z"))
    output = str(directory / "out")
    shutil.rmtree(output, ignore_errors=True)
    segments = list((directory / "log").glob("*.log"))
    size = sum(path.stat().st_size for path in segments)
    records = given.records // RECORDS * RECORDS
    print(f"{records:,} records, {size / 1e6:,.0f} MB, load {os.getloadavg()[0]:.1f}", flush=True)
    archive = str(link_archive(directory))
    place = str(directory / "log") if given.log else snapshot
    night = ["--snapshot", snapshot, "--archive", archive, "--output", output, "--date", DAY]
    commands = {
        "export": [sys.executable, "-c", EXPORT, snapshot, output],
        "view": [sys.executable, "-c", VIEW, place, given.master],
        "nightly": [installed("fj-nightly"), *night],
        "events": [sys.executable, "-c", EVENTS, archive, output],
    }
    run(commands[given.what], directory, records)


def main() -> None:
    """Measure one of the four."""
    parser = argparse.ArgumentParser(description="Measure the Spark package.")
    parser.add_argument("what", nargs="?", choices=("export", "view", "nightly", "events"))
    parser.add_argument("records", nargs="?", type=int, default=300_000)
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--log", action="store_true", help="view: the log, not its snapshot")
    parser.add_argument("--master", default="local[2]")
    parser.set_defaults(what="export")
    given = parser.parse_args()
    if given.directory is not None:
        measure(given, given.directory)
    else:
        with tempfile.TemporaryDirectory() as made:
            measure(given, Path(made))


if __name__ == "__main__":
    main()
