"""Poller: bytes that arrive in unusual ways, clients that are lost, and the end of the log."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal.errors import LogFailedError
from fastjournal.protocol import encode_request
from fastjournald.net.plain_socket import PlainSocket
from fastjournald.net.poller import ROUNDS_A_TURN
from tests.unit.server_fixture import LOG, HeldSync, Peer, ServerFixture
from tests.unit.test_session_limits import NOP, ended, set_

pytestmark = pytest.mark.usefixtures("native")


@pytest.fixture(autouse=True)
def _polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.net.connections.POLLS", True)


def connect_pair(
    fixture: ServerFixture, accepted_type: type[socket.socket] = socket.socket
) -> Peer:
    client, accepted = socket.socketpair()
    plain = accepted_type(fileno=accepted.detach())
    assert fixture.server.connections.serve(PlainSocket(plain), {"peer": "pair"}) is not None
    return Peer(trio.SocketStream(trio.socket.from_stdlib_socket(client)))


async def test_poller_commits_once_for_the_requests_of_all_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ServerFixture().open() as fixture:
        peers = [connect_pair(fixture) for _ in range(8)]
        for peer in peers:
            await peer.send(NOP)
            assert await peer.reply() is not None
        engine, bulks = fixture.server.runtime.engine, list[int]()
        handle_together = engine.handle_together

        def noted(*given: Any) -> list[bytes]:
            replies = handle_together(*given)
            bulks.append(len(replies))
            return replies

        monkeypatch.setattr(engine, "handle_together", noted)
        writes = fixture.server.runtime.commit.batch_bytes.cumulative()[-1]
        for at, peer in enumerate(peers):
            # without a look of the daemon in between
            with socket.socket(fileno=os.dup(peer.stream.socket.fileno())) as plain:
                plain.send(encode_request(set_(b"k%d" % at)))
        for peer in peers:
            assert (await peer.reply()).code == ""
        assert fixture.server.runtime.commit.batch_bytes.cumulative()[-1] == writes + 1
        assert bulks == [len(peers)]
        for peer in peers:
            await trio.aclose_forcefully(peer.stream)


async def test_poller_takes_rounds_in_one_turn_where_no_task_has_anything_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most 16, each with a turn of the budget: then others may run."""
    taken = list[int]()

    class Turns(trio.abc.Instrument):
        def after_io_wait(self, timeout: float) -> None:
            taken.append(0)

    async with ServerFixture().open() as fixture:
        peer = connect_pair(fixture)
        await peer.ask(NOP)
        poller, budget = fixture.server.connections.poller, fixture.server.runtime.turns
        begun = counted(monkeypatch, budget, "begin_turn")
        take_round = poller._take_round

        def noted(*given: Any) -> None:
            taken[-1] += 1
            take_round(*given)

        monkeypatch.setattr(poller, "_take_round", noted)
        trio.lowlevel.add_instrument(turns := Turns())
        await ask_again_at_once(peer, monkeypatch)
        trio.lowlevel.remove_instrument(turns)
        assert sum(taken) >= REQUESTS
        assert 1 < max(taken) <= ROUNDS_A_TURN
        assert len(begun) >= REQUESTS
        await trio.aclose_forcefully(peer.stream)


async def test_poller_ends_its_rounds_where_a_round_has_given_somebody_something_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order, lot = list[str](), trio.lowlevel.ParkingLot()

    async def other() -> None:
        while True:
            await lot.park()
            order.append("other")

    async with ServerFixture().open() as fixture, trio.open_nursery() as nursery:
        peer = connect_pair(fixture)
        await peer.ask(NOP)
        nursery.start_soon(other)
        await trio.testing.wait_all_tasks_blocked()
        poller = fixture.server.connections.poller
        take_round = poller._take_round

        def noted(*given: Any) -> None:
            order.append("round")
            take_round(*given)
            lot.unpark()

        monkeypatch.setattr(poller, "_take_round", noted)
        await ask_again_at_once(peer, monkeypatch)
        monkeypatch.undo()
        await trio.aclose_forcefully(peer.stream)
        nursery.cancel_scope.cancel()
    assert order.count("round") >= REQUESTS
    assert "round round" not in " ".join(order)


REQUESTS = 100


async def ask_again_at_once(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send requests one at a time, the next one before the poller waits for it."""
    sent = list[None]()
    with socket.socket(fileno=os.dup(peer.stream.socket.fileno())) as plain:

        def send() -> None:
            if len(sent) < REQUESTS:
                plain.send(encode_request(NOP))
                sent.append(None)

        def answer_at_once(*given: Any) -> Any:
            """The client has its reply, and sends the next request."""
            send()
            return select.select(*given)

        monkeypatch.setattr(
            "fastjournald.net.poller.select",
            SimpleNamespace(**vars(select) | {"select": answer_at_once}),
        )
        for number in range(REQUESTS):
            if len(sent) == number:
                send()
            assert (await peer.reply()) is not None


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[None]:
    """Return a list that grows with each call of a method."""
    calls, method = list[None](), getattr(owner, name)

    def note(*given: Any) -> Any:
        calls.append(None)
        return method(*given)

    monkeypatch.setattr(owner, name, note)
    return calls


class LostSocket(socket.socket):
    """A socket on which every call fails once the machine at the other end is gone."""

    error = 0
    newest: LostSocket | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        LostSocket.newest = self

    def recv(self, *arguments: Any) -> bytes:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().recv(*arguments)

    def send(self, *arguments: Any) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().send(*arguments)


@pytest.mark.parametrize("error", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNRESET])
@pytest.mark.parametrize("when", ["receive", "send"])
async def test_poller_ends_a_client_whose_machine_is_gone_and_serves_the_others(
    error: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServerFixture().open() as fixture:
        other = await fixture.connect()
        lost = connect_pair(fixture, LostSocket)
        plain = LostSocket.newest
        assert plain is not None
        if when == "receive":
            plain.error = error
            await lost.send(NOP)
        else:
            held = HeldSync(fixture, monkeypatch)
            await lost.send(set_(b"k"))
            await held.wait_begun()
            plain.error = error
            held.go_on()
        assert await ended(lost)
        assert len(fixture.server.connections.transports) == 1
        assert (await other.ask(set_(b"l"))).code == ""
        await trio.aclose_forcefully(lost.stream)


async def test_poller_cuts_a_client_that_the_system_cannot_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ServerFixture().open() as fixture:
        other = await fixture.connect()
        assert (await other.ask(NOP)).code == ""
        poller = fixture.server.connections.poller

        class Full:
            """An epoll that takes no more sockets."""

            def __init__(self, epoll: Any) -> None:
                self.epoll = epoll

            def register(self, *_: Any) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            def __getattr__(self, name: str) -> Any:
                return getattr(self.epoll, name)

        epoll = poller._epoll
        monkeypatch.setattr(poller, "_epoll", Full(epoll))
        assert await ended(await fixture.connect())
        monkeypatch.setattr(poller, "_epoll", epoll)
        assert (await other.ask(NOP)).code == ""
        assert (await (await fixture.connect()).ask(NOP)).code == ""
    assert "event=not-watched" in caplog.text


@pytest.mark.parametrize("where", ["in the event loop", "in the thread"])
async def test_failed_sync_tells_no_client_of_the_poller_ok(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fastjournald.group_commit.commit.INLINE_SECONDS_MAX", math.inf if "loop" in where else -1.0
    )
    fixture = ServerFixture()
    told: list[str] = []

    async def client(peer: Peer, number: int) -> None:
        with suppress(trio.BrokenResourceError):
            for serial in count():
                await peer.send(set_(b"%d/%d" % (number, serial)))
                reply = await peer.reply()
                if reply is None:
                    break
                assert reply.code == ""
                told.append(f"{number}/{serial}")

    async def serve() -> None:
        async with fixture.open(), trio.open_nursery() as nursery:
            peers = [await fixture.connect() for _ in range(20)]
            fixture.disk.fail_at(5, "sync")
            for number, peer in enumerate(peers):
                nursery.start_soon(client, peer, number)

    with pytest.raises(ExceptionGroup) as failed:
        await serve()
    assert failed.group_contains(LogFailedError, depth=None)
    assert told
    # what got OK is on the disk
    left = fixture.disk.crash(1).read(f"{LOG}/000000001.log")
    assert all(each.encode() in left for each in told)
