"""Both clients where connections are lost: what is sent again, what is not, and when it ends."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from fastjournal import CannotConnectError, Client, Reconnect, SyncClient
from fastjournal.client.sync.sockets import Channel
from fastjournal.protocol import Function, Pair, Reply, Request, encode_error, encode_reply
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from fastjournal.times import to_datetime
from tests.integration.both_clients import KINDS, connected
from tests.integration.daemon_process import DaemonProcess

QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=30)


class Dropping:
    """Ends the connection instead of answering, as long as ``drops`` has something to count."""

    def __init__(self, drops: int = 0, function: Function | None = None, error: str = "") -> None:
        self.drops = drops
        self.function = function
        self.error = error

    def __call__(self, request: Request) -> Answer:
        if self.drops and self.function in (None, request.function):
            self.drops -= 1
            return [Do.CLOSE]
        return [Reply(request.identifier, error=self.error, timestamp=5, pairs=[Pair(request.key)])]


@pytest.fixture
def script() -> Dropping:
    return Dropping()


@pytest.fixture
def daemon(script: Dropping) -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(script) as daemon:
        yield daemon


def test_connection_lost_between_two_requests_is_replaced_for_every_function(
    daemon: ScriptedDaemon,
) -> None:
    with SyncClient(daemon.address, reconnect=QUICK) as client:
        client.nop()
        daemon.drop_connections()
        assert client.add("k", 1).key == b"k"
    assert [request.function for request in daemon.requests] == [Function.NOP, Function.ADD]


async def test_trio_tasks_share_one_effort_and_its_end(
    mock_clock: trio.testing.MockClock,
) -> None:
    plan = Reconnect(first_pause=1, longest_pause=4, patience=20)
    codes: list[str] = []
    async with AsyncExitStack() as stack:
        with ScriptedDaemon(Dropping()) as daemon:
            client = Client(daemon.address, reconnect=plan, rng=Random(3))
            await stack.enter_async_context(client)
            await client.nop()
        # from here on nobody answers, so that only pauses are waited for
        mock_clock.autojump_threshold = 0.01
        began = trio.current_time()

        async def ask() -> None:
            with pytest.raises(CannotConnectError) as caught:
                await client.nop()
            codes.append(caught.value.code)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            with trio.move_on_after(3):  # one that is cancelled takes nobody with it
                await client.nop()
        assert codes == ["cannot-connect"] * 5
        assert trio.current_time() - began <= 30


def test_threads_that_wait_for_their_turn_learn_that_the_daemon_stayed_away() -> None:
    asking: set[int] = set()
    slept: list[float] = []

    def monotonic() -> float:
        asking.add(threading.get_ident())
        return time.monotonic()

    def sleep_until_all_have_asked(pause_s: float) -> None:
        slept.append(pause_s)
        while len(asking) < 5:
            time.sleep(0.001)

    with ScriptedDaemon(Dropping()) as daemon:
        plan = Reconnect(first_pause=1, patience=0)
        client = SyncClient(
            daemon.address, reconnect=plan, sleep=sleep_until_all_have_asked, monotonic=monotonic
        )
        client.nop()

    def ask() -> None:
        with pytest.raises(CannotConnectError):
            client.nop()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(slept) == 1


PATIENT = Reconnect(first_pause=0.01, longest_pause=0.1, patience=60)
FULL = encode_error(0, 0, "busy the daemon has max-connections clients")


def reply_to(request: Request) -> Reply:
    return Reply(request.identifier, timeout=9, cursor=b"cursor", pairs=[Pair(b"k", 1, b"v" * 20)])


REPLY_BYTES = len(encode_reply(reply_to(Request(Function.GET))))


class Cutting:
    """Cuts the first reply to each function off after so many bytes."""

    def __init__(self, at: int) -> None:
        self.at = at
        self._cut: set[int] = set()

    def __call__(self, request: Request) -> Answer:
        reply = encode_reply(reply_to(request))
        if request.function in self._cut:
            return [reply]
        self._cut.add(request.function)
        return [reply[: self.at], Do.CLOSE]


@pytest.mark.parametrize("kind", KINDS)
async def test_reply_that_is_cut_at_any_byte_is_a_lost_connection(kind: str) -> None:
    for at in range(REPLY_BYTES):
        with ScriptedDaemon(Cutting(at)) as daemon:
            async with connected(kind, daemon.address, reconnect=QUICK) as client:
                assert (await client.get("k")).value == b"v" * 20
                with pytest.raises(CannotConnectError) as caught:
                    await client.next("d")
                assert (caught.value.code, caught.value.maybe_done) == ("connection-lost", True)


@pytest.mark.parametrize("kind", KINDS)
async def test_reply_to_auth_that_is_cut_at_any_byte_is_a_lost_connection(kind: str) -> None:
    for at in range(len(encode_reply(Reply(1)))):
        cut = encode_reply(Reply(1))[:at]
        with (
            ScriptedDaemon(lambda _, cut=cut: [cut, Do.CLOSE]) as daemon,
            pytest.raises(CannotConnectError, match="closed the connection"),
        ):
            await use(kind, daemon.address)


async def use(kind: str, address: str) -> None:
    async with connected(kind, address, auth="secret") as client:
        await client.nop()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("auth", [None, "secret"])
async def test_daemon_that_is_full_is_a_named_error_after_the_patience(
    kind: str, auth: str | None
) -> None:
    served = 0 if auth is None else 1

    def script(request: Request) -> Answer:
        nonlocal served
        served -= 1
        return [reply_to(request)] if served >= 0 else [FULL, Do.CLOSE]

    plan = Reconnect(first_pause=0.001, longest_pause=0.01, patience=0.1)
    with ScriptedDaemon(script, proves=False) as daemon:
        async with connected(kind, daemon.address, reconnect=plan, auth=auth) as client:
            with pytest.raises(CannotConnectError, match="max-connections") as caught:
                await client.next("d")
            assert (caught.value.code, caught.value.maybe_done) == ("busy", False)


@pytest.mark.parametrize("kind", KINDS)
async def test_client_waits_until_a_full_daemon_has_room(kind: str, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, "--max-connections", "1") as daemon:
        first = SyncClient(daemon.address)
        first.add("k", 1, create=True)
        async with (
            connected(kind, daemon.address, reconnect=PATIENT) as second,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(leave_later, first)
            assert (await second.add("k", 1)).decoded() == 2


async def leave_later(client: SyncClient) -> None:
    await trio.sleep(0.3)  # the other has been refused by then, or has less to prove
    client.close()


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
