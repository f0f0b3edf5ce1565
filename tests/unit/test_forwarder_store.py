"""Many slots, and slots that cannot be opened: what the forwarder's store makes of them."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import OPEN_SLOTS_MAX, RESCAN_US
from fastjournal.spool import Spool
from fastjournal.spool.format import FILE_HEADER, encode_record
from fastjournal.spool.reading.slot_reader import Piece
from fastjournal.spool.slots import Survey, survey
from fj_forwarder.storage import slot_listing
from fj_forwarder.storage import slot_store as module
from fj_forwarder.storage.slot_file import SlotFile, SpoolRecord
from fj_forwarder.storage.slot_store import SlotStore

MINUTE_US = 60_000_000
HALF = encode_record(b"FJ half of a record")[:20]


class Minutes:
    """A clock that is a minute further at each look."""

    def __init__(self) -> None:
        self.us = 1_763_000_000 * 1_000_000

    def now_us(self) -> int:
        self.us += MINUTE_US
        return self.us


def no_damage(slot: SlotFile, piece: Piece, code: str, sentence: str) -> bool:
    raise AssertionError(f"{slot}: {code} {sentence}")


def erase(taken: list[SpoolRecord]) -> None:
    for record in taken:
        record.slot.erase(record.offset)


def resume_suspended(store: SlotStore, now_us: int) -> None:
    """Look at all suspended slots, part by part."""
    store.resume_suspended(now_us)
    while store.suspended.is_looked_at:
        store.resume_suspended(now_us)


def spool_slots(directory: Path, count: int) -> None:
    with Spool(directory, slot_seconds=60, clock=Minutes()) as spool:
        for number in range(count):
            spool.append(domain="d", id=str(number), timestamp_us=number + 1)
    assert len(list(directory.glob("*.fjs"))) == count


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlotStore]:
    opened = SlotStore(str(tmp_path), slot_seconds=60, put_aside=no_damage)
    yield opened
    opened.close()


def test_slots_over_the_bound_of_open_ones_are_taken_in_turns_and_all_deleted(
    tmp_path: Path, store: SlotStore
) -> None:
    count = 2 * OPEN_SLOTS_MAX + 3
    spool_slots(tmp_path, count)
    seen = 0
    rounds = 0
    before = len(os.listdir("/proc/self/fd"))
    while list(tmp_path.glob("*.fjs")):
        rounds += 1
        store.refresh(rounds * RESCAN_US)
        taken = store.take(count, 1 << 20, 0)
        assert len(os.listdir("/proc/self/fd")) <= before + OPEN_SLOTS_MAX
        assert len(taken) <= OPEN_SLOTS_MAX
        assert store.take(count, 1 << 20, 0) == []
        erase(taken)
        seen += len(taken)
        assert store.finish_old(2 * 10**15, count, 1 << 20) == []
    assert (seen, rounds) == (count, 3)


def test_slot_that_cannot_be_opened_for_a_while_is_told_of_once_and_sent_later(
    tmp_path: Path, store: SlotStore, caplog: pytest.LogCaptureFixture
) -> None:
    spool_slots(tmp_path, 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    store.refresh(0)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 1, hard))
        assert store.take(10, 1 << 20, 0) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held)
    assert [record.name for record in caplog.records] == ["fj_forwarder"] * 3
    store.refresh(RESCAN_US)
    assert store.take(10, 1 << 20, 0) == []
    store.left_out.unopened.clear()
    store.refresh(2 * RESCAN_US)
    assert len(store.take(10, 1 << 20, 0)) == 3
    assert len(caplog.records) == 3


def test_slots_left_out_are_known_until_they_are_read_or_gone(
    tmp_path: Path, store: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool_slots(tmp_path, 3)
    first, second, _ = sorted(tmp_path.glob("*.fjs"))
    content = first.read_bytes()
    first.write_bytes(b"fjsp\0\0\0\x02?")
    reading = SlotFile.take

    def fail(file: SlotFile, *args: int, **kwargs: bool) -> list[Piece]:
        if file.path == str(second):
            raise SpoolFailedError("cannot read", path=file.path)
        return reading(file, *args, **kwargs)

    store.refresh(0)
    with monkeypatch.context() as patched:
        patched.setattr(SlotFile, "take", fail)
        assert len(store.take(10, 1 << 20, 0)) == 1
    assert [error.path for error in store.left_out.failures()] == [str(first), str(second)]
    assert len(store.take(10, 1 << 20, RESCAN_US)) == 1
    assert [error.path for error in store.left_out.failures()] == [str(first)]
    first.write_bytes(content)
    store.left_out.unopened.clear()
    store.refresh(2 * RESCAN_US)
    assert len(store.take(10, 1 << 20, 2 * RESCAN_US)) == 1
    assert store.left_out.failures() == []


def test_slot_left_out_that_is_deleted_is_left_out_no_more(
    tmp_path: Path, store: SlotStore
) -> None:
    spool_slots(tmp_path, 1)
    (slot,) = tmp_path.glob("*.fjs")
    slot.write_bytes(b"fjsp\0\0\0\x02?")
    store.refresh(0)
    assert store.take(10, 1 << 20, 0) == []
    assert len(store.left_out.failures()) == 1
    slot.unlink()
    store.left_out.unopened.clear()
    store.refresh(RESCAN_US)
    assert store.left_out.failures() == []


def test_bound_leaves_room_under_the_usual_limit_of_open_files() -> None:
    assert module.OPEN_SLOTS_MAX <= 1024 // 2


def test_slots_whose_records_are_all_delayed_rest_and_hold_up_no_other(
    tmp_path: Path, store: SlotStore
) -> None:
    """Each slot has one record, and all are put off: still each slot has its turn."""
    count = 2 * OPEN_SLOTS_MAX + 3
    spool_slots(tmp_path, count)
    store.refresh(0)
    before = len(os.listdir("/proc/self/fd"))
    seen: set[str] = set()
    while taken := store.take(count, 1 << 20, 0):
        for record in taken:
            assert record.slot.name not in seen
            seen.add(record.slot.name)
            store.delay(record, 10)
        assert len(os.listdir("/proc/self/fd")) <= before + OPEN_SLOTS_MAX
    assert len(seen) == count
    again: set[str] = set()
    while taken := store.take(count, 1 << 20, 10):
        for record in taken:
            again.add(record.slot.name)
            record.slot.erase(record.offset)
    assert again == seen


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("end", ["half", "empty", "no header"])
def test_slots_that_writers_hold_with_half_a_record_make_room_for_others(
    tmp_path: Path, store: SlotStore, end: str, is_deleted: bool
) -> None:
    """A writer that is stopped in the middle of a record, or one that means harm."""
    count = OPEN_SLOTS_MAX + 5
    spool_slots(tmp_path, count)
    paths = sorted(tmp_path.glob("*.fjs"))
    with ExitStack() as held:
        for path in paths[:-1]:
            writer = held.enter_context(path.open("ab", buffering=0))
            fcntl.flock(writer, fcntl.LOCK_SH)
            if end != "half":
                writer.truncate(0)
            if end != "empty":
                writer.write(HALF)
        seen = set[str]()
        for look in range(8):
            now_us = look * RESCAN_US
            taken = store.take_behind_torn(count, 1 << 20, now_us)
            resume_suspended(store, now_us)
            store.refresh(now_us)
            taken += store.take(count, 1 << 20, now_us)
            taken += store.finish_old(2 * 10**15, count, 1 << 20)
            for record in taken:
                record.slot.erase(record.offset)
                seen.add(record.slot.name)
                if is_deleted and record.slot.path != str(paths[-1]):
                    Path(record.slot.path).unlink()
        assert len(seen) == (count if end == "half" else 1)


def test_half_record_that_becomes_whole_after_its_slot_was_suspended_is_sent(
    tmp_path: Path, store: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_open_max", 2)
    spool_slots(tmp_path, 3)
    paths = sorted(tmp_path.glob("*.fjs"))
    names = [path.name for path in paths]
    whole = encode_record(b"FJ whole")
    with ExitStack() as held:
        writers = [held.enter_context(path.open("ab", buffering=0)) for path in paths[:2]]
        for writer in writers:
            fcntl.flock(writer, fcntl.LOCK_SH)
            writer.write(whole[:9])
        sent = list[str]()
        for look in range(8):
            now_us = look * RESCAN_US
            taken = store.take_behind_torn(10, 1 << 20, now_us)
            resume_suspended(store, now_us)
            store.refresh(now_us)
            taken += store.take(10, 1 << 20, now_us)
            for record in taken:
                record.slot.erase(record.offset)
                sent.append(record.slot.name)
            if sent == names:
                writers[0].write(whole[9:])
        assert sent == [*names, names[0]]


def test_record_of_a_deleted_slot_is_not_tried_again_in_a_new_slot_of_the_same_name(
    tmp_path: Path, store: SlotStore
) -> None:
    """Somebody deletes a slot that is open, and a writer makes another one of its name."""
    spool_slots(tmp_path, 1)
    (path,) = tmp_path.glob("*.fjs")
    store.refresh(RESCAN_US)
    (deleted,) = store.take(10, 1 << 20, 0)
    path.unlink()
    path.write_bytes(FILE_HEADER + encode_record(b"FJ new"))
    store.refresh(2 * RESCAN_US)
    (new,) = store.take(10, 1 << 20, 0)
    assert (new.slot.path, new.frame) == (str(path), b"FJ new")
    store.delay(deleted, 4 * RESCAN_US)  # its frame is nowhere any more
    assert store.take(10, 1 << 20, 10 * RESCAN_US) == []
    assert len(store.retries) == 0
    store.delay(new, 11 * RESCAN_US)
    (again,) = store.take(10, 1 << 20, 12 * RESCAN_US)
    assert (again.slot, again.frame) == (new.slot, b"FJ new")
    assert store.backlog().slots == 1


def test_suspended_slot_whose_end_cannot_be_read_takes_no_descriptor_at_each_try(
    tmp_path: Path, store: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_open_max", 2)
    spool_slots(tmp_path, 3)
    store.refresh(RESCAN_US)
    first, other = store.take(10, 1 << 20, 0)
    slot = first.slot
    store.delay(first, 2 * RESCAN_US)
    other.slot.erase(other.offset)
    (last,) = store.take(10, 1 << 20, 0)
    assert slot in store.suspended
    before = len(os.listdir("/proc/self/fd"))

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        for look in range(2, 8):
            assert store.take(10, 1 << 20, look * RESCAN_US) == []
            assert slot in store.suspended
            assert len(os.listdir("/proc/self/fd")) <= before
    assert last.frame
    (again,) = store.take(10, 1 << 20, 9 * RESCAN_US)
    assert (again.slot, again.offset, again.frame) == (slot, first.offset, first.frame)


def test_slots_by_the_hundred_thousand_are_not_listed_each_time(
    tmp_path: Path, store: SlotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: how many names are looked at until a backlog is sent, by the number of its slots."""
    looked = 0

    def counting(directory: str) -> Survey:
        nonlocal looked
        found = survey(directory)
        looked += len(found.slots)
        return found

    monkeypatch.setattr(slot_listing, "survey", counting)
    count = 8 * OPEN_SLOTS_MAX
    spool_slots(tmp_path, count)
    now_us = sent = 0
    while sent < count:
        store.refresh(now_us)
        taken = store.take(64, 1 << 20, now_us)
        erase(taken)
        sent += len(taken)
        store.finish_old(2 * 10**15, 64, 1 << 20)
        now_us += 1000
    assert looked == count, "listed once"


@pytest.mark.parametrize("listing_us", [1_000_000, 5_000_000, 20_000_000])
@pytest.mark.parametrize("is_idle", [False, True], ids=["backlog", "nothing to begin"])
def test_listing_takes_a_bounded_share_of_the_time_however_long_one_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing_us: int, is_idle: bool
) -> None:
    """The clock goes on by what a listing takes, and by 10 ms for each turn."""
    now_us = listings = sent = turns = 0

    def slow(directory: str) -> Survey:
        nonlocal now_us, listings
        now_us += listing_us
        listings += 1
        return survey(directory)

    monkeypatch.setattr(slot_listing, "survey", slow)
    count = 4 * OPEN_SLOTS_MAX
    spool_slots(tmp_path, 1 if is_idle else count)
    store = SlotStore(
        str(tmp_path),
        slot_seconds=10**9,
        put_aside=no_damage,
        listing=slot_listing.SlotListing(str(tmp_path), clock_us=lambda: now_us),
    )
    while turns < 10_000 if is_idle else sent < count:
        store.refresh(now_us)
        taken = store.take(64, 1 << 20, now_us)
        if not is_idle:
            erase(taken)
            store.finish_old(2 * 10**15, 64, 1 << 20)
        sent += len(taken)
        turns += 1
        now_us += 10_000
    store.close()
    assert (listings * listing_us) <= listing_us + now_us / slot_listing.LISTING_PAUSE
    assert is_idle or listings == 1


def append_one(directory: Path, name: str) -> None:
    with Spool(directory, slot_seconds=60, clock=Minutes()) as spool:
        spool.append(domain="d", id=name)


@pytest.mark.parametrize("is_moved", [False, True])
def test_slot_that_was_deleted_and_made_anew_is_another_one(
    tmp_path: Path, store: SlotStore, caplog: pytest.LogCaptureFixture, is_moved: bool
) -> None:
    append_one(tmp_path, "one")
    store.refresh(0)
    (before,) = store.take(10, 1 << 20, 0)
    (path,) = tmp_path.glob("*.fjs")
    aside = tmp_path.parent / f"{tmp_path.name}.aside"
    path.rename(aside) if is_moved else path.unlink()
    append_one(tmp_path, "two")
    store.refresh(RESCAN_US)
    store.refresh(2 * RESCAN_US)
    (after,) = store.take(10, 1 << 20, 0)
    assert (b"one" in before.frame, b"two" in after.frame) == (True, True)
    assert len(caplog.messages) == 1
    before.slot.erase(before.offset)  # it is sent, and done with
    assert store.finish_old(0, 10, 1 << 20) == []
    assert path.exists()
    assert aside.exists() == is_moved
    after.slot.erase(after.offset)
    assert store.finish_old(2 * 10**15, 10, 1 << 20) == []
    assert not path.exists()


def test_deleted_slots_with_delayed_records_make_room_for_others(
    tmp_path: Path, store: SlotStore
) -> None:
    spool_slots(tmp_path, OPEN_SLOTS_MAX)
    store.refresh(0)
    for record in store.take(1000, 1 << 20, 0):
        store.delay(record, 10**12)
    for path in tmp_path.glob("*.fjs"):
        path.unlink()
    append_one(tmp_path, "new")
    store.refresh(RESCAN_US)
    (taken,) = store.take(10, 1 << 20, 0)
    assert b"new" in taken.frame
    assert len(store.retries) == 0
