"""Plan of live entries on shards: equal to the replay of the log, for any number of shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.errors import LogCorruptError
from fastjournal.spark.execution import shard
from fastjournal.spark.execution.duckdb_engine import DuckDb
from fastjournal.spark.execution.shard import ShardStep
from fastjournal.spark.execution.shard_rows import unpack_parcels
from fastjournal.spark.live_entries import entries_view, label_replay, replay_runs
from fastjournal.spark.live_entries import replay_parcels as replay_module
from fastjournal.spark.live_entries.entries_view import (
    LogFiles,
    fetch_entries,
    run_step,
    send_records,
    send_segments,
)
from fastjournal.spark.live_entries.linked_entries import resolve_links
from fastjournal.spark.live_entries.partition_replay import ENTRY_ARROW_SCHEMA
from fastjournal.spark.live_entries.replay_parcels import replay_parcels
from fastjournal.spark.live_entries.sharded_plan import find_records
from fastjournal.spark.storage.files import LogDirectory
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.plan_logs import ended_chain, hot_uri, linked_chain, write_log
from tests.spark.random_logs import by_position, replayed, write_linked_log, write_random_log

NUMBERS = count()


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDb]:
    """Start the one database instance of these tests."""
    engine = DuckDb(tmp_path_factory.mktemp("duckdb"), threads=1, in_files=False)
    yield engine
    engine.connection.close()


@pytest.fixture(autouse=True)
def attached(instance: DuckDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each shard a database in the same instance: a step of few rows is quicker than a start.

    A real Spark gives each an instance of its own (``tests/spark``).
    """

    class Attached(DuckDb):
        def __init__(self, scratch: Path, **_: object) -> None:
            name = f"shard_{next(NUMBERS)}"
            self.connection = instance.connection.cursor()
            self.connection.execute(f"ATTACH ':memory:' AS {name}")
            self.connection.execute(f"USE {name}")
            self._scratch = scratch

    monkeypatch.setattr(shard, "DuckDb", Attached)


class ShardsHere:
    """Shards of a plan in this process.

    Args:
        batches: Parcels.
        number: Number of shards.
    """

    def __init__(self, batches: list[pa.RecordBatch], number: int) -> None:
        self.number = number
        self.rows = 0
        self.parts: list[list[pa.RecordBatch]] = [[] for _ in range(number)]
        for batch in batches:
            for index, to in enumerate(batch.column("shard").to_pylist()):
                self.parts[to].append(batch.slice(index, 1))

    def then(self, step: ShardStep) -> ShardsHere:
        sent = [b for part in self.parts for b in run_step(part, step=step, shards=self.number)]
        return ShardsHere(sent, self.number)

    def with_others(
        self, other: ShardsHere, step: ShardStep, *, into: int | None = None
    ) -> ShardsHere:
        both = [one + two for one, two in zip(self.parts, other.parts, strict=True)]
        sent = [b for part in both for b in run_step(part, step=step, shards=self.number)]
        return ShardsHere(sent, self.number if into is None else into)


def choose(log: Path, shards: int, *, permissive: bool = False) -> list[list[pa.RecordBatch]]:
    source = LogDirectory(log)
    files = LogFiles(str(log), {one.number: one for one in source.segments})
    indexes = pa.RecordBatch.from_pydict({"id": range(len(source.segments))})
    facts = list(send_segments([indexes], log=files, shards=shards, permissive=permissive))
    found = find_records(
        ShardsHere(facts, shards), source, shards=shards, fetches=shards, permissive=permissive
    )
    return found.parts


def records_of(parts: list[list[pa.RecordBatch]]) -> int:
    """Return the number of records that are replayed."""
    given = [one for part in parts for one in unpack_parcels(part).values()]
    return sum(len(one["replayed"]) for one in given if "replayed" in one)


def rows_of(log: Path, parts: list[list[pa.RecordBatch]]) -> list[tuple[Any, ...]]:
    files = LogFiles(str(log), {one.number: one for one in LogDirectory(log).segments})
    names = ENTRY_ARROW_SCHEMA.names

    def batches() -> Iterator[pa.RecordBatch]:
        sent: list[pa.RecordBatch] = []
        for part in parts:
            yield from fetch_entries(part, log=files, names=names)
            sent += send_records(part, log=files, shards=len(parts), permissive=False)
        # the last ones first, as Spark may move them
        for part in ShardsHere(sent[::-1], len(parts)).parts:
            yield from replay_parcels(part, names=names)

    rows: list[tuple[Any, ...]] = []
    for batch in batches():
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return by_position(rows)


@pytest.mark.parametrize("seed", range(12))
def test_plan_on_shards_equals_the_replay_of_colliding_records(seed: int, tmp_path: Path) -> None:
    write_random_log(tmp_path, seed, segments=3 + seed % 3, records=20 + 12 * seed)
    expected = replayed(tmp_path)
    assert expected
    assert rows_of(tmp_path, choose(tmp_path, 1 + seed % 4)) == expected


def test_plan_on_shards_equals_the_replay_of_entries_with_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = [0, 0]

    def counted(*arguments: Any) -> Any:
        found = resolve_links(*arguments)
        resolved[0] += int(found[0].sum())
        resolved[1] += len(found[0])
        return found

    monkeypatch.setattr(label_replay, "resolve_links", counted)
    for seed in range(6):
        monkeypatch.setattr(label_replay, "LABELS_RECORDS", (1, 20, 10_000)[seed % 3])
        log = tmp_path / str(seed)
        write_linked_log(log, seed)
        assert rows_of(log, choose(log, 1 + seed % 3)) == replayed(log), seed
    assert 50 < resolved[0] < resolved[1]


def test_replay_of_a_shard_with_many_records_sorts_them_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_runs, "RANGE_BYTES", 2000)
    for seed in range(3):
        monkeypatch.setattr(replay_module, "MEMORY_BYTES", (0, 3000)[seed % 2])
        log = tmp_path / str(seed)
        write_random_log(log, seed, segments=4, records=60)
        assert rows_of(log, choose(log, 1 + seed % 2)) == replayed(log), seed


def test_links_of_entries_that_were_gone_replay_the_one_that_is_live(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", ended_chain(50))
    chosen = choose(log, 3)
    assert records_of(chosen) == 3
    (row,) = rows_of(log, chosen)
    assert row[2] == [b"link 49", b"link 50"]
    assert [row] == replayed(log)


def test_chain_of_links_over_shards_is_one_component_whatever_its_length(tmp_path: Path) -> None:
    segment = linked_chain(300)
    log = write_log(tmp_path / "log", segment)
    chosen = choose(log, 3)
    assert records_of(chosen) == len(segment.offsets) - 1
    assert rows_of(log, chosen) == replayed(log)


def test_labels_of_a_long_chain_come_to_the_shards_of_their_nodes_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "log", linked_chain(300))
    came = Counter[str]()
    unpack = entries_view.unpack_parcels

    def counted(batches: Any) -> Any:
        found = unpack(batches)
        for given in found.values():
            came.update({name: len(table) for name, table in given.items()})
        return found

    monkeypatch.setattr(entries_view, "unpack_parcels", counted)
    assert rows_of(log, choose(log, 12)) == replayed(log)
    # once from the shard that joins what the rounds left, once from one step to the next
    assert 0 < came["moved"] <= 2 * 300


def test_hot_uri_sends_one_row_a_shard_and_replays_what_overlaps_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "log", hot_uri(2000, leased=1990))
    came: dict[str, int] = {}
    unpack = entries_view.unpack_parcels

    def counted(batches: Any) -> Any:
        found = unpack(batches)
        for given in found.values():
            for name, table in given.items():
                came[name] = max(came.get(name, 0), len(table))
        return found

    monkeypatch.setattr(entries_view, "unpack_parcels", counted)
    chosen = choose(log, 4)
    assert 0 < records_of(chosen) < 40
    expected = replayed(log)
    assert [row[7] for row in expected] == ["worked_on", "waiting"]
    assert rows_of(log, chosen) == expected
    # its jobs are on all shards, and between shards it is one node of each
    assert came["nodes"] > 300
    assert max(came[name] for name in ("edges", "near", "pairs", "roots", "labels")) <= 8


def test_segment_that_is_missing_ends_the_plan(tmp_path: Path) -> None:
    write_random_log(tmp_path, 11, segments=2, records=20)
    # what a random segment names as the one before it is random, too
    (tmp_path / segment_name(4)).write_bytes(bytes(SegmentBuilder(3)))
    with pytest.raises(LogCorruptError, match="is missing"):
        choose(tmp_path, 2)
    (part, *_) = choose(tmp_path, 2, permissive=True)
    (note,) = unpack_parcels(part)[0]["missing"].column("note").to_pylist()
    assert "is missing" in note
