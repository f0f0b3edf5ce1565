"""The reader: order, erased records, damage, incomplete tails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastjournal.errors import BadRequestError, SpoolFailedError
from fastjournal.limits import SPOOL_FRAME_BYTES_MAX
from fastjournal.spool import (
    DeadDirectory,
    Kind,
    Piece,
    Reason,
    Slot,
    SlotReader,
    Spool,
    list_slots,
    spool_status,
)
from fastjournal.spool import format as form
from fastjournal.spool import status as module
from fastjournal.spool.format import DAMAGED, INCOMPLETE

NAME = "20261120T080000Z.fjs"
FIRST, SECOND, THIRD = (form.encode_record(b"FJ frame %d" % n) for n in (1, 2, 3))


def slot(tmp_path: Path, *parts: bytes, header: bytes = form.FILE_HEADER) -> Path:
    path = tmp_path / NAME
    path.write_bytes(header + b"".join(parts))
    return path


def read(path: Path, *, settled: bool = False, final: bool = False) -> list[Piece]:
    with SlotReader(str(path)) as reader:
        pieces = reader.read(1000, settled=settled, final=final)
        assert reader.read(1000) == []
        return pieces


def frames(pieces: list[Piece]) -> list[bytes]:
    return [piece.data for piece in pieces if piece.kind is Kind.PENDING]


def damage(pieces: list[Piece]) -> list[bytes]:
    return [piece.data for piece in pieces if piece.kind is Kind.DAMAGE]


def test_closed_reader_reads_no_other_file_that_gets_its_descriptor(tmp_path: Path) -> None:
    path = slot(tmp_path, FIRST)
    reader = SlotReader(str(path))
    assert frames(reader.read(9)) == [b"FJ frame 1"]
    number = reader._window._descriptor
    reader.close()
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes() + SECOND)
    opened = os.open(other, os.O_RDONLY)
    if opened != number:
        os.dup2(opened, number, inheritable=False)
    try:
        with pytest.raises(SpoolFailedError, match="Bad file descriptor"):
            reader.read(9)
        reader.close()
    finally:
        for descriptor in {opened, number}:
            os.close(descriptor)  # the reader did not


@pytest.mark.parametrize("cut", range(1, len(SECOND)))
def test_tail_cut_anywhere_waits_and_is_damage_only_at_the_end(tmp_path: Path, cut: int) -> None:
    path = slot(tmp_path, FIRST, SECOND[:cut])
    assert [piece.kind for piece in read(path)] == [Kind.PENDING]
    assert [piece.kind for piece in read(path, settled=True)] == [Kind.PENDING]
    with SlotReader(str(path)) as reader:
        reader.read(10)
        assert reader.waiting_bytes == cut
    last = read(path, final=True)
    assert (frames(last), damage(last)) == ([b"FJ frame 1"], [SECOND[:cut]])


@pytest.mark.parametrize("at", range(1, len(SECOND)))
def test_flipped_byte_costs_its_record_alone_and_the_bytes_are_kept(
    tmp_path: Path, at: int
) -> None:
    bad = bytearray(SECOND)
    bad[at] ^= 0x20
    pieces = read(slot(tmp_path, FIRST, bytes(bad), THIRD), final=True)
    assert damage(pieces) == [bytes(bad)]
    assert frames(pieces) == [b"FJ frame 1", b"FJ frame 3"]


def test_flipped_byte_is_passed_without_waiting_for_the_end_of_the_slot(tmp_path: Path) -> None:
    bad = SECOND[:-1] + b"?"
    pieces = read(slot(tmp_path, FIRST, bad, THIRD))
    assert (damage(pieces), frames(pieces)) == ([bad], [b"FJ frame 1", b"FJ frame 3"])


def test_file_without_its_header_gives_its_records(tmp_path: Path) -> None:
    assert frames(read(slot(tmp_path, FIRST, SECOND, header=b""))) == [b"FJ frame 1", b"FJ frame 2"]
    pieces = read(slot(tmp_path, FIRST, header=bytes(8)))
    assert (damage(pieces), frames(pieces)) == ([bytes(8)], [b"FJ frame 1"])
    assert read(slot(tmp_path, header=b""), final=True) == []
    assert damage(read(slot(tmp_path, header=b"fjs"), final=True)) == [b"fjs"]


def test_spool_tells_its_state(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        for stamp in (70, 50, 60):
            spool.append(domain="d", timestamp_us=stamp)
    (file,) = tmp_path.glob("*.fjs")
    with file.open("r+b") as raw:
        raw.seek(0, 2)
        raw.write(b"junk" + SECOND + b"P\0\0")
    DeadDirectory(tmp_path).put(b"raw", Reason("s.fjs", 8, 3, "frame", "bad-key", "why", 1))
    status = spool_status(tmp_path)
    (one,) = status.slots
    assert (one.name, one.pending, one.erased) == (file.name, 4, 0)
    assert (one.damaged_bytes, one.waiting_bytes, status.dead) == (4, 3, 1)
    assert one.size == file.stat().st_size
    # The frame behind the junk is too short to have a timestamp.
    assert status.oldest_pending_us == 50
    assert not status.forwarder_running


def test_empty_or_missing_spool_has_a_state_or_an_error(tmp_path: Path) -> None:
    assert spool_status(tmp_path).slots == []
    with pytest.raises(SpoolFailedError):
        spool_status(tmp_path / "missing")


def test_dead_letter_is_kept_with_its_reason_and_once(tmp_path: Path) -> None:
    dead = DeadDirectory(tmp_path)
    assert dead.list() == []
    reason = Reason(NAME, 8, 3, "damage", "torn", "a torn write", 5)
    name = dead.put(b"raw", reason)
    assert dead.put(b"raw", reason) == name
    assert dead.put(b"war", reason) != name
    pieces = dead.list()
    assert [(p.name, p.reason) for p in pieces if p.name == name] == [(name, reason)]
    assert dead.count() == len(pieces) == 2
    assert Path(pieces[0].raw_path).read_bytes() in (b"raw", b"war")
    assert name.startswith("20261120T080000Z-000000000008-")
    for damaged in (b"no json", b'{"slot": "\xff"}'):
        (tmp_path / "dead" / f"{name}.json").write_bytes(damaged)
        assert [p.reason for p in dead.list() if p.name == name] == [None]


# --- status ---------------------------------------------------------------------------------------
# The status of a spool while others work on it.


def test_slot_that_is_deleted_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path) as spool:
        spool.append(domain="d")
    listed = list_slots(tmp_path)
    gone = Slot(0, "19700101T000000Z.fjs", str(tmp_path / "19700101T000000Z.fjs"), 100, 100)
    monkeypatch.setattr(module, "list_slots", lambda _: [gone, *listed])
    status = spool_status(tmp_path)
    assert [slot.name for slot in status.slots] == [listed[0].name]
    assert status.pending == 1


def test_slot_of_another_version_is_named(tmp_path: Path) -> None:
    foreign = tmp_path / "20261120T080000Z.fjs"
    foreign.write_bytes(b"fjsp\0\0\0\x02?")
    with pytest.raises(SpoolFailedError, match="another version") as raised:
        spool_status(tmp_path)
    assert raised.value.path == str(foreign)


# --- bytes of a file ------------------------------------------------------------------------------
# The bytes of a spool file: every record, chopped and damaged everywhere.


@pytest.mark.parametrize("size", [9, 10, 100, 70_000, SPOOL_FRAME_BYTES_MAX + 9])
def test_blank_is_an_erased_record_of_zero_bytes(size: int) -> None:
    assert form.blank_ends(size) == form.erased_ends(bytes(size - 9))


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
