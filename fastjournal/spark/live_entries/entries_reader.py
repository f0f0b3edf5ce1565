"""Reader of the view ``entries`` of the Spark data source."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from fastjournal.spark.live_entries.entry_parts import find_parts, read_part
from fastjournal.spark.live_entries.fetch import READABLE_SCHEMA
from fastjournal.spark.query.requested_schema import ViewReader, cast_batch


class EntriesReader(ViewReader):
    """Reads what is live at the end of logs and snapshots; see ``ViewReader``."""

    def partitions(self) -> list[InputPartition]:
        """Return the partitions: by bytes of a snapshot, and one for each log without an index."""
        return [
            InputPartition(part)
            for directory in self._directories
            for part in find_parts(directory)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of one partition."""
        if partition.value is None:
            # Spark makes one partition without a value from an empty list of partitions
            return
        # a batch without columns has no rows
        names = self._names or [READABLE_SCHEMA.names[0]]
        for batch in read_part(partition.value, names, permissive=self._permissive):
            yield cast_batch(batch.select(self._names), self._columns)
