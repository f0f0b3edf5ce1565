"""Spark view entries of a snapshot: records a processor second, wall time and memory.

    python -m tests.bench.bench_entries_view [RECORDS] [DIRECTORY] [--links LINKS]
        [--component ENTRIES] [--ended] [--master MASTER]

The snapshot of ``bench_export``, or with ``--links`` one of entries with two links each, so of 1.5
records a link: in components of so many entries, each names a link of the one before. With
``--ended`` each entry is completed before the next one of its component comes, but for the last
one: as a daemon writes them, where a key stands for one entry at a time; without, all are live, as
only damage leaves them.

``local[2]``, and 1 GiB of heap, which is Spark's default. The session has run one job. Then
``load``, ``count`` and a write of all columns to nowhere: processor time of Java and of Python's
processes together. The memory is that of the Java machine of the driver, of those of executors, of
all Python processes together, and of the one that drives, each at most; pages that several share
count once (PSS). The driver of ``local[2]`` is the executor, too; ``local-cluster[1,2,1024]`` has
an executor in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame

from fastjournal.cmdlog.format.operation_records import Link
from fastjournal.cmdlog.format.segments import SegmentInfo, segment_name
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.spark import start_session
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.bench.bench_export import (
    GROUP_LIVE,
    GROUP_RECORDS,
    SEGMENT_BYTES,
    memory_of,
    write_snapshot,
)

SAMPLE_SECONDS = 0.2
LINKS = 2
"""Links of each entry."""
ENTRY_BYTES = 540
"""About the bytes of an entry with its links."""


class Shape(NamedTuple):
    """Shape of a log of links."""

    links: int
    component: int
    """Entries that are connected by links."""
    ended: bool
    """Whether each one is completed before the next one comes."""

    @property
    def entries(self) -> int:
        """Return the number of entries."""
        return self.links // LINKS

    @property
    def records(self) -> int:
        """Return the number of records, but for those of the segments."""
        ends = self.entries - -(-self.entries // self.component) if self.ended else 0
        return self.entries + self.links + ends


def write_linked_segment(directory: str, number: int, first: int, stop: int, shape: Shape) -> int:
    """Write a segment with these entries and their links; return its size."""
    builder = SegmentBuilder(
        number - 1, now_us=START_US + number * 100_000_000, ids_from=number << 32
    )
    for serial in range(first, stop):
        builder.now_us += 100
        key = b"host%03d.example:128:%016d:%d" % (serial % 200, builder.now_us, serial)
        uri = b"https://host.example/some/page/%d" % serial
        job = builder.entry(key, uri=uri, value=bytes(100), arrival=serial)
        component, place = divmod(serial, shape.component)
        for link in range(place, place + LINKS):
            builder.operation(Link(job, b"link/%d/%d" % (component, link)))
        if shape.ended and place + 1 < shape.component and serial + 1 < shape.entries:
            builder.complete(job, key)
    (Path(directory) / segment_name(number)).write_bytes(bytes(builder))
    return len(builder.data)


def write_linked_snapshot(directory: Path, shape: Shape) -> Path:
    """Write a log of links; return its snapshot."""
    log = directory / "log"
    log.mkdir()
    each = SEGMENT_BYTES // ENTRY_BYTES
    with ProcessPoolExecutor() as pool:
        tasks = [
            pool.submit(
                write_linked_segment, str(log), n, first, min(first + each, shape.entries), shape
            )
            for n, first in enumerate(range(0, shape.entries, each), 1)
        ]
        infos = [SegmentInfo(n, t.result(), 0, None, None, 0) for n, t in enumerate(tasks, 1)]
    snapshots = directory / "snapshots"
    return Path(take_snapshot(OsDisk(), str(log), str(snapshots), infos, START_US))


class Kind(StrEnum):
    """Kind of a process."""

    PYTHON = "Python"
    DRIVER = "Java of the driver"
    EXECUTOR = "Java of executors"


def processes() -> Iterator[tuple[int, Kind]]:
    """Yield this process and all that descend from it, and the kind of each."""
    todo = [(os.getpid(), False)]
    while todo:
        one, below_java = todo.pop()
        try:
            is_java = Path(f"/proc/{one}/comm").read_text().strip() == "java"
            for task in Path(f"/proc/{one}/task").iterdir():
                children = map(int, (task / "children").read_text().split())
                todo += ((child, below_java or is_java) for child in children)
        except OSError:
            # it has ended
            continue
        yield one, (Kind.EXECUTOR if below_java else Kind.DRIVER) if is_java else Kind.PYTHON


def processor_seconds() -> float:
    """Return the processor time of all these processes, and of those of them that have ended."""
    ticks = 0
    for one, _ in processes():
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Memory:
    """Largest memory of the processes of each kind, and of this one, sampled in a thread."""

    def __init__(self) -> None:
        self.most = dict.fromkeys(Kind, 0)
        self.driver = 0
        self._ended = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            now = dict.fromkeys(Kind, 0)
            for one, kind in processes():
                now[kind] += memory_of(one, descendants=False)
            self.most = {kind: max(self.most[kind], size) for kind, size in now.items()}
            self.driver = max(self.driver, memory_of(os.getpid(), descendants=False))

    def stop(self) -> None:
        """Stop sampling."""
        self._ended.set()


def main(records: int, directory: Path, shape: Shape, master: str) -> None:
    """Print what the view of a snapshot of so many records, or of this shape, takes."""
    found = sorted((directory / "snapshots").glob("*Z"))
    if found:
        snapshot = found[0]
    elif shape.links:
        snapshot = write_linked_snapshot(directory, shape)
    else:
        snapshot = write_snapshot(directory, records)
    size = sum(path.stat().st_size for path in snapshot.glob("*.log"))
    spark = start_session(master)
    spark.range(1).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    memory = Memory()

    def measured(name: str, work: Callable[[], int | DataFrame | None]) -> int | DataFrame | None:
        began, before = time.monotonic(), processor_seconds()
        result = work()
        took, spent = time.monotonic() - began, processor_seconds() - before
        print(f"{name}: {took:.1f} s, {spent:.1f} s of processor time", flush=True)
        return result

    before = processor_seconds()
    frame = measured(
        "load", lambda: spark.read.format("fastjournal").load(str(snapshot), view="entries")
    )
    assert isinstance(frame, DataFrame)
    rows = measured("count", frame.count)
    spent = processor_seconds() - before
    assert isinstance(rows, int)
    written = shape.records if shape.links else rows // GROUP_LIVE * GROUP_RECORDS
    print(f"{size / 1e6:,.0f} MB, {written:,} records, {rows:,} live entries: ", end="")
    print(f"{written / spent:,.0f} records a processor second")
    measured("write", lambda: frame.write.format("noop").mode("overwrite").save())
    memory.stop()
    sizes = ", ".join(f"{kind} {size / 2**20:,.0f} MiB" for kind, size in memory.most.items())
    print(f"{sizes} at most; the driver's Python {memory.driver / 2**20:,.0f} MiB of it")
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("records", nargs="?", type=int, default=300_000)
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--links", type=int, default=0)
    parser.add_argument("--component", type=int, default=200)
    parser.add_argument("--ended", action="store_true")
    parser.add_argument("--master", default="local[2]")
    told = parser.parse_args()
    wanted = Shape(told.links, told.component, told.ended)
    if told.directory is not None:
        main(told.records, told.directory, wanted, told.master)
    else:
        with tempfile.TemporaryDirectory() as made:
            main(told.records, Path(made), wanted, told.master)
