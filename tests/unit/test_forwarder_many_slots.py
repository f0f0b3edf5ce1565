"""Slots, and erased records, by the thousand: the work of one turn, and the others meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fastjournal.limits import OPEN_SLOTS_MAX, RESCAN_US
from fastjournal.protocol import Reply, ServerConnection
from fastjournal.spool import DeadDirectory, Kind, Piece, SlotReader, list_slots
from fastjournal.spool.format import ERASED_BYTE, FILE_HEADER, RECORD_OVERHEAD
from fastjournal.spool.reading import slot_reader
from fastjournal.spool.reading.slot_window import OPENING_UNITS, PIECE_UNITS
from fj_forwarder.delivery import TURN_UNITS
from fj_forwarder.storage import slot_file, slot_space
from fj_forwarder.storage.slot_file import Retry, SlotFile
from tests.unit.spool_files import EIGHT as START_US
from tests.unit.spool_files import a_delivery, record
from tests.unit.test_forwarder_slotfile import can_punch

SLOT = "20261120T080000Z"
COUNT = 8 * OPEN_SLOTS_MAX
OPENED_MAX = TURN_UNITS // OPENING_UNITS + 4
TORN = FILE_HEADER[:5]
PIECES_MAX = 2 * TURN_UNITS // PIECE_UNITS
OTHER_VERSION = b"fjsp\0\0\0\2"


class Turns:
    """Turns of a delivery, in virtual time: each has one ``fill``."""

    def __init__(
        self,
        directory: Path,
        patch: pytest.MonkeyPatch,
        *,
        code: str = "",
        in_flight_max: int = 1024,
    ) -> None:
        self.code = code
        self.directory = directory
        self.now_us = START_US
        self.opened: list[int] = []
        """Slots that were opened in each turn."""
        self.sent = 0
        self._daemon = ServerConnection()
        self.delivery, self._engine = a_delivery(directory, in_flight_max=in_flight_max)
        opened = slot_file.open_slot

        def count(path: str, flags: int) -> int:
            self.opened[-1] += 1
            return opened(path, flags)

        patch.setattr(slot_file, "open_slot", count)

    def turn(self) -> None:
        self.opened.append(0)
        self.delivery.fill(self.now_us, self.now_us)
        frames = self._engine.take(self.now_us)
        if frames:
            self._daemon.receive_data(frames)
        for request in self._daemon.next_events():
            self.sent += 1
            self.delivery.handle(Reply(request.identifier, error=self.code), self.now_us)
        if not frames:
            self.now_us = max(self.now_us + 1, self.delivery.next_due(self.now_us))

    def rescans(self, number: int) -> None:
        end_us = self.now_us + number * RESCAN_US
        while self.now_us < end_us:
            self.turn()

    @property
    def slots(self) -> int:
        return sum(1 for _ in self.directory.glob("*.fjs"))


def write_slot(directory: Path, number: int, content: bytes) -> None:
    (directory / f"{SLOT}-{number:06}.fjs").write_bytes(content)


def write_good(directory: Path, number: int) -> None:
    write_slot(directory, number, FILE_HEADER + record(number))


def test_slots_that_cannot_be_opened_take_many_turns_and_hold_up_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(COUNT):
        write_slot(tmp_path, number, OTHER_VERSION)
    write_good(tmp_path, COUNT)
    run = Turns(tmp_path, monkeypatch)
    run.rescans(1)
    assert run.sent == 1
    assert sum(run.opened) == COUNT + 1
    assert max(run.opened) <= OPENED_MAX
    run.rescans(3)
    assert sum(run.opened) > 2 * COUNT  # they are tried again
    assert max(run.opened) <= OPENED_MAX
    write_good(tmp_path, COUNT + 1)
    run.rescans(2)
    assert (run.sent, run.slots) == (2, COUNT)
    failures = run.delivery.store.left_out.failures()
    assert len(failures) == COUNT
    assert not any(error.__traceback__ for error in failures)  # it keeps a slot's buffers


def test_torn_drop_ins_take_many_turns_few_rescans_and_hold_up_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeadDirectory, "put", lambda *_: "a name")
    for number in range(COUNT):
        write_slot(tmp_path, number, TORN)
    write_good(tmp_path, COUNT)
    run = Turns(tmp_path, monkeypatch)
    run.rescans(1)
    assert (run.sent, run.slots) == (1, COUNT)
    run.rescans(4)
    assert (run.slots, run.delivery.dead_letters.count) == (0, COUNT)
    assert max(run.opened) <= OPENED_MAX


def test_slots_that_are_over_are_finished_while_there_is_always_more_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog of hours: a daemon that takes one record in 10 ms, and more come than that."""
    done = tmp_path / "20261120T060000Z.fjs"
    torn = tmp_path / "20261120T070000Z.fjs"
    done.write_bytes(FILE_HEADER + record(0))
    torn.write_bytes(FILE_HEADER + record(1) + record(2)[:-3])
    (tmp_path / f"{SLOT}.fjs").write_bytes(FILE_HEADER + record(3) * 3000)
    run = Turns(tmp_path, monkeypatch, in_flight_max=1)
    end_us = run.now_us + 3 * RESCAN_US
    while run.now_us < end_us:
        run.turn()
        run.now_us += 10_000
    assert 1000 < run.sent < 3000
    assert run.delivery.dead_letters.count == 1
    assert [path.name for path in tmp_path.glob("*.fjs")] == [f"{SLOT}.fjs"]


def test_status_looks_at_a_part_of_the_slots_with_delayed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(COUNT):
        write_good(tmp_path, number)
    run = Turns(tmp_path, monkeypatch, code="forbidden")
    while len(run.delivery.store.retries) < COUNT:
        run.turn()
    looks: list[str] = []
    stat = os.stat

    def count(path: str, **named: Any) -> os.stat_result:
        looks.append(path)
        return stat(path, **named)

    monkeypatch.setattr(os, "stat", count)
    backlog = run.delivery.store.backlog()
    assert len(looks) <= 2 * OPEN_SLOTS_MAX
    assert (backlog.slots, backlog.unread_bytes) == (COUNT, 0)
    assert (backlog.oldest_slot, backlog.oldest_pending_us) == (f"{SLOT}-000000.fjs", START_US)


def count_pieces(patch: pytest.MonkeyPatch, run: Turns) -> list[int]:
    """Count the pieces that are read in each turn."""
    pieces: list[int] = []
    read = slot_reader.SlotReader.read

    def count(reader: slot_reader.SlotReader, *arguments: Any, **named: Any) -> list[Piece]:
        found = read(reader, *arguments, **named)
        pieces.extend([0] * (len(run.opened) - len(pieces)))
        pieces[-1] += len(found)
        return found

    patch.setattr(slot_reader.SlotReader, "read", count)
    return pieces


def write_erased(directory: Path, count: int) -> None:
    erased = ERASED_BYTE + record(2)[1:]
    content = FILE_HEADER + record(0) + erased * count + record(1)
    (directory / f"{SLOT}.fjs").write_bytes(content)


def test_erased_records_between_others_are_passed_in_many_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 5 * PIECES_MAX
    write_erased(tmp_path, count)
    run = Turns(tmp_path, monkeypatch)
    pieces = count_pieces(monkeypatch, run)
    run.turn()
    assert run.sent == 1
    write_good(tmp_path, 1)
    run.rescans(1)
    assert run.sent == 3
    assert sum(pieces) > count
    assert max(pieces) <= PIECES_MAX


def test_range_of_erased_records_is_read_in_many_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many delayed records of a slot are one range, in which most may be done by now."""
    count = 5 * PIECES_MAX
    write_erased(tmp_path, count)
    run = Turns(tmp_path, monkeypatch)
    run.opened.append(0)
    store = run.delivery.store
    store.refresh(run.now_us)
    (first,) = store.take(1, 1 << 20, run.now_us)
    while not (taken := store.take(1000, 1 << 20, run.now_us)):
        run.delivery.begin_turn()
    (last,) = taken
    for record_ in (first, last):
        first.slot.evict(record_.offset)
    run.now_us += RESCAN_US
    end = last.offset + len(last.frame) + RECORD_OVERHEAD
    store.retries.add(Retry(first.slot, first.offset, end, due_us=run.now_us, merged=True))
    pieces = count_pieces(monkeypatch, run)
    run.rescans(2)
    assert run.sent == 2
    assert max(pieces) <= PIECES_MAX


def test_space_behind_one_record_is_released_without_reading_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_punch(tmp_path):
        pytest.skip("this file system has no holes")
    monkeypatch.setattr(slot_space, "RECORD_BYTES_MAX", 400_000)
    monkeypatch.setattr(slot_space, "RELEASE_BYTES", 20_000)
    write_erased(tmp_path, 100_000)
    path = tmp_path / f"{SLOT}.fjs"
    file = SlotFile(list_slots(tmp_path)[0], lambda *_: True)
    first, last = file.take(10, 1 << 20)
    reads: list[int] = []
    pread = os.pread

    def count(descriptor: int, size: int, at: int) -> bytes:
        reads.append(size)
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", count)
    before = path.stat().st_blocks
    file.erase(first.offset)
    assert sum(reads) < 100_000
    assert path.stat().st_blocks < before // 5
    file.close()
    assert [piece.kind for piece in SlotReader(str(path)).read(100)][-1] is Kind.PENDING
    assert last.end == path.stat().st_size
