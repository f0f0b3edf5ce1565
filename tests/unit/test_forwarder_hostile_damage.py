"""Damage that is slow to search, or huge: the other slots go on, and dead/ stays small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from fastjournal.spool import DeadDirectory, dead, list_slots, spool_status
from fastjournal.spool.format import FILE_HEADER, encode_record
from fastjournal.spool.forwarder_status import read_forwarder_status
from fastjournal.testing.ledger import Ledger
from fastjournal.testing.scripted_daemon import ScriptedDaemon
from fj_forwarder import delivery as delivery_module
from fj_forwarder.storage.slot_file import SlotFile
from fj_forwarder.storage.slot_space import SlotSpace
from tests.unit.spool_files import EIGHT as START_US
from tests.unit.spool_files import a_delivery, a_forwarder, record

BAD = "20261120T080000Z-bad.fjs"
GOOD = "20261120T080001Z-good.fjs"
STEP_UNITS = 1_000_000
"""Units of a turn beyond its budget: one step, and one piece."""


def put(directory: Path, name: str, *parts: bytes) -> Path:
    path = directory / name
    path.write_bytes(FILE_HEADER + b"".join(parts))
    return path


def put_sparse(directory: Path, name: str, size: int) -> Path:
    path = put(directory, f".{name}.tmp")
    os.truncate(path, size)
    return path.rename(directory / name)


def claims(size: int) -> bytes:
    return (b"P" + (size // 2).to_bytes(4)) * (size // 5)


class Run:
    """A delivery, all of whose requests are answered, and what each turn of it spends."""

    def __init__(self, directory: Path) -> None:
        self.now_us = START_US
        self.delivery, self.engine = a_delivery(directory, in_flight_max=100)
        self.turns = 0

    def turn(self) -> bytes:
        """Fill once; return what is to be sent."""
        self.turns += 1
        self.delivery.fill(self.now_us, START_US)
        assert self.delivery._budget.left > -STEP_UNITS
        frames = self.engine.take(self.now_us)
        self.now_us = self.delivery.next_due(self.now_us)
        return frames


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.delivery.close()


def test_record_of_another_drop_in_is_sent_in_the_first_turn_of_a_long_search(
    tmp_path: Path, run: Run
) -> None:
    put(tmp_path, BAD, claims(200_000))
    put(tmp_path, GOOD, record("good"))
    assert b"good" in run.turn()
    assert not run.delivery.exhausted, "--once goes on with the search"
    before = run.now_us
    while not (tmp_path / "dead").exists():
        run.turn()
    assert run.turns > 10
    assert run.now_us - before < 60_000_000, "the turns follow at once, not at the next rescan"
    (piece,) = DeadDirectory(tmp_path).list()
    assert DeadDirectory(tmp_path).read(piece.name) == claims(200_000)


def test_hole_of_a_hundred_gigabytes_takes_no_space_in_dead_and_few_turns(
    tmp_path: Path, run: Run
) -> None:
    size = 100 * 10**9
    path = put_sparse(tmp_path, BAD, size)
    put(tmp_path, GOOD, record("good"))
    assert b"good" in run.turn()
    while path.exists():
        run.turn()
    assert run.turns < 20
    (piece,) = DeadDirectory(tmp_path).list()
    assert piece.reason is not None
    assert (piece.reason.code, piece.reason.kind) == ("zeros", "damage")
    assert (piece.reason.offset, piece.reason.bytes) == (len(FILE_HEADER), size - len(FILE_HEADER))
    assert os.path.getsize(piece.raw_path) == 0


@pytest.mark.parametrize("size", [100_000, 70_000_000], ids=["one blank", "longer than a record"])
def test_zero_bytes_in_a_slot_are_put_aside_once_and_it_is_read_and_deleted_as_any_other(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "20261120T080000Z.fjs"
    path.write_bytes(FILE_HEADER + record("one") + bytes(size) + record("two"))
    ledger = Ledger()
    with ScriptedDaemon(ledger.answer) as daemon:
        trio.run(a_forwarder(tmp_path, daemon).run)
    assert set(ledger.applied) == {b"one", b"two"}
    assert not path.exists()
    (piece,) = DeadDirectory(tmp_path).list()
    assert piece.reason is not None
    assert (piece.reason.code, piece.reason.bytes) == ("zeros", size)


def test_zero_bytes_wait_with_their_slot_while_dead_takes_nothing(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put_sparse(tmp_path, BAD, 10**11)
    write = dead._write

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dead, "_write", full)
    for _ in range(20):
        run.turn()
    assert path.exists()
    assert len(run.delivery.store.retries) == 1
    monkeypatch.setattr(dead, "_write", write)
    while path.exists():
        run.turn()
    (piece,) = DeadDirectory(tmp_path).list()
    assert piece.reason is not None
    assert (piece.reason.code, piece.reason.bytes) == ("zeros", 10**11 - len(FILE_HEADER))


def test_zero_bytes_that_no_blank_reaches_over_do_not_make_each_erased_record_dearer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    release = SlotSpace.release

    def counting(space: SlotSpace, *arguments: Any) -> None:
        nonlocal tries
        tries += 1
        release(space, *arguments)

    monkeypatch.setattr(SlotSpace, "release", counting)
    small = encode_record(b"FJ" + bytes(300))
    put(tmp_path, "20261120T080000Z.fjs", bytes(70_000_000), small * 10_000)
    (slot,) = list_slots(tmp_path)
    file = SlotFile(slot, lambda *_: True)
    taken = file.take(20_000, 1 << 30)
    assert len(taken) == 10_000
    for piece in taken:
        file.erase(piece.offset)
    file.close()
    assert 0 < tries <= 4, "one for each megabyte that is erased"


def test_pieces_of_damage_by_the_dozen_are_put_aside_in_many_turns(
    tmp_path: Path, run: Run
) -> None:
    count = 60
    put(tmp_path, BAD, *(b"junk %d" % n + record(f"r{n}") for n in range(count)))
    run.turn()
    assert 0 < run.delivery.dead_letters.count < count / 2
    while run.delivery.dead_letters.count < 10:
        run.turn()


def test_refused_records_by_the_hundred_are_put_aside_in_many_turns(
    tmp_path: Path, run: Run
) -> None:
    for n in range(40):
        put(tmp_path, f"20261120T080000Z-{n:02}.fjs", encode_record(b"no request") * 5)
    run.turn()
    assert 0 < run.delivery.dead_letters.count < 200
    assert not run.delivery.exhausted
    while run.delivery.dead_letters.count < 200:
        run.turn()


async def test_long_search_lets_other_tasks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "TURN_UNITS", 1)
    path = put(tmp_path, BAD, claims(4 * 2**20))
    put(tmp_path, GOOD, record("good"))
    ledger = Ledger()

    def has_sent() -> bool:
        status = read_forwarder_status(tmp_path)
        return status is not None and status.done == 1

    with ScriptedDaemon(ledger.answer) as daemon:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a_forwarder(tmp_path, daemon, once=False).run)
            while not has_sent():  # noqa: ASYNC110 - nothing tells
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert set(ledger.applied) == {b"good"}
    assert path.exists(), "its search has far more turns than there were"
    assert spool_status(tmp_path).dead == 0
