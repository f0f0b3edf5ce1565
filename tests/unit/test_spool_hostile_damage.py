"""Damage that looks like many records, or is huge: linear work, done in bounded parts."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import pytest

from fastjournal.spool import Kind, Piece, SlotReader, shifted_checksums, spool_status
from fastjournal.spool import format as form
from fastjournal.spool.reading import damage_search, slot_window
from fastjournal.spool.reading.slot_window import RangeChecksums, WorkBudget

NAME = "20261120T080000Z.fjs"
GOOD = form.encode_record(b"FJ good")
CLAIM = 128 * 1024


def claims(size: int, claim: int = CLAIM, state: bytes = b"P") -> bytes:
    """Return bytes of which each fifth one begins a record of so many bytes, as it seems."""
    return ((state + claim.to_bytes(4)) * (size // 5 + 1))[:size]


class Counting:
    """Bytes that went through CRC-32C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        monkeypatch.setattr(form, "_crc", self.value)
        monkeypatch.setattr(slot_window, "_extend", self.extend)

    def value(self, data: bytes) -> int:
        self.bytes += len(data)
        return int(google_crc32c.value(data))

    def extend(self, crc: int, data: bytes) -> int:
        self.bytes += len(data)
        return int(google_crc32c.extend(crc, data))


def read(path: Path, **options: Any) -> list[Piece]:
    pieces: list[Piece] = []
    with SlotReader(str(path), **options) as reader:
        while more := reader.read(1000, final=True):
            pieces += more
    return pieces


def tiles(path: Path, pieces: list[Piece], at: int = form.FILE_HEADER_BYTES) -> bool:
    """Whether the pieces cover the file, and damage has its bytes."""
    data = path.read_bytes()
    for piece in pieces:
        assert piece.offset == at
        raw = data[piece.offset : piece.end]
        if piece.kind is Kind.DAMAGE:
            assert piece.data == (b"" if piece.is_zeros else raw)
            assert not piece.is_zeros or raw == bytes(len(raw))
        at = piece.end
    return at == len(data)


@pytest.mark.parametrize("state", [b"P", b"E"])
@pytest.mark.parametrize("good", [b"", GOOD], ids=["junk", "records between"])
def test_overlapping_claims_cost_each_of_them_some_kilobytes_however_much_they_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: bytes, good: bytes
) -> None:
    path = tmp_path / NAME
    one = claims(5 if good else 2 * CLAIM, CLAIM, state) + good
    data = form.FILE_HEADER + one * (2 * CLAIM // len(one)) + GOOD
    path.write_bytes(data)
    counting = Counting(monkeypatch)
    pieces = read(path)
    assert tiles(path, pieces)
    assert pieces[-1].data == b"FJ good"
    count = len(data) // (5 + len(good))
    assert counting.bytes < 2 * len(data) + count * 8192, "not CLAIM for each"


@pytest.mark.parametrize("seed", range(4))
def test_checksum_of_a_range_is_that_of_its_bytes(seed: int) -> None:
    random = Random(seed)
    data = random.randbytes(400_000)
    record = form.encode_record(random.randbytes(150_000))
    data = data[:100_000] + record + data[100_000 + len(record) :]
    checksums = RangeChecksums()
    base = 0
    for _ in range(300):
        base = max(base, checksums.floor(base + random.randrange(100)))
        at = random.randrange(base, len(data) - 9)
        end = random.randrange(at + 9, len(data) + 1)
        wanted = google_crc32c.value(data[at + 1 : end - 4]) == int.from_bytes(data[end - 4 : end])
        assert checksums.is_right(data[base:], base, at - base, end - base) == wanted
    assert RangeChecksums().is_right(data, 77, 100_000, 100_000 + len(record))
    again = RangeChecksums()
    for end in (399_999, 100_000 + len(record)):
        assert again.is_right(data, 0, 100_000, end) == (end != 399_999)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 2**24 + 5, 2**26 + 4])
def test_checksum_in_front_of_zero_bytes_of_any_length(size: int) -> None:
    ahead = b"123456789"
    wanted = google_crc32c.value(ahead + bytes(size))
    shifted = shifted_checksums.shifted(google_crc32c.value(ahead), size)
    assert shifted ^ google_crc32c.value(bytes(size)) == wanted
    assert shifted_checksums.with_zeros(google_crc32c.value(ahead), size) == wanted


@pytest.mark.parametrize("units", [1, 10_000, 300_000])
@pytest.mark.parametrize("is_final", [False, True])
def test_budget_divides_the_work_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: int, is_final: bool
) -> None:
    for module in (damage_search, slot_window):
        monkeypatch.setattr(module, "CHUNK_BYTES", 5000)
    path = tmp_path / NAME
    random = Random(units)
    parts = [form.FILE_HEADER]
    for size in (30_000, 3, 70_000, 200_000):
        parts += [claims(size, size // 2), GOOD, random.randbytes(size), bytes(size), GOOD]
    path.write_bytes(b"".join(parts))
    wanted = read(path)
    budget = WorkBudget(units)
    pieces: list[Piece] = []
    with SlotReader(str(path), budget=budget) as reader:
        for _ in range(100_000):
            budget.refill()
            more = reader.read(5, final=is_final)
            pieces += more
            assert units - budget.left < units + 1_000_000, "one step and one piece more"
            if not more and not reader.is_busy:
                break
    assert not reader.is_busy
    assert pieces == wanted
    assert tiles(path, pieces)


def test_torn_write_is_passed_in_parts_though_only_the_first_part_knew_that_writes_are_over(
    tmp_path: Path,
) -> None:
    path = tmp_path / NAME
    torn = b"P" + (2**20).to_bytes(4) + claims(100_000)
    path.write_bytes(form.FILE_HEADER + torn + GOOD)
    budget = WorkBudget(20_000)
    with SlotReader(str(path), budget=budget) as reader:
        assert reader.read(10) == []
        pieces = reader.read(10, settled=True)
        while reader.is_busy:
            budget.refill()
            pieces += reader.read(10)
    assert [piece.data for piece in pieces] == [torn, b"FJ good"]


def test_record_inside_of_a_larger_one_behind_damage_is_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value may hold the bytes of a record: the larger one was only not in memory yet."""
    monkeypatch.setattr(slot_window, "CHUNK_BYTES", 64)
    outer = form.encode_record(b"FJ " + b"x" * 200 + GOOD + b"x" * 2000)
    path = tmp_path / NAME
    path.write_bytes(form.FILE_HEADER + b"damage" + outer)
    with SlotReader(str(path)) as reader:
        pieces = reader.read(10)
    assert [piece.data for piece in pieces] == [b"damage", outer[5:-4]]


# --- zero bytes -----------------------------------------------------------------------------------


class Preads:
    """Bytes that were read from files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        pread = os.pread

        def counting(descriptor: int, count: int, offset: int) -> bytes:
            data = pread(descriptor, count, offset)
            self.bytes += len(data)
            return data

        monkeypatch.setattr(os, "pread", counting)


def sparse(path: Path, before: bytes, hole: int, behind: bytes) -> None:
    with path.open("wb") as file:
        file.write(before)
        file.seek(len(before) + hole)
        file.write(behind)
        file.truncate()


@pytest.mark.parametrize("junk", [b"", b"some junk"])
def test_hole_of_any_size_is_one_piece_without_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, junk: bytes
) -> None:
    path, hole = tmp_path / NAME, 2**40
    before = form.FILE_HEADER + GOOD + junk
    sparse(path, before, hole, GOOD)
    preads = Preads(monkeypatch)
    pieces = read(path)
    (zeros,) = [piece for piece in pieces if piece.is_zeros]
    assert (zeros.offset, zeros.end) == (len(before), len(before) + hole)
    assert [piece.data for piece in pieces if piece.kind is Kind.DAMAGE and piece.data] == (
        [junk] if junk else []
    )
    assert [piece.data for piece in pieces if piece.kind is Kind.PENDING] == [b"FJ good"] * 2
    assert preads.bytes < 64 * 2**20


def test_zero_bytes_at_the_end_wait_and_are_passed_when_a_record_is_behind_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / NAME
    sparse(path, form.FILE_HEADER + GOOD, 2**30, b"")
    with SlotReader(str(path)) as reader:
        assert [piece.kind for piece in reader.read(10)] == [Kind.PENDING]
        assert reader.read(10) == []
        assert reader.waiting_bytes == 2**30
        with path.open("ab") as file:
            file.write(bytes(1000) + GOOD)
        zeros, good = reader.read(10)
        assert (zeros.is_zeros, zeros.end - zeros.offset) == (True, 2**30 + 1000)
        assert good.data == b"FJ good"
        assert reader.waiting_bytes == 0


def test_zero_bytes_are_damage_byte_for_byte_where_they_are_few(tmp_path: Path) -> None:
    path = tmp_path / NAME
    least = damage_search.ZERO_RUN_BYTES
    parts = [b"a" + bytes(least - 1) + b"b", GOOD, b"c", bytes(least), b"d", GOOD, bytes(9), GOOD]
    path.write_bytes(form.FILE_HEADER + b"".join(parts))
    pieces = read(path)
    assert tiles(path, pieces)
    found = [piece.data for piece in pieces if piece.kind is Kind.DAMAGE]
    assert found == [parts[0], b"c", b"", b"d", bytes(9)]


def test_status_of_a_spool_counts_the_zero_bytes(tmp_path: Path) -> None:
    sparse(tmp_path / NAME, form.FILE_HEADER + GOOD + b"x", 2**34, GOOD)
    (slot,) = spool_status(tmp_path).slots
    assert (slot.pending, slot.damaged_bytes) == (2, 2**34 + 1)
