"""Parts of a log, replayed apart, leave what the whole log leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.cmdlog.format.operation_records import Pause
from fastjournal.cmdlog.format.segments import segment_name
from fastjournal.errors import LogCorruptError
from fastjournal.spark.columns import READABLE
from fastjournal.spark.files import LogDirectory
from fastjournal.spark.partition_replay import ENTRY_COLUMNS, PartReplay
from fastjournal.spark.partitioner import Packed, Roots, read_rows, split
from fastjournal.spark.rows import Row
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.harmed_logs import harm_first_segment, write_cleaned_log
from tests.spark.random_logs import by_position, replayed, write_random_log


def rows_of(parts: list[list[Packed]]) -> list[tuple[object, ...]]:
    rows = []
    for part in parts:
        replay = PartReplay()
        for record in part:
            replay.feed(
                record.segment,
                record.offset,
                record.raw,
                token=record.token,
                ours=record.ours,
                serial=record.serial,
            )
        rows += [
            tuple(column.value(found) for column in ENTRY_COLUMNS) for found in replay.finish()
        ]
    return by_position(rows)


@pytest.mark.parametrize("seed", range(60))
def test_parts_replayed_apart_equal_the_replay_of_the_whole(seed: int, tmp_path: Path) -> None:
    write_random_log(tmp_path / "log", seed, segments=3 + seed % 3, records=20 + seed)
    expected = replayed(tmp_path / "log")
    assert expected
    directory = LogDirectory(tmp_path / "log")
    assert rows_of([list(read_rows(directory, lambda _: None))]) == expected
    (tmp_path / "scratch").mkdir()
    parts = list(split(directory, tmp_path / "scratch", 7, lambda _: None))
    assert len(parts) == 7
    assert rows_of(parts) == expected
    assert list((tmp_path / "scratch").iterdir()) == []


def test_entries_of_different_keys_are_in_different_parts(tmp_path: Path) -> None:
    segment = SegmentBuilder()
    for number in range(60):
        segment.entry(b"key %d" % number)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / segment_name(1)).write_bytes(bytes(segment))
    (tmp_path / "scratch").mkdir()
    parts = list(split(LogDirectory(tmp_path / "log"), tmp_path / "scratch", 7, lambda _: None))
    # by the hashes of Python, which differ in each process
    assert sum(bool(part) for part in parts) > 1
    assert sum(map(len, parts)) == 60


def test_labels_joined_in_any_order_have_one_root() -> None:
    roots = Roots()
    for one, other in [(5, 4), (3, 2), (9, 8), (4, 3), (2, 5)]:
        roots.join(one, other)
    assert {roots.find(label) for label in (2, 3, 4, 5)} == {2}
    assert {roots.find(label) for label in (8, 9)} == {8}
    assert roots.find(7) == 7


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_log_that_was_cut_anywhere_gives_what_recovery_finds(seed: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_random_log(log, seed, segments=2, records=25)
    last = log / "000000002.log"
    data = last.read_bytes()
    for length in range(0, len(data), 37):
        last.write_bytes(data[:length])
        records = list(read_rows(LogDirectory(log), lambda _: None))
        assert rows_of([records]) == replayed(log), length


@pytest.mark.parametrize("change", ["header", "record", "older", "gone"])
def test_chain_of_segments_is_checked_where_a_log_is_read_in_parts(
    change: str, tmp_path: Path
) -> None:
    write_cleaned_log(tmp_path)
    assert list(read_rows(LogDirectory(tmp_path), lambda _: None))
    harm_first_segment(tmp_path, change)
    with pytest.raises(LogCorruptError) as caught:
        list(read_rows(LogDirectory(tmp_path), lambda _: None))
    assert caught.value.path == f"{tmp_path}/000000001.log"


def test_record_of_a_pause_tells_its_domain_and_its_end() -> None:
    row = Row(1, 8, b"", operation=Pause(b"d\xff", 77))
    told = {name: READABLE[name].value(row) for name in ("operation", "domain", "not_before")}
    assert told == {"operation": "pause", "domain": "d\\xff", "not_before": 77}
