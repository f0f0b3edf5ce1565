"""Many slots, and slots that cannot be opened: what the forwarder's store makes of them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.limits import OPEN_SLOTS_MAX
from fastjournal.spool import Spool
from fastjournal.spool.reader import Piece
from fj_forwarder import store as module
from fj_forwarder.store import SlotStore

MINUTE_US = 60_000_000


class Minutes:
    """A clock that is a minute further at each look."""

    def __init__(self) -> None:
        self.us = 1_763_000_000 * 1_000_000

    def now_us(self) -> int:
        self.us += MINUTE_US
        return self.us


def no_damage(slot: str, piece: Piece, code: str, sentence: str) -> None:
    raise AssertionError(f"{slot}: {code} {sentence}")


def spool_slots(directory: Path, count: int) -> None:
    with Spool(directory, slot_seconds=60, clock=Minutes()) as spool:
        for number in range(count):
            spool.append(domain="d", id=str(number), timestamp=number + 1)
    assert len(list(directory.glob("*.fjs"))) == count


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlotStore]:
    opened = SlotStore(str(tmp_path), slot_seconds=60, put_aside=no_damage)
    yield opened
    opened.close()


def test_more_slots_than_may_be_open_are_taken_in_turns_and_all_deleted(
    tmp_path: Path, store: SlotStore
) -> None:
    count = 2 * OPEN_SLOTS_MAX + 3
    spool_slots(tmp_path, count)
    seen = 0
    rounds = 0
    while list(tmp_path.glob("*.fjs")):
        rounds += 1
        before = len(os.listdir("/proc/self/fd"))
        store.refresh()
        taken = store.take(count, 1 << 20)
        assert len(os.listdir("/proc/self/fd")) <= before + OPEN_SLOTS_MAX
        assert len(taken) <= OPEN_SLOTS_MAX
        assert store.take(count, 1 << 20) == []
        assert not store.can_begin
        for slot, piece in taken:
            slot.erase(piece.offset, len(piece.data))
        seen += len(taken)
        assert store.finish_old(2e9, count, 1 << 20) == []
    assert (seen, rounds) == (count, 3)


def test_a_slot_that_cannot_be_opened_for_a_while_is_told_of_once_and_sent_later(
    tmp_path: Path, store: SlotStore, caplog: pytest.LogCaptureFixture
) -> None:
    spool_slots(tmp_path, 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    store.refresh()
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 1, hard))
        assert store.take(10, 1 << 20) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held)
    assert [record.name for record in caplog.records] == ["fj_forwarder"] * 3
    store.refresh()
    assert store.take(10, 1 << 20) == []
    store.retry_refused()
    store.refresh()
    assert len(store.take(10, 1 << 20)) == 3
    assert len(caplog.records) == 3


def test_the_bound_leaves_room_under_the_usual_limit_of_open_files() -> None:
    assert module.OPEN_SLOTS_MAX <= 1024 // 2
