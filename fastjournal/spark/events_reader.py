"""Reader of the view ``events`` of the Spark data source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fastjournal.errors import BadRequestError
from fastjournal.spark.event_history import HistoryFile, history_files, read_events
from fastjournal.spark.event_rows import EVENT_SCHEMA
from fastjournal.spark.requested_schema import RequestedColumn, cast_batch


class HistoryPartition(InputPartition):
    """A file of a table of events, or a whole log: a lease may begin in any of its segments."""

    def __init__(self, part: HistoryFile) -> None:
        super().__init__(part.file or part.directory)
        self.part = part


class EventsReader(DataSourceReader):
    """Reads the events of directories.

    Args:
        directories: Paths or URIs.
        columns: Columns to build, in this order.

    Raises:
        BadRequestError: One of them is for damage, of which these rows tell nothing.
    """

    def __init__(self, directories: list[str], columns: Sequence[RequestedColumn]) -> None:
        self._directories = directories
        self._columns = columns
        for column in columns:
            if column.source not in EVENT_SCHEMA.names:
                raise BadRequestError(
                    f"the view events has no column {column.name}",
                    hint="mode=permissive counts in a stream of events; event_span tells of gaps",
                )

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each file of a table, and for each log."""
        return [
            HistoryPartition(part)
            for directory in self._directories
            for part in history_files(directory)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one partition."""
        if not isinstance(partition, HistoryPartition):
            # Spark makes one partition of another type from an empty list of partitions.
            return
        names = [column.source for column in self._columns]
        for batch in read_events(partition.part):
            yield cast_batch(batch.select(names), self._columns)
