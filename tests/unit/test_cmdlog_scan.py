from __future__ import annotations

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, Command, encode_uvarint
from fastjournal.cmdlog.format.records import encode_time
from fastjournal.cmdlog.recovery.scan import find_record, scan_segment
from fastjournal.testing.logs import START_US, SegmentBuilder


def a_segment(entries: int = 3, value: bytes = b"value") -> SegmentBuilder:
    log = SegmentBuilder()
    for number in range(entries):
        log.entry(b"d:128:1:%d" % number, value=value)
    return log


def damaged(log: SegmentBuilder, record: int, at: int, flip: int = 1) -> bytes:
    data = bytearray(bytes(log))
    data[log.offsets[record] + at] ^= flip
    return bytes(data)


def test_whole_segment_is_one_run() -> None:
    log = a_segment()
    scan = scan_segment(bytes(log))
    assert scan.clean
    assert not scan.torn
    assert scan.records == 4
    assert [offset for offset, _, _ in scan.spans()] == log.offsets
    assert [end for _, _, end in scan.spans()] == [*log.offsets[1:], len(log.data)]
    assert all(log.data[body] in (Command.ADD, Command.SCHEDULE) for _, body, _ in scan.spans())
    assert scan.usable_bytes == len(log.data)


def test_header_alone_is_whole_and_holds_nothing() -> None:
    scan = scan_segment(SEGMENT_HEADER)
    assert scan.clean
    assert scan.records == 0


@pytest.mark.parametrize("value", [b"", b"v" * 100, b"v" * 20_000])
def test_segment_cut_anywhere_is_torn_behind_its_last_whole_record(value: bytes) -> None:
    log = a_segment(2, value)
    data = bytes(log)
    ends = [*log.offsets, len(data)]
    cuts = range(8, len(data)) if len(value) < 1000 else [*range(8, 400), len(data) - 1]
    for cut in cuts:
        scan = scan_segment(data[:cut])
        whole = max(end for end in ends if end <= cut)
        assert scan.usable_bytes == whole
        assert scan.clean == (whole == cut)
        assert scan.torn == (whole != cut)


@pytest.mark.parametrize("zeros", [1, 3, 36, 37, 38, 511, 5000])
def test_zeros_behind_the_last_record_are_a_torn_tail(zeros: int) -> None:
    data = bytes(a_segment())
    scan = scan_segment(data + bytes(zeros))
    assert scan.torn
    assert scan.usable_bytes == len(data)
    assert scan.damage[0].end == len(data) + zeros


def test_zeros_before_a_valid_record_are_not_a_torn_tail() -> None:
    log = a_segment()
    data = bytes(log)
    scan = scan_segment(data[: log.offsets[2]] + bytes(600) + data[log.offsets[2] :])
    assert not scan.torn
    assert scan.records == 4
    assert (scan.damage[0].offset, scan.damage[0].end) == (log.offsets[2], log.offsets[2] + 600)
    assert "zeros" in scan.damage[0].reason


def test_flipped_bit_anywhere_in_a_record_in_the_middle_damages_that_record_alone() -> None:
    log = a_segment()
    start, end = log.offsets[1], log.offsets[2]
    for at in range(end - start):
        for bit in range(8):
            scan = scan_segment(damaged(log, 1, at, 1 << bit))
            assert [(found.offset, found.end) for found in scan.damage] == [(start, end)]
            assert scan.records == 3


def test_flipped_bit_in_the_last_record_makes_it_a_torn_tail() -> None:
    log = a_segment()
    for at in range(len(log.data) - log.offsets[-1]):
        scan = scan_segment(damaged(log, -1, at))
        assert scan.torn
        assert scan.usable_bytes == log.offsets[-1]


@pytest.mark.parametrize(
    "size", [0, 1, 16, 18, 127, 128, 2**14, 2**21, 2**28, 2**31, 2**34, 2**63, 2**64 - 1]
)
def test_size_that_lies_is_found_out_without_allocating_it(size: int) -> None:
    log = a_segment()
    lie = encode_time(START_US) + encode_uvarint(size) + b"\x07"
    behind = log.data[log.offsets[3] :]
    scan = scan_segment(bytes(log.data[: log.offsets[3]] + lie + behind))
    assert scan.damage[0].offset == log.offsets[3]
    assert not scan.torn
    assert scan.records == 4
    tail = scan_segment(bytes(log.data) + lie)
    assert tail.torn
    assert tail.usable_bytes == len(log.data)


def test_image_of_a_record_inside_a_damaged_value_is_no_record() -> None:
    inner = SegmentBuilder()
    inner.entry(b"inner")
    image = bytes(inner)[8:]
    log = a_segment(1, image)
    log.entry(b"d:128:1:behind")
    middle = damaged(log, 1, -6 + log.offsets[2] - log.offsets[1])
    scan = scan_segment(middle)
    assert [(found.offset, found.end) for found in scan.damage] == [
        (log.offsets[1], log.offsets[2])
    ]
    alone = a_segment(1, image)
    last = scan_segment(damaged(alone, -1, -6 + len(alone.data) - alone.offsets[-1]))
    assert last.torn


def test_bad_header_is_damage_and_the_records_behind_it_are_found() -> None:
    data = bytearray(bytes(a_segment()))
    data[7] = 2
    scan = scan_segment(bytes(data))
    assert not scan.torn
    assert (scan.damage[0].offset, scan.damage[0].end) == (0, 8)
    assert scan.records == 4


def test_bad_header_without_records_is_damage_too() -> None:
    scan = scan_segment(b"not a log")
    assert not scan.clean
    assert not scan.torn


@pytest.mark.parametrize("length", range(8))
@pytest.mark.parametrize("zeros", [0, 1, 5, 600])
def test_header_that_was_not_written_whole_is_torn(length: int, zeros: int) -> None:
    data = SEGMENT_HEADER[:length] + bytes(zeros)
    scan = scan_segment(data)
    assert scan.torn
    assert scan.records == 0


def test_search_finds_the_first_record_behind_noise() -> None:
    log = a_segment()
    noise = bytes(range(256)) * 3 + b"\x01\x00\x00\x00" * 50
    data = bytes(log.data[: log.offsets[2]]) + noise + bytes(log.data[log.offsets[2] :])
    assert find_record(data, log.offsets[2]) == log.offsets[2] + len(noise)
    assert find_record(bytes(log), log.offsets[3]) is None
