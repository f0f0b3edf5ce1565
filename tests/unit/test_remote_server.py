"""A server with a remote log over real sockets: no reply leaves before the store has its part.

The store is held by the test, in the threads of its requests. Plain clients of the poller, whose
sends are native, clients with a task each, and clients with TLS get the same.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from fastjournal.client.core.client_credentials import make_context
from fastjournal.errors import FencedError, StoreUnavailableError
from fastjournal.http_server import HttpRequest
from fastjournal.protocol import Flag, Function
from fastjournal.protocol.messages import Request
from fastjournal.remote.writer import RemoteAck
from fastjournal.testing.object_store import MemoryStore
from fastjournald.group_commit.remote_commit import GATHER_SHARE, boottime_us
from fastjournald.observability.domain_totals import TimeSlices
from fastjournald.observability.html_pages import routes_of
from fastjournald.tasks.checkpoints import Checkpoints
from tests.certificates import Authority
from tests.property.subject import request
from tests.unit.server_fixture import (
    LOG,
    SILENCE_S,
    HeldSync,
    Peer,
    ServerFixture,
    seal_epoch,
    stored_chunks,
)

pytestmark = pytest.mark.usefixtures("native", "transport")

SLOW_S = 0.2
QUIET_S = 0.05
"""Time in which a reply that is not held back arrives many times over."""
NOP = request(Function.NOP)


@pytest.fixture(autouse=True)
def no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no checkpoint, which seals segments: tests/unit/test_checkpoints.py has them."""
    monkeypatch.setattr(Checkpoints, "_is_due", lambda _: False)


class HeldStore(MemoryStore):
    """A store whose creates wait, or fail, as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.began = threading.Event()
        self.is_away = False

    def create(self, name: str, data: bytes) -> bool:
        self.began.set()
        assert self.goes_on.wait(SILENCE_S)
        if self.is_away:
            raise StoreUnavailableError("the store does not answer")
        return super().create(name, data)

    def hold(self) -> None:
        self.began.clear()
        self.goes_on.clear()

    async def wait_begun(self) -> None:
        assert await trio.to_thread.run_sync(self.began.wait, SILENCE_S)


class Remote:
    """A server with a held store, and a clock of the lease that can jump."""

    def __init__(self, **options: Any) -> None:
        self.store = HeldStore()
        self.jumped_us = 0
        self.fixture = ServerFixture(
            store=self.store, boottime_us=lambda: boottime_us() + self.jumped_us, **options
        )
        self.fixture.disk.capacity_bytes = None
        assert self.fixture.server.remote is not None
        self.commit = self.fixture.server.remote

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Remote]:
        async with self.fixture.open():
            try:
                yield self
            finally:
                self.store.goes_on.set()

    @property
    def requests(self) -> int:
        return sum(self.fixture.engine.counters.requests.values())

    async def wait_until(self, holds: Callable[[], object]) -> None:
        with trio.fail_after(SILENCE_S):
            for _ in count():
                if holds():
                    return
                await trio.sleep(0.001)


def set_(number: int, value: bytes = b"v") -> Request:
    key = b"a:1:0:%d" % number
    return request(Function.SET, key, value, flags=Flag.PERSIST | Flag.OVERWRITE)


def get(number: int) -> Request:
    return request(Function.GET, b"a:1:0:%d" % number, flags=Flag.DATA)


async def is_silent(*peers: Peer) -> bool:
    """Whether none of these clients gets a byte."""
    heard: list[Peer] = []

    async def hear(peer: Peer) -> None:
        await peer.stream.receive_some(1)
        heard.append(peer)

    with trio.move_on_after(QUIET_S):
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(hear, peer)
    return not heard


async def test_no_reply_leaves_before_what_was_appended_before_it_is_stored() -> None:
    async with Remote().open() as remote:
        writers = [await remote.fixture.connect() for _ in range(4)]
        readers = [await remote.fixture.connect() for _ in range(3)]
        assert (await writers[0].ask(set_(0))).code == ""
        remote.store.hold()
        await writers[0].send(set_(1))
        await remote.store.wait_begun()
        handled = remote.requests
        for number, peer in enumerate(writers[1:], 2):
            await peer.send(set_(number))
        await readers[0].send(get(1))
        await readers[1].send(get(0))
        await readers[2].send(NOP, get(3))
        await remote.wait_until(lambda: remote.requests == handled + 7)
        assert await is_silent(*writers, *readers)
        stored = len(remote.store.objects)
        remote.store.goes_on.set()
        for peer in writers:
            assert (reply := await peer.reply()) is not None
            assert reply.code == ""
        shown = [await readers[at].reply() for at in (0, 1, 2, 2)]
        values = [reply.pairs[0].value for reply in shown if reply and reply.pairs]
        assert values == [b"v"] * 3
        assert len(remote.store.objects) > stored


async def test_reply_to_a_read_of_what_is_stored_does_not_wait() -> None:
    async with Remote().open() as remote:
        writer, reader = await remote.fixture.connect(), await remote.fixture.connect()
        assert (await writer.ask(set_(0))).code == ""
        remote.store.hold()
        requests = sum(remote.commit.requests.values())
        reply = await reader.ask(get(0))
        assert reply.pairs
        assert sum(remote.commit.requests.values()) == requests


async def test_replies_of_many_clients_come_in_order_and_each_once() -> None:
    remote = Remote()
    create = remote.store.create

    def create_slowly(name: str, data: bytes) -> bool:
        threading.Event().wait(0.002)
        return create(name, data)

    remote.store.create = create_slowly  # type: ignore[method-assign]
    async with remote.open():

        async def talk(peer: Peer, number: int) -> None:
            for round_ in range(15):
                identifiers = range(round_ * 8, round_ * 8 + 1 + number % 8)
                await peer.send(
                    *(
                        request(
                            Function.SET if at % 3 else Function.GET,
                            b"a:1:0:%d" % (number * 1000 + at),
                            b"v",
                            flags=Flag.PERSIST if at % 3 else Flag.DATA,
                            identifier=at,
                        )
                        for at in identifiers
                    )
                )
                for at in identifiers:
                    reply = await peer.reply()
                    assert reply is not None
                    assert reply.identifier == at

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(talk, await remote.fixture.connect(), number)
    payload = b"".join(chunk.payload for chunk in stored_chunks(remote.store))
    assert payload == files(remote.fixture)
    writes = remote.fixture.disk.calls["write"]
    assert writes <= len(stored_chunks(remote.store)), "one write a chunk"


def files(fixture: ServerFixture) -> bytes:
    names = sorted(name for name in fixture.disk.listdir(LOG) if name.endswith(".log"))
    return b"".join(fixture.disk.read(f"{LOG}/{name}") for name in names)


async def test_async_replies_before_the_store_has_it() -> None:
    async with Remote(ack=RemoteAck.ASYNC).open() as remote:
        peer = await remote.fixture.connect()
        remote.store.hold()
        for number in range(10):
            assert (await peer.ask(set_(number))).code == ""
        assert remote.commit.lag_bytes > 0
        assert len(stored_chunks(remote.store)) == 1
    assert b"".join(chunk.payload for chunk in stored_chunks(remote.store)) == files(remote.fixture)


async def test_async_slows_writers_down_at_the_bound_of_the_lag_and_no_readers() -> None:
    remote = Remote(ack=RemoteAck.ASYNC)
    lag_bytes_max = 64 * 1024
    server = remote.fixture.server
    assert server.remote is not None
    server.remote.primary.lag_bytes_max = lag_bytes_max
    server.runtime.backpressure._lag_bytes_max = lag_bytes_max
    async with remote.open():
        remote.store.hold()
        writer, reader = await remote.fixture.connect(), await remote.fixture.connect()
        value, answered = bytes(2000), 0
        assert (await writer.ask(set_(0))).code == ""

        async def write() -> None:
            nonlocal answered
            for number in range(100):
                assert (await writer.ask(set_(number, value))).code == ""
                answered += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await remote.wait_until(lambda: server.runtime.backpressure.waiting)
            assert lag_bytes_max <= server.remote.lag_bytes <= lag_bytes_max * 17 / 16 + 4000
            assert answered < 40
            assert (await reader.ask(get(0))).pairs
            assert server.runtime.backpressure.waiting == 1
            remote.store.goes_on.set()
        assert answered == 100
        assert server.runtime.backpressure.waited > 0


@pytest.mark.parametrize("ack", list(RemoteAck))
async def test_lease_that_has_ended_withholds_all_replies_and_releases_them_later(
    ack: RemoteAck,
) -> None:
    async with Remote(ack=ack).open() as remote:
        reader, waiting, writer = [await remote.fixture.connect() for _ in range(3)]
        assert (await writer.ask(set_(0))).code == ""
        listens = request(Function.NEXT, b"b", flags=Flag.LISTEN | Flag.DATA)
        await waiting.send(listens)
        await remote.wait_until(lambda: remote.requests == 2)
        remote.store.is_away = True
        remote.jumped_us += 16_000_000
        handled = remote.requests
        await reader.send(get(0))
        await writer.send(request(Function.SET, b"b:1:0:1", b"for who waits", flags=Flag.PERSIST))
        await remote.wait_until(lambda: remote.requests == handled + 2)
        assert await is_silent(reader, waiting, writer)
        remote.store.is_away = False
        for peer in (reader, waiting, writer):
            reply = await peer.reply()
            assert reply is not None
            assert reply.code == ""


@pytest.mark.parametrize("ack", list(RemoteAck))
async def test_pages_say_nothing_of_the_entries_while_the_lease_is_over(ack: RemoteAck) -> None:
    async with Remote(ack=ack).open() as remote:
        server = remote.fixture.server
        routes = routes_of(server.runtime, server.unready)

        async def get_page(path: str, **fields: bytes) -> tuple[int, bytes]:
            named = {name.encode(): value for name, value in fields.items()}
            asked = HttpRequest(named, {b"host": b"localhost"}, path=path)
            answer = await routes[path].handler(asked)
            return answer.status, answer.body

        peer = await remote.fixture.connect()
        assert (await peer.ask(set_(0))).code == ""
        pages = set(routes) - {"/metrics", "/healthz", "/readyz", "/logout"}
        assert len(pages) == 8
        for path in pages:
            assert (await get_page(path))[0] == 200
        remote.store.is_away = True
        remote.jumped_us += 16_000_000
        # nobody has asked for anything meanwhile
        status, said = await get_page("/readyz")
        assert status == 503
        for path in pages:
            assert await get_page(path) == (503, said)
        assert await get_page("/entry", key=b"a:1:0:0") == (503, said)
        assert b"another node may be the primary" in said
        assert (await get_page("/healthz"))[0] == 200
        assert (await get_page("/metrics"))[0] == 200
        remote.store.is_away = False
        await remote.wait_until(lambda: not remote.commit.withheld)
        assert b"a:1:0:0" in (await get_page("/entry", key=b"a:1:0:0"))[1]


async def test_page_that_was_rendered_while_the_lease_ended_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Remote().open() as remote:
        server = remote.fixture.server
        page = routes_of(server.runtime, server.unready)["/"].handler

        async def give_way(_: TimeSlices) -> None:
            remote.store.is_away = True
            remote.jumped_us += 16_000_000

        monkeypatch.setattr(TimeSlices, "give_way", give_way)
        answer = await page(HttpRequest({}, {b"host": b"localhost"}))
        assert answer.status == 503
        remote.store.is_away = False


async def test_lease_that_ends_during_a_sync_withholds_the_replies_that_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = Remote(ack=RemoteAck.ASYNC)
    held = HeldSync(remote.fixture, monkeypatch)
    async with remote.open():
        peers = [await remote.fixture.connect() for _ in range(3)]
        for number, peer in enumerate(peers):
            await peer.send(set_(number))
        await held.wait_begun()
        remote.store.is_away = True
        remote.jumped_us += 16_000_000
        held.go_on()
        # what came behind the begin of that sync may wait for the lease to be committed at all
        await remote.wait_until(lambda: remote.fixture.writer.committed > 0)
        assert await is_silent(*peers)
        remote.store.is_away = False
        for peer in peers:
            reply = await peer.reply()
            assert reply is not None
            assert reply.code == ""


async def test_next_chunk_begins_when_the_clients_that_were_just_answered_have_sent_again() -> None:
    remote = Remote()
    began: list[float] = []
    create = remote.store.create

    def create_slowly(name: str, data: bytes) -> bool:
        began.append(time.monotonic())
        time.sleep(SLOW_S)
        return create(name, data)

    remote.store.create = create_slowly  # type: ignore[method-assign]
    async with remote.open():

        async def talk(number: int, peer: Peer) -> None:
            for again in range(6):
                # each in a round of its own
                await trio.sleep(0.003 * number)
                assert (await peer.ask(set_(10 * number + again))).code == ""

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(talk, number, await remote.fixture.connect())
    # behind the last chunk comes the seal, which waits for nobody
    waits = [later - earlier for earlier, later in pairwise(began[:-1])]
    assert len(waits) > 4
    assert min(waits) < SLOW_S * (1 + GATHER_SHARE)


async def test_fenced_server_acknowledges_nothing_and_closes_its_clients() -> None:
    remote = Remote()
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the block is the server's life
        async with remote.open():
            reader, writer = [await remote.fixture.connect() for _ in range(2)]
            assert (await writer.ask(set_(0))).code == ""
            remote.store.hold()
            seal_epoch(remote.store)
            await writer.send(set_(1))
            await remote.store.wait_begun()
            handled = remote.requests
            await reader.send(get(0), get(1))
            await remote.wait_until(lambda: remote.requests == handled + 2)
            remote.store.goes_on.set()
            with trio.CancelScope(shield=True):
                for peer in (reader, writer):
                    assert await ends_without_reply(peer)
            await trio.sleep_forever()
    assert raised.group_contains(FencedError)


async def ends_without_reply(peer: Peer) -> bool:
    with trio.fail_after(SILENCE_S):
        try:
            return await peer.stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            return True


async def test_stopped_server_answers_stores_the_rest_and_seals() -> None:
    remote = Remote()
    async with remote.open():
        peer = await remote.fixture.connect()
        remote.store.hold()
        await peer.send(set_(1))
        await remote.store.wait_begun()
        remote.fixture.stopped.set()
        remote.store.goes_on.set()
        reply = await peer.reply()
        assert reply is not None
        assert reply.code == ""
    chunks = stored_chunks(remote.store)
    assert chunks[-1].is_seal
    assert b"".join(chunk.payload for chunk in chunks) == files(remote.fixture)
    assert remote.commit.sealed


async def test_server_stops_in_its_time_where_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournald.server.STOP_SECONDS_MAX", 0.3)
    monkeypatch.setattr("fastjournald.server.SEAL_SECONDS_MAX", 0.3)
    remote = Remote()
    with trio.fail_after(SILENCE_S):
        async with remote.open():
            peer = await remote.fixture.connect()
            remote.store.is_away = True
            remote.store.began.clear()
            await peer.send(set_(1))
            await remote.store.wait_begun()
            remote.fixture.stopped.set()
            assert await ends_without_reply(peer)
    assert not any(chunk.is_seal for chunk in stored_chunks(remote.store))


@pytest.mark.parametrize("ack", list(RemoteAck))
async def test_tls_client_waits_for_the_store_and_for_the_lease(
    ack: RemoteAck, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    signed = authority.sign("server")
    remote = Remote(ack=ack, tls_cert=signed.cert, tls_key=signed.key)
    async with remote.open():
        peers = [await with_tls(remote.fixture, make_context(authority.path)) for _ in range(2)]
        assert (await peers[0].ask(set_(0))).code == ""
        handled = remote.requests
        if ack is RemoteAck.DURABLE:
            remote.store.hold()
            await peers[0].send(set_(1))
            await remote.store.wait_begun()
            await peers[1].send(get(1))
        else:
            remote.store.is_away = True
            remote.jumped_us += 16_000_000
            await peers[0].send(get(0))
            await peers[1].send(get(0))
        await remote.wait_until(lambda: remote.requests == handled + 2)
        assert await is_silent(*peers)
        remote.store.is_away = False
        remote.store.goes_on.set()
        for peer in peers:
            reply = await peer.reply()
            assert reply is not None
            assert reply.code == ""


async def with_tls(fixture: ServerFixture, context: ssl.SSLContext) -> Peer:
    plain = await fixture.connect()
    stream = trio.SSLStream(plain.stream, context, server_hostname="127.0.0.1")
    await stream.do_handshake()
    peer = Peer(plain.stream)
    peer.stream = stream  # type: ignore[assignment]
    return peer


async def test_server_without_a_remote_log_has_none_of_it() -> None:
    async with ServerFixture().open() as fixture:
        peer = await fixture.connect()
        assert (await peer.ask(set_(0))).code == ""
        assert fixture.server.remote is None
        assert fixture.server.runtime.commit.remote is None
        assert fixture.writer.on_write is None
        assert fixture.writer.settled == fixture.writer.committed == fixture.writer.appended
