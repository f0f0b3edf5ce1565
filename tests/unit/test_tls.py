"""TLS under a session, on streams in memory: who is let in, how long that may take, how it ends."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal.client.access import make_context
from fastjournal.limits import HANDSHAKE_SECONDS_MAX, HANDSHAKES_MAX
from fastjournald.tls import Handshakes, TlsStream
from tests.certificates import Authority


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
        let_in.append(await handshakes.let_in(server, context))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(tls.do_handshake)
    assert isinstance(let_in[0], TlsStream)
    return tls, let_in[0]


async def test_a_handshake_has_its_time_and_no_more(
    context: ssl.SSLContext, autojump_clock: MockClock
) -> None:
    handshakes = Handshakes()
    client, server = pair()
    reason: list[TlsStream | str] = []

    async def take() -> None:
        reason.append(await handshakes.let_in(server, context))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        for byte in b"\x16\x03\x01\x02\x00\x01\x00":
            await trio.sleep(HANDSHAKE_SECONDS_MAX / 8)
            await client.send_all(bytes([byte]))
            assert not reason
    assert reason == ["not done in time"]
    assert await client.receive_some() == b""


async def test_only_so_many_handshakes_go_on_at_a_time(
    authority: Authority, context: ssl.SSLContext
) -> None:
    handshakes = Handshakes()
    async with trio.open_nursery() as nursery:
        slow = [pair() for _ in range(HANDSHAKES_MAX)]
        for _, server in slow:
            nursery.start_soon(handshakes.let_in, server, context)
        await trio.testing.wait_all_tasks_blocked()
        _, server = pair()
        assert await handshakes.let_in(server, context) == "too many handshakes at a time"
        await slow[0][0].aclose()
        await trio.testing.wait_all_tasks_blocked()
        await enter(authority, context, handshakes)
        handshakes.stop()
    assert await slow[1][0].receive_some() == b""


async def test_the_end_is_told_and_what_comes_after_it_is_taken(
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


async def test_a_client_that_takes_nothing_does_not_hold_up_the_end(
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


async def test_a_client_that_is_cut_off_has_not_ended(
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
