"""Tasks of the export: the work on one segment, or on some records, from file to local file.

Each runs in a process of its own, so that all cores decode. Between the tasks stands DuckDB, which
reads these files (``fastjournal.spark.export.local_entries``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fastjournal.spark.decoding.byte_arrays import Numbers, Offsets
from fastjournal.spark.export.domain_runs import write_entry_runs
from fastjournal.spark.live_entries.facts import FACTS_SCHEMA, read_facts
from fastjournal.spark.live_entries.fetch import Base, read_entries, read_replayed
from fastjournal.spark.live_entries.label_replay import replay_labels
from fastjournal.spark.live_entries.partition_replay import ENTRY_ARROW_SCHEMA
from fastjournal.spark.live_entries.replay_runs import ReplayRange, read_range, write_record_runs
from fastjournal.spark.storage.files import SegmentFile, resolve

_COMPRESSION = "lz4"


def write_facts(directory: str, segment: SegmentFile, path: str) -> int:
    """Write the facts of a segment's records; return the size of the segment."""
    files, _ = resolve(directory)
    _write(path, FACTS_SCHEMA, read_facts(files, segment, permissive=False))
    return segment.bytes


def write_entries(directory: str, segment: SegmentFile, offsets: Offsets, path: str) -> int:
    """Write the entries of records that need no replay; return the size of the segment."""
    files, _ = resolve(directory)
    names = ENTRY_ARROW_SCHEMA.names
    write_entry_runs(path, read_entries(files, segment, offsets, names))
    return segment.bytes


def write_replayed(
    directory: str, segment: SegmentFile, offsets: Offsets, labels: Numbers, base: Base, path: str
) -> int:
    """Write the records of a segment that have to be replayed; return their number."""
    files, _ = resolve(directory)
    order = np.argsort(offsets)
    batches = read_replayed(files, segment, offsets[order], labels[order], base, permissive=False)
    write_record_runs(path, batches)
    return len(offsets)


def write_replay(chosen: ReplayRange, path: str) -> int:
    """Write the entries that the records of a range leave; return the number of the records."""
    records = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal records
        for batch in read_range(chosen):
            records += len(batch)
            yield batch

    write_entry_runs(path, replay_labels(counted(), ENTRY_ARROW_SCHEMA.names))
    return records


def _write(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    with pa.parquet.ParquetWriter(
        path, schema, compression=_COMPRESSION, use_dictionary=False, store_schema=False
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
