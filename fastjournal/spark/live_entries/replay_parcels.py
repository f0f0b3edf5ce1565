"""Replay parcels: records on their way between the tasks of Spark, sorted by label on arrival.

A record has its whole value. Spark would shuffle and sort such rows one by one; as parcels they
travel as parts of tables. A shard whose records are more than a bound sorts them as the export does
(``live_entries.replay_runs``): in files of the task, and by ranges of labels. No pyspark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from fastjournal.spark.execution.duckdb_engine import DuckDb
from fastjournal.spark.execution.shard_rows import Sent, numbers_of, open_parcels, shard_of
from fastjournal.spark.live_entries.label_replay import replay_labels
from fastjournal.spark.live_entries.replay_runs import (
    find_replay_ranges,
    read_range,
    write_record_runs,
)

REPLAYED = "records"
"""Name of the parcels."""
MEMORY_BYTES = 64 * 1024 * 1024
"""Bytes of records that a task sorts in memory: more than those of a shard, unless a label has
many."""
_ORDER = ("label", "segment", "offset")
_BATCH_ROWS = 8192


def by_label(batches: Iterable[pa.RecordBatch], shards: int) -> Iterator[Sent]:
    """Send records, as in ``fetch.REPLAYED_SCHEMA``, to the shard of their label."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        yield Sent(REPLAYED, table, shard_of(numbers_of(table, "label"), shards))


def replay_parcels(
    batches: Iterable[pa.RecordBatch], *, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the entries that records in parcels leave.

    Args:
        batches: Parcels of one shard, in any order.
        names: Columns to build, from ``partition_replay.ENTRY_COLUMNS``.

    Raises:
        LogCorruptError: A record cannot be understood.
    """
    waiting: list[pa.Table] = []
    size = 0
    with TemporaryDirectory(prefix="fastjournal-") as directory:
        runs = _Runs(Path(directory))
        for _, _, table in open_parcels(batches):
            waiting.append(table)
            size += table.nbytes
            if size > MEMORY_BYTES:
                runs.write(waiting)
                waiting, size = [], 0
        if runs:
            runs.write(waiting)
            for records in runs.ranges():
                yield from replay_labels(records, names)
        elif waiting:
            table = pa.concat_tables(waiting)
            waiting.clear()
            ordered = table.sort_by([(name, "ascending") for name in _ORDER])
            del table
            yield from replay_labels(ordered.to_batches(_BATCH_ROWS), names)


class _Runs:
    """Files with sorted records, one for each parcel.

    Args:
        directory: Where to write them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths: list[tuple[int, int, str]] = []
        """First segment and offset of each file: no other one has records between its own."""

    def __len__(self) -> int:
        return len(self._paths)

    def write(self, tables: Sequence[pa.Table]) -> None:
        """Write a file for each table."""
        for table in tables:
            path = str(self._directory / f"records-{len(self._paths)}")
            first = (min(table.column(name).to_pylist()) for name in _ORDER[1:])
            self._paths.append((*first, path))
            write_record_runs(path, table.to_batches())

    def ranges(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the records of each range of labels, sorted."""
        engine = DuckDb(self._directory, threads=1, in_files=False)
        try:
            for chosen in find_replay_ranges(engine, [path for *_, path in sorted(self._paths)]):
                yield read_range(chosen)
        finally:
            engine.connection.close()
