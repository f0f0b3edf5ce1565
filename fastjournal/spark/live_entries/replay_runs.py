"""Replay runs: records sorted by label, as ``sorted_runs``, read range by range by the tasks.

A record has its whole value, so that a sort of all records in one statement needs memory for
values. Here the sorter sees labels and numbers of bytes only: it divides labels into ranges, and
tells each task the row groups that have records of its range. A label with more bytes than a range
is read in the order of the files, which is that of the segments, and never is in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.spark.decoding.byte_arrays import Numbers
from fastjournal.spark.execution import sorted_runs
from fastjournal.spark.execution.duckdb_engine import DuckDb
from fastjournal.spark.execution.sorted_runs import KeyRange
from fastjournal.spark.live_entries.fetch import REPLAYED_SCHEMA

RANGE_BYTES = 16 * 1024 * 1024
"""Most bytes of a range of several labels: a task sorts it in memory."""
_KEY = "label"
_ORDER = (_KEY, "segment", "offset")


class ReplayRange(NamedTuple):
    """Records of one task: those with labels from ``first`` to ``last``."""

    first: int
    last: int
    groups: tuple[tuple[str, list[int]], ...]
    """Files, in the order of their segments, and their row groups with records of the range."""


def write_record_runs(path: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the records of one segment as runs that are sorted by label to a file."""
    sorted_runs.write_runs(path, batches, REPLAYED_SCHEMA, _ORDER)


def find_replay_ranges(engine: DuckDb, paths: Sequence[str]) -> Iterator[ReplayRange]:
    """Yield the ranges of all labels in files with runs.

    Args:
        engine: Where to add up the bytes of each label.
        paths: The files, in the order of their segments.
    """
    ranges: list[KeyRange[int]] = sorted_runs.find_ranges(engine, paths, _KEY, RANGE_BYTES)
    bounds = [(path, _label_bounds(path)) for path in paths]
    for one in ranges:
        assert one.first is not None  # each record has a label
        assert one.last is not None
        groups = tuple(
            (
                path,
                np.flatnonzero((labels[:, 1] >= one.first) & (labels[:, 0] <= one.last)).tolist(),
            )
            for path, labels in bounds
        )
        yield ReplayRange(one.first, one.last, tuple(piece for piece in groups if piece[1]))


def _label_bounds(path: str) -> Numbers:
    """Return a row for each row group: its least and its largest label."""
    found = sorted_runs.key_bounds(path, _KEY)
    return np.array(found, np.int64).reshape(len(found), 2)


def read_range(chosen: ReplayRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in the order of label, segment and offset."""
    batches = _read_groups(chosen)
    if chosen.first == chosen.last:
        yield from batches
        return
    table = pa.Table.from_batches(batches, REPLAYED_SCHEMA)
    ordered = table.sort_by([(name, "ascending") for name in _ORDER])
    yield from ordered.to_batches(sorted_runs.ROW_GROUP_ROWS)


def _read_groups(chosen: ReplayRange) -> Iterator[pa.RecordBatch]:
    label = pc.field(_KEY)
    within = (label >= chosen.first) & (label <= chosen.last)
    for path, groups in chosen.groups:
        for table in sorted_runs.read_groups(path, groups, within):
            yield from table.to_batches()
