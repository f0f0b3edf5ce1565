"""Export of a snapshot as Parquet: records a processor second, wall time and memory.

    python -m tests.bench.bench_export [RECORDS] [DIRECTORY]

A snapshot as the daemon writes it, in segments of 64 MiB: of twelve records seven are entries with
a URI and 100 bytes; two of the entries are leased and completed, one is replaced through its URI,
four are live, and the snapshot names them. The memory is the largest sum over the processes of the
export, sampled; pages that they share count once (PSS).
"""

from __future__ import annotations

import ctypes
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import google_crc32c

from fastjournal.cmdlog.format.endings import REPLACED
from fastjournal.cmdlog.format.envelope import pack
from fastjournal.cmdlog.format.layout import Command, SegmentInfo, segment_name
from fastjournal.cmdlog.format.records import encode_head, encode_job, encode_time
from fastjournal.cmdlog.live_index import RUN_ENTRIES_MAX, LiveChanges, LiveIndexWriter
from fastjournal.cmdlog.snapshot import begin_snapshot
from fastjournal.disk import OsDisk
from fastjournal.testing.logs import START_US, SegmentBuilder

SEGMENT_BYTES = 64 * 1024 * 1024
GROUP_RECORDS = 12
GROUP_ENTRIES = 7
GROUP_LIVE = 4
DOMAINS = 200
EXPORT = """
import sys
from fastjournal.spark import export_snapshot
if __name__ == "__main__":
    print(export_snapshot(*sys.argv[1:]).rows)
"""


def write_segment(directory: str, number: int, groups: int) -> tuple[SegmentInfo, array[int]]:
    """Write one segment with so many groups of records; return its facts and its live records."""
    live: array[int] = array("Q")
    draw = random.Random(number)
    builder = SegmentBuilder(
        number - 1, now_us=START_US + number * 100_000_000, ids_from=number << 32
    )
    head = encode_head(b"example.org", 60_000, 2_592_000_000, 0, 0, 0)
    for group in range(groups):
        builder.now_us += 100
        now, entries = builder.now_us, []
        moment = encode_time(now)
        for index in range(GROUP_ENTRIES):
            serial = (number << 32) + group * GROUP_ENTRIES + index
            key = b"host%03d.example:128:%016d:%d" % (draw.randrange(DOMAINS), now, serial)
            # the last one takes the URI of the first one
            uri = b"https://host.example/some/page/%d" % (serial - index if index == 6 else serial)
            times = now, now, now, serial, now
            fields = (key, uri, [], 1, bytes(100), *times, 0, 0, 0, 0, 0, None, 0)
            job = builder.job_id()
            record = encode_job(Command.SCHEDULE, moment, job, head, pack(fields), moment, moment)
            if index >= GROUP_ENTRIES - GROUP_LIVE:
                live.append(len(builder.data))
            builder.record(record)
            entries.append((job, key))
        builder.complete(*entries[0], how=REPLACED + 1)
        leased = entries[1:3]
        for job, _ in leased:
            builder.simple(Command.START_ATTEMPT, job)
        for job, key in leased:
            builder.complete(job, key)
    data = bytes(builder)
    (Path(directory) / segment_name(number)).write_bytes(data)
    crc32c = google_crc32c.value(data)
    return SegmentInfo(number, len(data), crc32c, None, None, len(builder.offsets)), live


def write_snapshot(directory: Path, records: int) -> Path:
    """Write a log of about so many records; return its snapshot."""
    log = directory / "log"
    log.mkdir()
    # a group takes about 2,750 bytes
    groups = min(SEGMENT_BYTES // 2750, max(records // GROUP_RECORDS, 1))
    count = max(round(records / GROUP_RECORDS / groups), 1)
    with ProcessPoolExecutor() as pool:
        tasks = [pool.submit(write_segment, str(log), n, groups) for n in range(1, count + 1)]
        found = [task.result() for task in tasks]
    return finish_snapshot(directory, [(info, live, {}) for info, live in found])


def finish_snapshot(
    directory: Path, segments: Iterable[tuple[SegmentInfo, array[int], dict[int, LiveChanges]]]
) -> Path:
    """Take a snapshot of segments, whose live records and their changes are given."""
    segments = list(segments)
    infos = [info for info, _, _ in segments]
    log, snapshots = str(directory / "log"), str(directory / "snapshots")
    partial = begin_snapshot(OsDisk(), log, snapshots, infos, START_US)
    writer = LiveIndexWriter(partial.create_live_index().write, START_US, infos)
    for info, live, changes in segments:
        for first in range(0, len(live), RUN_ENTRIES_MAX):
            offsets = live[first : first + RUN_ENTRIES_MAX]
            writer.add_run(
                info.number, offsets, {at: changes[at] for at in offsets if at in changes}
            )
    return Path(partial.finish(writer.finish()))


_SYSCALL = ctypes.CDLL(None).syscall
"""For kcmp, which Python does not have."""


def memory_of(process: int, *, descendants: bool = True) -> int:
    """Return the proportional bytes of a process, and of its descendants."""
    return sum(memories_of(process, descendants=descendants).values())


def memories_of(process: int, *, descendants: bool = True) -> dict[str, int]:
    """Return the proportional bytes of a process, and of its descendants, by number and name."""
    found = dict[str, int]()
    todo = [(process, 0)]
    while todo:
        one, parent = todo.pop()
        if _share_memory(one, parent):
            # vfork: a child of Java, until it runs a program of its own
            continue
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            name = f"{one} {Path(f'/proc/{one}/comm').read_text().strip()}"
            kib = sum(int(line.split()[1]) for line in rollup.splitlines() if "Pss:" in line)
            found[name] = kib * 1024
            for task in Path(f"/proc/{one}/task").iterdir() if descendants else ():
                children = (task / "children").read_text().split()
                todo += ((int(child), one) for child in children)
        except OSError:
            # it has ended
            continue
    return found


def _share_memory(one: int, other: int) -> bool:
    """Return whether two processes have one address space, whose pages would count twice."""
    number = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
    same_memory = 1
    return number is not None and not _SYSCALL(number, one, other, same_memory, 0, 0)


def main(records: int, directory: Path) -> None:
    """Print what the export of a snapshot of so many records takes."""
    found = sorted((directory / "snapshots").glob("*Z"))
    snapshot = found[0] if found else write_snapshot(directory, records)
    size = sum(path.stat().st_size for path in snapshot.glob("*.log"))
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = [sys.executable, "-c", EXPORT, str(snapshot), str(directory / "out")]
    highest, most, after_s = 0, dict[str, int](), 0.0
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(directory)}
    ) as process:
        while process.poll() is None:
            now = memories_of(process.pid)
            if sum(now.values()) > highest:
                highest, most, after_s = sum(now.values()), now, time.monotonic() - began
            time.sleep(0.1)
        assert process.stdout is not None
        rows = int(process.stdout.read())
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    written = rows // GROUP_LIVE * GROUP_RECORDS
    print(f"{written:,} records, {rows:,} live entries, {size / 1e6:,.0f} MB")
    print(f"{wall:.1f} s, {spent:.1f} s of processor time, {written / spent:,.0f} records each")
    parts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in most.items())
    print(f"{highest / 2**20:,.0f} MiB at most, after {after_s:.0f} s: {parts}")


def run_with_arguments(main: Callable[[int, Path], None], records: int) -> None:
    """Run a benchmark as the command line says: number of records, directory that keeps the log."""
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else records
    if len(sys.argv) > 2:
        main(chosen, Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(chosen, Path(made))


if __name__ == "__main__":
    run_with_arguments(main, 300_000)
