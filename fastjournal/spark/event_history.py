"""History in files: the events of a log, an archive or a table of events, and their span.

Compaction rewrites segments of a log and removes records. A segment is whole if its size and
CRC-32C are those in the first record of the segment behind it; the last one always is. The history
of a log is that of its last whole segments, side by side. Segments before these give the jobs that
were alive then, and no events. All files of an archive are whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from typing import NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.parquet

from fastjournal.errors import LogCorruptError
from fastjournal.spark.days import begin_us
from fastjournal.spark.event_commits import Commit, files_of, kept_from, read_commits
from fastjournal.spark.event_extractor import EventExtractor, History
from fastjournal.spark.event_records import SegmentRows, read_rows, records_of
from fastjournal.spark.event_rows import BATCH_ROWS, EVENT_SCHEMA, Event, event_batch
from fastjournal.spark.files import (
    LOG_IN_USE,
    SegmentFile,
    below,
    read_file,
    resolve,
    translating,
)
from fastjournal.spark.paths import list_directory, open_log
from fastjournal.spark.rows import read_bytes
from fastjournal.spark.segment_identity import Sealed, sealed_before
from fastjournal.spark.table_files import open_files


class EventSpan(NamedTuple):
    """Span of segments, and of time, that the events of a directory are complete for."""

    first: int
    """Number of the first segment."""
    last: int
    first_us: int | None
    """Time of its first record, in microseconds since the Unix epoch; None: there is none."""
    last_us: int | None
    """Time of the last record."""
    gaps: list[tuple[int, int, str]]
    """Segments between them that are missing: first, last, reason."""


class HistoryFile(NamedTuple):
    """A part of a history: one Parquet file of a table, or a whole log."""

    directory: str
    file: str = ""
    """Path from the directory of the table; empty: it is a log."""
    segment: int = 0
    """Segment that the events of the file come from."""


def history_files(directory: str) -> list[HistoryFile]:
    """Return what can be read side by side.

    Args:
        directory: Path or URI of a table of events, the output of ``fj-nightly``, an archive, a
            snapshot or a log.

    Raises:
        BadRequestError: It is missing, or something else, which is named.
        LogCorruptError: A commit, or the manifest of a snapshot, cannot be understood.
        LogFailedError: It cannot be read.
    """
    table = _table_of(directory)
    if table is None:
        LogHistory(directory)
        return [HistoryFile(directory)]
    return [HistoryFile(table, file, number) for number, file in files_of(_commits(table))]


def read_events(part: HistoryFile) -> Iterator[pa.RecordBatch]:
    """Yield the events of a part as Arrow batches of ``EVENT_SCHEMA``.

    Raises:
        LogCorruptError: A segment is damaged.
        LogFailedError: A file cannot be read.
    """
    if part.file:
        files, path = resolve(part.directory)
        with translating("read", f"{path}/{part.file}"):
            data = pa.BufferReader(read_file(files, f"{path}/{part.file}"))
            found = pa.parquet.ParquetFile(data).read()
            segments = pa.array([part.segment] * found.num_rows, pa.int32())
            found = found.append_column("segment", segments).select(EVENT_SCHEMA.names)
            yield from found.cast(EVENT_SCHEMA).to_batches(BATCH_ROWS)
        return
    batch = list[Event]()
    for event in LogHistory(part.directory).events():
        batch.append(event)
        if len(batch) == BATCH_ROWS:
            yield event_batch(batch)
            batch.clear()
    yield event_batch(batch)


def event_span(directory: str | os.PathLike[str]) -> EventSpan | None:
    """Return what the view ``events`` of a directory is complete for; None: for nothing.

    Args:
        directory: As ``spark.read.format("fastjournal").option("view", "events")`` takes it.

    Raises:
        BadRequestError: It is missing, or something else, which is named.
        LogCorruptError: A segment or a commit cannot be understood.
        LogFailedError: It cannot be read.
    """
    table = _table_of(str(directory))
    if table is None:
        return LogHistory(str(directory)).span()
    commits = list(_commits(table))
    kept = kept_from(commits)
    begin = begin_us(date.fromisoformat(kept)) if kept else 0
    taken = [
        segment
        for commit in commits
        for segment in commit.segments
        if segment.last_us is None or segment.last_us >= begin
    ]
    if not taken:
        return None
    first = min(segment.number for segment in taken)
    begins = [max(one.first_us, begin) for one in taken if one.first_us is not None]
    return EventSpan(
        first,
        max(segment.number for segment in taken),
        min(begins, default=None),
        max((one.last_us for one in taken if one.last_us is not None), default=None),
        [
            (gap.first, gap.last, gap.reason)
            for commit in commits
            for gap in commit.gaps
            if not kept or gap.last >= first
        ],
    )


class LogHistory:
    """History of a log, a snapshot or an archive.

    Args:
        directory: Path or URI.

    Raises:
        BadRequestError: It is missing, or something else, which is named.
        LogFailedError: It cannot be read.
    """

    def __init__(self, directory: str) -> None:
        self._files, _ = resolve(directory)
        log = open_log(directory)
        self.is_archive = log.is_archive
        self.segments = log.segments
        """All segments, ascending."""

    def whole(self) -> list[SegmentFile]:
        """Return the last whole segments, side by side, with the checksums that are known."""
        found = list[SegmentFile]()
        told: Sealed | None = None
        for segment in reversed(self.segments):
            data = read_bytes(self._files, segment)
            crc32c = google_crc32c.value(data)
            if segment.crc32c not in (None, crc32c):
                raise LogCorruptError("the segment has another checksum", path=segment.path)
            if not self.is_archive and told not in (None, (segment.number, len(data), crc32c)):
                break
            # nothing tells the checksum of a log's last segment: its records have theirs
            checked = self.is_archive or told is not None or segment.crc32c is not None
            found.append(_sealed(segment, len(data), crc32c if checked else None))
            told = sealed_before(data, segment)
        return found[::-1]

    def events(self) -> Iterator[Event]:
        """Yield the events of the whole segments."""
        whole = {segment.number: segment for segment in self.whole()}
        extractor = EventExtractor(History())
        for segment in self.segments:
            counts = segment.number in whole
            rows = self._rows(whole.get(segment.number, segment)).table
            for event in extractor.extract(records_of(rows, segment.number)):
                if counts:
                    yield event

    def span(self) -> EventSpan | None:
        """Return the segments and instants of the whole segments; None: there is no record."""
        whole = self.whole()
        if not whole:
            return None
        numbers = [segment.number for segment in whole]
        gaps = [
            (number + 1, following - 1, "missing")
            for number, following in pairwise(numbers)
            if following > number + 1
        ]
        first = self._rows(whole[0])
        last = first if len(whole) == 1 else self._rows(whole[-1])
        return EventSpan(numbers[0], numbers[-1], first.first_us, last.last_us, gaps)

    def _rows(self, segment: SegmentFile) -> SegmentRows:
        data = read_bytes(self._files, segment)
        if segment.crc32c not in (None, google_crc32c.value(data)):
            raise LogCorruptError(
                "the segment has changed while it was read", path=segment.path, hint=LOG_IN_USE
            )
        return read_rows(data, segment)


def _sealed(segment: SegmentFile, size: int, crc32c: int | None) -> SegmentFile:
    return SegmentFile(segment.path, segment.number, size, segment.last, segment.open, crc32c)


def _table_of(directory: str) -> str | None:
    """Return the directory of the table of events; None: there is none."""
    names = {str(info.base_name) for info in list_directory(directory)}
    if "_commits" in names:
        return directory
    return below(directory, "events") if "events" in names else None


def _commits(table: str) -> Iterator[Commit]:
    files, path = open_files(table)
    return read_commits(files, f"{path}/_commits")
