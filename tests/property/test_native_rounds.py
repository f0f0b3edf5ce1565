"""Native round of the poller: the same replies, order and log bytes as the round in Python."""

from __future__ import annotations

import errno
import gc
import math
import os
import select
import socket
import struct
import sys
from collections import Counter
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal import _native
from fastjournal.protocol import Flag, Function, encode_request
from fastjournal.protocol.messages import Request
from fastjournald.admission.memory_budget import NEVER
from fastjournald.engine.authorization import Grants
from fastjournald.net.plain_socket import PlainSocket
from fastjournald.net.poller import PolledTransport, Poller, _PolledState
from fastjournald.net.session import Session
from fastjournald.net.session_steps import COMMIT, Stage
from fastjournald.net.shared_batch import Run
from tests.property.subject import START, request
from tests.property.test_bulk_requests import GRANTS, TOKENS
from tests.unit.server_fixture import LOG, ServerFixture
from tests.unit.test_session_sans_io import NOP, Daemon, set_

if _native.rounds is None:
    pytest.skip(f"native leaves: {_native.reason}", allow_module_level=True)

CLIENTS = 10
STEPS = 40
FEW = 6
SUCCESS_BYTES = 17
RESET = struct.pack("ii", 1, 0)
BUFFER_BYTES_MIN = 1
"""The system makes it its smallest buffer, which holds a few replies."""


# --- the same bytes over many sockets ----------------------------------------------------------


def drawn(draw: Random, number: int) -> Request:
    """Return a request: mostly a new job, which a shared batch handles."""
    kind, domain = draw.random(), draw.choice((b"a", b"a", b"b"))
    if kind < 0.04:
        return request(Function.NEXT, domain, flags=Flag.DATA, count=draw.randint(1, 3))
    if kind < 0.06:
        wait = Flag.LISTEN | Flag.DATA
        return request(Function.NEXT, domain, flags=wait, count=1, timeout=10**9)
    if kind < 0.1:
        return request(Function.GET, b"%s:1:0:%d" % (domain, number % 9), flags=Flag.DATA)
    if kind < 0.13:
        return request(Function.NOP)
    value = b"v" * draw.choice((*[1] * 9, 300, 40_000))
    key = b"%s:1:0:%d" % (domain, draw.choice((*[number] * 9, number % 9)))
    uri = draw.choice((None, None, None, b"uri/%d" % draw.randint(1, 9)))
    return request(Function.SET, key, value, uri=uri, flags=Flag.PERSIST, at=START + number)


class Plan:
    """Bytes that each client sends in each step, the same in each run.

    Args:
        seed: Seed of it all.
    """

    def __init__(self, seed: int) -> None:
        draw, number = Random(seed), 0
        self.late = set(draw.sample(range(CLIENTS), 2))
        """Clients that read nothing before the end, with small buffers on both sides."""
        self.steps: list[list[tuple[int, bytes]]] = []
        """For each step: client, and what it sends; nothing: the end of its requests."""
        cuts = draw.choice((0.0, 0.1, 0.5))
        rest = [b""] * CLIENTS
        ended = set[int]()
        for step in range(STEPS):
            sends = list[tuple[int, bytes]]()
            for client in range(CLIENTS):
                if client in ended or draw.random() < 0.2:
                    continue
                if step > STEPS // 2 and draw.random() < 0.03:
                    ended.add(client)
                    sends.append((client, b""))
                    continue
                data = rest[client]
                for _ in range(draw.choice((1, 1, 1, 1, 1, 2, 5))):
                    number += 1
                    data += encode_request(drawn(draw, number))
                if draw.random() < 0.01:
                    data += b"no request at all, so the connection ends"
                cut = draw.randrange(1, len(data)) if draw.random() < cuts else len(data)
                rest[client] = data[cut:]
                sends.append((client, data[:cut]))
            self.steps.append(sends)


class Sockets:
    """A daemon in this process, and clients whose bytes arrive in rounds that are always alike.

    Args:
        fixture: The daemon.
        late: Clients with small buffers.
    """

    def __init__(self, fixture: ServerFixture, late: set[int]) -> None:
        self.fixture = fixture
        self.received = [b""] * CLIENTS
        self._clients = list[socket.socket]()
        for at in range(CLIENTS):
            ours, theirs = socket.socketpair()
            if at in late:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES_MIN)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
            ours.setblocking(False)
            peer = {"peer": f"{at}"}
            assert fixture.server.connections.serve(PlainSocket(theirs), peer) is not None
            self._clients.append(ours)

    def send(self, at: int, data: bytes) -> None:
        """Send at once; nothing: the end."""
        if data:
            # a closed connection takes nothing
            try:
                left = memoryview(data)
                while left:
                    left = left[self._clients[at].send(left) :]
            except (BrokenPipeError, BlockingIOError, ConnectionResetError):
                pass
        else:
            self._clients[at].shutdown(socket.SHUT_WR)

    def read(self, at: int) -> bytes:
        """Read all that is there."""
        parts = list[bytes]()
        try:
            while data := self._clients[at].recv(1 << 20):
                parts.append(data)
        except (BlockingIOError, ConnectionResetError):
            pass
        self.received[at] += b"".join(parts)
        return b"".join(parts)

    def close(self) -> None:
        for each in self._clients:
            each.close()


async def transcript(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[bytes]], list[bytes], list[bytes]]:
    """Return what each client had received after each step, all of it, and the log."""
    # trio shuffles tasks that can run
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
    monkeypatch.setattr("trio._core._run._r", Random(0))
    monkeypatch.setattr("fastjournald.group_commit.commit.INLINE_SECONDS_MAX", math.inf)
    steps = list[list[bytes]]()
    async with ServerFixture().open() as fixture:
        fixture.disk.capacity_bytes = None
        sockets = Sockets(fixture, plan.late)
        await trio.testing.wait_all_tasks_blocked()
        for sends in plan.steps:
            for at, data in sends:
                sockets.send(at, data)
            await trio.testing.wait_all_tasks_blocked()
            steps.append([sockets.read(at) for at in range(CLIENTS) if at not in plan.late])
            fixture.engine.check()
        idle = 0
        while idle < 3:
            read = [sockets.read(at) for at in range(CLIENTS)]
            idle = 0 if any(read) else idle + 1
            await trio.testing.wait_all_tasks_blocked()
        sockets.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not fixture.server.connections.transports
        assert fixture.server.runtime.memory.bytes == 0
        disk = fixture.disk
        log = [disk.read(f"{LOG}/{name}") for name in sorted(disk.listdir(LOG))]
    return steps, sockets.received, log


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what the leaves did: so a test shows that they were at work."""
    done, rounds = Counter[str](), _native.rounds
    assert rounds is not None

    def receive(clients: list[Any], *given: Any) -> Any:
        received = rounds.receive(clients, *given)
        done["receive"] += sum(each is not None for each in received)
        return received

    def join(clients: list[Any], received: list[Any], at: int, *given: Any) -> int:
        to: int = rounds.join(clients, received, at, *given)
        done["join"] += to - at
        return to

    def answer(*given: Any) -> int:
        number: int = rounds.answer(*given)
        done["answer"] += number
        return number

    def send(clients: list[Any], *given: Any) -> Any:
        left = rounds.send(clients, *given)
        done["send"] += len(clients) - len(left)
        done["cut"] += sum(sent is not None for _, sent in left)
        return left

    counting = SimpleNamespace(receive=receive, join=join, answer=answer, send=send)
    monkeypatch.setattr(_native, "rounds", counting)
    return done


@pytest.mark.parametrize("seed", range(10))
async def test_round_gives_the_same_replies_and_log_natively_and_in_python(
    seed: int,
    leaves: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: trio.testing.MockClock,
) -> None:
    """Streams are cut anywhere; two clients do not read, so that less than a reply is sent."""
    monkeypatch.setattr("fastjournald.net.connections.POLLS", True)
    plan = Plan(seed)
    natively = await transcript(plan, monkeypatch)
    assert all(leaves[each] > 10 for each in ("receive", "join", "answer", "send")), leaves
    monkeypatch.setattr(_native, "rounds", None)
    before = leaves.copy()
    in_python = await transcript(plan, monkeypatch)
    assert natively == in_python
    assert leaves == before


async def test_round_ends_a_client_that_resets_and_serves_the_others(
    leaves: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.net.connections.POLLS", True)
    async with ServerFixture().open() as fixture:
        peers = [await fixture.connect() for _ in range(3)]
        for at, peer in enumerate(peers):
            assert (await peer.ask(set_(b"a%d" % at))).code == ""
        gone, *others = peers
        # a close that is a reset
        gone.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        gone.stream.socket.close()
        for at, peer in enumerate(others):
            send_at_once(peer.stream, set_(b"b%d" % at))
        for peer in others:
            reply = await peer.reply()
            assert reply is not None
            assert reply.code == ""
        assert leaves["receive"] == 3
        assert leaves["send"] == 2
        assert len(fixture.server.connections.transports) == 2


def send_at_once(stream: trio.SocketStream, asked: Request) -> None:
    """Send without a look of the daemon in between."""
    with socket.socket(fileno=os.dup(stream.socket.fileno())) as plain:
        plain.send(encode_request(asked))


@pytest.mark.parametrize("sent", [0, 5, -errno.EPIPE])
async def test_round_that_sends_less_than_a_reply_lets_the_client_send_the_rest(
    sent: int, leaves: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.net.connections.POLLS", True)
    assert _native.rounds is not None
    send = _native.rounds.send

    def send_less(clients: list[PolledTransport], *given: Any) -> Any:
        cut, *others = clients
        data = cut.session._outbox.pieces[0][0]
        if sent > 0:
            assert cut.plain.socket.send(data[:sent]) == sent
        cut._unsettled = False
        return [*send(others, *given), (cut, sent)]

    async with ServerFixture().open() as fixture:
        peers = [await fixture.connect() for _ in range(3)]
        for at, peer in enumerate(peers):
            assert (await peer.ask(set_(b"a%d" % at))).code == ""
        monkeypatch.setattr(_native.rounds, "send", send_less)
        for at, peer in enumerate(peers):
            send_at_once(peer.stream, set_(b"b%d" % at))
        replies = [await peer.reply() for peer in peers]
        assert len([reply for reply in replies if reply is not None]) == 3 - (sent < 0)
        assert len(fixture.server.connections.transports) == 3 - (sent < 0)
        monkeypatch.setattr(_native.rounds, "send", send)
        for peer, reply in zip(peers, replies, strict=True):
            if reply is not None:
                assert reply.code == ""
                assert (await peer.ask(NOP)).code == ""
        assert fixture.server.runtime.memory.bytes == 0


# --- every field that a round changes -----------------------------------------------------------


class Rounds:
    """A poller that is driven without an event loop, and its clients.

    Args:
        draw: Decides what happens. Two of the same seed have the same happen.
        tokens: Access tokens that the clients show first; none: the daemon has none.
    """

    def __init__(self, draw: Random, tokens: tuple[bytes, ...] = ()) -> None:
        self.draw = draw
        self.daemon = daemon = Daemon(inflight=1 << 14)
        daemon.set(set_(b"first"))
        if tokens:
            daemon.engine.context.grants = Grants(GRANTS)
        self.tasks = list[object]()
        commit: Any = SimpleNamespace(
            writer=daemon.writer,
            remote=None,
            settle_now=self._settle_now,
            releasable=lambda: daemon.writer.settled,
        )
        self.poller = Poller(
            commit, daemon.shared, lambda: daemon.now, lambda: None, lambda _: False
        )
        self.poller._epoll = self.epoll = select.epoll()
        self.clients = list[PolledTransport]()
        self.ours = list[socket.socket]()
        self.received = [b""] * FEW
        self._rest = [
            encode_request(request(Function.AUTH, value=tokens[at % len(tokens)]))
            if tokens
            else b""
            for at in range(FEW)
        ]
        self._number = 0
        for _ in range(FEW):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            self.ours.append(ours)
            self.clients.append(self._client(theirs))

    def _client(self, theirs: socket.socket) -> PolledTransport:
        session = Session(self.daemon.shared)
        nursery = SimpleNamespace(start_soon=lambda *given: self.tasks.append(given[1]))
        runtime = SimpleNamespace(
            writer=self.daemon.writer,
            clock=SimpleNamespace(now_us=lambda: self.daemon.now),
            turns=self.daemon.turns,
        )
        steps: Any = SimpleNamespace(
            **{"session": session, "runtime": runtime, "evict": None, "sending": False},
            **{"rest": b"", "is_cut_off": False, "has_hung_up": lambda: False},
            **{"nursery": nursery, "wake": lambda: None},
            services=SimpleNamespace(queue_up=self.daemon.turns.queue_up),
        )
        client = PolledTransport(steps, PlainSocket(theirs), self.poller)
        client.begin()
        return client

    def _settle_now(self, *, alone: bool) -> bool:
        writer = self.daemon.writer
        if writer.settled < writer.appended:
            if self.draw.random() < 0.2:
                return False
            self.daemon.commit()
        return True

    def take(self) -> None:
        """Take one round, after some clients have sent something."""
        draw, turns = self.draw, self.daemon.turns
        self.daemon.now += 1000
        self.daemon.memory.now += draw.choice((0.0, 1.0))
        turns.release()
        turns.begin_turn()
        if draw.random() < 0.2:
            # the last turn has left a debt, or little
            turns._over = self.daemon.engine.store.work + draw.choice((-3000, -100, 30, 90))
        self.daemon.backpressure.closed = draw.random() < 0.05
        for at in range(FEW):
            if draw.random() < 0.7:
                self._send(at)
        places = {client._descriptor: at for at, client in enumerate(self.clients)}
        events = sorted(self.epoll.poll(0), key=lambda event: places[event[0]])
        self.poller._take_round(self.epoll, events)
        if self.poller._settling and draw.random() < 0.5:
            self.daemon.commit()
            self.poller.send_settled()
            self.poller._settling = bool(self.poller._unsettled)
        if draw.random() < 0.1:
            client = draw.choice(self.clients)
            calls = (client.cut, client.stop_receiving, lambda: client.abandon("gone", "busy"))
            draw.choice(calls)()
        for at in range(FEW):
            with suppress(BlockingIOError, ConnectionResetError):
                self.received[at] += self.ours[at].recv(1 << 20)

    def _send(self, at: int) -> None:
        draw, data = self.draw, self._rest[at]
        for _ in range(draw.choice((1, 1, 1, 1, 0, 3))):
            self._number += 1
            data += encode_request(drawn(draw, self._number))
        cut = len(data) if draw.random() < 0.9 else draw.randint(0, len(data))
        self._rest[at] = data[cut:]
        with suppress(BrokenPipeError, BlockingIOError):
            sent = self.ours[at].send(data[:cut])
            self._rest[at] = data[sent:]

    def state(self) -> list[object]:
        """Return all that rounds change."""
        turns, writer = self.daemon.turns, self.daemon.writer
        shares = [client.session.share for client in self.clients]
        last = shares.index(turns._last) if turns._last in shares else None
        return [
            *(turns._virtual, turns._over, turns.in_row, turns._alone_from, last),
            *(len(turns._queue), self.daemon.engine.store.work, self.daemon.memory.bytes),
            *(writer.appended, writer.settled, self.received, len(self.tasks)),
            [self.clients.index(client) for client in self.poller._unsettled],
            *map(self._state_of, self.clients),
        ]

    def _state_of(self, client: PolledTransport) -> list[object]:
        session, stage = client.session, client.session._stage
        # a request of the only client of a round is one of a shared batch natively
        stage = Stage.ANSWERED if stage is Stage.SHARED else stage
        return [
            *(client._state, client._step, client._unsettled, client.registered),
            *(stage, session._left, session.partial_bytes),
            *(session.mark, session.receiving_since, session.partial_since, session._arrived),
            *(session.share.virtual, session.share.began, session.share.slice_over),
            session.account.bytes,
            *([piece[:3] for piece in session._outbox.pieces], session._outbox._leaving),
        ]

    def close(self) -> None:
        for client, ours in zip(self.clients, self.ours, strict=True):
            ours.close()
            if client._state is not _PolledState.ENDED:
                client._end()
        self.epoll.close()
        assert self.daemon.memory.bytes == 0


@pytest.mark.parametrize("seed", range(20))
async def test_round_changes_the_same_fields_natively_and_in_python(
    seed: int, leaves: Counter[str]
) -> None:
    """Admission by the turn budget, slow commits, clients that are cut or told to stop."""
    tokens = ((), TOKENS[:1], TOKENS[:3])[seed % 3]
    natively, in_python = (Rounds(Random(seed), tokens) for _ in range(2))
    try:
        for _ in range(20):
            natively.take()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_native, "rounds", None)
                in_python.take()
            assert natively.state() == in_python.state()
        # clients of several tokens seldom join one batch
        at_work = ("join",) if len(tokens) > 1 else ("join", "answer", "send")
        assert min(leaves[each] for each in at_work) > 0
    finally:
        natively.close()
        in_python.close()


async def test_client_that_is_alone_tries_fewer_bulks_after_each_miss(leaves: Counter[str]) -> None:
    rounds = Rounds(Random(0))
    try:
        for asked in [set_(b"first")] * 150 + [set_(b"k%d" % at) for at in range(100)]:
            before = leaves["answer"]
            rounds.ours[0].send(encode_request(asked))
            rounds.poller._take_round(rounds.epoll, rounds.epoll.poll(0))
            rounds.daemon.commit()
            rounds.poller.send_settled()
            rounds.poller._settling = False
            assert rounds.ours[0].recv(100)
            if asked.key == b"first":
                # it exists, so a bulk leaves it: 2, 4, 8, ... requests have none then
                assert leaves["answer"] == 0
                assert leaves["join"] <= 7
        assert leaves["join"] > 7
        assert leaves["answer"] == before + 1
    finally:
        rounds.close()


async def test_round_keeps_no_reference() -> None:
    rounds = Rounds(Random(0))
    frames = [
        [encode_request(set_(b"k%d" % (at + FEW * n))) for at in range(FEW)] for n in range(300)
    ]
    kept = [
        *(Stage.IDLE, Stage.LEFT, Stage.SHARED, NEVER, COMMIT, *_PolledState, Session, Run),
        *rounds.clients,
        *(client.session for client in rounds.clients),
        *(client.session.share for client in rounds.clients),
        rounds.daemon.memory,
    ]
    counts = list[list[int]]()
    try:
        for number, sent in enumerate(frames):
            for ours, data in zip(rounds.ours, sent, strict=True):
                ours.send(data)
            rounds.poller._take_round(rounds.epoll, rounds.epoll.poll(0))
            rounds.daemon.commit()
            rounds.poller.send_settled()
            rounds.poller._settling = False
            assert [len(ours.recv(100)) for ours in rounds.ours] == [SUCCESS_BYTES] * FEW
            if number in {100, 299}:
                # of the tests before: their sessions in cycles refer to these classes and stages
                while gc.collect():
                    pass
                counts.append([sys.getrefcount(each) for each in kept])
        assert counts[0] == counts[1]
    finally:
        rounds.close()
