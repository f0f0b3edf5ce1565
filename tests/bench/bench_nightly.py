"""Nightly run over a day of many records: processor time, wall time and memory.

    python -m tests.bench.bench_nightly [RECORDS] [DIRECTORY] [--archive-only]

The log of one day in segments of 16 MiB, as the daemon writes it: of seventeen records eight are
entries with a URI and 100 bytes, four of them are leased in a group of four and completed, and
four stay live. The archive has all of its segments, the snapshot too. ``fj-nightly`` runs as a user
runs it. ``--archive-only`` takes the archive into the table of events, and nothing else.

The memory is the largest sum over the processes of the run, sampled; pages that they share count
once (PSS).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import google_crc32c

from fastjournal.cmdlog.archive import ArchivedSegment
from fastjournal.cmdlog.format.layout import SegmentInfo, segment_name
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.testing.logs import SegmentBuilder
from tests.bench.bench_export import memories_of

DAY = "2026-11-20"
BEGIN_US = int(datetime.fromisoformat(DAY).replace(tzinfo=UTC).timestamp()) * 1_000_000
DAY_US = 86_400_000_000
GROUP_RECORDS = 17
GROUP_ENTRIES = 8
GROUP_LEASES = 4
GROUPS_A_SEGMENT = 4_000
DOMAINS = 200
EXTRACT = """
import sys
from fastjournal.disk import OsDisk
from fastjournal.spark.history.archive_taking import take_archive
from fastjournal.spark.history.event_files import open_events
if __name__ == "__main__":
    print(take_archive(OsDisk(), sys.argv[1], open_events(sys.argv[2])[1]))
"""


def write_segment(directory: str, number: int, of: int, groups: int) -> SegmentInfo:
    """Write one segment of a day, as number ``number`` of ``of``; return its facts."""
    draw = random.Random(number)
    begin = BEGIN_US + (number - 1) * DAY_US // of
    step = DAY_US // of // (groups + 1)
    builder = SegmentBuilder(number - 1, now_us=begin, ids_from=number << 32)
    for group in range(groups):
        builder.now_us = begin + group * step
        domain = b"host%03d.example" % draw.randrange(DOMAINS)
        jobs = []
        for index in range(GROUP_ENTRIES):
            serial = number << 32 | group * GROUP_ENTRIES + index
            key = b"%s:128:%016d:%d" % (domain, builder.now_us, serial)
            uri = b"https://host.example/some/page/%d" % serial
            jobs.append((builder.entry(key, uri=uri, value=bytes(100), arrival=serial), key))
        builder.now_us += draw.randrange(step // 3)
        leased = jobs[:GROUP_LEASES]
        builder.lease([job for job, _ in leased], builder.now_us + 60_000_000)
        builder.now_us += draw.randrange(min(step // 3, 50_000_000))
        for job, key in leased:
            builder.complete(job, key)
    data = bytes(builder)
    (Path(directory) / segment_name(number)).write_bytes(data)
    crc32c = google_crc32c.value(data)
    return SegmentInfo(number, len(data), crc32c, begin, builder.now_us, len(builder.offsets))


def write_day(directory: Path, records: int) -> None:
    """Write log and snapshot of a day of about so many records."""
    log = directory / "log"
    log.mkdir(parents=True)
    groups = min(GROUPS_A_SEGMENT, max(records // GROUP_RECORDS, 1))
    count = max(round(records / GROUP_RECORDS / groups), 1)
    with ProcessPoolExecutor() as pool:
        tasks = [
            pool.submit(write_segment, str(log), n, count, groups) for n in range(1, count + 1)
        ]
        infos = [task.result() for task in tasks]
    taken_us = BEGIN_US + DAY_US + 1_000_000
    take_snapshot(OsDisk(), str(log), str(directory / "snapshots"), infos, taken_us)
    (directory / "names").write_text(
        "\n".join(f"{i.name} {ArchivedSegment(i.number, i.crc32c).name}" for i in infos)
    )


def link_archive(directory: Path) -> Path:
    """Return an archive with all segments: a run before has unlinked its own."""
    archive = directory / "archive"
    shutil.rmtree(archive, ignore_errors=True)
    archive.mkdir()
    for line in (directory / "names").read_text().splitlines():
        name, archived = line.split()
        os.link(directory / "log" / name, archive / archived)
    return archive


def times_of(process: int) -> dict[int, float]:
    """Return the seconds of processor time of a process and all its descendants, so far."""
    found, todo = dict[int, float](), [process]
    while todo:
        one = todo.pop()
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:
            # it has ended
            continue
        found[one] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def main(records: int, directory: Path, *, archive_only: bool) -> None:
    """Print what the run takes."""
    if not (directory / "names").exists():
        write_day(directory, records)
    archive, output = link_archive(directory), directory / "out"
    shutil.rmtree(output, ignore_errors=True)
    (snapshot,) = (directory / "snapshots").glob("*Z")
    size = sum(path.stat().st_size for path in archive.iterdir())
    written = len(list(archive.iterdir())) * GROUPS_A_SEGMENT * GROUP_RECORDS
    arguments = [sys.executable, "-c", EXTRACT, str(archive), str(output)]
    if not archive_only:
        program = str(Path(sys.executable).with_name("fj-nightly"))
        arguments = [program, "--snapshot", str(snapshot), "--archive", str(archive)]
        arguments += ["--output", str(output), "--date", DAY]
    began, spent = time.monotonic(), dict[int, float]()
    highest, at = dict[str, int](), 0.0
    tops = dict[str, int]()
    with subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(directory)}
    ) as process:
        while process.poll() is None:
            found = memories_of(process.pid)
            if sum(found.values()) > sum(highest.values()):
                highest, at = found, time.monotonic() - began
            tops = {name: max(found.get(name, 0), tops.get(name, 0)) for name in {*found, *tops}}
            spent |= times_of(process.pid)
            time.sleep(0.1)
    assert process.returncode == 0
    wall, busy = time.monotonic() - began, sum(spent.values())
    print(f"{written:,} records, {size / 1e6:,.0f} MB, load {os.getloadavg()[0]:.1f}")
    print(f"{wall:.1f} s, {busy:.1f} s of processor time, {written / busy:,.0f} records each")
    print("seconds of each process:", end=" ")
    print(*(f"{one:.1f}" for one in sorted(spent.values(), reverse=True) if one > 0.5))
    print(f"{sum(highest.values()) / 2**20:,.0f} MiB at most, after {at:.0f} s:", end=" ")
    print(*_in_mib(highest), sep=", ")
    print("at most in each process:", *_in_mib(tops), sep=" ")


def _in_mib(memories: dict[str, int]) -> list[str]:
    largest = sorted(memories.items(), key=lambda one: -one[1])
    return [f"{name} {size >> 20}" for name, size in largest if size >> 20 > 20]


if __name__ == "__main__":
    given = [one for one in sys.argv[1:] if not one.startswith("--")]
    chosen = int(given[0]) if given else 300_000
    only = "--archive-only" in sys.argv
    if len(given) > 1:
        main(chosen, Path(given[1]), archive_only=only)
    else:
        with tempfile.TemporaryDirectory() as made:
            main(chosen, Path(made), archive_only=only)
