"""Undelivered jobs: those in replies that were not sent wait again, durably; those sent do not."""

from __future__ import annotations

import socket
import struct

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Request
from tests.property.subject import SECOND, request
from tests.unit.server_fixture import HeldSync, ServerFixture
from tests.unit.test_session_bounds import Room, codes
from tests.unit.test_session_limits import NOP, listen, set_

pytestmark = pytest.mark.usefixtures("native", "transport")

JOB = b"a:1:0:x"
LINGER_0 = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""Closing resets."""
TAKING = {
    "NEXT": request(Function.NEXT, b"a"),
    "NEXT that pops": request(Function.NEXT, b"a", flags=Flag.OVERWRITE | Flag.DATA),
    "GET": request(Function.GET, JOB, timeout=SECOND),
    "scan": request(Function.GET, b"a", uri=b"b", count=0, timeout=SECOND),
}


async def test_undelivered_entries_of_more_than_one_go(autojump_clock: MockClock) -> None:
    room = Room(send_timeout=30)
    room.disk.capacity_bytes = None
    async with room.open():
        gone, peer = room.connect_in_memory(lockstep=True), room.connect_in_memory()
        for number in range(450):
            assert codes([await peer.ask(set_(b"a:1:0:%d" % number))]) == [""]
        pops = request(Function.NEXT, b"a", flags=Flag.OVERWRITE, count=50)
        leases = request(Function.NEXT, b"a", count=200)
        async with trio.open_nursery() as nursery:
            burst = b"".join(map(encode_request, (pops, leases, pops, leases)))
            nursery.start_soon(gone.stream.send_all, burst)
        await trio.testing.wait_all_tasks_blocked()
        assert room.engine.store.entries == 350
        await trio.sleep(35)
        assert (room.engine.store.entries, room.engine.store.leases.count) == (450, 0)
        room.engine.check()


@pytest.mark.parametrize("request_", [TAKING["NEXT"], TAKING["NEXT that pops"]])
async def test_undelivered_reply_where_the_client_is_reset_during_a_sync(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServerFixture().open() as fixture:
        gone, peer = await fixture.connect(), await fixture.connect()
        assert (await peer.ask(set_(JOB))).code == ""
        held = HeldSync(fixture, monkeypatch)
        await gone.send(request_)
        await held.wait_begun()
        gone.stream.setsockopt(*LINGER_0)
        gone.stream.socket.close()
        await trio.testing.wait_all_tasks_blocked(0.05)
        held.go_on()
        again = await peer.ask(request(Function.NEXT, b"a", flags=Flag.LISTEN | Flag.META))
        assert again.pairs
        assert again.pairs[0].key == JOB
        assert again.pairs[0].meta is not None
        assert again.pairs[0].meta.attempts == 0


@pytest.mark.parametrize("flags", [Flag(0), Flag.OVERWRITE])
async def test_undelivered_entries_go_to_the_next_who_waits(
    flags: Flag, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that hangs up during the sync of its lease loses the work to whoever waits."""
    async with ServerFixture().open() as fixture:
        gone, second, peer = [await fixture.connect() for _ in range(3)]
        for waiting in (gone, second):
            waits = listen(b"a")
            waits.flags |= flags
            assert (await waiting.ask(waits, NOP)).code == ""
        held = HeldSync(fixture, monkeypatch)
        await peer.send(set_(JOB))
        await held.wait_begun()
        await gone.stream.send_eof()
        await trio.testing.wait_all_tasks_blocked(0.05)
        held.go_on()
        assert [pair.key for pair in (await second.reply()).pairs or ()] == [JOB]
        assert await gone.reply() is None


async def test_popped_values_count_as_held_until_their_reply_is_sent(
    autojump_clock: MockClock,
) -> None:
    """The reply shows no value, but it is kept for as long as it may have to be released."""
    async with Room(send_timeout=30).open() as room:
        gone, peer = room.connect_in_memory(lockstep=True), room.connect_in_memory()
        value = bytes(100_000)
        assert codes([await peer.ask(request(Function.SET, JOB, value))]) == [""]
        pop = request(Function.NEXT, b"a", flags=Flag.OVERWRITE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gone.stream.send_all, encode_request(pop))
        await trio.testing.wait_all_tasks_blocked()
        assert room.engine.store.entries == 0
        assert room.memory.bytes >= len(value)
        await trio.sleep(35)
        assert room.engine.store.entries == 1
