"""Archives of a ledger's log, and the event files of an output, as tests of both look at them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Executor
from contextlib import closing
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from fastjournal.spark.history.archive_taking import known_gaps, take_archive
from fastjournal.spark.history.coverage import MissingSegments, gaps_of
from fastjournal.spark.history.event_files import BESIDE, EventDirectory
from fastjournal.spark.storage.table_files import DiskFiles, TableFiles
from tests.property.event_ledger import ARCHIVE, EventLedger
from tests.property.ledger_run import LedgerRun

OUTPUT = "/output"
EVENTS = f"{OUTPUT}/events"


def events_on(disk: Any, output: str = OUTPUT) -> EventDirectory:
    """Return the event files of an output on a disk."""
    return EventDirectory(DiskFiles(disk, f"{output}/{BESIDE}"), f"{output}/events")


def take(
    disk: Any,
    executor: Executor | None = None,
    *,
    files: TableFiles | None = None,
    parallel: int = 1,
) -> int:
    """Take the archive; return the number of rows written."""
    events = events_on(disk) if files is None else EventDirectory(files, EVENTS)
    return take_archive(disk, ARCHIVE, events, executor, parallel=parallel)


def gaps(events: EventDirectory, disk: Any = None) -> list[MissingSegments]:
    """Return the gaps of a history; with a disk those that its archive names, too."""
    known, last = ([], 0) if disk is None else known_gaps(disk, ARCHIVE)
    return gaps_of(events.segments(), known, last)


def named(found: list[MissingSegments]) -> list[tuple[int, int, str]]:
    """Return gaps without their time."""
    return [(gap.first, gap.last, gap.reason) for gap in found]


@cache
def kinds_in(data: bytes) -> Counter[str]:
    """Count the rows of a file by kind; a night that goes on behind a failure has many again."""
    table = pa.parquet.ParquetFile(pa.BufferReader(data)).read(["event"], use_threads=False)
    return Counter(table["event"].to_pylist())


def counts_of(events: EventDirectory) -> Counter[tuple[str, str]]:
    """Count the rows of all files by UTC day and kind."""
    counts = Counter[tuple[str, str]]()
    for file in events.listed():
        for kind, count in kinds_in(events.files.read(f"{events.path}/{file.path}")).items():
            counts[file.day, kind] += count
    return counts


def rows_of(events: EventDirectory) -> list[dict[str, Any]]:
    """Return the rows of all files."""
    return [row for file in events.listed() for row in events.read(file).to_pylist()]


def archived(count: int) -> tuple[LedgerRun, list[str]]:
    """Return a run with so many archived segments of three SETs, and their paths."""
    run = LedgerRun(EventLedger(1), 0, lambda _: None)
    more(run, count)
    return run, waiting(run.log.disk)


def more(run: LedgerRun, count: int) -> None:
    """Archive more segments."""
    for _ in range(count):
        run.ledger.pass_time(1)
        run.log.fill(3, key=b"a:1:0:%d-%%d" % run.log.writer.next_number)
        run.log.roll()
    run.archive_sealed()


def waiting(disk: Any) -> list[str]:
    """Return the paths of the segments in the archive."""
    return sorted(f"{ARCHIVE}/{name}" for name in disk.listdir(ARCHIVE) if name.endswith(".log"))


def grown(text: str) -> tuple[LedgerRun, list[str]]:
    """Return a run whose archive has a segment twice, and both paths, the shorter first."""
    run = LedgerRun(EventLedger(1), 0, lambda _: None)
    log = run.log
    log.fill(3, key=b"a:1:0:%s-%%d" % text.encode())
    log.roll()
    run.archive_sealed()
    log.config.archive_dir = ""
    log.restart()
    log.fill(2, key=b"a:1:0:more-%d")
    log.config.archive_dir = ARCHIVE
    log.restart()
    run.open()
    run.archive_sealed()
    paths = waiting(log.disk)
    assert [path.rpartition("/")[2][:9] for path in paths] == ["000000001"] * 2
    return run, sorted(paths, key=log.disk.size)


def write(disk: Any, path: str, data: bytes) -> None:
    """Write a file; one that is there is replaced."""
    if disk.exists(path):
        disk.unlink(path)
    with closing(disk.create(path)) as file:
        file.write(data)
