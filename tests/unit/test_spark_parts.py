"""Live entries by the query plan: equal to the replay of the whole log, by few replays."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import Pause
from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.errors import LogCorruptError
from fastjournal.spark.decoding.byte_arrays import END_BYTES, SegmentBytes, hash_of
from fastjournal.spark.decoding.rows import RecordRow
from fastjournal.spark.decoding.view_columns import READABLE
from fastjournal.spark.execution import duckdb_engine
from fastjournal.spark.execution.duckdb_engine import DuckDb
from fastjournal.spark.export import local_entries
from fastjournal.spark.export.local_entries import sorted_entries
from fastjournal.spark.live_entries import plan
from fastjournal.spark.storage.files import LogDirectory
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.harmed_logs import harm_first_segment, write_cleaned_log
from tests.spark.plan_logs import SECOND, hot_uri, linked_chain, write_log
from tests.spark.random_logs import by_position, replayed, write_random_log

NUMBERS = count()


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDb]:
    """Start the one database instance of these tests."""
    engine = DuckDb(tmp_path_factory.mktemp("duckdb"), in_files=False)
    yield engine
    engine.connection.close()


@pytest.fixture(autouse=True)
def attached(instance: DuckDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each plan a database of its own in the same instance: a start takes as long as a plan.

    An export has an instance of its own, with tables in a file (``test_spark_export.py``).
    """

    class Attached(DuckDb):
        def __init__(self, scratch: Path) -> None:
            name = f"plan_{next(NUMBERS)}"
            self.connection = instance.connection.cursor()
            self.connection.execute(f"ATTACH ':memory:' AS {name}")
            self.connection.execute(f"USE {name}")
            self._scratch = scratch

    monkeypatch.setattr(local_entries, "DuckDb", Attached)


def rows_of(log: Path, scratch: Path) -> list[tuple[Any, ...]]:
    scratch.mkdir()
    rows: list[tuple[Any, ...]] = []
    batches = sorted_entries(LogDirectory(log), log, scratch, processes=1, on_bytes=lambda _: None)
    for batch in batches:
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return by_position(rows)


@pytest.fixture
def replayed_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of records that tasks replay."""
    told: list[int] = []
    write = local_entries.export_tasks.write_replay

    def counted(*arguments: Any) -> int:
        told.append(write(*arguments))
        return told[-1]

    monkeypatch.setattr(local_entries.export_tasks, "write_replay", counted)
    return told


@pytest.mark.parametrize("seed", range(12))
def test_plan_equals_the_replay_of_colliding_records(seed: int, tmp_path: Path) -> None:
    write_random_log(tmp_path / "log", seed, segments=3 + seed % 3, records=20 + 12 * seed)
    expected = replayed(tmp_path / "log")
    assert expected
    assert rows_of(tmp_path / "log", tmp_path / "scratch {x}") == expected


@pytest.mark.parametrize("bounds", [(0, 64), (1, 0), (0, 1)])
def test_plan_equals_the_replay_where_its_rounds_are_too_few(
    bounds: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "HOPS_MAX", bounds[0])
    monkeypatch.setattr(plan, "ROUNDS_MAX", bounds[1])
    write_random_log(tmp_path / "log", 5, segments=3, records=60)
    assert rows_of(tmp_path / "log", tmp_path / "scratch") == replayed(tmp_path / "log")


def test_chain_of_links_is_one_component_whatever_its_length(
    tmp_path: Path, replayed_rows: list[int]
) -> None:
    segment = linked_chain(300)
    log = write_log(tmp_path / "log", segment)
    assert rows_of(log, tmp_path / "scratch") == replayed(log)
    assert replayed_rows == [len(segment.offsets) - 1]


def test_hot_uri_with_a_lease_replays_no_more_than_what_overlaps_it(
    tmp_path: Path, replayed_rows: list[int]
) -> None:
    log = write_log(tmp_path / "log", hot_uri(2000, leased=1990))
    expected = replayed(log)
    assert [row[7] for row in expected] == ["worked_on", "waiting"]
    assert rows_of(log, tmp_path / "scratch") == expected
    assert 0 < sum(replayed_rows) < 40


def test_replay_takes_only_entries_that_other_records_changed(
    tmp_path: Path, replayed_rows: list[int]
) -> None:
    segment = SegmentBuilder()
    jobs = [segment.entry(b"key %d" % number, uri=b"uri %d" % number) for number in range(100)]
    segment.lease(jobs[:10], segment.now_us + 60 * SECOND)
    for number in range(5):
        segment.complete(jobs[number], b"key %d" % number)
    for job in jobs[50:60]:
        segment.simple(Command.DELETE, job)
    # so that no record of an entry is among the last bytes of the file
    for _ in range(3):
        segment.operation(Pause(b"d", 0, again=False))
    log = write_log(tmp_path / "log", segment)
    assert rows_of(log, tmp_path / "scratch") == replayed(log)
    assert replayed_rows == [10]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the relations that the plan stores."""
    names: list[str] = []
    store = duckdb_engine.DuckDb.store

    def told(engine: Any, name: str, sql: str, **relations: str) -> str:
        names.append(name)
        return store(engine, name, sql, **relations)

    monkeypatch.setattr(duckdb_engine.DuckDb, "store", told)
    return names


def test_plan_looks_for_components_only_where_entries_share_a_term(
    tmp_path: Path, stored: list[str]
) -> None:
    segment = SegmentBuilder()
    jobs = [segment.entry(b"key %d" % number, uri=b"uri %d" % number) for number in range(9)]
    segment.lease(jobs[:3], segment.now_us + 60 * SECOND)
    segment.complete(jobs[0], b"key 0")
    log = write_log(tmp_path / "log", segment)
    rounds = {"hop_0", "pairs", "large_0", "small_0"}
    assert rows_of(log, tmp_path / "alone") == replayed(log)
    assert "tangled_0" in stored
    assert not rounds & set(stored)
    segment.entry(b"other", uri=b"uri 8")
    (log / segment_name(1)).write_bytes(bytes(segment))
    assert rows_of(log, tmp_path / "together") == replayed(log)
    assert rounds <= set(stored)


def test_hash_of_many_keys_is_that_of_each() -> None:
    keys = [b"", b"a", b"1234567", b"12345678", b"123456789", b"\xff" * 64, bytes(65), b"k" * 4096]
    segment = SegmentBytes(b"".join(keys) + bytes(END_BYTES))
    ends = [sum(map(len, keys[: index + 1])) for index in range(len(keys))]
    end = np.array(ends, np.int64)
    start = end - [len(key) for key in keys]
    assert segment.hashes(start, end).tolist() == [hash_of(key) for key in keys]
    assert len({hash_of(key) for key in keys}) == len(keys)


@pytest.mark.parametrize("seed", [1, 2])
def test_log_that_was_cut_anywhere_gives_what_recovery_finds(seed: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_random_log(log, seed, segments=2, records=25)
    last = log / "000000002.log"
    data = last.read_bytes()
    for length in range(0, len(data), 397):
        last.write_bytes(data[:length])
        assert rows_of(log, tmp_path / f"scratch-{length}") == replayed(log), length


@pytest.mark.parametrize("change", ["header", "record", "older", "gone"])
def test_chain_of_segments_is_checked_before_entries_come(change: str, tmp_path: Path) -> None:
    write_cleaned_log(tmp_path)
    if change == "gone":
        assert len(rows_of(tmp_path, tmp_path / "whole")) == 28
    harm_first_segment(tmp_path, change)
    with pytest.raises(LogCorruptError) as caught:
        rows_of(tmp_path, tmp_path / "scratch")
    assert caught.value.path == f"{tmp_path}/000000001.log"


def test_record_of_a_pause_tells_its_domain_and_its_end() -> None:
    row = RecordRow(1, 8, b"", operation=Pause(b"d\xff", 77, again=False))
    told = {name: READABLE[name].value(row) for name in ("operation", "domain", "not_before")}
    assert told == {"operation": "pause", "domain": "d\\xff", "not_before": 77}
