"""Poller: bytes that arrive in unusual ways, clients that are lost, and the end of the log."""

from __future__ import annotations

import array
import errno
import math
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal.errors import LogFailedError
from fastjournal.protocol import encode_request
from fastjournal.protocol.constants import Function
from fastjournald.admission.turn_budget import TurnBudget
from fastjournald.group_commit.commit import INLINE_SECONDS_MAX
from fastjournald.net.plain_socket import PlainSocket
from fastjournald.net.poller import ALONE_PIECES
from tests.property.subject import request
from tests.unit.server_fixture import LOG, HeldSync, Peer, ServerFixture
from tests.unit.test_backpressure import LARGE, OVER, SEGMENT_BYTES, overgrow
from tests.unit.test_session_bounds import Room
from tests.unit.test_session_limits import NOP, ended, set_


@pytest.fixture(autouse=True)
def _polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournald.net.connections.POLLS", True)


def send_urgent(plain: socket.socket, before: bytes, behind: bytes) -> None:
    """Send a byte of urgent data, which is not part of the stream, between others."""
    plain.send(before)
    plain.send(b"!", socket.MSG_OOB)
    plain.send(behind)


def pass_descriptor(plain: socket.socket, before: bytes, behind: bytes) -> None:
    """Send a descriptor beside the first bytes: a receive ends there."""
    rights = array.array("i", [plain.fileno()])
    plain.sendmsg([before], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    plain.send(behind)


@pytest.mark.parametrize(
    ("family", "send"),
    [
        (socket.AF_INET, send_urgent),
        (socket.AF_UNIX, send_urgent),
        (socket.AF_UNIX, pass_descriptor),
    ],
    ids=["urgent", "urgent-unix", "descriptor"],
)
async def test_poller_receives_what_stands_behind_a_receive_that_was_cut_short(
    family: socket.AddressFamily, send: Callable[[socket.socket, bytes, bytes], None]
) -> None:
    fixture = ServerFixture()
    data = encode_request(set_(b"k"))
    async with fixture.open():
        if family == socket.AF_INET:
            peer = await fixture.connect()
        else:
            peer = connect_pair(fixture)
        with socket.socket(fileno=os.dup(peer.stream.socket.fileno())) as plain:
            # at once: the daemon is not told again
            send(plain, data[:9], data[9:])
        for asked in (None, NOP):
            if asked is not None:
                await peer.send(asked)
            reply = await peer.reply()
            assert reply is not None
            assert reply.code == ""
        await trio.aclose_forcefully(peer.stream)


def connect_pair(
    fixture: ServerFixture, accepted_type: type[socket.socket] = socket.socket
) -> Peer:
    client, accepted = socket.socketpair()
    plain = accepted_type(fileno=accepted.detach())
    assert fixture.server.connections.serve(PlainSocket(plain), {"peer": "pair"}) is not None
    return Peer(trio.SocketStream(trio.socket.from_stdlib_socket(client)))


def connect_streamed(fixture: ServerFixture) -> Peer:
    """Connect a client that a task of its own serves, and not the poller, like one with TLS."""
    client, accepted = map(trio.socket.from_stdlib_socket, socket.socketpair())
    stream = trio.SocketStream(accepted)
    assert fixture.server.connections.serve(stream, {"peer": "pair"}) is not None
    return Peer(trio.SocketStream(client))


@pytest.mark.parametrize("connect", [connect_pair, connect_streamed])
async def test_sync_runs_in_line_for_a_client_that_has_the_daemon_to_itself(
    connect: Callable[[ServerFixture], Peer],
) -> None:
    fixture = ServerFixture()
    async with fixture.open():
        estimate = fixture.server.runtime.commit.estimate
        keys = count()

        async def set_by(peer: Peer) -> bool:
            """Return whether the sync of a SET ran in the thread."""
            estimate.mean_seconds = 1.4 * INLINE_SECONDS_MAX
            await peer.send(set_(b"k%d" % next(keys)))
            reply = await peer.reply()
            assert reply is not None
            assert reply.code == ""
            return estimate.in_thread

        alone, other = connect_pair(fixture), connect(fixture)
        expected = [True] * ALONE_PIECES + [False] * 8
        assert [await set_by(alone) for _ in expected] == expected
        await other.send(NOP)
        assert await other.reply() is not None
        assert [await set_by(alone) for _ in expected] == expected
        assert await set_by(other)
        for peer in (alone, other):
            await trio.aclose_forcefully(peer.stream)


async def test_poller_commits_once_for_the_requests_of_all_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture = ServerFixture()
    async with fixture.open():
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
            reply = await peer.reply()
            assert reply is not None
            assert reply.code == ""
        assert fixture.server.runtime.commit.batch_bytes.cumulative()[-1] == writes + 1
        assert bulks == [len(peers)]
        for peer in peers:
            await trio.aclose_forcefully(peer.stream)


async def test_poller_sleeps_while_a_client_sends_whose_session_waits() -> None:
    room = Room(cmdlog_seg_size=SEGMENT_BYTES)
    async with room.open():
        peer = await overgrow(room)
        room.clock.instant_us += 1
        write = request(Function.SET, b"a", LARGE, flags=OVER, at=room.clock.instant_us)
        await peer.send(write)
        await trio.testing.wait_all_tasks_blocked()
        assert room.server.runtime.backpressure.waiting == 1
        await peer.send(NOP)
        with trio.fail_after(60):
            # a poller that is woken again and again never blocks
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert room.server.runtime.backpressure.waiting == 1
        room.server.runtime.backpressure.end()
        for _ in range(2):
            reply = await peer.reply()
            assert reply is not None
            assert reply.code == ""


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
    fixture = ServerFixture()
    async with fixture.open():
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
    fixture = ServerFixture()
    async with fixture.open():
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
        late = await fixture.connect()
        assert await ended(late)
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


async def test_client_that_is_released_too_early_asks_again_for_the_work_that_it_expects(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    asked: list[int] = []
    queue_up, admits = TurnBudget.queue_up, TurnBudget.admits

    def noting(budget: TurnBudget, share: Any, wake: Any, expected: int) -> Any:
        asked.append(expected)
        return queue_up(budget, share, wake, expected)

    def refusing(
        budget: TurnBudget, share: Any, expected: int = 0, *, waited: bool = False
    ) -> bool:
        return len(asked) >= 5 and admits(budget, share, expected, waited=waited)

    fixture = ServerFixture()
    async with fixture.open():
        peer = await fixture.connect()
        monkeypatch.setattr(TurnBudget, "queue_up", noting)
        monkeypatch.setattr(TurnBudget, "admits", refusing)
        assert (await peer.ask(set_(b"k"))).code == ""
    assert len(asked) == 5
    assert len(set(asked)) == 1
