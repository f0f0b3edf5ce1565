"""History in files: the events of a table of events, a log or an archive, and their span."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet

from fastjournal.spark.history.commits import Commit, files_of, kept_from, read_commits
from fastjournal.spark.history.days import begin_us
from fastjournal.spark.history.event_rows import (
    BATCH_ROWS,
    EVENT_SCHEMA,
    batches_of,
    corrupt_batch,
)
from fastjournal.spark.history.gaps import gap_text, gaps_of
from fastjournal.spark.history.log_history import EventSpan, LogHistory
from fastjournal.spark.query.paths import list_directory
from fastjournal.spark.storage.files import below, read_file, resolve, translating
from fastjournal.spark.storage.table_files import open_files


class HistoryFile(NamedTuple):
    """A part of a history: one Parquet file of a table, or a whole log."""

    directory: str
    file: str = ""
    """Path from the directory of the table; empty: it is a log."""
    segment: int = 0
    """Segment that the events of the file come from."""
    permissive: bool = False
    """Gaps and damaged segments of the log become rows."""
    lost: tuple[str, ...] = ()
    """Gaps of a table: the part has a row for each of them, and no file."""


def history_files(directory: str, *, permissive: bool = False) -> list[HistoryFile]:
    """Return what can be read side by side.

    Args:
        directory: Path or URI of a table of events, the output of ``fj-nightly``, an archive, a
            snapshot or a log.
        permissive: Gaps become rows.

    Raises:
        BadRequestError: It is missing, or something else, which is named.
        LogCorruptError: A commit, or the manifest of a snapshot, cannot be understood; or segments
            of an archive are missing, and the mode is not permissive.
        LogFailedError: It cannot be read.
    """
    table = _table_of(directory)
    if table is None:
        history = LogHistory(directory)
        if not permissive:
            history.check_gaps()
        return [HistoryFile(directory, permissive=permissive)]
    commits = list(_commits(table))
    found = [HistoryFile(table, file, number) for number, file in files_of(commits)]
    gaps = gaps_of(commits)
    lost = tuple(f"{table}: {gap_text(gap.first, gap.last, gap.reason)}" for gap in gaps)
    return [*found, HistoryFile(table, lost=lost)] if permissive and lost else found


def read_events(part: HistoryFile) -> Iterator[pa.RecordBatch]:
    """Yield the events of a part as Arrow batches; then that of damage, if there is any.

    Raises:
        LogCorruptError: A segment is damaged, or missing in an archive.
        LogFailedError: A file cannot be read.
    """
    if part.lost:
        yield corrupt_batch(part.lost)
        return
    if part.file:
        files, path = resolve(part.directory)
        with translating("read", f"{path}/{part.file}"):
            data = pa.BufferReader(read_file(files, f"{path}/{part.file}"))
            found = pa.parquet.ParquetFile(data).read()
            segments = pa.array([part.segment] * found.num_rows, pa.int32())
            found = found.append_column("segment", segments).select(EVENT_SCHEMA.names)
            yield from found.cast(EVENT_SCHEMA).to_batches(BATCH_ROWS)
        return
    lost: list[str] | None = [] if part.permissive else None
    yield from batches_of(LogHistory(part.directory).events(lost))
    if lost:
        yield corrupt_batch(lost)


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
            for gap in gaps_of(commits)
            if not kept or gap.last >= first
        ],
    )


def _table_of(directory: str) -> str | None:
    """Return the directory of the table of events; None: there is none."""
    names = {str(info.base_name) for info in list_directory(directory)}
    if "_commits" in names:
        return directory
    return below(directory, "events") if "events" in names else None


def _commits(table: str) -> Iterator[Commit]:
    files, path = open_files(table)
    return read_commits(files, f"{path}/_commits")
