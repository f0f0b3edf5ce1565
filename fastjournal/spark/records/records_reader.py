"""Reader of the view ``records``: a task for each segment, or for each slice of a large one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fastjournal.spark.decoding.record_columns import INTERNAL_COLUMNS
from fastjournal.spark.decoding.vectorised.spans import SegmentSlice, slices_of
from fastjournal.spark.decoding.vectorised.vectorised_reader import read_batches
from fastjournal.spark.query.paths import open_log
from fastjournal.spark.query.record_range import RecordRange
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_batch
from fastjournal.spark.storage.files import SegmentFile, resolve


class SegmentPartition(InputPartition):
    """One segment of a directory, or a slice of it."""

    def __init__(self, directory: str, segment: SegmentFile, part: SegmentSlice | None) -> None:
        super().__init__(segment.number)
        self.directory = directory
        self.segment = segment
        self.part = part


class RecordsReader(DataSourceReader):
    """Reads the records of the segments of directories.

    Args:
        directories: Paths or URIs.
        columns: Columns to build, in this order.
        range: Records that are asked for.
        permissive: Damage becomes a row.
        partition_bytes: Bytes of a segment for each partition.
    """

    def __init__(
        self,
        directories: list[str],
        columns: list[RequestedColumn],
        range: RecordRange,
        *,
        permissive: bool,
        partition_bytes: int,
    ) -> None:
        self._directories = directories
        self._columns = columns
        self._permissive = permissive
        self._partition_bytes = partition_bytes
        # some of the columns that views are computed from tell of the whole segment
        internal = {column.name for column in INTERNAL_COLUMNS}
        self._is_sliced = internal.isdisjoint(column.source for column in columns)
        self._range = range

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the segments that may have records of the range."""
        found: list[InputPartition] = []
        for directory in self._directories:
            log = open_log(directory)
            listed = {one.number: one for one in log.manifest.segments} if log.manifest else {}
            found += [
                SegmentPartition(directory, segment, part)
                for segment in log.segments
                if self._range.has_segment(segment, listed.get(segment.number))
                for part in self._parts(segment)
            ]
        return found

    def _parts(self, segment: SegmentFile) -> Sequence[SegmentSlice | None]:
        if not self._is_sliced:
            return [None]
        return slices_of(segment.bytes, self._partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment, or of a slice."""
        if not isinstance(partition, SegmentPartition):
            # Spark makes one partition of another type from an empty list of partitions.
            return
        files, _ = resolve(partition.directory)
        asked = [column.source for column in self._columns]
        batches = read_batches(
            files,
            partition.segment,
            list(dict.fromkeys((*asked, *self._range.columns))),
            permissive=self._permissive,
            part=partition.part,
        )
        for batch in batches:
            found = self._range.rows(batch)
            if len(found):
                yield cast_batch(found.select(asked), self._columns)
