"""External merge sort of entries by domain: sorted runs in Parquet files, read range by range.

A file holds entries in runs, each sorted by domain, in small row groups, with the bytes of each
entry. So the bytes of each domain are known exactly, and consecutive domains are put into ranges of
at most ``RANGE_BYTES``; a larger domain is a range alone. DuckDB reads the row groups of one range
at a time and sorts them in memory; a domain alone needs no sort. So memory does not grow with the
entries, nor with those of one domain, nor with their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from fastjournal.errors import LogFailedError
from fastjournal.spark.duckdb_engine import DuckDb, parquet_files, quoted
from fastjournal.spark.partition_replay import ENTRY_ARROW_SCHEMA

RUN_BYTES = 64 * 1024 * 1024
"""Bytes of a run: it is sorted in memory."""
RANGE_BYTES = 48 * 1024 * 1024
"""Most bytes of a range of several domains: it is sorted in memory."""
ROW_GROUP_ROWS = 2048
ROW_GROUP_BYTES = 1024 * 1024
"""Most bytes of a row group of several rows: each thread of DuckDB reads one."""
BATCH_ROWS = 2048
BATCH_BYTES = 32 * 1024 * 1024
"""Most bytes of a batch of several rows that comes out."""
_NUMBER_BYTES = 8
"""Bytes of a number, or of what Arrow needs for a byte string besides its bytes; about."""
_COMPRESSION = "lz4"
_SIZE = "entry_bytes"
_RUN_SCHEMA = ENTRY_ARROW_SCHEMA.append(pa.field(_SIZE, pa.int64()))
_DOMAINS_ROWS = 8192


class DomainRange(NamedTuple):
    """Consecutive domains that are read together, in order."""

    first: str | None
    """None: plain keys, which are read alone."""
    last: str | None
    bytes: int
    rows: int
    largest: int
    """Bytes of the largest entry."""

    @property
    def is_sorted(self) -> bool:
        """Whether its entries are of one domain, so that they need no sort."""
        return self.first == self.last

    @property
    def batch_rows(self) -> int:
        """Rows of a batch that comes out: few, where values are large."""
        return max(min(BATCH_ROWS, BATCH_BYTES // max(self.largest, 1)), 1)

    def takes(self, other: DomainRange) -> bool:
        """Whether the next range may be sorted together with this one."""
        return self.first is not None and self.bytes + other.bytes <= RANGE_BYTES

    def joined(self, other: DomainRange) -> DomainRange:
        """Return this range and the next one as one."""
        largest = max(self.largest, other.largest)
        rows, size = self.rows + other.rows, self.bytes + other.bytes
        return DomainRange(self.first, other.last, size, rows, largest)


def write_runs(path: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Write entries as sorted runs to a file."""
    with pa.parquet.ParquetWriter(
        path,
        _RUN_SCHEMA,
        compression=_COMPRESSION,
        use_dictionary=False,
        store_schema=False,
        write_statistics=["domain"],
    ) as writer:
        run: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            sizes = entry_bytes(batch)
            run.append(pa.RecordBatch.from_arrays([*batch.columns, sizes], schema=_RUN_SCHEMA))
            size += int(sizes.sum())
            if size >= RUN_BYTES:
                _write_run(writer, run)
                run, size = [], 0
        _write_run(writer, run)


def entry_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes that each entry takes in memory, about."""
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


def _write_run(writer: pa.parquet.ParquetWriter, run: Sequence[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(run, _RUN_SCHEMA).sort_by("domain")
    # DuckDB finds rows that are not null by IS NULL in a row group of one domain and nulls
    domains = len(table) - table.column("domain").null_count
    for part in (table.slice(0, domains), table.slice(domains)):
        for group in _row_groups(part.column(_SIZE).to_numpy()):
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


def merge_runs(engine: DuckDb, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the entries of files with runs, by domain; those of plain keys first.

    Raises:
        LogFailedError: The temporary files have no room, or were changed.
    """
    if not paths:
        return
    runs = parquet_files(paths)
    written = sum(pa.parquet.read_metadata(path).num_rows for path in paths)
    read = 0
    for one in find_ranges(engine, paths):
        for batch in engine.batches(_rows_of(one, runs), one.batch_rows):
            read += len(batch)
            yield batch.cast(ENTRY_ARROW_SCHEMA)
    if read != written:
        raise LogFailedError(
            f"the sort of the entries read {read} of {written}",
            path=paths[0],
            hint="the temporary files were changed, or this is a bug: export again, and report it",
        )


def _rows_of(one: DomainRange, runs: str) -> str:
    rows = f"SELECT * EXCLUDE {_SIZE} FROM {runs} WHERE domain"
    if one.first is None or one.last is None:
        return f"{rows} IS NULL"
    if one.is_sorted:
        return f"{rows} = {quoted(one.first)}"
    return f"{rows} BETWEEN {quoted(one.first)} AND {quoted(one.last)} ORDER BY domain"


def find_ranges(engine: DuckDb, paths: Sequence[str]) -> list[DomainRange]:
    """Return the ranges of all domains in files with runs, in order; plain keys are the first."""
    found: list[DomainRange] = []
    for batch in engine.batches(_domains(parquet_files(paths)), _DOMAINS_ROWS):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            one = DomainRange(row[0], *row)
            if found and found[-1].takes(one):
                found[-1] = found[-1].joined(one)
            else:
                found.append(one)
    return found


def _domains(runs: str) -> str:
    """Return the query of each domain with its bytes, rows, and bytes of its largest entry."""
    return (
        f"SELECT domain, sum({_SIZE})::BIGINT, count(*), max({_SIZE}) FROM {runs} "
        "GROUP BY domain ORDER BY domain NULLS FIRST"
    )
