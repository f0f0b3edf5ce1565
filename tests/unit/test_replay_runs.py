"""External sort of the records to replay: ranges of labels, and memory for large values."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("duckdb")

from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.spark.execution import duckdb_engine
from fastjournal.spark.execution.duckdb_engine import DuckDb
from fastjournal.spark.export.local_entries import sorted_entries
from fastjournal.spark.live_entries import label_replay, replay_runs
from fastjournal.spark.live_entries.fetch import REPLAYED_SCHEMA
from fastjournal.spark.live_entries.replay_runs import (
    find_replay_ranges,
    read_range,
    write_record_runs,
)
from fastjournal.spark.storage.files import LogDirectory
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.random_logs import replayed, write_random_log
from tests.spark.sorted_run_cases import batch_with, draw_bounds

LARGE_VALUE_BYTES = 64 * 1024


def records(segment: int, labels: list[int]) -> pa.RecordBatch:
    return batch_with(
        REPLAYED_SCHEMA,
        len(labels),
        label=labels,
        segment=[segment] * len(labels),
        offset=list(range(len(labels))),
        raw=[b"%d-%d" % (segment, offset) for offset in range(len(labels))],
    )


def rows_of(batches: Iterable[pa.RecordBatch], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of these names of each row; of no names all of them."""
    for batch in batches:
        columns = (batch.select(names) if names else batch).columns
        yield from zip(*(column.to_pylist() for column in columns), strict=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Directory of a log, to be filled."""
    directory = tmp_path / "log"
    directory.mkdir()
    return directory


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Directory for the files of the sort."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    return directory


def export(log: Path, scratch: Path) -> Iterator[pa.RecordBatch]:
    """Return the entries of a log, sorted in this process."""
    directory = LogDirectory(log)
    return sorted_entries(directory, log, scratch, processes=1, on_bytes=lambda _: None)


@pytest.mark.parametrize("seed", range(6))
def test_ranges_of_labels_hold_each_record_once_in_the_order_of_the_log(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    draw_bounds(draw, monkeypatch, replay_runs)
    paths, written = [], []
    for segment in (1, 2, 10):
        # a hot label besides those of few records
        labels = [draw.choice((7, draw.randrange(40))) << 33 for _ in range(120)]
        paths.append(str(tmp_path / f"it's-{segment}"))
        batch = records(segment, labels)
        write_record_runs(paths[-1], [batch.slice(0, 50), batch.slice(50)])
        written += [(label, segment, offset) for offset, label in enumerate(labels)]
    ranges = list(find_replay_ranges(DuckDb(tmp_path), paths))
    assert all(one.last < other.first for one, other in pairwise(ranges))
    names = ("label", "segment", "offset")
    assert [row for one in ranges for row in rows_of(read_range(one), *names)] == sorted(written)


def test_export_of_large_leased_values_needs_no_sort_of_values(
    log: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_engine, "MEMORY_MIB", 64)
    rows = 1200
    for number in (1, 2):
        segment = SegmentBuilder(number - 1, ids_from=number << 32)
        for index in range(rows // 2):
            key = b"d%d:1:0:%d-%d" % (index % 2, number, index)
            job = segment.entry(key, value=bytes([index % 251]) * LARGE_VALUE_BYTES)
            segment.lease([job], segment.now_us + 60_000_000)
        (log / segment_name(number)).write_bytes(bytes(segment))
    live = 0
    for key, value in rows_of(export(log, scratch), "key", "value"):
        live += 1
        assert value == bytes([int(key.rpartition(b"-")[2]) % 251]) * LARGE_VALUE_BYTES
    assert live == rows
    assert list(scratch.glob("records-*")) == []


def test_replay_of_few_bytes_at_once_equals_the_replay(
    log: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_replay, "LABELS_BYTES", 1)
    monkeypatch.setattr(replay_runs, "RANGE_BYTES", 1)
    write_random_log(log, 3, segments=3, records=80)
    assert sorted(rows_of(export(log, scratch)), key=repr) == sorted(replayed(log), key=repr)
    assert len(list(scratch.glob("replay-*"))) > 3
