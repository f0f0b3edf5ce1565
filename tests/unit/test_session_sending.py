"""Sending of a session: one task at a time, and no turn of the event loop more than is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal import limits
from fastjournal.protocol.constants import Function
from fastjournal.protocol.messages import Request
from fastjournald.admission.memory_budget import MemoryAccount, MemoryBudget
from fastjournald.net.outbox import Outbox
from tests.property.subject import request
from tests.unit.test_session_bounds import Room, codes
from tests.unit.test_session_limits import NOP, listen, set_

pytestmark = pytest.mark.usefixtures("native", "transport")


@pytest.mark.parametrize("first", [1, 2], ids=["reply waits", "push waits"])
async def test_sending_waits_until_another_task_has_sent_wholly(
    first: int, autojump_clock: MockClock
) -> None:
    async with Room().open() as room:
        slow, peer = room.connect_in_memory(lockstep=True), room.connect_in_memory()
        waits, nop = listen(b"a", identifier=1), request(Function.NOP, identifier=2)

        async def send(*requests: Request) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(slow.send, *requests)
            await trio.testing.wait_all_tasks_blocked()

        async def push() -> None:
            assert codes([await peer.ask(set_(b"a:1:0:x"))]) == [""]
            await trio.testing.wait_all_tasks_blocked()

        # the answer of the NEXT is sent by a task of its own, the one of the NOP by the session
        await send(waits)
        if first == 1:
            await push()
            await send(nop)
        else:
            await send(nop)
            await push()
        replies = [await slow.reply(), await slow.reply()]
        assert [reply and reply.identifier for reply in replies] == [first, 3 - first]
        assert codes(replies) == ["", ""]
        assert not room.ended


async def test_push_that_waits_ends_with_a_client_that_is_lost_during_a_reply(
    autojump_clock: MockClock,
) -> None:
    async with Room(send_timeout=30).open() as room:
        lost, peer = room.connect_in_memory(lockstep=True), room.connect_in_memory()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lost.send, listen(b"a", identifier=1), NOP)
        await trio.testing.wait_all_tasks_blocked()
        assert codes([await peer.ask(set_(b"a:1:0:x"))]) == [""]
        await trio.sleep(35)
        assert room.ended == [lost]
        # the pushed entry was not sent, and is released
        assert (await peer.ask(request(Function.NEXT, b"a"))).pairs
        room.engine.check()


def test_outbox_gives_about_as_many_bytes_to_send_as_the_bound() -> None:
    budget = MemoryBudget(1 << 30, lambda _scarce: None)
    log = SimpleNamespace(appended=0)
    outbox = Outbox(log, MemoryAccount(budget), lambda _work: None)
    size = limits.REPLIES_BYTES_MAX // 4 + 1
    for _ in range(6):
        outbox.put(bytes(size))
    sent = []
    while outbox.pieces:
        sent.append(len(outbox.data_to_send(0, lambda: False)))
        outbox.data_sent()
    assert sent == [4 * size, 2 * size]
