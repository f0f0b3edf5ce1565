"""External sort of entries by domain: each entry once, in order, in ranges with a bound."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from fastjournal.errors import LogFailedError
from fastjournal.spark.export import entry_sort
from fastjournal.spark.export.entry_sort import RunGroup, find_ranges, read_range, write_runs
from fastjournal.spark.live_entries.fetch import ENTRY_ARROW_SCHEMA


def batch_of(domains: list[str | None], values: list[bytes] | None = None) -> pa.RecordBatch:
    count = len(domains)
    columns = {"domain": domains, "value": values or [b"v" * 10] * count}
    arrays = [pa.array(columns.get(f.name, [None] * count), f.type) for f in ENTRY_ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRY_ARROW_SCHEMA)


def write(directory: Path, files: list[list[str | None]]) -> list[RunGroup]:
    found = []
    for number, domains in enumerate(files):
        pieces = [batch_of(domains[at : at + 50]) for at in range(0, len(domains), 50)]
        found += write_runs(str(directory / f"runs-{number}"), pieces)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_entry_sort_yields_each_entry_once_in_the_order_of_domains(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    row_bytes = batch_of(["d"] * 100).nbytes // 100
    monkeypatch.setattr(entry_sort, "GROUP_ROWS", draw.choice((1, 7, 2048)))
    monkeypatch.setattr(entry_sort, "RUN_BYTES", draw.choice((1, 300 * row_bytes)))
    monkeypatch.setattr(entry_sort, "RANGE_BYTES", draw.choice((1, 40, 100)) * row_bytes)
    names = [None, "", "a", "b", "é", "z\U0001f600", *(f"d{number}" for number in range(30))]
    names.remove("")
    weights = [draw.choice((0, 1, 1, 40)) for _ in names]
    weights[0] += 1
    files = [draw.choices(names, weights, k=draw.randrange(1, 400)) for _ in range(4)]
    groups = write(tmp_path, files)
    ranges = find_ranges(groups)
    found = [
        domain
        for one in ranges
        for batch in read_range(one)
        for domain in batch.column("domain").to_pylist()
    ]
    expected = sorted((d for file in files for d in file), key=lambda d: (d or "").encode())
    assert found == expected
    assert sum(one.rows for one in ranges) <= len(expected)


def test_entry_sort_divides_a_large_domain_into_ranges_without_a_sort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_sort, "GROUP_ROWS", 10)
    monkeypatch.setattr(entry_sort, "RANGE_BYTES", batch_of(["hot"] * 100).nbytes)
    groups = write(tmp_path, [["cold", *["hot"] * 900, "warm"], ["hot"] * 900])
    ranges = find_ranges(groups)
    assert [one.upto for one in ranges] == ["hot", *["hot"] * (len(ranges) - 2), "warm"]
    assert len(ranges) > 12
    assert sum(one.is_one_domain for one in ranges) == len(ranges) - 2
    rows = [sum(map(len, read_range(one))) for one in ranges]
    assert (rows[0], rows[-1], sum(rows)) == (1, 1, 1802)
    assert max(rows) < 200


def test_entry_sort_orders_values_row_by_row_where_arrow_cannot_join_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_sort, "_COPIED_BYTES_MAX", 1000)
    large = batch_of(["b", "a", "b", None], [b"1" * 900, b"2" * 900, b"3" * 900, b"4"])
    (one,) = find_ranges(write_runs(str(tmp_path / "runs"), [large]))
    found = pa.Table.from_batches(read_range(one))
    assert found.column("domain").to_pylist() == [None, "a", "b", "b"]
    assert [value[:1] for value in found.column("value").to_pylist()] == [b"4", b"2", b"1", b"3"]


def test_entry_sort_of_files_that_are_gone_says_what_to_change(tmp_path: Path) -> None:
    (one,) = find_ranges(write(tmp_path, [["a", "b"]]))
    path = tmp_path / "runs-0"
    path.unlink()
    with pytest.raises(LogFailedError, match=rf"{path}: cannot sort the entries: .*set TMPDIR to"):
        list(read_range(one))
