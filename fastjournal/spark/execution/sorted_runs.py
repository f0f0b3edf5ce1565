"""External merge sort: sorted runs in Parquet files, and ranges of keys that fit into memory.

A file holds rows in runs, each sorted by a key, in small row groups, with the bytes of each row. So
the bytes of each key are known exactly, and consecutive keys are put into ranges of bounded bytes;
a key with more is a range alone. A reader takes the row groups of one range at a time and sorts
them in memory; a range of one key needs no sort by it. So memory does not grow with the rows, nor
with those of one key, nor with their values. ``domain_runs`` and ``replay_runs`` read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from fastjournal.spark.execution.duckdb_engine import DuckDb, parquet_files

RUN_BYTES = 64 * 1024 * 1024
"""Bytes of a run: it is sorted in memory."""
ROW_GROUP_ROWS = 2048
ROW_GROUP_BYTES = 1024 * 1024
"""Most bytes of a row group of several rows: each thread of a reader has one in memory."""
SIZE = "row_bytes"
"""Column of the bytes of a row, behind the others."""
_NUMBER_BYTES = 8
"""Bytes of a number, or of what Arrow needs for a byte string besides its bytes; about."""
_COMPRESSION = "lz4"
_KEYS_ROWS = 8192
_K = TypeVar("_K")


class KeyRange(NamedTuple, Generic[_K]):
    """Consecutive keys whose rows are read together, in order."""

    first: _K | None
    """None: rows without a key, which are read alone."""
    last: _K | None
    bytes: int
    rows: int
    largest: int
    """Bytes of the largest row."""

    @property
    def is_one_key(self) -> bool:
        """Whether its rows are of one key, so that they need no sort by it."""
        return self.first == self.last

    def room(self, range_bytes: int) -> int:
        """Return the bytes of further keys that it may take."""
        return 0 if self.first is None else range_bytes - self.bytes


# --- write ----------------------------------------------------------------------------------------


def write_runs(
    path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, order: Sequence[str]
) -> None:
    """Write rows as sorted runs to a file.

    Args:
        path: Local path of the file.
        batches: Rows of the schema.
        schema: Without the column ``SIZE``, which is added.
        order: Columns that a run is sorted by; the first one is the key.
    """
    with_size = schema.append(pa.field(SIZE, pa.int64()))
    with pa.parquet.ParquetWriter(
        path,
        with_size,
        compression=_COMPRESSION,
        use_dictionary=False,
        store_schema=False,
        write_statistics=[order[0]],
    ) as writer:
        run: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            sizes = row_bytes(batch)
            run.append(pa.RecordBatch.from_arrays([*batch.columns, sizes], schema=with_size))
            size += int(sizes.sum())
            if size >= RUN_BYTES:
                _write_run(writer, pa.Table.from_batches(run, with_size), order)
                run, size = [], 0
        _write_run(writer, pa.Table.from_batches(run, with_size), order)


def row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes that each row takes in memory, about."""
    found = np.full(len(batch), _NUMBER_BYTES * batch.num_columns, np.int64)
    for column in batch.columns:
        if pa.types.is_list(column.type):
            behind = np.concatenate([[0], np.cumsum(_lengths(column.values) + _NUMBER_BYTES)])
            found += np.diff(behind[column.offsets.to_numpy()])
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            found += _lengths(column)
    return found


def _lengths(strings: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(strings), 0).to_numpy()
    return lengths.astype(np.int64)


def _write_run(writer: pa.parquet.ParquetWriter, run: pa.Table, order: Sequence[str]) -> None:
    table = run.sort_by([(name, "ascending") for name in order])
    # DuckDB finds rows that are not null by IS NULL in a row group of one key and nulls
    with_key = len(table) - table.column(order[0]).null_count
    for part in (table.slice(0, with_key), table.slice(with_key)):
        for group in _row_groups(part.column(SIZE).to_numpy()):
            rows = part.slice(group.start, group.stop - group.start)
            writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)


def _row_groups(sizes: npt.NDArray[np.int64]) -> Iterator[slice]:
    """Yield which rows make a row group, by their bytes."""
    behind = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = behind[first] - sizes[first]
        stop = int(np.searchsorted(behind, before + ROW_GROUP_BYTES, "right"))
        stop = min(max(stop, first + 1), first + ROW_GROUP_ROWS)
        yield slice(first, stop)
        first = stop


# --- read -----------------------------------------------------------------------------------------


def key_bounds(path: str, key: str) -> list[tuple[Any, Any] | None]:
    """Return the least and the largest key of each row group; None: its keys are too long."""
    metadata = pa.parquet.read_metadata(path)
    names = metadata.schema.to_arrow_schema().names
    found: list[tuple[Any, Any] | None] = []
    for number in range(metadata.num_row_groups):
        told = metadata.row_group(number).column(names.index(key)).statistics
        is_told = told is not None and told.has_min_max
        found.append((told.min, told.max) if is_told else None)
    return found


def read_groups(path: str, groups: Iterable[int], within: pc.Expression) -> Iterator[pa.Table]:
    """Yield the rows of row groups that an expression selects, a row group at a time."""
    with pa.parquet.ParquetFile(path) as file:
        for number in groups:
            yield file.read_row_group(number).drop_columns([SIZE]).filter(within)


# --- ranges ---------------------------------------------------------------------------------------


def find_ranges(
    engine: DuckDb, paths: Sequence[str], key: str, range_bytes: int
) -> list[KeyRange[_K]]:
    """Return the ranges of all keys in files with runs, in order; rows without a key first.

    Args:
        engine: Where to add up the bytes of each key.
        paths: Files of runs that are sorted by the key.
        key: Its column.
        range_bytes: Most bytes of a range of several keys.
    """
    found: list[KeyRange[_K]] = []
    sql = (
        f"SELECT {key}, sum({SIZE})::BIGINT, count(*), max({SIZE}) FROM {parquet_files(paths)} "
        f"GROUP BY {key} ORDER BY {key} NULLS FIRST"
    )
    for batch in engine.batches(sql, _KEYS_ROWS):
        keys, *numbers = batch.columns
        sizes, rows, largest = (column.to_numpy() for column in numbers)
        behind = np.cumsum(sizes)
        at = 0
        while at < len(batch):
            room = found[-1].room(range_bytes) if found else 0
            stop = int(np.searchsorted(behind, behind[at] - sizes[at] + room, "right"))
            first: _K | None = keys[at].as_py()
            earlier = KeyRange(first, first, 0, 0, 0)
            if stop > at:
                earlier = found.pop()
            stop = max(stop, at + 1)
            last: _K | None = keys[stop - 1].as_py()
            found.append(
                KeyRange(
                    earlier.first,
                    last,
                    earlier.bytes + int(sizes[at:stop].sum()),
                    earlier.rows + int(rows[at:stop].sum()),
                    max(earlier.largest, int(largest[at:stop].max())),
                )
            )
            at = stop
    return found
