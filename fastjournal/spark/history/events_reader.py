"""Reader of the view ``events`` of the Spark data source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fastjournal.spark.history.event_rows import with_corrupt
from fastjournal.spark.history.file_history import HistoryFile, history_files, read_events
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_batch


class HistoryPartition(InputPartition):
    """A part of a history: a whole log is one, a lease may begin in any of its segments."""

    def __init__(self, part: HistoryFile) -> None:
        super().__init__(part.file or part.directory)
        self.part = part


class EventsReader(DataSourceReader):
    """Reads the events of directories.

    Args:
        directories: Paths or URIs.
        columns: Columns to build, in this order.
        permissive: Gaps and damaged segments become rows.
    """

    def __init__(
        self, directories: list[str], columns: Sequence[RequestedColumn], *, permissive: bool
    ) -> None:
        self._directories = directories
        self._columns = columns
        self._permissive = permissive

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each file of a table, for its gaps, and for each log.

        Raises:
            LogCorruptError: Segments of an archive are missing, in mode ``failfast``.
        """
        return [
            HistoryPartition(part)
            for directory in self._directories
            for part in history_files(directory, permissive=self._permissive)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one partition."""
        if not isinstance(partition, HistoryPartition):
            # Spark makes one partition of another type from an empty list of partitions.
            return
        names = [column.source for column in self._columns]
        for batch in read_events(partition.part):
            yield cast_batch(with_corrupt(batch).select(names), self._columns)
