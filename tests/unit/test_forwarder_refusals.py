"""Refusals by the hundred in one chunk of replies: dead letters in bounded turns, none lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from anyio.abc import ByteStream

from fastjournal.limits import FIRST_RECORDS_MAX
from fastjournal.protocol import (
    Flag,
    Function,
    Reply,
    Request,
    ServerConnection,
    encode_reply,
    encode_request,
)
from fastjournal.spool import DeadDirectory, spool_status
from fastjournal.spool.format import FILE_HEADER, encode_record
from fj_forwarder.delivery import LETTER_UNITS, TURN_UNITS
from fj_forwarder.forwarder import Connector, Forwarder
from tests.unit.spool_files import a_forwarder

SLOTS = 10
COUNT = SLOTS * FIRST_RECORDS_MAX
LETTERS_MAX = TURN_UNITS // LETTER_UNITS
"""Letters of one turn."""


class OneChunk(ByteStream):
    """Stream of a daemon that refuses all records for good, with one chunk of replies."""

    def __init__(self) -> None:
        self.server = ServerConnection()
        self.replies = b""
        self.seen = 0
        self.complete = trio.Event()

    async def send(self, item: bytes) -> None:
        self.server.receive_data(item)
        for request in self.server.next_events():
            self.seen += 1
            self.replies += encode_reply(Reply(request.identifier, error="bad-value refused"))
        if self.seen == COUNT:
            self.complete.set()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self.replies:
            await trio.sleep_forever()
        await self.complete.wait()
        replies, self.replies = self.replies, b""
        assert len(replies) < max_bytes
        return replies

    async def send_eof(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


@pytest.fixture
def forwarder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forwarder:
    for slot in range(SLOTS):
        frames = [
            encode_request(
                Request(Function.SET, 0, Flag.PERSIST, 1, b"%d-%d" % (slot, number), value_type=1)
            )
            for number in range(FIRST_RECORDS_MAX)
        ]
        path = tmp_path / f"20261120T0800{slot:02}Z.fjs"
        path.write_bytes(FILE_HEADER + b"".join(map(encode_record, frames)))
    stream = OneChunk()

    async def connect(_: Connector, *, level: int) -> ByteStream:
        return stream

    monkeypatch.setattr(Connector, "connect", connect)
    return a_forwarder(tmp_path, "localhost:1")


def call_at_each_letter(patch: pytest.MonkeyPatch, call: Callable[[], None]) -> None:
    """Have letters counted, and written nowhere."""

    def put(*_: object) -> str:
        call()
        return "a name"

    patch.setattr(DeadDirectory, "put", put)


class Steps(trio.abc.Instrument):
    """Number of the turn: of the step of a task, between two of which other tasks may run."""

    number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


async def test_event_loop_has_many_turns_for_the_refused_records_of_one_chunk(
    forwarder: Forwarder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    letters: Counter[int] = Counter()
    call_at_each_letter(monkeypatch, lambda: letters.update([steps.number]))
    trio.lowlevel.add_instrument(steps)
    await forwarder.run()
    assert letters.total() == forwarder.dead == COUNT
    assert max(letters.values()) == LETTERS_MAX
    assert spool_status(tmp_path).pending == 0


async def test_cancelled_forwarder_handles_all_replies_that_it_has_received(
    forwarder: Forwarder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a later start would send again what the daemon has answered."""
    with trio.CancelScope() as scope:
        call_at_each_letter(monkeypatch, scope.cancel)
        await forwarder.run()
    assert scope.cancelled_caught
    assert forwarder.dead == COUNT
    assert spool_status(tmp_path).pending == 0
