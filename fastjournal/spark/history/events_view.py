"""View ``events``: event files, or the history of a log, a snapshot or an archive.

A history is its events, and the span for which they are complete.

Compaction rewrites segments of a log and removes records. A segment is whole if its size and
CRC-32C are those in the first record of the next segment; the last one always is. The history of a
log is that of its last adjacent whole segments.

All files of an archive are whole, and their numbers ascend by one. So a gap is known, and is an
error or a text.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.fs

from fastjournal.cmdlog.archive import STATE_NAME, decode_state, gaps_between
from fastjournal.errors import (
    ForeignRemoteLogError,
    LogCorruptError,
    LogFailedError,
    RemoteLogCorruptError,
)
from fastjournal.spark.decoding.rows import read_bytes
from fastjournal.spark.decoding.view_columns import sql_schema
from fastjournal.spark.history.coverage import adjoining_gaps, gap_text, gaps_of
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
    EventRow,
    batches_of,
    corrupt_batch,
)
from fastjournal.spark.history.extractor import extract_events, outer_times
from fastjournal.spark.history.remote_history import (
    UNUSED,
    HistoryPlan,
    ObjectGoneError,
    RemoteSegment,
    open_remote,
    plan_history,
    plan_in,
    read_segment,
)
from fastjournal.spark.query.paths import list_directory, open_log, open_whole
from fastjournal.spark.records.stream_segments import NOTHING, Sealed, check_link, sealed_before
from fastjournal.spark.storage.files import (
    LOG_IN_USE,
    SegmentFile,
    below,
    hadoop_glob,
    hadoop_uri,
    is_s3,
    read_file,
    resolve,
    translating,
)
from fastjournal.spark.storage.remote_checkpoints import split_checkpoint
from fastjournal.spark.storage.store_frames import read_parquet
from fastjournal.spark.storage.table_files import open_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


GAPS_SHOWN = 3
"""Gaps of an archive that an error names."""


class EventSpan(NamedTuple):
    """Span of segments, and of time, that the events of a directory are complete for."""

    first: int
    """Number of the first segment."""
    last: int
    first_us: int | None
    """Earliest time of a record, in microseconds since the Unix epoch; None: there is none."""
    last_us: int | None
    """Latest time of a record."""
    gaps: list[tuple[int, int, str]]
    """Segments that are missing between or beside them: first, last, reason."""


class LogHistory:
    """History of a log, a snapshot or an archive.

    Args:
        directory: Path or URI.

    Raises:
        BadRequestError: It is missing, or something else, which is named.
        LogFailedError: It cannot be read.
    """

    def __init__(self, directory: str) -> None:
        self._files, self._path = resolve(directory)
        # before the listing, which then has all segments in this state
        self._state_before = self._read_state()
        log = open_whole(directory)
        self.is_archive = log.is_archive
        self.segments = log.segments
        """All segments, ascending."""
        self._told = {one.number for one in self.segments if one.crc32c is not None}
        """Those whose checksum a manifest or a name says."""

    def gaps(self) -> list[tuple[int, int, str]]:
        """Return the segments that are missing in an archive: first, last, reason.

        Gaps that the state of the archive names count where they adjoin the segments. Segments
        that were taken and unlinked are none, nor are those from before there was an archive.

        Raises:
            LogCorruptError: The state of the archive cannot be understood.
            LogFailedError: It cannot be read.
        """
        if not self.is_archive:
            return []
        # after the listing: the daemon names a segment as dropped before it removes the file
        path = f"{self._path}/{STATE_NAME}"
        before, behind = (
            None if data is None else decode_state(data, path)
            for data in (self._state_before, self._read_state())
        )
        known = [] if behind is None else list(behind.gaps)
        numbers = [segment.number for segment in self.segments]
        known = adjoining_gaps(known, numbers[0], numbers[-1])
        linked = 0 if before is None else before.next - 1
        last = max([numbers[-1], linked, *(gap.last for gap in known)])
        found = gaps_between([(number, number) for number in numbers], known, last)
        return [(first, last, reason) for first, last, _, _, reason in found]

    def _read_state(self) -> bytes | None:
        """Return the file with the state of an archive; None: there is none."""
        path = f"{self._path}/{STATE_NAME}"
        with translating("read", path):
            if self._files.get_file_info(path).type != pyarrow.fs.FileType.File:
                return None
        return read_file(self._files, path)

    def check_gaps(self) -> None:
        """Check that no segment of an archive is missing.

        Raises:
            LogCorruptError: One is, or the state of the archive cannot be understood.
            LogFailedError: It cannot be read.
        """
        if found := self.gaps():
            texts = ", ".join(gap_text(*gap) for gap in found[:GAPS_SHOWN])
            more = len(found) - GAPS_SHOWN
            raise LogCorruptError(
                f"{texts} and {more} more" if more > 0 else texts,
                path=self._path,
                hint="option mode=permissive reads on behind them, with a row for each",
            )

    def whole(self, *, permissive: bool = False) -> list[SegmentFile]:
        """Return the last adjacent whole segments, with the known checksums.

        Args:
            permissive: Those after a damaged segment, which is an error otherwise.

        Raises:
            LogCorruptError: A segment is damaged.
            LogFailedError: One cannot be read.
        """
        found = list[SegmentFile]()
        told: Sealed | None = None
        for segment in reversed(self.segments):
            data = read_bytes(self._files, segment)
            crc32c = google_crc32c.value(data)
            if segment.crc32c not in (None, crc32c):
                if permissive:
                    break
                raise _other_checksum(segment)
            if not self.is_archive and told not in (None, (segment.number, len(data), crc32c)):
                break
            # no record has the checksum of a log's last segment: its records have theirs
            checked = self.is_archive or told is not None or segment.crc32c is not None
            told_crc32c = crc32c if checked else None
            found.append(msgspec.structs.replace(segment, bytes=len(data), crc32c=told_crc32c))
            told = sealed_before(data)
        return found[::-1]

    def events(self, lost: list[str] | None = None) -> Iterator[EventRow]:
        """Yield the events of the whole segments.

        Args:
            lost: Receives texts of gaps and damaged segments, after which it reads on; None: these
                are errors.

        Raises:
            LogCorruptError: Segments are missing or damaged, or one follows another one than that
                before it.
            LogFailedError: One cannot be read.
        """
        if lost is None:
            self.check_gaps()
        else:
            lost += [f"{self._path}: {gap_text(*gap)}" for gap in self.gaps()]
        before = NOTHING
        segments = self.segments if self.is_archive else self.whole(permissive=lost is not None)
        for segment in segments:
            try:
                data = self._read(segment)
                if self.is_archive:
                    before = self._linked(before, data, segment, lost)
                yield from extract_events(data, segment)
            except LogCorruptError as error:
                if lost is None:
                    raise
                lost.append(str(error))
                before = NOTHING

    def _linked(
        self, before: Sealed, data: bytes, segment: SegmentFile, lost: list[str] | None
    ) -> Sealed:
        """Check that a segment follows the one before it; return it for the next one."""
        try:
            check_link(before, data, segment)
        except LogCorruptError as error:
            if lost is None:
                raise
            lost.append(str(error))
        assert segment.crc32c is not None
        return Sealed(segment.number, len(data), segment.crc32c)

    def span(self) -> EventSpan | None:
        """Return the segments and instants of the whole segments; None: there is no record."""
        whole = self.whole()
        if not whole:
            return None
        numbers = [segment.number for segment in whole]
        # the clock may have been set back in any of them
        times = [outer_times(self._read(one), one) for one in whole]
        return EventSpan(
            numbers[0],
            numbers[-1],
            min((first for first, _ in times if first is not None), default=None),
            max((last for _, last in times if last is not None), default=None),
            self.gaps(),
        )

    def _read(self, segment: SegmentFile) -> bytes:
        """Return a segment as it was read before, or as its manifest or its name says."""
        data = read_bytes(self._files, segment)
        if segment.crc32c not in (None, google_crc32c.value(data)):
            if self.is_archive or segment.number in self._told:
                raise _other_checksum(segment)
            raise LogCorruptError(
                "the segment has changed while it was read", path=segment.path, hint=LOG_IN_USE
            )
        return data


def _other_checksum(segment: SegmentFile) -> LogCorruptError:
    return LogCorruptError("the segment has another checksum", path=segment.path)


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
        output: Directory with ``events``, as for ``fj-nightly --output``: a path or URI.
        days: UTC days; files of others are not read. None: all.
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
    remote: RemoteSegment | None = None
    """Segment of a remote log."""


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
        remote = _remote_plan(directory)
        if remote is not None:
            return _remote_parts(directory, remote, permissive=permissive)
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


def check_history(directory: str) -> None:
    """Check that a directory has events; raises as ``history_parts``, but for gaps.

    The chunks of a remote log are listed when its events are read.
    """
    if _events_of(directory) is not None or open_log(directory).remote is None:
        history_parts(directory, permissive=True)


def _remote_plan(directory: str) -> HistoryPlan | None:
    """Return the segments of a remote log up to its newest checkpoint; None: it is none."""
    log = open_log(directory)
    if log.remote is None:
        return None
    identifier, behind, checkpoint, _ = log.remote
    store = open_remote(split_checkpoint(directory)[0])
    return plan_in(store, lambda: plan_history(identifier, behind, checkpoint))


def _gaps_in(plan: HistoryPlan) -> list[tuple[int, int, str]]:
    return [(gap.first, gap.last, gap.reason) for gap in plan.gaps if gap.reason != UNUSED]


def _remote_parts(directory: str, plan: HistoryPlan, *, permissive: bool) -> list[HistoryPart]:
    """Return a part for each segment, and one for the gaps between them."""
    lost = tuple(f"{directory}: {gap_text(*gap)}" for gap in _gaps_in(plan))
    if lost and not permissive:
        raise LogCorruptError(
            ", ".join(gap_text(*gap) for gap in _gaps_in(plan)[:GAPS_SHOWN]),
            path=directory,
            hint="option mode=permissive reads on behind them, with a row for each",
        )
    prefix = split_checkpoint(directory)[0]
    found = [HistoryPart(prefix, permissive=permissive, remote=one) for one in plan.segments]
    return [*found, HistoryPart(directory, lost=lost)] if lost else found


def _read_remote(part: HistoryPart, segment: RemoteSegment) -> Iterator[pa.RecordBatch]:
    try:
        data = read_segment(open_remote(part.directory), segment)
        file = SegmentFile(part.directory, segment.number, len(data), False, False, segment.crc32c)
        yield from batches_of(extract_events(data, file))
    except (LogCorruptError, RemoteLogCorruptError, ForeignRemoteLogError) as error:
        if not part.permissive and isinstance(error, ObjectGoneError):
            # its primary has collected it since the query was planned
            raise RemoteLogCorruptError(error.message, path=error.path) from error
        if not part.permissive:
            raise
        yield corrupt_batch([str(error)])


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
    if part.remote is not None:
        yield from _read_remote(part, part.remote)
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
        remote = _remote_plan(str(directory))
        if remote is None:
            return LogHistory(str(directory)).span()
        return _remote_span(split_checkpoint(str(directory))[0], remote)
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


def _remote_span(prefix: str, plan: HistoryPlan) -> EventSpan | None:
    """Return the span of a remote log; each segment is read, for its clock may be set back."""
    if not plan.segments:
        return None
    store, times = open_remote(prefix), []
    for one in plan.segments:
        file = SegmentFile(prefix, one.number, one.bytes, False, False, one.crc32c)
        times.append(outer_times(read_segment(store, one), file))
    return EventSpan(
        plan.segments[0].number,
        plan.segments[-1].number,
        min((first for first, _ in times if first is not None), default=None),
        max((last for _, last in times if last is not None), default=None),
        _gaps_in(plan),
    )


def _events_of(directory: str) -> str | None:
    """Return the directory of the event files; None: there is none."""
    if split_checkpoint(directory)[1] is not None:
        return None
    names = {str(info.base_name) for info in list_directory(directory)}
    if any(name.startswith("day=") for name in names):
        return directory
    return below(directory, EVENTS) if EVENTS in names else None


def _opened(place: str) -> EventDirectory:
    files, path = open_files(place)
    return EventDirectory(files, path)
