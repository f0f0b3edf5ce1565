"""Live entries, by a live index and by a replay: equal to the daemon's recovery, row for row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.cmdlog.format.operation_records import Link, Resize
from fastjournal.cmdlog.live_index import (
    RUN_ENTRIES_MAX,
    LiveChanges,
    LiveIndex,
    LiveIndexWriter,
    LiveSegment,
    WrittenIndex,
)
from fastjournal.errors import LogCorruptError
from fastjournal.spark.live_entries import entry_parts
from fastjournal.spark.live_entries.entry_parts import ReplayedLog, find_parts, read_part
from fastjournal.spark.live_entries.fetch import ENTRY_ARROW_SCHEMA
from fastjournal.spark.storage.files import LogDirectory
from fastjournal.testing.logs import SegmentBuilder
from tests.spark.harmed_logs import harm_first_segment, write_cleaned_log
from tests.spark.live_snapshots import take_live_snapshot
from tests.spark.random_logs import SECOND, replayed, write_linked_log, write_log, write_random_log

NAMES = ENTRY_ARROW_SCHEMA.names
POSITION = ("segment", "offset")


def rows_of(
    log: Path, names: list[str] = NAMES, *, permissive: bool = False
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for part in find_parts(str(log)):
        for batch in read_part(part, names, permissive=permissive):
            assert batch.schema.names == names
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return sorted(rows, key=lambda row: tuple(-1 if one is None else one for one in row[-2:]))


@pytest.mark.parametrize("seed", range(12))
def test_replay_of_a_log_equals_recovery(seed: int, tmp_path: Path) -> None:
    write_random_log(tmp_path, seed, segments=3 + seed % 3, records=20 + 12 * seed)
    expected = replayed(tmp_path)
    assert expected
    assert rows_of(tmp_path) == expected


@pytest.mark.parametrize("seed", range(24))
def test_live_index_gives_what_recovery_finds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    if seed % 3:
        write_random_log(log, seed, segments=3 + seed % 3, records=20 + 12 * seed)
    else:
        write_linked_log(log, seed)
    monkeypatch.setattr(entry_parts, "PART_BYTES", (500, 3000, 10**9)[seed % 3])
    snapshot = take_live_snapshot(log, tmp_path / "snapshots", run_entries=1 + seed * 7)
    expected = replayed(log)
    assert rows_of(snapshot) == expected
    assert (len(find_parts(str(snapshot))) > 2) == (seed % 3 < 2)


def test_live_index_reads_only_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    write_random_log(tmp_path / "log", 7, segments=3, records=90)
    snapshot = take_live_snapshot(tmp_path / "log", tmp_path / "snapshots")
    expected = replayed(tmp_path / "log")
    for name in NAMES:
        asked = [*({name} - set(POSITION)), *POSITION]
        index = [NAMES.index(one) for one in asked]
        assert rows_of(snapshot, asked) == [tuple(row[i] for i in index) for row in expected]


def test_live_index_shows_values_that_were_cut_and_those_that_stay_on_the_disk(
    tmp_path: Path,
) -> None:
    segment = SegmentBuilder()
    cut, longer, added, plain = (
        segment.entry(b"key %d" % number, value=bytes([number + 1]) * 400) for number in range(4)
    )
    segment.operation(Resize(cut, 300, 9))
    segment.operation(Resize(longer, 290, 9))
    segment.operation(Resize(longer, 500, 10))
    segment.operation(Link(added, b"more"))
    segment.lease([plain], segment.now_us + SECOND)
    log = write_log(tmp_path / "log", segment)
    values = [b"\1" * 300, b"\2" * 290 + bytes(210), b"\3" * 400, b"\4" * 400]
    assert [row[9] for row in rows_of(log)] == values
    replayed_log = ReplayedLog(LogDirectory(log))
    (records,) = map(replayed_log.records, replayed_log.segments)
    assert [change.value for change in records.changes.values()] == [
        (300, 300), (290, 500), None, None
    ]  # fmt: skip
    assert [row[9] for row in rows_of(take_live_snapshot(log, tmp_path / "snapshots"))] == values


def test_records_of_live_entries_are_checked_one_by_one(tmp_path: Path) -> None:
    segment = SegmentBuilder()
    jobs = [segment.entry(b"key %d" % number, value=b"v" * 99) for number in range(30)]
    for number in range(0, 30, 3):
        segment.complete(jobs[number], b"key %d" % number)
    log = write_log(tmp_path / "log", segment)
    snapshot = take_live_snapshot(log, tmp_path / "snapshots")
    whole = rows_of(snapshot)
    path = snapshot / segment_name(1)
    data = bytearray(path.read_bytes())
    path.unlink()
    # behind the first record of the segment
    places = segment.offsets[1:]
    data[places[0] + 30] ^= 1
    path.write_bytes(data)
    # that of no entry is not looked at
    assert rows_of(snapshot) == whole
    for index, at in ((1, 0), (1, 14), (13, 60), (19, 0), (19, -1)):
        start, stop = places[index], places[index + 1]
        harmed = bytearray(data)
        harmed[start + at if at >= 0 else stop + at] ^= 255
        path.write_bytes(harmed)
        with pytest.raises(
            LogCorruptError, match="the record of a live entry is damaged"
        ) as caught:
            rows_of(snapshot)
        assert (caught.value.path, caught.value.offset) == (str(path), start)
        found = rows_of(snapshot, ["_corrupt", *NAMES], permissive=True)
        kept = [row[1:] for row in found if row[0] is None]
        assert kept == [row for row in whole if row[-1] != start]
        (damaged,) = (row for row in found if row[0] is not None)
        assert damaged[0] == f"{path} at offset {start}: the record of a live entry is damaged"
        assert damaged[-2:] == (1, start)
        assert set(damaged[1:-2]) == {None}


def test_log_that_was_cut_anywhere_gives_what_recovery_finds(tmp_path: Path) -> None:
    for seed in (1, 2):
        log = tmp_path / str(seed)
        write_random_log(log, seed, segments=2, records=25)
        last = log / "000000002.log"
        data = last.read_bytes()
        for length in range(0, len(data), 397):
            last.write_bytes(data[:length])
            assert rows_of(log) == replayed(log), length


@pytest.mark.parametrize("change", ["header", "record", "older", "gone", "another"])
def test_chain_of_segments_of_a_replayed_log_is_checked(change: str, tmp_path: Path) -> None:
    write_cleaned_log(tmp_path)
    assert len(rows_of(tmp_path)) == 28
    harm_first_segment(tmp_path, change)
    with pytest.raises(LogCorruptError) as caught:
        rows_of(tmp_path)
    assert caught.value.path == f"{tmp_path}/000000001.log"
    found = rows_of(tmp_path, ["key", "_corrupt", "segment", "offset"], permissive=True)
    assert [row[1] for row in found if row[1] is not None]


def test_segment_that_is_replaced_behind_its_replay_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_random_log(tmp_path, 3, segments=2, records=60)
    path = tmp_path / segment_name(2)
    inspect = entry_parts.inspect_log

    def inspect_and_replace(*arguments: Any, **options: Any) -> Any:
        found = inspect(*arguments, **options)
        path.write_bytes(path.read_bytes()[::-1])
        return found

    monkeypatch.setattr(entry_parts, "inspect_log", inspect_and_replace)
    with pytest.raises(LogCorruptError, match="the segment was replaced while it was read"):
        rows_of(tmp_path)


def test_live_index_that_is_missing_or_another_is_one_sentence(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        write_random_log(tmp_path / name / "log", seed, segments=2, records=40)
    one, two = (
        take_live_snapshot(tmp_path / name / "log", tmp_path / name / "snapshots")
        for name in ("one", "two")
    )
    live = one / "LIVE"
    data = live.read_bytes()
    restore = " (restore the snapshot with all of its files, or take another snapshot)"
    for harmed, words in (
        (None, "the live index is missing" + restore),
        ((two / "LIVE").read_bytes(), "the live index is of other segments than those that the"
         " manifest lists" + restore),
        (data[:-9], f"the live index is torn: its foot is not at its end, behind {len(data) - 9}"
         " bytes (take another snapshot)"),
        (b"", "the live index is torn: its foot is not at its end, behind 0 bytes"
         " (take another snapshot)"),
        (b"LIVE streams", "this is no live index of fastjournal (take another snapshot)"),
        (data[:7] + b"\2" + data[8:], "a live index of version 2, and this release reads version 1"
         " (read it with the release that wrote it, or take another snapshot)"),
    ):  # fmt: skip
        live.unlink(missing_ok=True)
        if harmed is not None:
            live.write_bytes(harmed)
        with pytest.raises(LogCorruptError) as caught:
            find_parts(str(one))
        assert str(caught.value) == f"{live}: {words}"
    broken = bytearray(data)
    broken[len(data) // 3] ^= 4
    live.write_bytes(broken)
    with pytest.raises(LogCorruptError, match="the live index is damaged: the checksum of a run"):
        rows_of(one)


# --- live index -----------------------------------------------------------------------------------
# Codec of the live index: what is written is read, and nothing else is.


TAKEN_US = 1_795_169_472_123_456
PATH = "/log/snapshots/LIVE"
SEGMENTS = [LiveSegment(3, 900, 7), LiveSegment(5, 2**33, 2**32 - 1), LiveSegment(6, 30, 0)]
SMALL = LiveChanges(
    b"k", None, [], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, reason=b"why", value=(3, 2**32 - 2)
)
M = 2**64 - 1
LARGE = LiveChanges(
    b"\xff" * 20, b"uri", [b"a", b"b"], M, M, M, M, M, M, M, M, M, M, None, b"\0" * 70
)


def write(runs: list[tuple[int, list[int], dict[int, LiveChanges]]]) -> tuple[bytes, WrittenIndex]:
    data = bytearray()
    writer = LiveIndexWriter(data.extend, TAKEN_US, SEGMENTS)
    for run in runs:
        writer.add_run(*run)
    written = writer.finish()
    return bytes(data), written


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda place, size: data[place : place + size]


def read(data: bytes) -> dict[int, tuple[list[int], dict[int, LiveChanges]]]:
    """Return the offsets and changes of each segment."""
    index = LiveIndex.open(reader(data), len(data), PATH)
    found = {one.number: index.read_records(reader(data), one.number) for one in index.segments}
    assert index.entries == sum(len(records.offsets) for records in found.values())
    return {number: (list(one.offsets), one.changes) for number, one in found.items()}


RUNS = [
    (5, [2**32, 17, 5], {17: SMALL}),
    (3, [8, 100], {}),
    (5, [16, 18, 2**33 - 1], {18: LARGE, 2**33 - 1: SMALL}),
]


def test_live_index_of_no_entries_is_read() -> None:
    data, written = write([(5, [], {})])
    assert written.entries == 0
    assert read(data) == {3: ([], {}), 5: ([], {}), 6: ([], {})}


def test_live_index_with_a_flipped_bit_is_refused() -> None:
    data, _ = write(RUNS)
    for at in range(len(data)):
        for bit in (1, 128):
            broken = bytearray(data)
            broken[at] ^= bit
            with pytest.raises(LogCorruptError, match="live index") as caught:
                read(bytes(broken))
            assert caught.value.path == PATH
            assert caught.value.hint is not None
            assert "take another snapshot" in caught.value.hint


def test_live_index_with_a_lost_or_doubled_piece_is_refused() -> None:
    data, _ = write(RUNS)
    for at in range(len(data)):
        for broken in (data[:at] + data[at + 1 :], data[:at] + data[at : at + 1] + data[at:]):
            if broken != data:
                with pytest.raises(LogCorruptError, match="live index"):
                    read(broken)


def test_live_index_does_not_take_a_record_twice() -> None:
    data, _ = write([(3, [8, 9], {}), (3, [9], {})])
    with pytest.raises(LogCorruptError, match="records of segment 3 are there twice"):
        read(data)


def test_live_index_writer_refuses_what_no_reader_takes() -> None:
    data = bytearray()
    writer = LiveIndexWriter(data.extend, TAKEN_US, SEGMENTS)
    before = bytes(data)
    with pytest.raises(ValueError, match="65537 entries in a run"):
        writer.add_run(5, range(RUN_ENTRIES_MAX + 1))
    with pytest.raises(ValueError, match="a record of segment 3 is twice in a run"):
        writer.add_run(3, [7, 7])
    for segment, offset in ((3, -1), (3, 900), (4, 0)):
        with pytest.raises(ValueError, match=f"a record is outside segment {segment}"):
            writer.add_run(segment, [offset])
    with pytest.raises(ValueError, match="changes of entries of segment 3 that are not in the run"):
        writer.add_run(3, [7], {8: SMALL})
    assert bytes(data) == before
