"""Codec of the live index: what is written is read, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable

import google_crc32c
import pytest

from fastjournal.cmdlog.live_index import (
    RUN_ENTRIES_MAX,
    VERSION,
    LiveChanges,
    LiveIndex,
    LiveIndexWriter,
    LiveSegment,
    WrittenIndex,
)
from fastjournal.errors import LogCorruptError

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


def test_live_index_has_the_records_of_interleaved_runs_in_order() -> None:
    data, written = write(RUNS)
    index = LiveIndex.open(reader(data), len(data), PATH)
    assert (index.path, index.taken_us, list(index.segments)) == (PATH, TAKEN_US, SEGMENTS)
    assert read(data) == {
        3: ([8, 100], {}),
        5: ([5, 16, 17, 18, 2**32, 2**33 - 1], {17: SMALL, 18: LARGE, 2**33 - 1: SMALL}),
        6: ([], {}),
    }
    assert written == WrittenIndex(len(data), google_crc32c.value(data), 8)


def test_live_index_has_the_bytes_of_its_layout() -> None:
    data = bytearray()
    writer = LiveIndexWriter(data.extend, 1, [LiveSegment(2, 9, 3)])
    writer.add_run(2, [8, 7], {8: SMALL})
    writer.finish()
    head = "464a4c495645 0001 0000000000000001 00000001  00000002 0000000000000009 00000003"
    run = "0000000000000007 0000000000000008  00000001"
    changes = "91 9f c4016b c0 90 00 01 02 03 04 05 06 07 08 09 c403776879 9203cefffffffe"
    index = f"00000002 00000002 00000001 {0x24:016x} {0x31:016x}"
    foot = f"{2:016x} {1:08x} {0x24 + 0x31:016x}"
    plain = bytes.fromhex(head + run + changes)
    run_crc = google_crc32c.value(bytes.fromhex(run + changes))
    end = bytes.fromhex(f"{index} {run_crc:08x} {foot}")
    crc = google_crc32c.value(bytes.fromhex(head) + end)
    assert bytes(data).hex(" ") == (plain + end + crc.to_bytes(4, "big") + b"FJLIVEND").hex(" ")


def test_live_index_of_no_entries_is_read() -> None:
    data, written = write([(5, [], {})])
    assert written.entries == 0
    assert read(data) == {3: ([], {}), 5: ([], {}), 6: ([], {})}


@pytest.mark.parametrize("seed", range(20))
def test_live_index_of_random_runs_is_read_as_written(seed: int) -> None:
    rng = random.Random(seed)
    expected: dict[int, tuple[list[int], dict[int, LiveChanges]]] = {}
    runs: list[tuple[int, list[int], dict[int, LiveChanges]]] = []
    for segment in SEGMENTS:
        offsets = rng.sample(range(segment.bytes), min(rng.randrange(1, 400), segment.bytes))
        changed = {o: rng.choice([SMALL, LARGE]) for o in offsets if rng.random() < 0.2}
        expected[segment.number] = (sorted(offsets), changed)
        while offsets:
            part = [offsets.pop() for _ in range(min(rng.randrange(1, 90), len(offsets)))]
            runs.append((segment.number, part, {o: changed[o] for o in part if o in changed}))
    rng.shuffle(runs)
    data, _ = write(runs)
    assert read(data) == expected


def test_live_index_cut_at_any_byte_is_torn() -> None:
    data, _ = write(RUNS)
    for size in range(len(data)):
        with pytest.raises(LogCorruptError, match="the live index is torn") as caught:
            read(data[:size])
        assert (caught.value.path, caught.value.hint) == (PATH, "take another snapshot")


def test_live_index_with_bytes_behind_its_foot_is_refused() -> None:
    with pytest.raises(LogCorruptError, match="the live index is torn"):
        read(write(RUNS)[0] + b"\0")


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


def test_live_index_of_another_version_is_named() -> None:
    data = write(RUNS)[0]
    other = data[:6] + (VERSION + 1).to_bytes(2, "big") + data[8:]
    with pytest.raises(LogCorruptError) as caught:
        read(other)
    assert str(caught.value) == (
        f"{PATH}: a live index of version 2, and this release reads version 1"
        " (read it with the release that wrote it, or take another snapshot)"
    )


def test_live_index_of_another_program_is_named() -> None:
    for data in (b"LIVE streams\n" * 9, b"FJ", b"\0" * 300):
        if not b"FJLIVE".startswith(data):
            with pytest.raises(LogCorruptError, match="this is no live index of fastjournal"):
                read(data)


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


class LaterChanges(LiveChanges, array_like=True, frozen=True, gc=False):
    added: int = 5


def test_live_index_takes_fields_that_later_releases_add() -> None:
    later = LaterChanges(**{name: getattr(SMALL, name) for name in SMALL.__struct_fields__})
    assert read(write([(3, [8], {8: later})])[0])[3] == ([8], {8: SMALL})
