"""Task of the extraction of events: read one segment, and write its events by UTC day.

A task runs in this process, in one of a pool, or in an executor of Spark. Names of files have the
identifier of the run, so that a task that outlives its run spoils nothing: no commit names what it
writes. Memory of a task is bounded by a segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.parquet

from fastjournal.cmdlog.archive_format import ArchivedSegment
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.history.day_tables import EventDay, day_of
from fastjournal.spark.history.extractor import extract_events, outer_times
from fastjournal.spark.records.stream_segments import NOTHING, Sealed, sealed_before
from fastjournal.spark.storage.files import SegmentFile
from fastjournal.spark.storage.table_files import DiskFiles, TableFiles

WORK = "_work"
GONE, DAMAGED = "gone", "damaged"


class CommitFiles(NamedTuple):
    """Places of the files of one commit."""

    disk: Disk
    archive: str
    files: TableFiles
    directory: str
    """Directory of the table."""
    run: str
    """Identifier of this run."""
    kept_from: str
    """UTC day before which no events are written."""

    def of_task(self) -> CommitFiles:
        """Return the same for a task that may run twice at once, as Spark may let it."""
        if not isinstance(self.files, DiskFiles):
            return self
        return self._replace(files=self.files.of_task())


class Version(NamedTuple):
    """A version of a segment whose events are in the table."""

    bytes: int
    crc32c: int


class ReadSegment(NamedTuple):
    """Facts of a segment that a task has read."""

    file: ArchivedSegment
    lost: str = ""
    """Reason why nothing of it was read: ``GONE``, ``DAMAGED``; empty: all was."""
    bytes: int = 0
    first_us: int | None = None
    last_us: int | None = None
    files: tuple[str, ...] = ()
    """Files with its events, from the directory of the table."""
    rows: int = 0
    before: Sealed = NOTHING
    """The segment before it, as its first record says."""


def read_segment(
    work: CommitFiles, file: ArchivedSegment, versions: Sequence[Version]
) -> ReadSegment:
    """Read a segment, and write its events.

    Args:
        work: Places.
        file: The segment.
        versions: Shorter versions of it whose events were taken.

    Raises:
        LogFailedError: Something cannot be read or written.
    """
    work, path = work.of_task(), f"{work.archive}/{file.name}"
    try:
        data = work.disk.read(path)
    except LogFailedError:
        if work.disk.exists(path):
            raise
        return ReadSegment(file, GONE)
    if google_crc32c.value(data) != file.crc32c:
        return ReadSegment(file, DAMAGED)
    segment = SegmentFile(file.name, file.number, len(data), False, False, file.crc32c)
    taken = (one.bytes for one in versions if google_crc32c.value(data[: one.bytes]) == one.crc32c)
    days = defaultdict[str, EventDay](EventDay)
    try:
        for event in extract_events(data, segment, max(taken, default=0)):
            days[day_of(event.time)].add(event)
        first_us, last_us = outer_times(data, segment)
    except LogCorruptError:
        return ReadSegment(file, DAMAGED)
    written, rows = [], 0
    for day in sorted(days):
        if day >= work.kept_from:
            place = f"day={day}/segment={file.number:09d}-{file.crc32c:08x}"
            written.append(f"{place}/part-{work.run}.parquet")
            rows += days[day].rows
            put_parquet(work.files, f"{work.directory}/{written[-1]}", days[day].table())
    before = sealed_before(data)
    return ReadSegment(file, "", len(data), first_us, last_us, tuple(written), rows, before)


def put_parquet(files: TableFiles, path: str, table: pa.Table) -> None:
    """Write a Parquet file."""
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink, compression="zstd")
    files.put(path, sink.getvalue().to_pybytes())
