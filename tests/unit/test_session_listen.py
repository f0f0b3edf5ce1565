"""Notifications of a server in this process: their order, their durability, and slow readers."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal.protocol.constants import Flag, Function
from fastjournal.protocol.messages import Reply, Request
from fastjournald.tasks.notifier import Notifier
from tests.property.subject import START, request
from tests.unit.server_fixture import SILENCE_S, HeldSync, Peer, ServerFixture

pytestmark = pytest.mark.usefixtures("native", "transport")

NOP = request(Function.NOP)


def put(key: bytes, value: bytes = b"v", *, at: int = START, **fields: Any) -> Request:
    flags = Flag.PERSIST | Flag.OVERWRITE
    return request(Function.SET, key, value, flags=flags, at=at, **fields)


def listen(key: bytes, identifier: int = 100) -> Request:
    return request(Function.GET, key, flags=Flag.LISTEN, identifier=identifier)


def value_of(reply: Reply | None) -> bytes:
    """The value that a notification tells."""
    assert reply.flags & Flag.LISTEN
    assert reply.pairs
    return reply.pairs[0].value


async def told_until(peer: Peer, value: bytes) -> list[bytes]:
    """All values that are delivered, up to and with this one."""
    values = [value_of(await peer.reply())]
    while values[-1] != value:
        values.append(value_of(await peer.reply()))
    return values


async def held_notification(
    fixture: ServerFixture, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> tuple[Peer, HeldSync]:
    """Change a key that a client listens to: return the client, and the sync that holds it up."""
    peer, other = await fixture.connect(), await fixture.connect()
    await peer.ask(put(b"k"))
    await peer.ask(listen(b"k"))
    held = HeldSync(fixture, monkeypatch)
    await other.send(put(b"k", value, at=START + 1))
    await held.wait_begun()
    return peer, held


async def test_notification_never_comes_between_a_request_and_its_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the older value of the reply would be the last that the client hears of the key."""
    async with ServerFixture().open() as fixture:
        peer, other = await fixture.connect(), await fixture.connect()
        await peer.ask(put(b"k", b"old"))
        await peer.ask(listen(b"k"))
        held = HeldSync(fixture, monkeypatch)
        asked = request(Function.GET, b"k", flags=Flag.DATA, identifier=5)
        await peer.send(put(b"elsewhere"), asked)
        await held.wait_begun()
        await other.send(put(b"k", b"new", at=START + 1))
        await trio.testing.wait_all_tasks_blocked(0.05)
        held.go_on()
        replies = [await peer.reply() for _ in range(3)]
        assert [reply and reply.identifier for reply in replies] == [7, 5, 100]
        assert replies[1] is not None
        assert replies[1].pairs
        assert replies[1].pairs[0].value == b"old"
        assert value_of(replies[2]) == b"new"


async def test_reply_of_the_request_that_subscribed_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ServerFixture().open() as fixture:
        peer, other = await fixture.connect(), await fixture.connect()
        await peer.ask(put(b"k", b"old"))
        held = HeldSync(fixture, monkeypatch)
        await peer.send(put(b"elsewhere"), listen(b"k"))
        await held.wait_begun()
        await other.send(put(b"k", b"new", at=START + 1))
        await trio.testing.wait_all_tasks_blocked(0.05)
        held.go_on()
        replies = [await peer.reply() for _ in range(3)]
        assert [bool(reply and reply.flags & Flag.LISTEN) for reply in replies] == [0, 0, 1]


async def test_changes_are_folded_for_who_does_not_read_and_nobody_waits_for_it() -> None:
    fixture = ServerFixture()
    fixture.disk.capacity_bytes = None
    async with fixture.open():
        slow, other = await fixture.connect(), await fixture.connect()
        slow.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await other.ask(put(b"k", b"0"))
        await slow.ask(listen(b"k"))
        last = 400
        for number in range(1, last + 1):
            value = b"%d" % number + bytes(50_000)
            assert (await other.ask(put(b"k", value, at=START + number))).code == ""
        values = await told_until(slow, value)
        assert len(values) < last, "nothing was folded"
        numbers = [int(told.rstrip(b"\0")) for told in values]
        assert numbers == sorted(numbers)
        assert (await slow.ask(NOP)).code == ""


async def test_slow_consumer_is_disconnected_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fastjournald.engine.pubsub.subscriber.NOTIFICATIONS_BYTES_PER_CONNECTION_MAX", 10_000
    )
    fixture = ServerFixture()
    fixture.disk.capacity_bytes = None
    async with fixture.open():
        slow, other = await fixture.connect(), await fixture.connect()
        slow.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        keys = [b"k%d" % number for number in range(60)]
        for number, key in enumerate(keys):
            assert (await slow.ask(put(key))).code == ""
            assert (await slow.ask(listen(key, number))).code == ""
        for round_ in range(1, 9):
            for key in keys:
                assert (await other.ask(put(key, bytes(100_000), at=START + round_))).code == ""
        assert fixture.server.runtime.counters.connections_closed["overrun"] == 1
        assert len(fixture.engine.subscriptions) == 0
        with trio.fail_after(SILENCE_S):
            try:
                while await slow.stream.receive_some(65536):
                    pass
            except trio.BrokenResourceError:
                pass
        assert (await other.ask(NOP)).code == ""


async def test_backpressure_reads_no_more_while_too_much_waits_to_be_matched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.engine.engine.CHANGES_STOP_BYTES", 5 * 252)
    monkeypatch.setattr("fastjournald.tasks.notifier.MATCH_SLICE_WORK", 0)
    monkeypatch.setattr("fastjournald.engine.engine.MATCH_STEPS_MAX", 1)
    waits = 0
    wait_matched = Notifier.wait_matched

    async def counted(notifier: Notifier) -> None:
        nonlocal waits
        waits += fixture.engine.notifications.behind
        await wait_matched(notifier)

    monkeypatch.setattr(Notifier, "wait_matched", counted)
    async with ServerFixture().open() as fixture:
        peer, other = await fixture.connect(), await fixture.connect()
        await peer.ask(put(b"k0"))
        await peer.ask(listen(b"k0"))
        # so changes of all keys are noted
        await peer.ask(request(Function.GET, b"y", uri=b"z", flags=Flag.LISTEN, count=1))
        for burst in range(1, 9):
            await other.send(*(put(b"k%d" % n, at=START + burst) for n in range(20)))
            for _ in range(20):
                assert (await other.reply()).code == ""
        assert waits > 0
        # the last change was the eighth
        assert value_of(await peer.reply()) == b"v"
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert fixture.engine.notifications.unmatched == 0


async def test_listen_tells_known_changes_before_the_server_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ServerFixture().open() as fixture:
        peer, held = await held_notification(fixture, monkeypatch, b"last")
        fixture.stopped.set()
        await trio.testing.wait_all_tasks_blocked(0.05)
        held.go_on()
        assert value_of(await peer.reply()) == b"last"
        assert await peer.reply() is None
