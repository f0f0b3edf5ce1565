"""External sort of entries by domain: runs, ranges of domains, and their merge."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("duckdb")

from fastjournal.errors import LogFailedError
from fastjournal.spark.execution import duckdb_engine, sorted_runs
from fastjournal.spark.execution.duckdb_engine import DuckDb
from fastjournal.spark.execution.sorted_runs import row_bytes
from fastjournal.spark.export import domain_runs
from fastjournal.spark.export.domain_runs import find_domain_ranges, merge_runs, write_entry_runs
from fastjournal.spark.live_entries.partition_replay import ENTRY_ARROW_SCHEMA
from tests.spark.sorted_run_cases import batch_with, draw_bounds, replace_column

LONG = "l" * 5000
"""A name so long that Parquet has no statistics of it."""


def batch_of(domains: list[str | None], first: int) -> pa.RecordBatch:
    numbers = range(first, first + len(domains))
    return batch_with(
        ENTRY_ARROW_SCHEMA,
        len(domains),
        domain=domains,
        links=[[b"one"] for _ in domains],
        key=[b"%d" % number for number in numbers],
        offset=list(numbers),
    )


def write_files(directory: Path, draw: random.Random, names: list[str | None]) -> list[str]:
    """Write files of three batches each, in which every row has its own number."""
    paths, first = [], 0
    for number in range(4):
        batches = []
        for _ in range(3):
            domains = [draw.choice(names) for _ in range(draw.randrange(60))]
            batches.append(batch_of(domains, first))
            first += len(domains)
        paths.append(str(directory / f"it's-{number}"))
        write_entry_runs(paths[-1], batches)
    return paths


@pytest.mark.parametrize("seed", range(6))
def test_merge_of_runs_sorts_all_entries_by_domain(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    draw_bounds(draw, monkeypatch, domain_runs)
    few = ["a", "b", None]
    many = [*few, "", "it's", "\u00fc", "\U0001f600", "\uffff", LONG, *map(str, range(90))]
    monkeypatch.setattr(sorted_runs, "ROW_GROUP_BYTES", draw.choice((1, 700, 1 << 30)))
    monkeypatch.setattr(domain_runs, "BATCH_BYTES", draw.choice((1, 2_000, 1 << 30)))
    paths = write_files(tmp_path, draw, [few, many, ["a"] * 30 + many][seed % 3])
    rows = [row for batch in merge_runs(DuckDb(tmp_path), paths) for row in batch.to_pylist()]
    assert sorted(row["offset"] for row in rows) == list(range(len(rows)))
    assert all(row["key"] == b"%d" % row["offset"] for row in rows)
    domains = [row["domain"] for row in rows]
    # in the order of their bytes; those of plain keys first
    assert domains == sorted(domains, key=lambda one: (one is not None, (one or "").encode()))
    assert len(domains) > 200


def large_batch(domains: list[str], values: Iterable[bytes]) -> pa.RecordBatch:
    return replace_column(batch_of([*domains], 0), "value", values)


def same_files(path: Path, number: int) -> list[str]:
    """Return the paths of this many files with the rows of one: to write them costs the most."""
    others = [path.with_name(str(other)) for other in range(1, number)]
    for other in others:
        other.hardlink_to(path)
    return [str(path), *map(str, others)]


def test_range_of_a_domain_with_many_entries_is_read_without_a_sort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [None, "a", "b", *["hot"] * 80, "x", "y"]
    batch = batch_of(names, 100)
    size = int(row_bytes(batch)[10])
    monkeypatch.setattr(domain_runs, "RANGE_BYTES", 70 * size)
    path = str(tmp_path / "one")
    write_entry_runs(path, [batch])
    engine = DuckDb(tmp_path)
    ranges = find_domain_ranges(engine, [path])
    assert [(one.first, one.last, one.rows, one.is_one_key) for one in ranges] == [
        (None, None, 1, True),
        ("a", "b", 2, False),
        ("hot", "hot", 80, True),
        ("x", "y", 2, False),
    ]
    assert ranges[2].bytes == 80 * size
    empty = str(tmp_path / "none")
    write_entry_runs(empty, [])
    assert find_domain_ranges(engine, [empty]) == []
    assert list(merge_runs(engine, [empty])) == list(merge_runs(engine, [])) == []


def test_ranges_of_even_domains_in_many_runs_are_no_larger_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_runs, "RUN_BYTES", 64 * 1024)
    monkeypatch.setattr(domain_runs, "RANGE_BYTES", 48 * 1024)
    monkeypatch.setattr(sorted_runs, "ROW_GROUP_BYTES", 1024)
    names = [f"d{number:02}" for number in range(40)]
    value = bytes(1000)
    one = tmp_path / "0"
    write_entry_runs(str(one), [large_batch(names * 2, [value] * 80) for _ in range(3)])
    paths = same_files(one, 20)
    ranges = find_domain_ranges(DuckDb(tmp_path), paths)
    # of each domain 120 kB: more than a range may have
    assert [(one.first, one.last, one.rows) for one in ranges] == [(n, n, 120) for n in names]
    monkeypatch.setattr(domain_runs, "RANGE_BYTES", 448 * 1024)
    ranges = find_domain_ranges(DuckDb(tmp_path), paths)
    assert [one.rows for one in ranges] == [360] * 13 + [120]
    assert all(one.rows * 1000 <= one.bytes <= domain_runs.RANGE_BYTES for one in ranges)


def test_merge_of_large_values_of_two_domains_needs_no_sort(tmp_path: Path) -> None:
    rows = 1024
    values = pa.array([bytes([number % 251]) * 65_536 for number in range(64)], pa.binary())
    one, batch = tmp_path / "0", large_batch(["a", "b"] * 32, values)
    write_entry_runs(str(one), (batch for _ in range(rows // 64)))
    paths = same_files(one, 8)
    engine = DuckDb(tmp_path)
    # twice the memory limit of the engine
    ranges = find_domain_ranges(engine, paths)
    assert [(one.first, one.last, one.rows) for one in ranges] == [
        ("a", "a", 4096),
        ("b", "b", 4096),
    ]
    domains = []
    for batch in merge_runs(engine, paths):
        assert batch.nbytes <= 1.1 * domain_runs.BATCH_BYTES
        assert set(pc.binary_length(batch.column("value")).to_pylist()) == {65_536}
        domains += batch.column("domain").to_pylist()
    assert domains == ["a"] * 4096 + ["b"] * 4096


def test_merge_reads_a_domain_with_a_value_of_the_memory_limit_without_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_engine, "MEMORY_MIB", 64)
    monkeypatch.setattr(domain_runs, "RANGE_BYTES", 1)
    names: list[str | None] = ["a", LONG, None, "m", "z"] * 3
    small = batch_of(names, 0)
    values = [bytes([number]) * 48 * 1024 * 1024 for number in range(3)]
    large = replace_column(batch_of([None, "m", LONG], 100), "value", values)
    paths = [str(tmp_path / name) for name in ("one", "two")]
    write_entry_runs(paths[0], [small])
    write_entry_runs(paths[1], [large.slice(number, 1) for number in range(3)])
    offsets: dict[str | None, list[int]] = {}
    for batch in merge_runs(DuckDb(tmp_path), paths):
        for row in batch.select(["domain", "offset"]).to_pylist():
            offsets.setdefault(row["domain"], []).append(row["offset"])
    assert list(offsets) == [None, "a", LONG, "m", "z"]
    assert sorted(offsets[None]) == [2, 7, 12, 100]
    assert sorted(offsets["m"]) == [3, 8, 13, 101]
    assert sorted(offsets[LONG]) == [1, 6, 11, 102]


def test_bytes_of_entries_are_those_of_their_strings(tmp_path: Path) -> None:
    names: list[str | None] = ["a", None, "ccc", "dddd"]
    links = [[b"x"], None, [], [b"four", b"of", b""]]
    batch = replace_column(batch_of(names, 10), "links", links)
    fixed = 8 * batch.num_columns + len(b"10")
    expected = [fixed + 1 + 9, fixed, fixed + 3, fixed + 4 + 6 + 3 * 8]
    assert row_bytes(batch).tolist() == expected
    for first in range(4):
        assert row_bytes(batch.slice(first)).tolist() == expected[first:]
        assert row_bytes(batch.slice(first, 1)).tolist() == expected[first : first + 1]


def test_merge_that_reads_other_entries_than_were_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "one")
    write_entry_runs(path, [batch_of(["a", "b", None], 0)])
    monkeypatch.setattr(domain_runs, "RANGE_BYTES", 1)
    monkeypatch.setattr(
        domain_runs, "find_domain_ranges", lambda *given: find_domain_ranges(*given)[:-1]
    )
    merged = merge_runs(DuckDb(tmp_path), [path])
    with pytest.raises(LogFailedError, match="the sort of the entries read 2 of 3 "):
        list(merged)
