"""The reader: order, erased records, damage, incomplete tails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.spool import DeadDirectory, Kind, Piece, Reason, SlotReader, Spool, spool_status
from fastjournal.spool import format as form
from fastjournal.spool.reading import damage_search, slot_window

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


def test_records_come_in_order_and_erased_ones_without_their_frame(tmp_path: Path) -> None:
    path = slot(tmp_path, FIRST, b"E" + SECOND[1:], THIRD)
    assert read(path) == [
        Piece(Kind.PENDING, 8, 27, b"FJ frame 1"),
        Piece(Kind.ERASED, 27, 46, b""),
        Piece(Kind.PENDING, 46, 65, b"FJ frame 3"),
    ]


def test_read_stops_at_its_limits_and_goes_on_there(tmp_path: Path) -> None:
    with SlotReader(str(slot(tmp_path, FIRST, SECOND, THIRD))) as reader:
        assert frames(reader.read(2)) == [b"FJ frame 1", b"FJ frame 2"]
        assert frames(reader.read(2)) == [b"FJ frame 3"]
    with SlotReader(str(tmp_path / NAME)) as reader:
        assert frames(reader.read(9, bytes_max=11)) == [b"FJ frame 1", b"FJ frame 2"]


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


def test_file_that_grows_byte_by_byte_gives_each_record_once(tmp_path: Path) -> None:
    path = slot(tmp_path, header=b"")
    found: list[bytes] = []
    with SlotReader(str(path)) as reader, path.open("ab", buffering=0) as file:
        for byte in form.FILE_HEADER + FIRST + SECOND:
            file.write(bytes([byte]))
            pieces = reader.read(10)
            assert damage(pieces) == []
            found += frames(pieces)
        assert reader.waiting_bytes == 0
    assert found == [b"FJ frame 1", b"FJ frame 2"]


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


@pytest.mark.parametrize("cut", range(1, len(SECOND)))
def test_record_behind_a_torn_one_is_found_when_the_writes_are_settled(
    tmp_path: Path, cut: int
) -> None:
    big = form.encode_record(b"x" * 1000)
    path = slot(tmp_path, FIRST, big[:cut], THIRD)
    with SlotReader(str(path)) as reader:
        before = reader.read(10)
        after = reader.read(10, settled=True)
    assert frames(before + after) == [b"FJ frame 1", b"FJ frame 3"]
    assert damage(before + after) == [big[:cut]]


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


def test_damage_at_the_end_waits_for_a_record_behind_it(tmp_path: Path) -> None:
    path = slot(tmp_path, FIRST, b"no record")
    with SlotReader(str(path)) as reader, path.open("ab", buffering=0) as file:
        assert damage(reader.read(10)) == []
        file.write(b" at all" + SECOND[:7])
        assert reader.read(10) == []
        file.write(SECOND[7:])
        pieces = reader.read(10)
        assert (damage(pieces), frames(pieces)) == ([b"no record at all"], [b"FJ frame 2"])


def test_file_without_its_header_gives_its_records(tmp_path: Path) -> None:
    assert frames(read(slot(tmp_path, FIRST, SECOND, header=b""))) == [b"FJ frame 1", b"FJ frame 2"]
    pieces = read(slot(tmp_path, FIRST, header=bytes(8)))
    assert (damage(pieces), frames(pieces)) == ([bytes(8)], [b"FJ frame 1"])
    assert read(slot(tmp_path, header=b""), final=True) == []
    assert damage(read(slot(tmp_path, header=b"fjs"), final=True)) == [b"fjs"]


def test_file_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpoolFailedError) as caught:
        read(slot(tmp_path, FIRST, header=b"fjsp\0\0\0\x02"))
    assert caught.value.offset == 4
    assert caught.value.path == str(tmp_path / NAME)


def test_records_larger_than_one_read_and_damage_across_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_window, "CHUNK_BYTES", 64)
    big = form.encode_record(b"x" * 1000)
    bad = big[:600] + b"?" + big[601:]
    pieces = read(slot(tmp_path, *([FIRST] * 20), big, bad, SECOND, bad[:300]), final=True)
    assert frames(pieces) == [b"FJ frame 1"] * 20 + [b"x" * 1000, b"FJ frame 2"]
    assert damage(pieces) == [bad, bad[:300]]


def test_damage_without_end_comes_in_pieces_and_every_byte_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_window, "CHUNK_BYTES", 64)
    for module in (damage_search, slot_window):
        monkeypatch.setattr(module, "RECORD_BYTES_MAX", 100)
    junk = bytes(range(1, 70)) * 10
    pieces = read(slot(tmp_path, junk, SECOND))
    assert b"".join(damage(pieces)) == junk
    assert max(len(piece) for piece in damage(pieces)) <= 100
    assert frames(pieces) == [b"FJ frame 2"]


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
