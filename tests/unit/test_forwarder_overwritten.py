"""Slots that another program truncates or overwrites: nothing of the new content is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal.limits import RESCAN_US
from fastjournal.protocol import Function, Reply, Request, ServerConnection
from fastjournal.spool import Kind, SlotReader
from fastjournal.spool.format import FILE_HEADER
from tests.unit.spool_files import EIGHT as START_US
from tests.unit.spool_files import HOUR_US, a_delivery, record

SLOT = "20261120T080000Z.fjs"
DROP_IN = "20261120T080000Z-web1.fjs"


def records(*names: str) -> bytes:
    return b"".join(map(record, names))


class Run:
    """A forwarder's delivery, and a daemon that answers when it is told to."""

    def __init__(self, directory: Path) -> None:
        self.now_us = START_US
        self.delivery, self.engine = a_delivery(directory, in_flight_max=100)
        self.server = ServerConnection()
        self.asked: list[Request] = []
        """Requests without a reply."""
        self.sent: list[str] = []

    def look(self, wall_us: int = START_US) -> None:
        self.now_us += RESCAN_US
        self.delivery.fill(self.now_us, wall_us)
        while frames := self.engine.take(self.now_us):
            self.server.receive_data(frames)
            while isinstance(request := self.server.next_event(), Request):
                if request.function == Function.NOP:
                    self.delivery.handle(Reply(request.identifier), self.now_us)
                else:
                    self.asked.append(request)
                    self.sent.append(request.key.decode())

    def answer(self, error: str = "") -> None:
        asked, self.asked = self.asked, []
        for request in asked:
            reply = Reply(request.identifier, error=error)
            self.delivery.handle(reply, self.now_us)

    def drain(self) -> None:
        """Answer and look until the slots are over, and all is sent."""
        for _ in range(12):
            self.answer()
            self.look(START_US + 2 * HOUR_US)
        self.answer()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.delivery.finish()
    made.delivery.close()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "truncated or overwritten" in text]


def send_fifty(run: Run, path: Path) -> None:
    path.write_bytes(FILE_HEADER + records(*(f"old{n:02}" for n in range(50))))
    while len(run.sent) < 50:
        run.look()
        run.answer()


def truncate_and_append(path: Path, *names: str) -> None:
    os.truncate(path, 0)
    with path.open("ab") as file:
        file.write(records(*names))


@pytest.mark.parametrize("count", [1, 49, 50, 51, 90])
@pytest.mark.parametrize("is_known", [True, False], ids=["seen empty", "seen longer"])
def test_records_behind_a_truncation_are_sent_before_the_slot_is_deleted(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture, count: int, is_known: bool
) -> None:
    """As copytruncate does: the writer goes on at the start, with fewer or more records."""
    path = tmp_path / SLOT
    send_fifty(run, path)
    os.truncate(path, 0)
    if is_known:
        run.look()
    names = [f"new{n:02}" for n in range(count)]
    truncate_and_append(path, *names)
    run.look()
    run.drain()
    assert run.sent[50:] == names
    assert not path.exists()
    assert not (tmp_path / "dead").exists()
    assert len(told(caplog)) == 1, told(caplog)
    assert path.name in told(caplog)[0]


def test_truncated_slot_counts_as_pending_again_before_its_time_is_over(
    tmp_path: Path, run: Run
) -> None:
    path = tmp_path / SLOT
    send_fifty(run, path)
    truncate_and_append(path, "new1", "new2")
    run.look()
    assert run.sent[50:] == ["new1", "new2"]
    assert run.delivery.store.backlog().outstanding == 2


OLD = FILE_HEADER + records("old1", "old2", "old3")
CONTENTS = {
    "shorter": ("new1",),
    "as long": ("new1", "new2", "new3"),
    "longer": ("new1", "new2", "new3", "new4"),
    "same first record": ("old1", "new2", "new3"),
    "same last record": ("new1", "new2", "old3"),
}


@pytest.mark.parametrize("name", [SLOT, DROP_IN])
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("moment", ["read", "in flight", "looked"])
def test_slot_that_is_overwritten_while_its_records_are_under_way_is_sent_as_well(
    tmp_path: Path,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    name: str,
    content: tuple[str, ...],
    moment: str,
) -> None:
    """As ``cp`` does. All records of both contents arrive; no other byte of the new is changed."""
    path = tmp_path / name
    path.write_bytes(OLD)
    if moment == "read":
        run.delivery.fill(run.now_us, START_US)
    else:
        run.look()
    path.write_bytes(FILE_HEADER + records(*content))
    if moment == "looked":
        run.look()
    run.drain()
    assert set(run.sent) == {"old1", "old2", "old3", *content}
    assert not path.exists()
    assert not (tmp_path / "dead").exists()
    assert len(told(caplog)) == 1


def test_reply_to_a_record_that_was_overwritten_erases_nothing(tmp_path: Path, run: Run) -> None:
    path = tmp_path / SLOT
    path.write_bytes(OLD)
    run.look()
    content = FILE_HEADER + record("new", b"x" * 500)
    path.write_bytes(content)
    run.answer()
    assert path.read_bytes() == content
    assert run.delivery.done == 3


@pytest.mark.parametrize("is_known", [True, False], ids=["looked", "in flight"])
@pytest.mark.parametrize("code", ["", "locked it is", "bad-value it is"])
def test_slot_that_is_moved_away_is_not_written_to_and_the_new_one_is_sent(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture, code: str, is_known: bool
) -> None:
    path = tmp_path / SLOT
    content = FILE_HEADER + records("old1", "old2", "old3")
    path.write_bytes(content)
    run.look()
    moved = path.rename(tmp_path.parent / f"{tmp_path.name}.moved")
    path.write_bytes(FILE_HEADER + records("new1"))
    if is_known:
        run.look()
    run.answer(code)
    run.now_us += 60_000_000
    run.look()
    run.drain()
    assert moved.read_bytes() == content
    assert set(run.sent) == {"old1", "old2", "old3", "new1"}
    assert not path.exists()
    assert len(run.delivery.store.retries) == 0
    assert len(told(caplog)) == 1


def test_records_of_both_contents_at_one_offset_are_told_apart(tmp_path: Path, run: Run) -> None:
    """The old reply comes when the new record of its offset is in flight."""
    path = tmp_path / SLOT
    path.write_bytes(FILE_HEADER + records("old1", "old2"))
    run.look()
    path.write_bytes(FILE_HEADER + records("new1"))
    run.look()
    assert run.sent == ["old1", "old2", "new1"]
    new = run.asked.pop()
    run.answer()
    with SlotReader(str(path)) as reader:
        assert [piece.kind for piece in reader.read(10)] == [Kind.PENDING]
    run.asked.append(new)
    run.answer()
    with SlotReader(str(path)) as reader:
        assert [piece.kind for piece in reader.read(10)] == [Kind.ERASED]


@pytest.mark.parametrize("name", [SLOT, DROP_IN])
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_delayed_records_that_were_overwritten_do_not_harm_the_new_content(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture, name: str, content: tuple[str, ...]
) -> None:
    path = tmp_path / name
    path.write_bytes(OLD)
    run.look()
    run.answer("locked it is")
    path.write_bytes(FILE_HEADER + records(*content))
    run.now_us += 60_000_000
    run.look()
    run.drain()
    assert set(content) <= set(run.sent[3:])
    assert not path.exists()
    assert not (tmp_path / "dead").exists()
    assert len(run.delivery.store.retries) == 0
    if content != CONTENTS["same last record"]:  # at its end the file looks like the former one
        assert len(told(caplog)) == 1
        assert "3 positions" in told(caplog)[0]


def test_records_that_are_refused_after_they_were_overwritten_are_not_delayed(
    tmp_path: Path, run: Run
) -> None:
    """Their offsets lead into another content."""
    path = tmp_path / SLOT
    path.write_bytes(OLD)
    run.look()
    path.write_bytes(FILE_HEADER + record("new", b"x" * 150))
    run.look()
    assert run.sent[3:] == ["new"]
    run.answer("locked it is")
    assert len(run.delivery.store.retries) == 1
    run.now_us += 60_000_000
    run.look()
    assert run.sent[4:] == ["new"]
    run.drain()
    assert not path.exists()


def test_slot_that_is_not_touched_is_told_of_by_nobody(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Appends, damage, torn writes, delays and blanks change a slot too."""
    path = tmp_path / SLOT
    path.write_bytes(FILE_HEADER)
    for turn in range(30):
        with path.open("ab") as file:
            file.write(record(f"n{turn}", b"x" * 100_000) + b"junk" * (turn % 3))
            file.write(record(f"m{turn}") + record(f"t{turn}")[: turn % 5])
        run.look()
        run.answer("locked it is" if turn % 4 == 0 else "")
    run.now_us += 60_000_000
    run.look()
    run.drain()
    assert told(caplog) == []
    assert not path.exists()
