"""Listening with both clients against a daemon that follows a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio

from fastjournal import CannotConnectError, ChangeKind, Client, Reconnect, RefusedError, SyncClient
from fastjournal.client.sync.listen import SyncListener
from fastjournal.protocol import Flag, Function, Pair, Reply, Request, encode_error
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.two_jobs import SleepingClock

LISTEN = int(Flag.LISTEN)
QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=30)


class Telling:
    """Tells those who listen of every SET and DELETE that comes on the same connection."""

    def __init__(self) -> None:
        self.identifiers: list[int] = []
        self.ended = threading.Event()
        self.refusal = ""

    def __call__(self, request: Request) -> Answer:
        if request.function == Function.GET and request.flags & LISTEN:
            self.identifiers = [request.identifier]
            told = Reply(request.identifier, flags=LISTEN, pairs=[Pair(b"first", 1, b"v")])
            return [Reply(request.identifier, error=self.refusal, pairs=[]), told]
        if request.function == Function.CANCEL and request.count in self.identifiers:
            self.ended.set()
        if request.key == b"drop":
            return [Do.CLOSE]
        answers = [Reply(request.identifier)]
        for identifier in self.identifiers:
            pair, error = Pair(request.key, request.value_type or 0, request.value), ""
            if request.function == Function.DELETE:
                pair, error = Pair(request.key), "not-found"
            if request.function in (Function.SET, Function.DELETE):
                answers.append(Reply(identifier, flags=LISTEN, error=error, pairs=[pair]))
        return answers


@pytest.fixture
def script() -> Telling:
    return Telling()


@pytest.fixture
def daemon(script: Telling) -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(script) as daemon:
        yield daemon


async def test_listener_without_reconnect_raises(daemon: ScriptedDaemon) -> None:
    async with (
        Client(daemon.address, reconnect=None) as client,
        client.listen("first") as changes,
    ):
        await anext(changes)
        daemon.drop_connections()
        with pytest.raises(CannotConnectError):
            await anext(changes)
        await client.connect()
        assert (await anext(changes)).kind == ChangeKind.MISSED


async def test_subscription_that_is_refused_is_an_error(
    daemon: ScriptedDaemon, script: Telling
) -> None:
    script.refusal = "busy too many listen"
    async with Client(daemon.address) as client:
        with pytest.raises(RefusedError, match="too many listen") as caught:
            async with client.listen("first"):
                pass
    with SyncClient(daemon.address) as blocking, pytest.raises(RefusedError) as also:
        blocking.listen("first").__enter__()
    assert caught.value.address == also.value.address == daemon.address


async def test_subscription_that_the_daemon_ends_is_an_error_that_names_the_daemon() -> None:
    def end(request: Request) -> Answer:
        over = Reply(request.identifier, flags=LISTEN, error="busy it costs too much")
        return [Reply(request.identifier, pairs=[]), over]

    with ScriptedDaemon(end) as daemon:
        async with Client(daemon.address) as client, client.listen("k") as changes:
            with pytest.raises(RefusedError, match="costs too much") as caught:
                await anext(changes)
        with (
            SyncClient(daemon.address) as blocking,
            blocking.listen("k") as ended,
            pytest.raises(RefusedError, match="costs too much") as also,
        ):
            next(ended)
    assert caught.value.address == also.value.address == daemon.address


async def test_subscription_that_is_cancelled_ends_when_its_reply_comes() -> None:
    held: list[Request] = []

    def slow(request: Request) -> Answer:
        if request.flags & LISTEN:
            held.append(request)
            return []
        return [Reply(one.identifier) for one in [*held, request]] if held else []

    with ScriptedDaemon(slow) as daemon:
        async with Client(daemon.address) as client:
            with trio.move_on_after(0.05) as scope:
                async with client.listen("k"):
                    raise AssertionError("it was answered")
            assert scope.cancelled_caught
            await client.nop()
            with trio.fail_after(20):
                while len(daemon.requests) < 3:  # noqa: ASYNC110 - another thread
                    await trio.sleep(0.005)
    assert daemon.requests[2].function == Function.CANCEL
    assert daemon.requests[2].count == held[0].identifier


def test_blocking_changes_come_on_a_connection_of_their_own(
    daemon: ScriptedDaemon, script: Telling
) -> None:
    with SyncClient(daemon.address) as client, client.listen(prefix="a") as changes:
        change = changes.wait(timeout=20)
        assert change is not None
        assert (change.kind, change.key) == (ChangeKind.SET, b"first")
        assert changes.wait(timeout=0) is None
        assert changes.wait(timeout=0.01) is None
        client.nop()
    assert daemon.connections == 2


def test_blocking_wait_ends_in_time_while_the_daemon_is_away() -> None:
    clock = SleepingClock()
    plan = Reconnect(first_pause=0.1, longest_pause=4, patience=30)
    with ScriptedDaemon(Telling()) as daemon:
        client = SyncClient(
            daemon.address, reconnect=plan, sleep=clock.sleep, monotonic=clock.monotonic
        )
        changes = client.listen("first").__enter__()
        assert next(changes).key == b"first"
    for waits in range(1, 59):
        assert changes.wait(timeout=0.5) is None
        assert clock.now_s == pytest.approx(waits * 0.5)
    # The patience is that of all calls together.
    with pytest.raises(CannotConnectError):
        changes.wait(timeout=5)
    assert clock.now_s <= 30.001
    changes.__exit__(None, None, None)


def test_blocking_listener_that_polls_notices_a_daemon_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastjournal.client.sync.listen.LISTENER_PING_S", 0.1)
    silent = False

    def script(request: Request) -> Answer:
        return [] if silent else [Reply(request.identifier, pairs=[])]

    with ScriptedDaemon(script) as daemon:
        client = SyncClient(daemon.address, reconnect=None, reply_timeout=0.1)
        with client, client.listen("k") as changes:
            silent = True
            with pytest.raises(CannotConnectError) as caught:
                poll_for_ever(changes)
            assert caught.value.code == "timed-out"


def poll_for_ever(changes: SyncListener) -> None:
    while True:
        assert changes.wait(timeout=0.01) is None


async def test_listener_that_polls_notices_a_daemon_that_is_gone(
    daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournal.client.aio.listen.LISTENER_PING_S", 0.05)
    async with Client(daemon.address) as client, client.listen("first") as changes:
        await anext(changes)
        with trio.fail_after(20):
            while Function.NOP not in {request.function for request in daemon.requests}:
                with trio.move_on_after(0.01):
                    await anext(changes)


@pytest.mark.parametrize("code", ["busy", "shutting-down"])
def test_blocking_subscription_that_is_lost_again_is_tried_again(code: str) -> None:
    asked = 0

    def script(request: Request) -> Answer:
        nonlocal asked
        asked += 1
        if asked % 5:
            return [encode_error(0, 0, f"{code} later"), Do.CLOSE]
        return [Reply(request.identifier, pairs=[])]

    with (
        ScriptedDaemon(script) as daemon,
        SyncClient(daemon.address, reconnect=QUICK) as client,
        client.listen("k") as changes,
    ):
        daemon.drop_connections()
        assert next(changes).kind == ChangeKind.MISSED
    assert asked == 10
