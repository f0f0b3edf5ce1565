"""Slots by the thousand that give no record: the work of one turn, and the others meanwhile."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fastjournal.limits import OPEN_SLOTS_MAX, RESCAN_US
from fastjournal.protocol import Flag, Function, Reply, Request, ServerConnection, encode_request
from fastjournal.spool import DeadDirectory
from fastjournal.spool.format import FILE_HEADER, encode_record
from fastjournal.spool.reading.work_budget import OPENING_UNITS
from fj_forwarder.delivery import TURN_UNITS, Delivery
from fj_forwarder.sending.delivery_engine import DeliveryEngine
from fj_forwarder.storage import slot_handle

START_US = 1_795_161_600_000_000
COUNT = 8 * OPEN_SLOTS_MAX
OPENED_MAX = TURN_UNITS // OPENING_UNITS + 4
TORN = FILE_HEADER[:5]
OTHER_VERSION = b"fjsp\0\0\0\2"


class Turns:
    """Turns of a delivery, in virtual time: each has one ``fill``."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.now_us = START_US
        self.opened: list[int] = []
        """Slots that were opened in each turn."""
        self.sent = 0
        self._engine = DeliveryEngine(in_flight_max=1024, random=Random(1))
        self._daemon = ServerConnection()
        self.delivery = Delivery(
            str(directory), slot_seconds=3600, engine=self._engine, now_us=START_US
        )
        opened = slot_handle.open_slot

        def count(path: str, flags: int) -> int:
            self.opened[-1] += 1
            return opened(path, flags)

        patch.setattr(slot_handle, "open_slot", count)

    def turn(self) -> None:
        self.opened.append(0)
        self.delivery.fill(self.now_us, self.now_us)
        frames = self._engine.take(self.now_us)
        if frames:
            self._daemon.receive_data(frames)
        for request in self._daemon.next_events():
            self.sent += 1
            self.delivery.handle(Reply(request.identifier), self.now_us)
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
    (directory / f"20261120T080000Z-{number:06}.fjs").write_bytes(content)


def write_good(directory: Path, number: int) -> None:
    request = Request(Function.SET, 0, Flag.PERSIST, 5, b"%d" % number, value_type=1, value=b"v")
    write_slot(directory, number, FILE_HEADER + encode_record(encode_request(request)))


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
