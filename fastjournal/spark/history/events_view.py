"""View ``events``: event files, or events of a log, a snapshot or an archive as they stand."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from fastjournal.errors import LogFailedError
from fastjournal.spark.decoding.view_columns import sql_schema
from fastjournal.spark.history.coverage import gap_text, gaps_of
from fastjournal.spark.history.event_files import (
    EVENTS,
    EventDirectory,
    EventFile,
    kept_from_us,
    open_events,
)
from fastjournal.spark.history.event_rows import (
    BATCH_ROWS,
    EVENT_COLUMNS,
    batches_of,
    corrupt_batch,
)
from fastjournal.spark.history.log_history import EventSpan, LogHistory
from fastjournal.spark.query.paths import list_directory
from fastjournal.spark.storage.files import below, hadoop_glob, hadoop_uri, is_s3
from fastjournal.spark.storage.store_frames import read_parquet
from fastjournal.spark.storage.table_files import open_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS = 64
"""Parts of event files: to begin a task takes more of a processor than to read a small file."""


def events(
    spark: SparkSession,
    output: str | os.PathLike[str],
    *,
    days: Collection[date] | None = None,
    missing_ok: bool = False,
) -> DataFrame:
    """Return the events of an output, with their UTC day in the column ``day``.

    Args:
        spark: Any session; executors reach the directory.
        output: Directory in which ``events`` stands, as ``fj-nightly --output`` has it: a path or
            URI.
        days: UTC days; files of others are not looked at. None: all.
        missing_ok: Whether a directory without any file has no rows, instead of being an error.

    Raises:
        LogCorruptError: Another program has written there.
        LogFailedError: There are no events, or they cannot be read.
    """
    place, directory = open_events(os.fspath(output))
    files = directory.listed()
    if not files and not missing_ok:
        raise LogFailedError(
            "there are no events",
            path=directory.path,
            hint="name the --output of an fj-nightly that has run with --archive, or its --history",
        )
    wanted = None if days is None else {str(day) for day in days}
    files = [file for file in files if wanted is None or file.day in wanted]
    schema = f"{sql_schema(EVENT_COLUMNS)}, day DATE"
    if not files:
        found = spark.createDataFrame([], schema)
    elif is_s3(place):
        uris = [below(place, file.path) for file in files]
        found = read_parquet(spark, uris, schema.replace("day DATE", "day STRING"), ("day",))
        found = found.withColumn("day", found["day"].cast("date"))
    else:
        # without a scheme Spark would look in the file system of fs.defaultFS
        paths = sorted({f"{hadoop_glob(place)}/day={file.day}" for file in files})
        found = spark.read.schema(schema).option("basePath", hadoop_uri(place)).parquet(*paths)
    return found.select("day", *(column.name for column in EVENT_COLUMNS))


class HistoryPart(NamedTuple):
    """A part of a history that a task reads: some event files, or a whole log."""

    directory: str
    files: tuple[EventFile, ...] = ()
    """Empty: it is a log, or has only gaps."""
    permissive: bool = False
    """Gaps and damaged segments of the log become rows."""
    lost: tuple[str, ...] = ()
    """Gaps of event files: the part has a row for each of them, and no file."""


def history_parts(directory: str, *, permissive: bool = False) -> list[HistoryPart]:
    """Return what can be read side by side.

    Args:
        directory: Path or URI of event files, the output of ``fj-nightly``, an archive, a snapshot
            or a log.
        permissive: Gaps become rows.

    Raises:
        BadRequestError: It is missing, or something else, which is named.
        LogCorruptError: An event file, or the manifest of a snapshot, cannot be understood; or
            segments of an archive are missing, and the mode is not permissive.
        LogFailedError: It cannot be read.
    """
    place = _events_of(directory)
    if place is None:
        history = LogHistory(directory)
        if not permissive:
            history.check_gaps()
        return [HistoryPart(directory, permissive=permissive)]
    events = _opened(place)
    files = events.listed()
    number = -(-len(files) // PARTS)
    starts = range(0, len(files), number) if files else ()
    found = [HistoryPart(place, tuple(files[at : at + number])) for at in starts]
    gaps = gaps_of(events.segments(files)) if permissive else []
    lost = tuple(f"{place}: {gap_text(gap.first, gap.last, gap.reason)}" for gap in gaps)
    return [*found, HistoryPart(place, lost=lost)] if lost else found


def read_events(part: HistoryPart) -> Iterator[pa.RecordBatch]:
    """Yield the events of a part as Arrow batches; then that of damage, if there is any.

    Raises:
        LogCorruptError: A segment is damaged, or missing in an archive; or an event file has other
            rows than its segment gave.
        LogFailedError: A file cannot be read.
    """
    if part.lost:
        yield corrupt_batch(part.lost)
        return
    if part.files:
        events = _opened(part.directory)
        for file in part.files:
            yield from events.read(file).to_batches(BATCH_ROWS)
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
        LogCorruptError: A segment or an event file cannot be understood.
        LogFailedError: It cannot be read.
    """
    place = _events_of(str(directory))
    if place is None:
        return LogHistory(str(directory)).span()
    events = _opened(place)
    files = events.listed()
    taken = events.segments(files)
    begin = kept_from_us(files)
    if begin is None:
        return None
    firsts = [one.facts.first_us for one in taken if one.facts.first_us is not None]
    lasts = [one.facts.last_us for one in taken if one.facts.last_us is not None]
    return EventSpan(
        taken[0].number,
        taken[-1].number,
        max(min(firsts), begin) if firsts else None,
        max(lasts, default=None),
        [(gap.first, gap.last, gap.reason) for gap in gaps_of(taken)],
    )


def _events_of(directory: str) -> str | None:
    """Return the directory of the event files; None: there is none."""
    names = {str(info.base_name) for info in list_directory(directory)}
    if any(name.startswith("day=") for name in names):
        return directory
    return below(directory, EVENTS) if EVENTS in names else None


def _opened(place: str) -> EventDirectory:
    files, path = open_files(place)
    return EventDirectory(files, path)
