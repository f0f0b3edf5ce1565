"""External sort of entries by domain: runs, ranges of domains, and their merge."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("duckdb")

from fastjournal.spark import domain_runs
from fastjournal.spark.domain_runs import DomainRange, find_ranges, merge_runs, write_runs
from fastjournal.spark.duckdb_engine import DuckDb
from fastjournal.spark.partition_replay import ENTRY_ARROW_SCHEMA

LONG = "l" * 5000
"""A name so long that Parquet has no statistics of it."""


def batch_of(domains: list[str | None], first: int) -> pa.RecordBatch:
    columns = {
        "domain": domains,
        "links": [[b"one"] for _ in domains],
        "key": [b"%d" % (first + index) for index in range(len(domains))],
        "offset": list(range(first, first + len(domains))),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, [None] * len(domains)), field.type)
         for field in ENTRY_ARROW_SCHEMA],
        schema=ENTRY_ARROW_SCHEMA,
    )  # fmt: skip


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
        write_runs(paths[-1], batches)
    return paths


@pytest.mark.parametrize("seed", range(6))
def test_merge_of_runs_sorts_all_entries_by_domain(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(domain_runs, "ROW_GROUP_ROWS", draw.choice((1, 3, 50)))
    monkeypatch.setattr(domain_runs, "RUN_BYTES", draw.choice((1, 10_000, 1 << 30)))
    monkeypatch.setattr(domain_runs, "RANGE_BYTES", draw.choice((1, 3_000, 1 << 30)))
    few = ["a", "b", None]
    many = [*few, "", "it's", "\u00fc", "\U0001f600", "\uffff", LONG, *map(str, range(90))]
    paths = write_files(tmp_path, draw, [few, many, ["a"] * 30 + many][seed % 3])
    rows = [row for batch in merge_runs(DuckDb(tmp_path), paths) for row in batch.to_pylist()]
    assert sorted(row["offset"] for row in rows) == list(range(len(rows)))
    assert all(row["key"] == b"%d" % row["offset"] for row in rows)
    domains = [row["domain"] for row in rows]
    # in the order of their bytes; those of plain keys first
    assert domains == sorted(domains, key=lambda one: (one is not None, (one or "").encode()))
    assert len(domains) > 200


def test_range_of_a_domain_with_many_entries_is_read_without_a_sort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domain_runs, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(domain_runs, "RANGE_BYTES", 3_000)
    path = str(tmp_path / "one")
    write_runs(path, [batch_of(["a", "b", *["hot"] * 80, "x"], 0)])
    assert find_ranges([path]) == [
        DomainRange("", "hot", is_split=False),
        DomainRange("hot", None, is_split=True),
    ]
    empty = str(tmp_path / "none")
    write_runs(empty, [])
    assert find_ranges([empty]) == [DomainRange("", None, is_split=False)]
    assert list(merge_runs(DuckDb(tmp_path), [])) == []
