"""Reader of the view ``entries`` of the Spark data source.

Apart from ``entry_parts``, because the export, which reads these too, loads no PySpark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from fastjournal.spark.live_entries.entry_parts import EntryPart, find_parts, read_part
from fastjournal.spark.live_entries.fetch import READABLE_SCHEMA
from fastjournal.spark.query.requested_schema import PartReader


class EntriesReader(PartReader):
    """Reads what is live at the end of logs and snapshots; see ``PartReader``."""

    def parts(self, directory: str) -> Sequence[EntryPart]:
        """Return the parts: by bytes of a snapshot, and one for a log without an index."""
        return find_parts(directory)

    def batches(self, part: EntryPart) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a part."""
        # a batch without columns has no rows
        names = self._names or [READABLE_SCHEMA.names[0]]
        return read_part(part, names, permissive=self._options.permissive)
