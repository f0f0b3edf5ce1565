"""CANCEL on a connection: the order of its reply and of what it ends."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Request
from tests.property.subject import START, request
from tests.unit.server_fixture import HeldSync, ServerFixture
from tests.unit.test_session_listen import listen as listen_to
from tests.unit.test_session_listen import put

pytestmark = pytest.mark.usefixtures("native", "transport")


def cancel(identifier: int) -> Request:
    return request(Function.CANCEL, count=identifier, identifier=9)


async def test_cancel_lets_no_notification_come_after_its_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ServerFixture().open() as fixture:
        peer, other = await fixture.connect(), await fixture.connect()
        await peer.ask(put(b"k"))
        await peer.ask(listen_to(b"k", 3))
        held = HeldSync(fixture, monkeypatch)
        await other.send(put(b"k", b"new", at=START + 1))
        await held.wait_begun()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await peer.send(cancel(3), request(Function.NOP, identifier=10))
        await trio.testing.wait_all_tasks_blocked(0.05)
        held.go_on()
        told = [await peer.reply() for _ in range(3)]
        assert [bool(one and one.flags & Flag.LISTEN) for one in told] == [True, False, False]
        assert told[1] is not None
        assert (told[1].identifier, told[1].code) == (9, "")
        await other.ask(put(b"k", b"newer", at=START + 2))
        assert (await peer.ask(request(Function.NOP, identifier=11))).identifier == 11
