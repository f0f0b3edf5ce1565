"""Spark view entries of a snapshot or a log: records a processor second, wall time and memory.

    python -m tests.bench.bench_entries_view [RECORDS] [DIRECTORY] [--links LINKS] [--log]
        [--master MASTER]

The snapshot of ``bench_export``, or with ``--links`` one of entries with two links each, which
other records gave them: 1.5 records a link. With ``--log`` its log, which one process replays.

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
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from pathlib import Path

import google_crc32c
from pyspark.sql import DataFrame

from fastjournal.cmdlog.format.layout import SegmentInfo, segment_name
from fastjournal.cmdlog.format.operation_records import Link
from fastjournal.cmdlog.live_index import LiveChanges
from fastjournal.spark import start_session
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.bench.bench_export import (
    GROUP_LIVE,
    GROUP_RECORDS,
    SEGMENT_BYTES,
    finish_snapshot,
    memory_of,
    write_snapshot,
)

SAMPLE_SECONDS = 0.2
LINKS = 2
"""Links of each entry."""
ENTRY_BYTES = 540
"""About the bytes of an entry with its links."""


def write_linked_segment(
    directory: str, number: int, first: int, stop: int
) -> tuple[SegmentInfo, array[int], dict[int, LiveChanges]]:
    """Write a segment with these entries and their links; return its facts and live records."""
    builder = SegmentBuilder(
        number - 1, now_us=START_US + number * 100_000_000, ids_from=number << 32
    )
    changes: dict[int, LiveChanges] = {}
    for serial in range(first, stop):
        builder.now_us += 100
        now, offset = builder.now_us, len(builder.data)
        key = b"host%03d.example:128:%016d:%d" % (serial % 200, now, serial)
        uri = b"https://host.example/some/page/%d" % serial
        job = builder.entry(key, uri=uri, value=bytes(100), arrival=serial)
        links = [b"link/%d/%d" % (serial, link) for link in range(LINKS)]
        for link in links:
            builder.operation(Link(job, link))
        changes[offset] = LiveChanges(
            key, uri, links, not_before=0, timestamp=now, created=now, modified=now, expires=0,
            ttl=0, arrival=serial, attempts=0, token=0, superseded=0,
        )  # fmt: skip
    data = bytes(builder)
    (Path(directory) / segment_name(number)).write_bytes(data)
    crc32c = google_crc32c.value(data)
    info = SegmentInfo(number, len(data), crc32c, None, None, len(builder.offsets))
    return info, array("Q", changes), changes


def write_linked_snapshot(directory: Path, links: int) -> Path:
    """Write a log of entries with so many links; return its snapshot."""
    log = directory / "log"
    log.mkdir()
    each, entries = SEGMENT_BYTES // ENTRY_BYTES, links // LINKS
    with ProcessPoolExecutor() as pool:
        tasks = [
            pool.submit(write_linked_segment, str(log), n, first, min(first + each, entries))
            for n, first in enumerate(range(0, entries, each), 1)
        ]
        return finish_snapshot(directory, (task.result() for task in tasks))


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


def main(records: int, directory: Path, links: int, master: str, *, of_log: bool) -> None:
    """Print what the view of so many records, or of so many links, takes."""
    found = sorted((directory / "snapshots").glob("*Z"))
    if found:
        snapshot = found[0]
    elif links:
        snapshot = write_linked_snapshot(directory, links)
    else:
        snapshot = write_snapshot(directory, records)
    place = directory / "log" if of_log else snapshot
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
        "load", lambda: spark.read.format("fastjournal").load(str(place), view="entries")
    )
    assert isinstance(frame, DataFrame)
    rows = measured("count", frame.count)
    spent = processor_seconds() - before
    assert isinstance(rows, int)
    written = rows * (1 + LINKS) if links else rows // GROUP_LIVE * GROUP_RECORDS
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
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--master", default="local[2]")
    told = parser.parse_args()
    if told.directory is not None:
        main(told.records, told.directory, told.links, told.master, of_log=told.log)
    else:
        with tempfile.TemporaryDirectory() as made:
            main(told.records, Path(made), told.links, told.master, of_log=told.log)
