"""Drop-ins: whole spool files that other programs link or rename into the directory."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import DROP_IN_NAME_BYTES_MAX, OPEN_SLOTS_MAX, RESCAN_US
from fastjournal.printable import safe_text
from fastjournal.spool import DeadDirectory, Reason, spool_status
from fastjournal.spool.drop_in import write_drop_in
from fastjournal.spool.format import FILE_HEADER
from fastjournal.spool.reading.slot_reader import Piece
from fastjournal.spool.slots import parse_slot_name, survey
from fj_forwarder.storage.slot_file import SlotFile
from fj_forwarder.storage.slot_store import SlotStore
from tests.unit.spool_files import record
from tests.unit.test_forwarder_store import resume_suspended

SLOT = "20261120T080000Z"
EVER = 10**9


def drop_in(directory: Path, name: str, content: bytes | None = None) -> Path:
    path = directory / f"{SLOT}-{name}.fjs"
    path.write_bytes(FILE_HEADER + record(name) if content is None else content)
    return path


class Opened:
    """A store, and the damage that it put aside."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.aside: list[tuple[str, bytes, str]] = []
        self.store = SlotStore(str(directory), slot_seconds=EVER, put_aside=self.put_aside)
        self.looks = 0

    def put_aside(self, slot: SlotFile, piece: Piece, code: str, _: str) -> bool:
        self.aside.append((slot.name, piece.data, code))
        return True

    def look(self) -> list[str]:
        """Look as a rescan does, erase what was found, and return the names of the slots."""
        self.looks += 1
        now_us = self.looks * RESCAN_US
        found = []
        taken = self.store.take_behind_torn(1000, 1 << 20, now_us)
        self.store.left_out.unopened.clear()
        resume_suspended(self.store, now_us)
        self.store.refresh(now_us)
        while taken := taken + self.store.take(1000, 1 << 20, now_us):
            for taken_one in taken:
                taken_one.slot.erase(taken_one.offset)
                found.append(taken_one.slot.name)
            taken = []
        self.store.finish_old(0, 1000, 1 << 20)
        return found


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    found = Opened(tmp_path)
    yield found
    found.store.close()


@pytest.mark.parametrize("put", [os.link, os.rename])
def test_drop_in_is_sent_and_deleted_at_once(
    opened: Opened, put: Callable[[Path, Path], None]
) -> None:
    """Its slot is not over, and no newer one is there."""
    made = opened.directory / f".{SLOT}-php-17.fjs.tmp"
    made.write_bytes(FILE_HEADER + record("a") + record("b"))
    put(made, opened.directory / f"{SLOT}-php-17.fjs")
    assert opened.look() == [f"{SLOT}-php-17.fjs"] * 2
    assert list(opened.directory.glob("2*")) == []
    assert opened.aside == []


def test_drop_ins_over_the_bound_of_open_slots_are_all_sent_in_one_look(opened: Opened) -> None:
    count = 2 * OPEN_SLOTS_MAX + 3
    names = [drop_in(opened.directory, f"{number:04}").name for number in range(count)]
    assert opened.look() == names
    assert list(opened.directory.iterdir()) == []


INCOMPLETE = {
    "empty": b"",
    "header": FILE_HEADER,
    "half-a-header": FILE_HEADER[:5],
    "half-a-record": FILE_HEADER + record("lost")[:-3],
    "text": b"GET / HTTP/1.1\r\n",
}


@pytest.mark.parametrize("count", [1, OPEN_SLOTS_MAX // 2], ids=["all open", "over the bound"])
def test_incomplete_drop_ins_are_torn_when_they_grow_no_more_and_hold_up_nothing(
    opened: Opened, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(count):
        for name, content in INCOMPLETE.items():
            drop_in(opened.directory, f"{number:04}-{name}", content)
    good = drop_in(opened.directory, "good")
    assert opened.look() == [good.name]
    for _ in range(8):
        assert opened.look() == []
    assert list(opened.directory.iterdir()) == []
    kinds = [(name.split("-", 2)[2].removesuffix(".fjs"), data) for name, data, _ in opened.aside]
    bad = {
        (name, content.removeprefix(FILE_HEADER))
        for name, content in INCOMPLETE.items()
        if content.removeprefix(FILE_HEADER)
    }
    assert set(kinds) == bad
    assert len(kinds) == len(bad) * count
    assert {code for _, _, code in opened.aside} == {"torn"}
    empty = [entry for entry in caplog.records if "without a record" in entry.getMessage()]
    assert len(empty) == 2 * count


def test_drop_in_that_still_grows_is_not_torn(opened: Opened) -> None:
    whole = FILE_HEADER + record("a") + record("b")
    path = drop_in(opened.directory, "slow", b"")
    found: list[str] = []
    for end in range(0, len(whole) + 11, 11):
        path.write_bytes(whole[:end])
        found += opened.look()
    assert (found, opened.aside) == ([path.name] * 2, [])
    assert path.exists(), "it was longer than at the last look"
    assert opened.look() == opened.look() == []
    assert not path.exists()


@pytest.mark.parametrize(
    "first", [FILE_HEADER, FILE_HEADER + record("a")[:-1]], ids=["header", "a"]
)
def test_drop_in_that_is_written_under_its_name_is_kept_while_it_grows(
    opened: Opened, first: bytes
) -> None:
    """A copy that pauses: each look but the first comes to the end of a whole record."""
    whole = FILE_HEADER + record("a") + record("b") + record("c")
    path = drop_in(opened.directory, "copied", first)
    assert opened.look() == []
    with path.open("r+b") as file:
        for end in (len(whole) - 2 * len(record("c")), len(whole) - len(record("c")), len(whole)):
            file.seek(0, os.SEEK_END)
            file.write(whole[file.tell() : end])
            file.flush()
            assert opened.look() == [path.name]
            assert path.exists()
    assert opened.look() == opened.look() == []
    assert not path.exists()
    assert opened.aside == []


def test_drop_in_of_the_future_ends_no_slot_of_a_writer(opened: Opened) -> None:
    slot = opened.directory / f"{SLOT}.fjs"
    slot.write_bytes(FILE_HEADER + record("a"))
    (opened.directory / "29991231T235959Z-x.fjs").write_bytes(FILE_HEADER + record("b"))
    assert opened.look() == [slot.name, "29991231T235959Z-x.fjs"]
    opened.look()
    assert [path.name for path in opened.directory.iterdir()] == [slot.name]


def test_drop_in_of_another_version_is_left_alone_and_named_once(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    path = drop_in(opened.directory, "new", b"fjsp\0\0\0\x02?")
    good = drop_in(opened.directory, "old")
    assert [opened.look() for _ in range(3)] == [[good.name], [], []]
    assert path.read_bytes() == b"fjsp\0\0\0\x02?"
    assert [path.name in entry.getMessage() for entry in caplog.records] == [True]
    assert spool_status(opened.directory, strict=False).unreadable[0].name == path.name


LONG = "x" * (DROP_IN_NAME_BYTES_MAX - len(SLOT) - len("-.fjs"))
NAMES = {
    f"{SLOT}-1.fjs": True,
    f"{SLOT}-a b.ü.fjs": True,
    f"{SLOT}-{LONG}.fjs": True,
    f"{SLOT}-{LONG}x.fjs": False,
    f"{SLOT}-.fjs": False,
    f"{SLOT}_1.fjs": False,
    f"{SLOT}-1.fjs.tmp": False,
    f"{SLOT}-a\nb.fjs": False,
    f"{SLOT}-\udcff.fjs": False,
    "20261332T080000Z-1.fjs": False,
}


def test_names_that_are_no_drop_ins_are_named_once_and_left_alone(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    for name, is_drop_in in NAMES.items():
        (opened.directory / name).write_bytes(FILE_HEADER + record("a"))
        assert (parse_slot_name(name) is not None) is is_drop_in, name
    good = sorted(name for name, is_good in NAMES.items() if is_good)
    bad = {name for name, is_good in NAMES.items() if not is_good}
    assert sorted(opened.look()) == good
    assert [opened.look(), opened.look()] == [[], []]
    assert set(os.listdir(opened.directory)) == bad
    assert opened.store.listing.ignored == len(bad)
    told = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]
    counts = [sum(f"/{safe_text(name)}:" in line for line in told) for name in sorted(bad)]
    assert counts == [1] * len(bad)
    assert survey(opened.directory).ignored_count == len(bad)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]


def test_slot_that_somebody_deleted_is_named_once_though_its_record_waits(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    gone = drop_in(opened.directory, "gone")
    opened.store.refresh(0)
    (waiting,) = opened.store.take(10, 1 << 20, 0)  # no daemon replies
    for look in range(1, 6):
        if look == 1:
            gone.unlink()
        drop_in(opened.directory, f"later-{look}")
        opened.look()
    (told,) = errors(caplog)
    assert "another program has deleted, truncated or overwritten this slot" in told
    assert str(gone) in told
    waiting.slot.erase(waiting.offset)
    opened.look()
    again = drop_in(opened.directory, "gone")
    opened.store.refresh(7 * RESCAN_US)
    assert len(opened.store.take(10, 1 << 20, 7 * RESCAN_US)) == 1
    again.unlink()
    opened.store.refresh(8 * RESCAN_US)
    assert errors(caplog) == [told, told]


@pytest.mark.parametrize(
    ("form", "further"), [("junk-{}", "nothing of a spool"), (SLOT + "-{}.fjs", "left out")]
)
def test_log_names_1000_files_once_and_then_the_number_of_further_ones(
    opened: Opened, caplog: pytest.LogCaptureFixture, form: str, further: str
) -> None:
    def add(first: int, end: int) -> None:
        for number in range(first, end):
            path = opened.directory / form.format(f"{number:04}")
            path.write_bytes(b"fjsp\0\0\0\x02?")  # another version of the format

    add(0, 1200)
    for _ in range(3):
        opened.look()
    told = errors(caplog)
    assert len(told) == len(set(told)) == 1001
    (summary,) = [line for line in told if line.startswith("200 further")]
    assert further in summary
    assert "fj-cli spool status" in summary
    add(1200, 1350)
    opened.look()
    assert len(errors(caplog)) == 1001, "350 is less than twice 200"
    add(1350, 1450)
    opened.look()
    assert errors(caplog)[1001:] == [summary.replace("200", "450")]
    assert opened.store.listing.ignored + len(opened.store.left_out.failures()) == 1450
    for path in opened.directory.iterdir():
        path.unlink()
    opened.look()
    add(0, 1)
    opened.look()
    assert "0000" in errors(caplog)[-1]
    assert len(errors(caplog)) == 1003


def test_dead_letters_of_drop_ins_have_names_of_their_own(tmp_path: Path) -> None:
    dead = DeadDirectory(tmp_path)
    for name in ("a.b", "a.c", LONG):
        dead.put(b"?", Reason(f"{SLOT}-{name}.fjs", 8, 1, "frame", "bad-key", "", 0))
    assert len(dead.list()) == 3


@pytest.mark.parametrize("is_there", [False, True], ids=["file", "directory"])
def test_drop_in_that_cannot_be_synced_is_an_error_that_says_whether_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    sync = os.fsync

    def fail_one(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == is_there:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_one)
    said = "sync the name of a drop-in, which is there: " if is_there else "write a drop-in: "
    with pytest.raises(SpoolFailedError, match=f"cannot {said}Input/output error"):
        write_drop_in(tmp_path, "retry", [record("a")])
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [
        FILE_HEADER + record("a")
    ] * is_there
