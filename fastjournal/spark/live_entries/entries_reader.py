"""Reader of the view ``entries`` of the Spark data source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fastjournal.spark.live_entries.entry_parts import EntryPart, find_parts, read_part
from fastjournal.spark.live_entries.fetch import READABLE_SCHEMA
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_batch


class EntriesPartition(InputPartition):
    """A part of the live entries of a directory."""

    def __init__(self, part: EntryPart) -> None:
        super().__init__(part.directory)
        self.part = part


class EntriesReader(DataSourceReader):
    """Reads what is live at the end of logs and snapshots.

    Args:
        directories: Paths or URIs.
        columns: Columns to build, in this order.
        permissive: Damage becomes a row.
    """

    def __init__(
        self, directories: list[str], columns: Sequence[RequestedColumn], *, permissive: bool
    ) -> None:
        self._directories = directories
        self._columns = columns
        self._permissive = permissive

    def partitions(self) -> list[InputPartition]:
        """Return the partitions: by bytes of a snapshot, and one for each log without an index."""
        return [
            EntriesPartition(part)
            for directory in self._directories
            for part in find_parts(directory)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of one partition."""
        if not isinstance(partition, EntriesPartition):
            # Spark makes one partition of another type from an empty list of partitions.
            return
        asked = [column.source for column in self._columns]
        # a batch without columns has no rows
        names = asked or [READABLE_SCHEMA.names[0]]
        for batch in read_part(partition.part, names, permissive=self._permissive):
            yield cast_batch(batch.select(asked), self._columns)
