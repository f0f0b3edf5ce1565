"""Bounds of sessions: clients that stop reading or sending, and the memory held for them.

Time is trio's mock clock, and streams are in memory: a sender in lockstep blocks until the other
end has read.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal import limits
from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Reply, Request
from fastjournald.engine.engine import Scan
from fastjournald.net import connections
from fastjournald.net.session import Session
from tests.property.subject import request
from tests.unit.client_streams import Watch, as_socket_stream, stream_pair
from tests.unit.server_fixture import Peer, ServerFixture
from tests.unit.test_session_limits import NOP, listen, set_

pytestmark = pytest.mark.usefixtures("native", "transport")

SMALL = 65_536
"""The smallest max-inflight."""


class Room(ServerFixture):
    """A server whose clients come over streams in memory."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.memory = self.server.runtime.memory
        self.closed = self.server.runtime.counters.connections_closed
        self.nursery: trio.Nursery | None = None
        self.ended: list[Peer] = []
        self._clients: list[trio.abc.AsyncResource] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Room]:
        async with trio.open_nursery() as nursery:
            self.nursery = self.server.connections.nursery = nursery
            nursery.start_soon(self.server.timeouts.run)
            nursery.start_soon(self.server.connections.poller.run)
            yield self
            nursery.cancel_scope.cancel()
        for client in self._clients:
            await trio.aclose_forcefully(client)
        assert self.memory.bytes == 0, "all that was held was given back"
        assert not self.memory.scarce

    def connect_in_memory(self, *, lockstep: bool = False, watch: Watch | None = None) -> Peer:
        assert self.nursery is not None
        ours, theirs = stream_pair(sockets=connections.POLLS, lockstep=lockstep, watch=watch)
        self._clients.append(ours)
        peer = Peer(as_socket_stream(ours))
        transport = self.server.connections.serve(theirs, {"peer": "memory"})
        remove = transport.on_end

        def end() -> None:
            remove()
            self.ended.append(peer)

        transport.on_end = end
        return peer

    @property
    def sessions(self) -> list[Session]:
        return [each.session for each in self.server.connections.transports.values()]


def get(key: bytes, **fields: Any) -> Request:
    return request(Function.GET, key, flags=Flag.DATA, **fields)


def codes(replies: Iterable[Reply | None]) -> list[str | None]:
    return [reply and reply.code for reply in replies]


async def test_time_in_which_the_daemon_does_not_read_does_not_count(
    autojump_clock: MockClock,
) -> None:
    async with Room(request_timeout=10, send_timeout=1000).open() as room:
        peer = room.connect_in_memory(lockstep=True)
        whole = encode_request(NOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stream.send_all, whole + whole[:-1])
            await trio.sleep(100)
            assert not room.ended
            assert codes([await peer.reply()]) == [""]
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stream.send_all, whole[-1:])
            assert codes([await peer.reply()]) == [""]


async def test_idle_connection_is_closed_without_a_word(autojump_clock: MockClock) -> None:
    async with Room(idle_timeout=100).open() as room:
        silent, talks = room.connect_in_memory(), room.connect_in_memory()
        for _ in range(4):
            await trio.sleep(40)
            assert codes([await talks.ask(NOP)]) == [""]
        assert room.ended == [silent]
        assert await silent.reply() is None
        await trio.sleep(110)
        assert room.ended == [silent, talks]
        assert room.closed["idle-timeout"] == 2


async def fill(room: Room, peer: Peer) -> None:
    """Let the daemon hold more than a small max-inflight for one client that reads nothing."""
    await peer.stream.send_all(encode_request(get(b"large")) * 3)
    await trio.testing.wait_all_tasks_blocked()
    assert room.memory.scarce


async def test_memory_that_is_scarce_closes_who_holds_most_and_others_are_served(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Room(max_inflight=SMALL).open() as room:
        peer = room.connect_in_memory()
        large = request(Function.SET, b"large", bytes(100_000))
        assert codes([await peer.ask(large)]) == [""]
        assert codes([await peer.ask(set_(b"a:1:0:x"))]) == [""]
        slow = room.connect_in_memory(lockstep=True)
        await fill(room, slow)
        assert codes([await peer.ask(set_(b"a:1:0:y"))]) == [""]
        assert (await peer.ask(request(Function.NEXT, b"a"))).pairs
        refused = await peer.ask(get(b"large"))
        assert refused.code == "busy"
        assert "scarce" in refused.error
        assert room.engine.counters.errors[(int(Function.GET), "busy")] == 1
        assert codes([await peer.ask(request(Function.GET, b"large"))]) == [""], "no data, no size"
        await trio.sleep(limits.SLOW_READER_SECONDS + 2)
        assert room.ended == [slow]
        assert room.closed["slow-reader"] == 1
        assert not room.memory.scarce
        found = await peer.ask(get(b"large"))
        assert found.pairs
        assert len(found.pairs[0].value) == 100_000
    assert "event=slow-reader connections=1" in caplog.text


async def test_memory_that_is_scarce_closes_only_as_many_as_give_room(
    autojump_clock: MockClock,
) -> None:
    async with Room(max_inflight=3 * SMALL).open() as room:
        peer = room.connect_in_memory()
        for key, size in ((b"large", 150_000), (b"middle", 50_000)):
            assert codes([await peer.ask(request(Function.SET, key, bytes(size)))]) == [""]
        middle = room.connect_in_memory(lockstep=True)
        await middle.stream.send_all(encode_request(get(b"middle")))
        slow = room.connect_in_memory(lockstep=True)
        await fill(room, slow)
        await trio.sleep(limits.SLOW_READER_SECONDS + 2)
        assert room.ended == [slow]
        assert (await middle.reply()).pairs


async def test_lease_by_get_is_not_taken_where_the_value_cannot_be_told(
    autojump_clock: MockClock,
) -> None:
    async with Room(max_inflight=SMALL).open() as room:
        peer = room.connect_in_memory()
        await peer.ask(request(Function.SET, b"large", bytes(100_000)))
        await fill(room, room.connect_in_memory(lockstep=True))
        assert codes([await peer.ask(get(b"large", timeout=1_000_000))]) == ["busy"]
        assert room.engine.store.leases.count == 0


async def test_halves_of_large_requests_that_stand_still_make_room(
    autojump_clock: MockClock,
) -> None:
    async with Room(max_inflight=4 * SMALL, request_timeout=1000).open() as room:
        half = encode_request(request(Function.SET, b"k", bytes(200_000), identifier=5))[:-1]
        holders = [room.connect_in_memory() for _ in range(2)]
        for holder in holders:
            await holder.stream.send_all(half[: len(half) - 1])
        await trio.sleep(limits.SLOW_READER_SECONDS + 3)
        assert len(room.ended) == 1
        assert not room.memory.scarce
        assert codes([await room.ended[0].reply()]) == ["busy"]


async def test_connections_together_wait_for_so_much_work(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.next.WAITS_MAX", 3)
    async with Room().open() as room:
        peers = [room.connect_in_memory() for _ in range(2)]
        assert codes([await peers[0].ask(listen(b"a"), listen(b"a"), NOP)]) == [""]
        assert codes([await peers[1].ask(listen(b"a"), listen(b"a", identifier=8))]) == ["busy"]
        await trio.aclose_forcefully(peers[0].stream)
        await trio.testing.wait_all_tasks_blocked()
        assert codes([await peers[1].ask(listen(b"a"), NOP)]) == [""]


HALF = encode_request(set_(b"k"))[:-1]


async def leave(peer: Peer) -> None:
    await trio.aclose_forcefully(peer.stream)


async def stay(_: Peer) -> None:
    await trio.lowlevel.checkpoint()


async def send_half_and_end(peer: Peer) -> None:
    await peer.stream.send_all(HALF)
    await peer.stream.send_eof()


ENDS: dict[str, Callable[[Peer], Awaitable[object]]] = {
    "leave": leave,
    "send_end": lambda peer: peer.stream.send_eof(),
    "send_quit": lambda peer: peer.send(request(Function.QUIT)),
    "send_garbage": lambda peer: peer.stream.send_all(b"garbage, and enough of it to be judged"),
    "send_half": lambda peer: peer.stream.send_all(HALF),
    "send_half_and_end": send_half_and_end,
    "stay": stay,
    "take_nothing": lambda peer: peer.send(NOP),
}


@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_session_that_is_over_leaves_memory_at_once_without_garbage_collection(
    end: Callable[[Peer], Awaitable[None]], lockstep: bool, autojump_clock: MockClock
) -> None:
    room = Room(idle_timeout=10, request_timeout=10, send_timeout=10)
    gc.disable()
    try:
        async with room.open():
            peer = room.connect_in_memory(lockstep=lockstep)
            await trio.testing.wait_all_tasks_blocked()
            (session,) = [weakref.ref(session) for session in room.sessions]
            await end(peer)
            await trio.sleep(30)
            assert room.ended == [peer]
            assert session() is None
    finally:
        gc.enable()


async def test_scans_over_a_bound_wait_to_begin(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("fastjournal.limits.SCANS_MAX", 2)
    monkeypatch.setattr("fastjournald.admission.turn_budget.SLICE_WORK", 0)
    room = Room()
    gathering: set[int] = set()
    most = 0
    step = room.engine.step

    def watched(scan: Scan, now: int, *unreadable: Any) -> Any:
        nonlocal most
        gathering.add(id(scan))
        most = max(most, len(gathering))
        reply = step(scan, now, *unreadable)
        if reply is not None:
            gathering.discard(id(scan))
        return reply

    monkeypatch.setattr(room.engine, "step", watched)
    async with room.open():
        peers = [room.connect_in_memory() for _ in range(6)]
        assert codes([await peers[0].ask(request(Function.SET, b"k", b"v"))]) == [""]
        for peer in peers:
            await peer.send(request(Function.GET, b"", uri=b"", count=0))
        for peer in peers:
            reply = await peer.reply()
            assert reply.pairs
    assert most == 2
