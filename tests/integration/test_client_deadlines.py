"""Deadlines of both clients: they hold for all that an operation takes, however it is delayed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from fastjournal import CannotConnectError, Reconnect, SyncClient
from fastjournal.client.sync.sockets import Channel
from fastjournal.limits import CLIENT_REPEATS_MAX
from fastjournal.protocol import Pair, Reply, Request, encode_reply
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from fastjournal.times import to_datetime
from tests.integration.both_clients import KINDS, connected

DAYS_30_S = 30 * 86400


def found(request: Request) -> Answer:
    return [Reply(request.identifier, timestamp=5, timeout=7, pairs=[Pair(b"d:1:1:x")])]


class Away:
    """As a proxy whose daemon is away: takes so many connections and closes each."""

    def __init__(self, closings: int) -> None:
        self.closings = closings

    def __call__(self, request: Request) -> Answer:
        if self.closings:
            self.closings -= 1
            return [Do.CLOSE]
        return found(request)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("closings_at_first", [0, 50])
async def test_connect_through_a_closing_proxy_is_tried_for_as_long_as_patience_says(
    kind: str, closings_at_first: int
) -> None:
    plan = Reconnect(first_pause=0.001, longest_pause=0.01, patience=60)
    script = Away(closings_at_first)
    with ScriptedDaemon(script, proves=False) as daemon:
        async with connected(kind, daemon.address, reconnect=plan) as client:
            assert (await client.get("k")).key == b"d:1:1:x"
            script.closings = 50
            daemon.drop_connections()
            assert (await client.get("k")).key == b"d:1:1:x"


@pytest.mark.parametrize("kind", KINDS)
async def test_connect_through_a_closing_proxy_fails_after_the_patience(
    kind: str,
) -> None:
    plan = Reconnect(first_pause=0.001, longest_pause=0.01, patience=0.2)
    with ScriptedDaemon(Away(1_000_000), proves=False) as daemon:
        async with connected(kind, daemon.address, reconnect=plan) as client:
            with pytest.raises(CannotConnectError, match="closed the connection") as caught:
                await client.set("k")
            assert caught.value.maybe_done
    assert daemon.connections > CLIENT_REPEATS_MAX + 1


@pytest.mark.parametrize("kind", KINDS)
async def test_connect_timeout_holds_for_an_answer_to_auth_that_comes_byte_by_byte(
    kind: str,
) -> None:
    over = threading.Event()

    def drip(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for byte in encode_reply(Reply(1)) * 2:
                sock.sendall(bytes([byte]))
                if over.wait(0.1):
                    break
            sock.close()

    def accept(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        sock.recv(100)
        drip(sock)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(CannotConnectError, match=r"no answer in time|timed out"):
            await connect(kind, address)
        over.set()
        thread.join()


async def connect(kind: str, address: str) -> None:
    async with connected(kind, address, auth="secret", connect_timeout=0.3):
        pass


def test_poll_of_a_longer_wait_than_it_takes_is_several() -> None:
    with ScriptedDaemon(found) as daemon, SyncClient(daemon.address) as client:
        assert client.next("d", wait=DAYS_30_S).token == 7
        long = SyncClient(daemon.address, connect_timeout=3e7, reply_timeout=3e7)
        assert long.nop() == to_datetime(5)
        long.close()


def test_poll_of_a_channel_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournal.client.sync.sockets.SOCKET_WAIT_S_MAX", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        began_s = time.monotonic()
        assert not channel.wait(to_send=False, timeout_s=0.035)
        assert time.monotonic() - began_s >= 0.03
        theirs.send(b"x")
        assert channel.wait(to_send=False, timeout_s=1000)
