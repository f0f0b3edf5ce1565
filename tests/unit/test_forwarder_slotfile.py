"""One slot in the forwarder's hands: damage, erasing, releasing space, deletion."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.spool import Kind, Piece, SlotReader, list_slots
from fastjournal.spool import format as form
from fastjournal.spool.reading import slot_window
from fj_forwarder.storage import slot_space
from fj_forwarder.storage.slot_file import Retry, SlotFile
from fj_forwarder.storage.slot_store import SlotStore
from tests.unit.spool_files import a_delivery

NAME = "20261120T080000Z.fjs"
START_S = 1_795_161_600


class PutAside:
    def __init__(self) -> None:
        self.pieces: list[tuple[str, bytes, str]] = []

    def __call__(self, slot: SlotFile, piece: Piece, code: str, sentence: str) -> bool:
        assert sentence
        self.pieces.append((slot.name, piece.data, code))
        return True

    @property
    def raw(self) -> list[bytes]:
        return [raw for _, raw, _ in self.pieces]


def write(directory: Path, *parts: bytes, name: str = NAME) -> Path:
    path = directory / name
    path.write_bytes(form.FILE_HEADER + b"".join(parts))
    return path


def open_slot(path: Path, aside: PutAside | None = None) -> SlotFile:
    (slot,) = [slot for slot in list_slots(path.parent) if slot.name == path.name]
    return SlotFile(slot, aside or PutAside())


def reread(path: Path, aside: PutAside | None = None, *, final: bool = False) -> list[Piece]:
    """Return what a forwarder takes from a slot that starts now."""
    file = open_slot(path, aside)
    taken = file.take(10_000, 10**9, final=final)
    file.close()
    return taken


def kinds(path: Path) -> list[Kind]:
    with SlotReader(str(path)) as slot_reader:
        return [piece.kind for piece in slot_reader.read(100_000, final=True)]


def records(count: int, size: int = 100) -> list[bytes]:
    return [form.encode_record(b"FJ%d " % n + b"x" * size) for n in range(count)]


def test_erased_record_differs_in_one_byte_and_is_not_taken_again(tmp_path: Path) -> None:
    path = write(tmp_path, *records(3))
    before = path.read_bytes()
    file = open_slot(path)
    taken = file.take(10, 10**6)
    file.erase(taken[1].offset)
    assert len(file.records) == 2
    file.close()
    at = taken[1].offset
    assert path.read_bytes() == before[:at] + b"E" + before[at + 1 :]
    assert [piece.offset for piece in reread(path)] == [taken[0].offset, taken[2].offset]


def test_damage_is_put_aside_once_and_is_an_erased_record_then(tmp_path: Path) -> None:
    first, second = records(2)
    junk = b"this is no record at all"
    path = write(tmp_path, first, junk, second)
    aside = PutAside()
    for wanted in (1, 1):
        assert len(reread(path, aside)) == 2
        assert len(aside.pieces) == wanted
    assert aside.pieces == [(NAME, junk, "damaged")]
    assert kinds(path) == [Kind.PENDING, Kind.ERASED, Kind.PENDING]


def test_damage_whose_first_byte_a_power_loss_takes_back_is_no_pending_record_with_its_bytes(
    tmp_path: Path,
) -> None:
    first, second = records(2)
    damaged = bytearray(first)
    damaged[20] ^= 1
    path = write(tmp_path, bytes(damaged), second)
    aside = PutAside()
    assert len(reread(path, aside)) == 1
    assert aside.raw == [bytes(damaged)]
    data = bytearray(path.read_bytes())
    data[form.FILE_HEADER_BYTES] = form.PENDING
    path.write_bytes(data)
    assert [piece.data.strip(b"\0") for piece in reread(path, aside)] == [b"", second[5:-4]]


def refuse(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("torn_bytes", [3, 8, 9, 50])
@pytest.mark.parametrize("before", [b"", b"damage before it"])
def test_torn_record_that_its_writer_takes_back_meanwhile_is_no_overwriting(
    tmp_path: Path, before: bytes, torn_bytes: int
) -> None:
    """After a short write the writer makes the torn record an erased one."""
    first, torn, last = records(3)
    path = write(tmp_path, first, before, torn[:torn_bytes], b"damage behind it", last)
    at = form.FILE_HEADER_BYTES + len(first + before)

    def put_aside(slot: SlotFile, piece: Piece, code: str, sentence: str) -> bool:
        head, crc = form.blank_ends(max(torn_bytes, 9))
        blank = head + bytes(torn_bytes - 9) + crc if torn_bytes >= 9 else bytes(torn_bytes)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(blank)
        return True

    (slot,) = list_slots(tmp_path)
    file = SlotFile(slot, put_aside)
    taken = [piece.data for piece in file.take(10, 10**9)]
    taken += [piece.data for piece in file.take(10, 10**9, settled=True)]
    assert taken == [first[5:-4], last[5:-4]]
    file.close()


@pytest.mark.parametrize("other", [b"E", b"\0" * 20, b"something else of 30 bytes....."])
def test_damage_in_whose_place_other_bytes_are_meanwhile_is_not_erased(
    tmp_path: Path, other: bytes
) -> None:
    first, torn, last = records(3)
    path = write(tmp_path, first, torn[:60], last)

    def put_aside(slot: SlotFile, piece: Piece, code: str, sentence: str) -> bool:
        with path.open("r+b") as file:
            file.seek(form.FILE_HEADER_BYTES + len(first))
            file.write(other)
        return True

    (slot,) = list_slots(tmp_path)
    file = SlotFile(slot, put_aside)
    before = bytearray(path.read_bytes())
    at = form.FILE_HEADER_BYTES + len(first)
    before[at : at + len(other)] = other
    assert len(file.take(10, 10**9, settled=True)) == 2
    assert path.read_bytes() == before
    file.close()


def test_damage_that_the_disk_does_not_let_erase_holds_up_no_record_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, records(2)[0], b"this is no record at all", records(2)[1])
    aside = PutAside()
    file = open_slot(path, aside)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        taken = file.take(10, 10**6)
    assert [piece.data for piece in taken] == [record[5:-4] for record in records(2)]
    assert aside.raw == [b"this is no record at all"]
    assert "damage at offset 121 was not erased" in caplog.text
    file.close()


@pytest.mark.parametrize("is_delayed", [False, True])
def test_damage_that_cannot_be_read_again_holds_up_no_record_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_delayed: bool
) -> None:
    """It is compared with what went to dead/ before it is erased."""
    parts = records(4)
    path = write(tmp_path, *parts[:2], b"this is no record at all", *parts[2:])
    file = open_slot(path)
    pread = os.pread

    def fail_at_damage(descriptor: int, count: int, offset: int) -> bytes:
        if offset == form.FILE_HEADER_BYTES + 2 * len(parts[0]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", fail_at_damage)
    if is_delayed:
        retry = Retry(file, form.FILE_HEADER_BYTES, path.stat().st_size, due_us=1)
        file.delayed.add(retry)
        taken = file.take_again(retry, 10, 10**6)
    else:
        taken = file.take(10, 10**6)
    assert [piece.data for piece in taken] == [part[5:-4] for part in parts]
    assert len(file.records) == 4
    file.close()


def test_read_error_behind_records_gives_these_and_fails_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = open_slot(write(tmp_path, *records(3)))
    monkeypatch.setattr(slot_window, "CHUNK_BYTES", 250)
    pread = os.pread

    def read_start(descriptor: int, size: int, at: int) -> bytes:
        if at >= 250:
            refuse()
        return pread(descriptor, size, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", read_start)
        taken = file.take(10, 10**6)
        with pytest.raises(SpoolFailedError, match="read"):
            file.take(10, 10**6)
    taken += file.take(10, 10**6)
    assert [piece.data for piece in taken] == [record[5:-4] for record in records(3)]
    file.close()


def test_damage_shorter_than_a_record_is_put_aside_and_left(tmp_path: Path) -> None:
    first, second = records(2)
    path = write(tmp_path, first, b"junk", second)
    aside = PutAside()
    assert len(reread(path, aside)) == 2
    assert aside.raw == [b"junk"]
    assert path.read_bytes() == form.FILE_HEADER + first + b"junk" + second


@pytest.fixture
def small_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_space, "RELEASE_BYTES", 16_384)


def can_punch(directory: Path) -> bool:
    path = directory / "probe"
    path.write_bytes(b"x" * 65_536)
    with path.open("r+b") as file:
        able = slot_space.punch_hole(file.fileno(), 0, 65_536)
    path.unlink()
    return able


@pytest.mark.usefixtures("small_release")
def test_erased_run_at_the_start_gives_its_space_back(tmp_path: Path) -> None:
    if not can_punch(tmp_path):
        pytest.skip("this file system has no holes")
    path = write(tmp_path, *records(3000))
    size = path.stat().st_size
    file = open_slot(path)
    taken = file.take(10_000, 10**9)
    for piece in taken[:-1]:
        file.erase(piece.offset)
    file.close()
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 < size / 2
    assert reread(path) == taken[-1:]
    assert set(kinds(path)[:-1]) == {Kind.ERASED}


def delay(file: SlotFile, pieces: list[Piece]) -> None:
    for piece in pieces:
        file.evict(piece.offset)
        file.delayed.add(Retry(file, piece.offset, piece.end, due_us=1))


@pytest.mark.usefixtures("small_release")
def test_delayed_records_do_not_keep_the_space_of_what_is_erased_behind_them(
    tmp_path: Path,
) -> None:
    """The disk may be full, so that they cannot go to dead/ before there is space."""
    if not can_punch(tmp_path):
        pytest.skip("this file system has no holes")
    path = write(tmp_path, *records(6000))
    size = path.stat().st_size
    file = open_slot(path)
    taken = file.take(10_000, 10**9)
    waiting = [taken[0], taken[1], taken[2500], taken[2502], taken[-1]]
    delay(file, waiting)
    for piece in taken:
        if piece not in waiting:
            file.erase(piece.offset)
    assert path.stat().st_blocks * 512 < size / 3
    file.close()
    again = open_slot(path)
    assert again.take(10, 10**9) == waiting
    for piece in waiting:
        again.erase(piece.offset)
    again.close()
    assert set(kinds(path)) == {Kind.ERASED}


@pytest.mark.usefixtures("small_release")
def test_slot_releases_no_space_behind_a_record_that_is_on_its_way(tmp_path: Path) -> None:
    path = write(tmp_path, *records(1000))
    file = open_slot(path)
    taken = file.take(10_000, 10**9)
    for piece in taken[1:]:
        file.erase(piece.offset)
    file.close()
    data = path.read_bytes()
    assert all(data[p.offset + 5 : p.end - 4] == p.data for p in taken)


@pytest.mark.usefixtures("small_release")
def test_file_system_without_holes_changes_nothing_but_the_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_space, "punch_hole", lambda *_: False)
    path = write(tmp_path, *records(1000))
    wanted = bytearray(path.read_bytes())
    file = open_slot(path)
    for piece in file.take(10_000, 10**9):
        file.erase(piece.offset)
        wanted[piece.offset] = form.ERASED
    file.close()
    assert path.read_bytes() == bytes(wanted)


@pytest.mark.usefixtures("small_release")
def test_hole_that_a_full_disk_refuses_fails_no_erasure_and_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, *records(3000))
    tries, refused = 0, True

    def punch(descriptor: int, offset: int, size: int) -> bool:
        nonlocal tries
        tries += 1
        if refused:
            # a part of it may be gone
            os.pwrite(descriptor, bytes(size // 2), offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(descriptor, bytes(size), offset)
        return True

    monkeypatch.setattr(slot_space, "punch_hole", punch)
    aside = PutAside()
    file = open_slot(path, aside)
    taken = file.take(10_000, 10**9)
    for piece in taken[:1500]:
        file.erase(piece.offset)
    assert len(file.records) == 1500
    assert 1 < tries <= sum(len(piece.data) for piece in taken[:1500]) // 16_384 + 2
    assert caplog.text.count("cannot release space") == 1
    assert reread(path, aside) == taken[1500:]
    refused = False
    for piece in taken[1500:-1]:
        file.erase(piece.offset)
    file.close()
    assert reread(path, aside) == taken[-1:]
    assert aside.pieces == []
    assert len(kinds(path)) < 100, "the run is not released"


class KilledError(Exception):
    """Stands for SIGKILL between two calls."""


def erase_until_killed(
    file: SlotFile, pieces: list[Piece], monkeypatch: pytest.MonkeyPatch, *, calls: int
) -> int:
    """Erase until so many other writes were done; return how many records were erased."""
    left = calls
    pwrite, punch = os.pwrite, slot_space.punch_hole

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError

    def counting_pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if data != form.ERASED_BYTE:
            count()
        return pwrite(descriptor, data, offset)

    def counting_punch(descriptor: int, offset: int, size: int) -> bool:
        count()
        return punch(descriptor, offset, size)

    erased = 0

    def erase() -> None:
        nonlocal erased
        for piece in pieces:
            erased += 1
            file.erase(piece.offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", counting_pwrite)
        patch.setattr(slot_space, "punch_hole", counting_punch)
        with pytest.raises(KilledError):
            erase()
    file.close()
    return erased


@pytest.mark.usefixtures("small_release")
@pytest.mark.parametrize("calls", [0, 1, 2, 3])
@pytest.mark.parametrize("delayed", [0, 2])
def test_killed_while_space_is_released_nothing_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, delayed: int
) -> None:
    path = write(tmp_path, *records(1000))
    aside = PutAside()
    file = open_slot(path, aside)
    taken = file.take(10_000, 10**9)
    delay(file, taken[:delayed])
    erased = erase_until_killed(file, taken[delayed:], monkeypatch, calls=calls)
    assert reread(path, aside) == taken[:delayed] + taken[delayed + erased :]
    assert aside.pieces == []


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_run_before_a_torn_piece_ends_with_a_whole_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    parts = records(10)
    monkeypatch.setattr(slot_space, "RELEASE_BYTES", sum(map(len, parts[:-1])))
    path = write(tmp_path, *parts, b"P\0\0", *records(1))
    aside = PutAside()
    file = open_slot(path, aside)
    taken = file.take(10, 10**9)
    erase_until_killed(file, [*taken[1:], taken[0]], monkeypatch, calls=calls)
    assert len(reread(path, aside, final=True)) == 1
    assert aside.raw == [b"P\0\0"]


@pytest.mark.usefixtures("small_release")
def test_run_longer_than_a_record_may_be_is_released_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_punch(tmp_path):
        pytest.skip("this file system has no holes")
    monkeypatch.setattr(slot_space, "RECORD_BYTES_MAX", 40_000)
    path = write(tmp_path, *records(2000))
    file = open_slot(path)
    taken = file.take(10_000, 10**9)
    for piece in [*taken[1:], taken[0]]:
        file.erase(piece.offset)
    file.close()
    assert set(kinds(path)) == {Kind.ERASED}
    assert 4 < len(kinds(path)) < 400


# --- ends of slots ----------------------------------------------------------------------------


def store(directory: Path, aside: PutAside | None = None) -> SlotStore:
    made = SlotStore(str(directory), slot_seconds=3600, put_aside=aside or PutAside())
    made.refresh(0)
    return made


def erase_all(made: SlotStore) -> int:
    taken = made.take(10_000, 10**9, 0)
    for record in taken:
        record.slot.erase(record.offset)
    return len(taken)


def finish(made: SlotStore, now_s: float) -> int:
    return len(made.finish_old(int(now_s * 1e6), 1000, 10**9))


def test_slot_is_deleted_when_it_is_over_and_all_is_erased(tmp_path: Path) -> None:
    path = write(tmp_path, *records(3))
    made = store(tmp_path)
    assert erase_all(made) == 3
    finish(made, START_S + 3599)
    assert path.exists()
    finish(made, START_S + 3600)
    assert not path.exists()
    made.close()


def test_newer_slot_says_that_an_older_one_is_over(tmp_path: Path) -> None:
    path = write(tmp_path, *records(3))
    newer = write(tmp_path, name="20261120T090000Z.fjs")
    made = store(tmp_path)
    assert erase_all(made) == 3
    finish(made, START_S)
    assert not path.exists()
    assert newer.exists()
    made.close()


def test_slot_with_a_pending_record_stays(tmp_path: Path) -> None:
    path = write(tmp_path, *records(3))
    made = store(tmp_path)
    assert len(made.take(10, 10**9, 0)) == 3
    finish(made, START_S + 10**6)
    assert path.exists()
    made.close()


def test_slot_that_a_writer_holds_stays_and_its_tail_waits(tmp_path: Path) -> None:
    (record,) = records(1)
    path = write(tmp_path, record, record[:50])
    aside = PutAside()
    made = store(tmp_path, aside)
    assert erase_all(made) == 1
    with path.open("ab", buffering=0) as writer:
        fcntl.flock(writer, fcntl.LOCK_SH)
        finish(made, START_S + 10**6)
        assert path.exists()
        assert aside.pieces == []
        writer.write(record[50:])
    assert erase_all(made) == 1
    finish(made, START_S + 10**6)
    assert not path.exists()
    assert aside.pieces == []
    made.close()


def test_torn_tail_is_put_aside_when_the_slot_is_over(tmp_path: Path) -> None:
    (record,) = records(1)
    path = write(tmp_path, record, record[:50])
    aside = PutAside()
    made = store(tmp_path, aside)
    assert erase_all(made) == 1
    finish(made, START_S)
    assert (path.exists(), aside.pieces) == (True, [])
    finish(made, START_S + 10**6)
    assert not path.exists()
    assert aside.pieces == [(NAME, record[:50], "torn")]
    made.close()


def test_torn_tail_is_put_aside_though_a_record_before_it_waits(tmp_path: Path) -> None:
    (record,) = records(1)
    write(tmp_path, record, record[:50])
    aside = PutAside()
    made = store(tmp_path, aside)
    (taken,) = made.take(10, 10**9, 0)
    finish(made, START_S + 10**6)
    assert aside.pieces == []  # the record is on its way
    made.delay(taken, 10**12)
    finish(made, START_S)
    assert aside.pieces == []  # the slot is not over
    for _ in range(2):
        finish(made, START_S + 10**6)
        assert aside.pieces == [(NAME, record[:50], "torn")]
    assert [t.frame for t in made.take(10, 10**9, 10**12)] == [taken.frame]
    taken.slot.erase(taken.offset)
    finish(made, START_S + 10**6)
    assert not Path(taken.slot.path).exists()
    made.close()


def test_record_behind_the_torn_one_is_taken_at_the_end_of_the_slot(tmp_path: Path) -> None:
    big, last = form.encode_record(b"x" * 5000), records(1)[0]
    path = write(tmp_path, big[:700], last)
    aside = PutAside()
    made = store(tmp_path, aside)
    assert made.take(10, 10**9, 0) == []
    taken = made.finish_old((START_S + 10**6) * 10**6, 1000, 10**9)
    assert [t.frame for t in taken] == [last[5:-4]]
    assert aside.raw == [big[:700]]
    taken[0].slot.erase(taken[0].offset)
    finish(made, START_S + 10**6)
    assert not path.exists()
    made.close()


def test_record_behind_a_torn_one_need_not_wait_for_the_end_of_the_slot(tmp_path: Path) -> None:
    big, last = form.encode_record(b"x" * 5000), records(1)[0]
    write(tmp_path, big[:700], last)
    aside = PutAside()
    made = store(tmp_path, aside)
    assert made.take(10, 10**9, 0) == []
    assert [t.frame for t in made.take_behind_torn(10, 10**9, 0)] == [last[5:-4]]
    assert aside.pieces == [(NAME, big[:700], "torn")]
    made.close()


def test_slots_are_taken_oldest_first_and_up_to_the_limits(tmp_path: Path) -> None:
    first, second, third = records(3)
    write(tmp_path, third, name="20261120T100000Z.fjs")
    write(tmp_path, first)
    write(tmp_path, second, second, name="20261120T090000Z.fjs")
    made = store(tmp_path)
    taken = made.take(2, 10**9, 0) + made.take(1, 10**9, 0) + made.take(9, 10**9, 0)
    assert [t.slot.name[9:11] for t in taken] == ["08", "09", "09", "10"]
    assert len(store(tmp_path).take(9, 1, 0)) == 1
    made.close()


def test_slot_of_another_version_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    foreign = tmp_path / NAME
    foreign.write_bytes(b"fjsp\0\0\0\x02?")
    write(tmp_path, *records(2), name="20261120T090000Z.fjs")
    made = store(tmp_path)
    assert erase_all(made) == 2
    made.refresh(10**9)
    finish(made, START_S + 10**6)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert foreign.read_bytes() == b"fjsp\0\0\0\x02?"
    made.close()


def test_slot_file_half_created_by_a_killed_writer_is_removed_later(tmp_path: Path) -> None:
    old = tmp_path / f".{NAME}.0123456789abcdef.tmp"
    young = tmp_path / f".{NAME}.fedcba9876543210.tmp"
    other = tmp_path / ".something.tmp"
    for path in (old, young, other):
        path.touch()
        os.utime(path, (START_S, START_S))
    os.utime(young, (START_S + 3000, START_S + 3000))
    store(tmp_path).temporary_files.remove_old((START_S + 3601) * 10**6)
    assert sorted(tmp_path.iterdir()) == sorted([young, other])


def test_hidden_file_that_cannot_be_removed_ends_nothing_and_others_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One damaged inode: the forwarder of all producers goes on, also after a restart."""
    hidden = [tmp_path / f".20261120T080000Z-web{number}.fjs.tmp" for number in range(3)]
    for path in hidden:
        path.write_bytes(b"half")
        os.utime(path, (START_S, START_S))
    unlink = os.unlink

    def fail_at_second(path: str, **named: Any) -> None:
        if path == str(hidden[1]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, **named)

    monkeypatch.setattr(os, "unlink", fail_at_second)
    now_us = (START_S + 3601) * 1_000_000
    delivery, _ = a_delivery(tmp_path, slot_seconds=60, now_us=now_us)
    delivery.fill(now_us, now_us)
    delivery.close()
    assert [path.exists() for path in hidden] == [False, True, False]
    assert hidden[1].name in caplog.text


def test_hidden_file_of_a_killed_producer_is_removed_while_the_forwarder_runs(
    tmp_path: Path,
) -> None:
    hour_us = 3600 * 10**6
    delivery, _ = a_delivery(tmp_path, now_us=0)
    hidden = tmp_path / f".{NAME}.0123456789abcdef.tmp"
    delivery.fill(0, START_S * 10**6)
    hidden.touch()
    os.utime(hidden, (START_S, START_S))
    delivery.fill(hour_us, START_S * 10**6 + hour_us)
    assert hidden.exists(), "it is not older than an hour"
    delivery.fill(2 * hour_us - 1, START_S * 10**6 + 2 * hour_us - 1)
    assert hidden.exists(), "the directory is searched once an hour"
    delivery.fill(2 * hour_us, START_S * 10**6 + 2 * hour_us)
    assert not hidden.exists()
    delivery.close()
