"""External sort of the records to replay: ranges of labels, and memory for large values."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("duckdb")

from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.spark import duckdb_engine, entry_fetch, replay_runs, sorted_runs
from fastjournal.spark.duckdb_engine import DuckDb
from fastjournal.spark.entry_fetch import REPLAYED_SCHEMA
from fastjournal.spark.files import LogDirectory
from fastjournal.spark.local_entries import sorted_entries
from fastjournal.spark.replay_runs import find_replay_ranges, read_range, write_record_runs
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.random_logs import replayed, write_random_log

LARGE_VALUE_BYTES = 64 * 1024


def records(segment: int, labels: list[int]) -> pa.RecordBatch:
    columns = {
        "label": labels,
        "segment": [segment] * len(labels),
        "offset": list(range(len(labels))),
        "raw": [b"%d-%d" % (segment, offset) for offset in range(len(labels))],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, [None] * len(labels)), field.type)
         for field in REPLAYED_SCHEMA],
        schema=REPLAYED_SCHEMA,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_ranges_of_labels_hold_each_record_once_in_the_order_of_the_log(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(sorted_runs, "ROW_GROUP_ROWS", draw.choice((1, 3, 50)))
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", draw.choice((1, 10_000, 1 << 30)))
    monkeypatch.setattr(replay_runs, "RANGE_BYTES", draw.choice((1, 3_000, 1 << 30)))
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
    found = []
    for one in ranges:
        for batch in read_range(one):
            found += list(zip(*(batch.column(n).to_pylist() for n in range(3)), strict=True))
    assert found == sorted(written)


def test_export_of_large_leased_values_needs_no_sort_of_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_engine, "MEMORY_MIB", 64)
    log, scratch = tmp_path / "log", tmp_path / "scratch"
    log.mkdir()
    scratch.mkdir()
    rows = 1200
    for number in (1, 2):
        segment = SegmentBuilder(number - 1, ids_from=number << 32)
        for index in range(rows // 2):
            key = b"d%d:1:0:%d-%d" % (index % 2, number, index)
            job = segment.entry(key, value=bytes([index % 251]) * LARGE_VALUE_BYTES)
            segment.lease([job], segment.now_us + 60_000_000)
        (log / segment_name(number)).write_bytes(bytes(segment))
    live = 0
    for batch in sorted_entries(
        LogDirectory(log), log, scratch, processes=1, on_bytes=lambda _: None
    ):
        live += len(batch)
        for key, value in zip(
            *(batch.column(n).to_pylist() for n in ("key", "value")), strict=True
        ):
            assert value == bytes([int(key.rpartition(b"-")[2]) % 251]) * LARGE_VALUE_BYTES
    assert live == rows
    assert list(scratch.glob("records-*")) == []


def test_replay_of_few_bytes_at_once_equals_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_fetch, "LABELS_BYTES", 1)
    monkeypatch.setattr(replay_runs, "RANGE_BYTES", 1)
    log, scratch = tmp_path / "log", tmp_path / "scratch"
    write_random_log(log, 3, segments=3, records=80)
    scratch.mkdir()
    rows = [
        row
        for batch in sorted_entries(
            LogDirectory(log), log, scratch, processes=1, on_bytes=lambda _: None
        )
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    assert sorted(rows, key=repr) == sorted(replayed(log), key=repr)
    assert len(list(scratch.glob("replay-*"))) > 3
