"""Stream of the events of an archive: its offsets are all that it keeps.

A record alone tells its event, so this is the stream of the records (``records.record_stream``):
the same offsets, checks and bounds, and one task for each segment. Its tasks yield the events
instead. Segments that are missing or damaged end the query, or are rows of the column ``_corrupt``
in mode ``permissive``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import google_crc32c
import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.decoding.rows import read_bytes
from fastjournal.spark.history.event_rows import batches_of, corrupt_batch, with_corrupt
from fastjournal.spark.history.extractor import extract_events
from fastjournal.spark.query.paths import open_whole
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_batch
from fastjournal.spark.records.records_reader import Offset, RecordsStream, SpanPartition
from fastjournal.spark.storage.files import resolve


class LostPartition(InputPartition):
    """Texts of what is missing in a batch."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__(0)
        self.texts = texts


class EventsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream of events.

    Args:
        directory: The archive.
        columns: Columns to build, in this order.
        permissive: Missing and damaged segments become rows.
        bytes_max: Most bytes of a batch; None: all that are there.
        cleans: Segments are unlinked when their batch is committed.

    Raises:
        BadRequestError: The directory is no archive.
    """

    def __init__(
        self,
        directory: str,
        columns: Sequence[RequestedColumn],
        *,
        permissive: bool,
        bytes_max: int | None,
        cleans: bool,
    ) -> None:
        log = open_whole(directory)
        if log.segments and not log.is_archive:
            raise BadRequestError(
                f"{directory} is no archive, and a stream of events reads one",
                hint="name the daemon's --archive-dir",
            )
        self._directory = directory
        self._columns = columns
        self._permissive = permissive
        self._records = RecordsStream(
            directory, [], permissive=permissive, bytes_max=bytes_max, cleans=cleans
        )

    def initialOffset(self) -> Offset:  # noqa: N802 - PySpark's name
        """Return the position before the first record."""
        return self._records.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """Return the bound of a batch."""
        return self._records.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Take the end of what is there now as the end of the query."""
        self._records.prepareForTriggerAvailableNow()

    def latestOffset(  # noqa: N802 - PySpark's name
        self, start: Offset, limit: ReadLimit
    ) -> Offset:
        """Return the end of the next batch, at the end of a whole group.

        Raises:
            LogCorruptError: The log was restored, and has other segments now.
        """
        return self._records.latestOffset(start, limit)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one partition for each segment between two offsets, and one of what is missing.

        Raises:
            LogCorruptError: A segment is missing, in mode ``failfast``.
        """
        if not self._permissive:
            return self._records.partitions(start, end)
        texts = self._records.faults(start, end)
        lost = [LostPartition(texts)] if texts else []
        return [*lost, *self._records.spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part of a segment."""
        if isinstance(partition, LostPartition):
            yield self._cast(corrupt_batch(partition.texts))
            return
        assert isinstance(partition, SpanPartition)
        try:
            yield from map(self._cast, self._events(partition))
        except LogCorruptError as error:
            if not self._permissive:
                raise
            yield self._cast(corrupt_batch([str(error)]))

    def _events(self, partition: SpanPartition) -> Iterator[pa.RecordBatch]:
        segment, span = partition.segment, partition.span
        data = read_bytes(resolve(self._directory)[0], segment)
        span.check(data, segment.path)
        if google_crc32c.value(data) != segment.crc32c:
            raise LogCorruptError("the segment has another checksum", path=segment.path)
        whole = msgspec.structs.replace(segment, last=False)
        # a damaged segment ends this before the first event
        yield from batches_of(extract_events(data[: span.stop], whole, span.first))

    def commit(self, end: Offset) -> None:
        """Unlink the segments of a batch that is done for ever, where asked to.

        Raises:
            LogError: A segment could not be read or removed. The query ends; the first commit
                after its restart tries again.
        """
        self._records.commit(end)

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [column.source for column in self._columns]
        return cast_batch(with_corrupt(batch).select(names), self._columns)
