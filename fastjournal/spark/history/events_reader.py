"""Readers of the view ``events``: of all that is there, and of an archive as a stream.

The offsets of the stream are all that it keeps. A record alone tells its event, so it is the stream
of the records (``records.records_reader``): the same offsets, checks and bounds, and one task for
each segment. Its tasks yield the events instead. Segments that are missing or damaged
end the query, or are rows of the column ``_corrupt`` in mode ``permissive``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import google_crc32c
import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.decoding.rows import read_bytes
from fastjournal.spark.decoding.vectorised.frames import GroupSpan
from fastjournal.spark.history.event_rows import batches_of, corrupt_batch, with_corrupt
from fastjournal.spark.history.events_view import HistoryPart, history_parts, read_events
from fastjournal.spark.history.extractor import extract_events
from fastjournal.spark.query.paths import open_whole
from fastjournal.spark.query.requested_schema import PartReader, RequestedColumn, cast_batch
from fastjournal.spark.query.source_options import Options
from fastjournal.spark.records.records_reader import Offset, RecordsStream, SegmentSpan
from fastjournal.spark.storage.files import SegmentFile, resolve


class EventsReader(PartReader):
    """Reads the events of directories; see ``PartReader``. Gaps are damage, too."""

    def parts(self, directory: str) -> Sequence[HistoryPart]:
        """Return parts of event files, one for their gaps, or one for a log.

        Raises:
            LogCorruptError: Segments of an archive are missing, in mode ``failfast``.
        """
        return history_parts(directory, permissive=self._options.permissive)

    def batches(self, part: HistoryPart) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part."""
        return map(with_corrupt, read_events(part))


# --- stream ---------------------------------------------------------------------------------------


class EventsStream(RecordsStream):
    """Reader of a stream of events.

    Args:
        directory: The archive.
        columns: Columns to build, in this order.
        options: Options of the stream.

    Raises:
        BadRequestError: The directory is no archive.
    """

    def __init__(
        self, directory: str, columns: Sequence[RequestedColumn], options: Options
    ) -> None:
        log = open_whole(directory)
        if log.segments and not log.is_archive:
            raise BadRequestError(
                f"{directory} is no archive, and a stream of events reads one",
                hint="name the daemon's --archive-dir",
            )
        super().__init__(directory, columns, options)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one partition for each segment between two offsets, and one of what is missing.

        Raises:
            LogCorruptError: A segment is missing, in mode ``failfast``.
        """
        if not self._permissive:
            return super().partitions(start, end)
        texts = self.faults(start, end)
        lost = [InputPartition(texts)] if texts else []
        return [*lost, *self.spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part of a segment."""
        if not isinstance(partition.value, SegmentSpan):
            yield self._cast(corrupt_batch(partition.value))
            return
        try:
            yield from map(self._cast, self._events(*partition.value))
        except LogCorruptError as error:
            if not self._permissive:
                raise
            yield self._cast(corrupt_batch([str(error)]))

    def _events(self, segment: SegmentFile, span: GroupSpan) -> Iterator[pa.RecordBatch]:
        data = read_bytes(resolve(self._directory)[0], segment)
        span.check(data, segment.path)
        if google_crc32c.value(data) != segment.crc32c:
            raise LogCorruptError("the segment has another checksum", path=segment.path)
        whole = msgspec.structs.replace(segment, last=False)
        # a damaged segment ends this before the first event
        yield from batches_of(extract_events(data[: span.stop], whole, span.first))

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return cast_batch(with_corrupt(batch).select(self._names), self._columns)
