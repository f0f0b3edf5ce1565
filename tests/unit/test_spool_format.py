"""The bytes of a spool file: every record, chopped and damaged everywhere."""

from __future__ import annotations

import pytest

from fastjournal.errors import BadRequestError
from fastjournal.limits import SPOOL_FRAME_BYTES_MAX
from fastjournal.spool import format as form
from fastjournal.spool.format import DAMAGED, INCOMPLETE

GOLDEN = [
    (b"", "50 00000000 48674bc7"),
    (b"a", "50 00000001 61 c57dfe23"),
    (b"FJ\x00\x01", "50 00000004 464a0001 41be2ebd"),
]


def blank(size: int) -> bytes:
    head, crc = form.blank_ends(size)
    return head + bytes(size - 9) + crc


@pytest.mark.parametrize("size", [9, 10, 100, 70_000, SPOOL_FRAME_BYTES_MAX + 9])
def test_blank_is_an_erased_record_of_zero_bytes(size: int) -> None:
    assert form.blank_ends(size) == form.erased_ends(bytes(size - 9))


@pytest.mark.parametrize(("frame", "text"), GOLDEN)
def test_record_has_exactly_these_bytes(frame: bytes, text: str) -> None:
    assert form.encode_record(frame).hex() == text.replace(" ", "")


def test_file_header_has_exactly_these_bytes() -> None:
    assert form.FILE_HEADER == b"fjsp\x00\x00\x00\x01"


def test_frame_over_the_limit_is_refused() -> None:
    with pytest.raises(BadRequestError) as caught:
        form.encode_record(bytes(SPOOL_FRAME_BYTES_MAX + 1))
    assert caught.value.code == "too-large"


def test_record_cut_anywhere_is_incomplete_and_the_whole_is_whole() -> None:
    record = form.encode_record(b"FJ some frame")
    for cut in range(len(record)):
        assert form.record_end(record[:cut], 0) == INCOMPLETE, cut
    assert form.record_end(record, 0) == len(record)
    assert form.record_end(b"??" + record + b"P", 2) == len(record) + 2


def test_record_with_any_flipped_bit_but_those_of_the_state_is_seen() -> None:
    record = form.encode_record(b"FJ some frame")
    for bit in range(8, len(record) * 8):
        bad = bytearray(record)
        bad[bit // 8] ^= 1 << bit % 8
        assert form.record_end(bytes(bad), 0) <= 0, bit


def test_erased_record_is_whole_and_any_other_state_is_damage() -> None:
    record = form.encode_record(b"frame")
    assert form.record_end(b"E" + record[1:], 0) == len(record)
    for state in set(range(256)) - {0x50, 0x45}:
        assert form.record_end(bytes([state]) + record[1:], 0) == DAMAGED
        assert form.record_end(bytes([state]), 0) == DAMAGED


def test_claimed_size_over_the_limit_is_damage_not_a_reason_to_wait() -> None:
    most = SPOOL_FRAME_BYTES_MAX
    assert form.record_end(b"P" + most.to_bytes(4), 0) == INCOMPLETE
    assert form.record_end(b"P" + (most + 1).to_bytes(4), 0) == DAMAGED


@pytest.mark.parametrize("size", [9, 10, 200, 5000])
def test_blank_is_a_valid_erased_record(size: int) -> None:
    assert form.record_end(blank(size), 0) == size


def test_blank_half_made_is_whole_where_it_leads_to_a_record_or_the_end() -> None:
    old = b"E" + form.encode_record(b"x" * 50)[1:]
    run = bytearray(old * 3)
    run[:5] = form.blank_ends(len(run))[0]
    half = bytes(run)
    following = form.encode_record(b"next")
    assert form.record_end(half, 0) == len(half)
    assert form.record_end(half + following, 0) == len(half)
    assert form.record_end(half + b"no record", 0) == DAMAGED
    assert form.record_end(half + following[:-1] + b"?", 0) == DAMAGED


def search(data: bytes) -> form.SearchResult:
    """Search all of the data; no record in these tests is long."""
    size = len(data)
    return form.search_record(
        data, 0, size, lambda *_: False, candidates_max=size, passes_incomplete=True
    )


def test_search_finds_the_next_whole_record_at_every_offset() -> None:
    record = form.encode_record(b"FJ the one")
    for gap in range(20):
        for filler in (b"\0", b"P", b"E", b"P\0"):
            data = (filler * gap)[:gap] + record
            assert search(data).found == gap, (gap, filler)


def test_search_goes_on_where_a_record_can_still_become_whole() -> None:
    record = form.encode_record(b"FJ the one")
    for cut in range(1, len(record)):
        found = search(b"damage" + record[:cut])
        assert (found.found, found.incomplete) == (-1, 6), cut
    assert search(b"damage").found == search(b"damage").incomplete == -1
