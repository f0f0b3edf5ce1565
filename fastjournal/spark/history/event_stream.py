"""Stream of the events of an archive: each segment once, with the live jobs as state.

An offset is ``{"segment": N, "bytes": B, "crc32c": C, "stream": ID, "first": F}``: all segments
from F up to N, and so many bytes of that one, were read. A batch is whole segments, read by one
task: a lease may begin in any segment before. ``stream_state`` keeps the live jobs between two
batches. ``ID`` names the stream: its first offset makes it and ``F``, and all later ones have them.

A segment that grew while the daemon had no archive comes into the archive again; the stream takes
the rest of it. A batch that Spark repeats ends where its offset says, also in a segment that grew
meanwhile. Segments that are missing or damaged end the query, or are rows of the column
``_corrupt`` in mode ``permissive``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import google_crc32c
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from fastjournal.cmdlog.archive_format import ArchivedSegment
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.history.event_records import EventRecord, segment_records
from fastjournal.spark.history.event_rows import (
    BATCH_ROWS,
    EventRow,
    corrupt_batch,
    event_batch,
    with_corrupt,
)
from fastjournal.spark.history.extractor import EventExtractor, History
from fastjournal.spark.history.stream_offsets import (
    READS_ON,
    archived_version,
    as_planned,
    end_of_batch,
    missing_segments,
    offset_name,
    place,
    segments_behind,
)
from fastjournal.spark.history.stream_state import StreamState
from fastjournal.spark.query.paths import open_whole
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_batch
from fastjournal.spark.records.archive_cleaning import ReadSegments, clean_archive, versions_in
from fastjournal.spark.records.record_stream import Offset
from fastjournal.spark.records.segment_identity import (
    NOTHING,
    RESTORED,
    Sealed,
    check_end,
    check_link,
)
from fastjournal.spark.storage.files import LogDirectory, SegmentFile, read_file, resolve


class EventsPartition(InputPartition):
    """Segments of one batch, in order, the offsets around them, and the files of the archive."""

    def __init__(
        self,
        segments: list[SegmentFile],
        start: Offset,
        end: Offset,
        archived: dict[ArchivedSegment, int],
    ) -> None:
        super().__init__(end["segment"])
        self.segments = segments
        self.archived = archived
        self.start = start
        self.end = end


class EventsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream of events.

    Args:
        directory: The archive.
        columns: Columns to build, in this order.
        state_directory: Where the state between two batches stands; a path or URI.
        permissive: Missing and damaged segments become rows.
        bytes_max: Most bytes of segments in a batch, which has one at least; None: all.
        cleans: Segments are unlinked when their batch is committed.

    Raises:
        BadRequestError: The directory is no archive.
    """

    def __init__(
        self,
        directory: str,
        columns: Sequence[RequestedColumn],
        *,
        state_directory: str,
        permissive: bool,
        bytes_max: int | None,
        cleans: bool,
    ) -> None:
        self._directory = directory
        self._columns = columns
        self._state_directory = state_directory
        self._permissive = permissive
        self._bytes_max = bytes_max
        self._cleans = cleans
        self._target: Offset | None = None
        """Where a query with the trigger AvailableNow ends."""
        self._log()

    def initialOffset(self) -> Offset:  # noqa: N802 - PySpark's name
        """Return the position before the first segment."""
        return Offset(segment=0, bytes=0, crc32c=0, stream="")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """Return the bound of a batch."""
        return ReadAllAvailable() if self._bytes_max is None else ReadMaxBytes(self._bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Take the end of what is there now as the end of the query."""
        self._target = end_of_batch(self._log(), self.initialOffset(), None, None)

    def latestOffset(  # noqa: N802 - PySpark's name
        self, start: Offset, limit: ReadLimit
    ) -> Offset:
        """Return the end of the next batch, at the end of a segment.

        Raises:
            LogCorruptError: The segment in which the stream stands was replaced.
        """
        log = self._log()
        self._check_start(log, start)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return end_of_batch(log, start, bytes_max, self._target)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the one partition of a batch.

        Raises:
            LogCorruptError: A segment between the offsets is missing, in mode ``failfast``.
        """
        if place(start) == place(end):
            return []
        log = self._log()
        behind = [one for one in segments_behind(log, start) if one.number <= end["segment"]]
        segments = [as_planned(log, one, end) for one in behind]
        if not self._permissive:
            missing = missing_segments(start, segments, end)
            if missing:
                raise LogCorruptError(f"{missing[0]} missing", path=self._directory, hint=READS_ON)
        return [EventsPartition(segments, start, end, log.archived)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a batch, and write the state behind it."""
        assert isinstance(partition, EventsPartition)
        start, end = partition.start, partition.end
        state = StreamState(self._state_directory, end["stream"])
        history = state.load(offset_name(start)) if start["segment"] else History()
        for text in missing_segments(start, partition.segments, end):
            yield self._cast(corrupt_batch([f"{self._directory}: {text} missing"]))
        extractor = EventExtractor(history)
        before = _read_of(start)
        done = self._done(state, partition)
        for segment in partition.segments:
            try:
                data = self._whole(segment, start)
                yield from self._check_link(before, data, segment)
                events = extractor.extract(self._records(data, segment, start))
                # a damaged segment ends this before the first record changes the state
                for batch in _batches(events):
                    yield self._cast(batch)
                done.read += versions_in(data, segment.number, partition.archived)
                before = Sealed(segment.number, len(data), archived_version(segment).crc32c)
            except LogCorruptError as error:
                if not self._permissive:
                    raise
                yield self._cast(corrupt_batch([str(error)]))
                done.damaged.append(archived_version(segment).name)
                before = NOTHING
        state.save(offset_name(end), history, done)

    def commit(self, end: Offset) -> None:
        """Remove states before a batch that is done for ever, and its segments where asked to.

        Raises:
            LogError: A state or a segment could not be removed. The query ends; the first commit
                after its restart tries again.
        """
        if not end["segment"]:
            # another source of the query had something new, and this one nothing so far
            return
        state = StreamState(self._state_directory, end["stream"])
        if self._cleans:
            done = state.load_segments(offset_name(end))
            if done is not None:
                clean_archive(self._directory, done)
        state.remove_before(offset_name(end))

    def _check_link(
        self, before: Sealed, data: bytes, segment: SegmentFile
    ) -> Iterator[pa.RecordBatch]:
        """Check that a segment follows the one before it; in mode ``permissive`` yield a row."""
        try:
            check_link(before, data, segment)
        except LogCorruptError as error:
            if not self._permissive:
                raise
            yield self._cast(corrupt_batch([str(error)]))

    def _done(self, state: StreamState, partition: EventsPartition) -> ReadSegments:
        """Return the segments that were read before a batch, and were not unlinked so far."""
        start = partition.start
        before = state.load_segments(offset_name(start)) if start["segment"] else None
        names = {one.name for one in partition.archived}
        return ReadSegments() if before is None else before.carried(names)

    def _check_start(self, log: LogDirectory, start: Offset) -> None:
        """Check that the segment in which the stream stands was not replaced.

        Raises:
            LogCorruptError: The log was restored, and its archive has other segments now.
        """
        check_end(log, _read_of(start), lambda: self._names(start))
        unread = [
            one
            for one, size in log.archived.items()
            if one.number == start["segment"]
            and one.crc32c != start["crc32c"]
            and size <= start["bytes"]
        ]
        if not unread:
            return
        done = StreamState(self._state_directory, start["stream"]).load_segments(offset_name(start))
        for one in unread:
            if done is not None and not done.knows(one):
                raise LogCorruptError(
                    f"the stream has read another segment {one.number}",
                    path=f"{self._directory}/{one.name}",
                    hint=RESTORED,
                )

    def _names(self, start: Offset) -> list[str]:
        """Return the names of segments that were read, or were damaged, and are there still."""
        state = StreamState(self._state_directory, start["stream"])
        done = state.load_segments(offset_name(start))
        return [] if done is None else [*done.read, *done.damaged]

    def _log(self) -> LogDirectory:
        log = open_whole(self._directory)
        if log.segments and not log.is_archive:
            raise BadRequestError(
                f"{self._directory} is no archive, and a stream of events reads one",
                hint="name the daemon's --archive-dir",
            )
        return log

    def _whole(self, segment: SegmentFile, start: Offset) -> bytes:
        """Return the contents of a segment, whose checksum is right."""
        data = read_file(resolve(self._directory)[0], segment.path)[: segment.bytes]
        if google_crc32c.value(data) != segment.crc32c:
            raise LogCorruptError("the segment has another checksum", path=segment.path)
        if segment.number == start["segment"]:
            before = google_crc32c.value(data[: start["bytes"]])
            if before != start["crc32c"]:
                raise LogCorruptError(
                    f"its first {start['bytes']} bytes are not those that were read before",
                    path=segment.path,
                )
        return data

    def _records(self, data: bytes, segment: SegmentFile, start: Offset) -> Iterator[EventRecord]:
        skipped = start["bytes"] if segment.number == start["segment"] else 0
        return segment_records(data, segment, skipped)

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [column.source for column in self._columns]
        return cast_batch(with_corrupt(batch).select(names), self._columns)


def _read_of(offset: Offset) -> Sealed:
    """Return the segment in which an offset is, as far as it was read."""
    return Sealed(offset["segment"], offset["bytes"], offset["crc32c"])


def _batches(events: Iterator[EventRow]) -> Iterator[pa.RecordBatch]:
    found = list[EventRow]()
    for event in events:
        found.append(event)
        if len(found) == BATCH_ROWS:
            yield event_batch(found)
            found.clear()
    if found:
        yield event_batch(found)
