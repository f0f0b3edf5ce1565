"""TLS under a session, on streams in memory: who is let in, how long that may take, how it ends."""

from __future__ import annotations

import errno
import ssl
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal.client.core.client_credentials import make_context
from fastjournal.limits import HANDSHAKE_SECONDS_MAX, HANDSHAKES_MAX, HANDSHAKES_PER_ORIGIN_MAX
from fastjournal.protocol import ClientConnection, Function, Request
from fastjournald.net.listeners import accept
from fastjournald.net.tls import Handshakes, TlsStream
from tests.certificates import Authority

ORIGIN = "10.1.1.1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    return authority.server_context()


def pair() -> tuple[trio.abc.HalfCloseableStream, trio.SocketStream]:
    """The client's end, and the daemon's."""
    client, server = trio.testing.memory_stream_pair()
    return client, cast(trio.SocketStream, server)


async def enter(
    authority: Authority, context: ssl.SSLContext, handshakes: Handshakes
) -> tuple[trio.SSLStream[trio.abc.HalfCloseableStream], TlsStream]:
    """Let a client in."""
    client, server = pair()
    tls = trio.SSLStream(client, make_context(authority.path), server_hostname="127.0.0.1")
    let_in: list[TlsStream | str] = []

    async def take() -> None:
        let_in.append(await handshakes.let_in(server, context, ORIGIN))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(tls.do_handshake)
    assert isinstance(let_in[0], TlsStream)
    return tls, let_in[0]


async def test_handshake_has_its_time_and_no_more(
    context: ssl.SSLContext, autojump_clock: MockClock
) -> None:
    handshakes = Handshakes()
    client, server = pair()
    reason: list[TlsStream | str] = []

    async def take() -> None:
        reason.append(await handshakes.let_in(server, context, ORIGIN))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        for byte in b"\x16\x03\x01\x02\x00\x01\x00":
            await trio.sleep(HANDSHAKE_SECONDS_MAX / 8)
            await client.send_all(bytes([byte]))
            assert not reason
    assert reason == ["not done in time"]
    assert await client.receive_some() == b""


async def test_oldest_unfinished_handshake_makes_room(
    authority: Authority, context: ssl.SSLContext
) -> None:
    handshakes = Handshakes()
    ended: dict[int, TlsStream | str] = {}

    async def take(number: int, server: trio.SocketStream) -> None:
        ended[number] = await handshakes.let_in(server, context, f"10.0.0.{number % 100}")

    async with trio.open_nursery() as nursery:
        silent = [pair() for _ in range(HANDSHAKES_MAX)]
        for number, (_, server) in enumerate(silent):
            nursery.start_soon(take, number, server)
            # in this order
            await trio.testing.wait_all_tasks_blocked()
        # 0 to 55 have three each, all others two
        await enter(authority, context, handshakes)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == {0: "made room for another one"}
        await enter(authority, context, handshakes)
        assert len(ended) == 1, "there was room"
        for number in (300, 301):
            nursery.start_soon(take, number, pair()[1])
            await trio.testing.wait_all_tasks_blocked()
        assert list(ended) == [0, 1]
        handshakes.stop()
    assert await silent[0][0].receive_some() == b""


async def test_handshakes_of_one_address_push_out_each_other_and_nobody_else(
    authority: Authority, context: ssl.SSLContext
) -> None:
    handshakes = Handshakes()
    ended: list[str] = []

    async def take(server: trio.SocketStream, origin: str) -> None:
        ended.append(f"{origin}: {await handshakes.let_in(server, context, origin)}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, pair()[1], "slow")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(HANDSHAKES_PER_ORIGIN_MAX + 500):
            nursery.start_soon(take, pair()[1], "flood")
        await trio.testing.wait_all_tasks_blocked()
        assert ended == ["flood: made room for another one"] * 500
        await enter(authority, context, handshakes)
        handshakes.stop()
    assert "slow: the daemon stops" in ended


async def test_end_is_told_and_what_comes_after_it_is_taken(
    authority: Authority, context: ssl.SSLContext
) -> None:
    client, server = await enter(authority, context, Handshakes())
    await server.send_all(b"last words")
    await server.send_eof()
    await server.send_eof()
    assert await client.receive_some() == b"last words"
    assert await client.receive_some() == b""
    await client.send_all(b"too late")
    assert await server.receive_some(10)
    await client.transport_stream.aclose()
    while await server.receive_some(100):
        pass


async def test_client_that_takes_nothing_does_not_hold_up_the_end(
    authority: Authority,
    context: ssl.SSLContext,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, server = await enter(authority, context, Handshakes())

    async def never(_data: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(server._socket, "send_all", never)
    await server.send_eof()
    await trio.aclose_forcefully(client)


async def test_client_that_is_cut_off_has_not_ended(
    authority: Authority, context: ssl.SSLContext
) -> None:
    client, server = await enter(authority, context, Handshakes())
    await client.send_all(b"half a req")
    await client.transport_stream.aclose()
    assert await server.receive_some(100) == b"half a req"
    with pytest.raises(trio.BrokenResourceError):
        await server.receive_some(100)
    other, server = await enter(authority, context, Handshakes())
    await other.send_all(b"whole")
    await other.aclose()
    assert await server.receive_some(100) == b"whole"
    assert await server.receive_some(100) == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_1_2_and_1_3_are_spoken(
    authority: Authority, context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    context.maximum_version = context.minimum_version = version
    client, server = await enter(authority, context, Handshakes())
    await client.send_all(b"a")
    assert await server.receive_some(9) == b"a"


async def turned_away(server: trio.SocketStream, context: ssl.SSLContext) -> str:
    reason = await Handshakes().let_in(server, context, ORIGIN)
    assert isinstance(reason, str)
    return reason


async def ask_something(tls: trio.SSLStream[trio.abc.HalfCloseableStream]) -> None:
    await tls.send_all(b"first")
    await tls.receive_some()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_alert_tells_a_client_why_its_certificate_is_refused(
    authority: Authority, context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    context.maximum_version = context.minimum_version = version
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    client, server = pair()
    tls = trio.SSLStream(client, make_context(authority.path), server_hostname="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turned_away, server, context)
        with pytest.raises(trio.BrokenResourceError) as caught:
            await ask_something(tls)
        await client.aclose()
    assert isinstance(caught.value.__cause__, ssl.SSLError)
    assert "ALERT" in caught.value.__cause__.reason


async def test_plain_request_to_a_tls_port_is_told_so(context: ssl.SSLContext) -> None:
    client, server = pair()
    connection = ClientConnection()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turned_away, server, context)
        await client.send_all(connection.send(Request(function=Function.NOP, identifier=1)))
        while data := await client.receive_some():
            connection.receive_data(data)
        await client.aclose()
    (reply,) = connection.next_events()
    assert reply.identifier == 0
    assert reply.error == (
        "bad-request this address takes TLS only: write it as tls://HOST:PORT, and trust its CA"
    )


# --- accept ---------------------------------------------------------------------------------------


class Listener(trio.abc.Listener[trio.SocketStream]):
    """Has a client whenever the system has a descriptor."""

    def __init__(self, *failures: int) -> None:
        self.failures = list(failures)
        self.calls = 0
        self.closed = False
        self.waiting = trio.Event()

    async def accept(self) -> trio.SocketStream:
        self.calls += 1
        await trio.lowlevel.checkpoint()
        if self.failures:
            number = self.failures.pop(0)
            raise OSError(number, "no room")
        if self.waiting.is_set():
            await trio.sleep_forever()
        self.waiting.set()
        return cast(trio.SocketStream, trio.testing.memory_stream_pair()[0])

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


async def serve(listener: Listener, seconds: float) -> int:
    """Return how many clients came in so long."""
    served = 0

    def count(_stream: trio.SocketStream) -> None:
        nonlocal served
        served += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept, listener, count)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    assert listener.closed
    return served


async def test_accept_without_descriptors_waits_says_so_once_and_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener(*[errno.EMFILE, errno.ENFILE] * 20)
    assert await serve(listener, 3.95) == 0
    assert listener.calls <= 40, "it does not spin"
    assert caplog.text.count("event=no-room-for-connections") == 1
    assert await serve(listener, 1.0) == 1


async def test_listener_that_is_unusable_ends_the_daemon(autojump_clock: MockClock) -> None:
    listener = Listener(errno.EINVAL)
    with pytest.raises(ExceptionGroup):
        await serve(listener, 1.0)
    assert listener.closed
