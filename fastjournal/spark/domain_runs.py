"""External merge sort of entries by domain: sorted runs in Parquet files, read range by range.

A file holds entries in runs, each sorted by domain, in small row groups. The statistics of the row
groups are a sample of all domains: they give ranges of domains of about ``RANGE_BYTES`` each.
DuckDB reads the row groups of one range at a time, and sorts these in memory. So memory does not
grow with the entries, nor with those of one domain, which need no sort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet

from fastjournal.spark.duckdb_engine import DuckDb, parquet_files, quoted
from fastjournal.spark.partition_replay import ENTRY_ARROW_SCHEMA

RUN_BYTES = 64 * 1024 * 1024
"""Bytes of a run: it is sorted in memory."""
RANGE_BYTES = 48 * 1024 * 1024
"""Bytes of a range of domains, about."""
ROW_GROUP_ROWS = 2048
BATCH_ROWS = 2048
"""Rows of a batch that comes out: few, as values may be large."""
_COMPRESSION = "lz4"
_DOMAIN = ENTRY_ARROW_SCHEMA.get_field_index("domain")


class DomainRange(NamedTuple):
    """Domains from the first one to before the last one."""

    first: str
    stop: str | None
    """None: to the end."""
    is_split: bool
    """Whether the first domain has many entries: it is read by itself."""


def write_runs(path: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Write entries as sorted runs to a file."""
    with pa.parquet.ParquetWriter(
        path,
        ENTRY_ARROW_SCHEMA,
        compression=_COMPRESSION,
        use_dictionary=False,
        store_schema=False,
        write_statistics=["domain"],
    ) as writer:
        run: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            run.append(batch)
            size += batch.nbytes
            if size >= RUN_BYTES:
                _write_run(writer, run)
                run, size = [], 0
        _write_run(writer, run)


def _write_run(writer: pa.parquet.ParquetWriter, run: Sequence[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(run, ENTRY_ARROW_SCHEMA).sort_by("domain")
    # DuckDB finds rows that are not null by IS NULL in a row group of one domain and nulls
    domains = len(table) - table.column("domain").null_count
    for part in (table.slice(0, domains), table.slice(domains)):
        writer.write_table(part, row_group_size=ROW_GROUP_ROWS)


def merge_runs(engine: DuckDb, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the entries of files with runs, by domain; those of plain keys first.

    Raises:
        LogFailedError: The temporary files have no room.
    """
    if not paths:
        return
    entries = f"SELECT * FROM {parquet_files(paths)}"
    yield from _batches(engine, f"{entries} WHERE domain IS NULL")
    for one in find_ranges(paths):
        first = quoted(one.first)
        beyond = "" if one.stop is None else f"AND domain < {quoted(one.stop)} "
        if one.is_split:
            yield from _batches(engine, f"{entries} WHERE domain = {first}")
        above = ">" if one.is_split else ">="
        yield from _batches(
            engine, f"{entries} WHERE domain {above} {first} {beyond}ORDER BY domain"
        )


def _batches(engine: DuckDb, sql: str) -> Iterator[pa.RecordBatch]:
    for batch in engine.batches(sql, BATCH_ROWS):
        yield batch.cast(ENTRY_ARROW_SCHEMA)


def find_ranges(paths: Iterable[str]) -> list[DomainRange]:
    """Return the ranges of the domains in files with runs, in order; none is left out."""
    row_groups = sorted(_row_groups(paths))
    alone: Counter[str] = Counter()
    for low, high, size in row_groups:
        if low == high:
            alone[low] += size
    hot = {domain for domain, size in alone.items() if size >= RANGE_BYTES // 2}
    found: list[DomainRange] = []
    # statistics lack the longest names, so the first range begins before all of them
    first, gathered = "", 0
    for low, _, size in row_groups:
        if low > first and (gathered >= RANGE_BYTES or low in hot):
            found.append(DomainRange(first, low, first in hot))
            first, gathered = low, 0
        gathered += size
    found.append(DomainRange(first, None, first in hot))
    return found


def _row_groups(paths: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the least and the greatest domain of each row group, and its bytes."""
    for path in paths:
        metadata = pa.parquet.read_metadata(path)
        for index in range(metadata.num_row_groups):
            row_group = metadata.row_group(index)
            statistics = row_group.column(_DOMAIN).statistics
            if statistics is not None and statistics.has_min_max:
                yield statistics.min, statistics.max, row_group.total_byte_size
