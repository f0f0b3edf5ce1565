"""Entries sorted by domain: runs of ``sorted_runs``, merged range by range by DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from fastjournal.errors import LogFailedError
from fastjournal.spark.execution import sorted_runs
from fastjournal.spark.execution.duckdb_engine import DuckDb, parquet_files, quoted
from fastjournal.spark.execution.sorted_runs import SIZE, KeyRange
from fastjournal.spark.live_entries.partition_replay import ENTRY_ARROW_SCHEMA

RANGE_BYTES = 48 * 1024 * 1024
"""Most bytes of a range of several domains: it is sorted in memory."""
BATCH_ROWS = 2048
BATCH_BYTES = 32 * 1024 * 1024
"""Most bytes of a batch of several rows that comes out."""
LARGE_BYTES = 16 * 1024 * 1024
"""A domain with a larger entry is read without DuckDB, which rounds its memory up to twice that."""
_KEY = "domain"


def write_entry_runs(path: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Write entries as runs that are sorted by domain to a file."""
    sorted_runs.write_runs(path, batches, ENTRY_ARROW_SCHEMA, [_KEY])


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
    for one in find_domain_ranges(engine, paths):
        if one.is_one_key and one.largest > LARGE_BYTES:
            batches = _read_domain(paths, one.first)
        else:
            # few, where values are large
            rows = max(min(BATCH_ROWS, BATCH_BYTES // max(one.largest, 1)), 1)
            batches = engine.batches(_rows_of(one, runs), rows)
        for batch in batches:
            read += len(batch)
            yield batch.cast(ENTRY_ARROW_SCHEMA)
    if read != written:
        raise LogFailedError(
            f"the sort of the entries read {read} of {written}",
            path=paths[0],
            hint="the temporary files were changed, or this is a bug: export again, and report it",
        )


def find_domain_ranges(engine: DuckDb, paths: Sequence[str]) -> list[KeyRange[str]]:
    """Return the ranges of all domains in files with runs, in order; plain keys are the first."""
    return sorted_runs.find_ranges(engine, paths, _KEY, RANGE_BYTES)


def _rows_of(one: KeyRange[str], runs: str) -> str:
    rows = f"SELECT * EXCLUDE {SIZE} FROM {runs} WHERE {_KEY}"
    if one.first is None or one.last is None:
        return f"{rows} IS NULL"
    if one.is_one_key:
        return f"{rows} = {quoted(one.first)}"
    return f"{rows} BETWEEN {quoted(one.first)} AND {quoted(one.last)} ORDER BY {_KEY}"


def _read_domain(paths: Sequence[str], domain: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a domain; None: those of plain keys."""
    name = pc.field(_KEY)
    within = name.is_null() if domain is None else name == pa.scalar(domain)
    for path in paths:
        chosen = [
            number
            for number, told in enumerate(sorted_runs.key_bounds(path, _KEY))
            if told is None or (domain is not None and told[0] <= domain <= told[1])
        ]
        for table in sorted_runs.read_groups(path, chosen, within):
            yield from table.to_batches()
