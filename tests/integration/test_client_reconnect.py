"""Both clients where connections are lost: what is sent again, what is not, and when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from random import Random

import pytest
import trio
import trio.testing

from fastjournal import CannotConnectError, Client, Reconnect, SyncClient
from fastjournal.client.core import calls
from fastjournal.protocol import Function, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from fastjournal.times import to_datetime

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


ONCE = [
    calls.add("k", 1),
    calls.flip("k"),
    calls.next_("d"),
    calls.next_("d", delete=True),
    calls.get("k", lease=1),
    calls.rename("k", "l"),
    calls.link("k", "l"),
    calls.kick("k"),
    calls.truncate("k", 1),
]
AGAIN = [
    calls.nop(),
    calls.get("k"),
    calls.set_("k", timestamp_us=7),
    calls.delete("k", timestamp_us=7),
    calls.touch("k", ttl=1),
    calls.lock("k"),
    calls.pause("d", 1),
]


@pytest.mark.parametrize("call", AGAIN, ids=lambda call: Function(call.request.function).name)
def test_retry_sends_requests_again_that_are_safe_to_repeat(
    daemon: ScriptedDaemon, script: Dropping, call: calls.Call[object]
) -> None:
    script.drops = 2
    with SyncClient(daemon.address, reconnect=QUICK) as client:
        client.call(call)
    assert [request.function for request in daemon.requests] == [call.request.function] * 3
    assert len({request.timestamp for request in daemon.requests}) == 1
    assert daemon.connections == 3


@pytest.mark.parametrize("call", ONCE, ids=lambda call: Function(call.request.function).name)
def test_retry_of_an_unsafe_request_is_an_error_that_it_may_have_been_done(
    daemon: ScriptedDaemon, script: Dropping, call: calls.Call[object]
) -> None:
    script.drops = 1
    with SyncClient(daemon.address, reconnect=QUICK) as client:
        with pytest.raises(CannotConnectError) as caught:
            client.call(call)
        assert caught.value.maybe_done
        assert client.nop() == to_datetime(5)
    assert len(daemon.requests) == 2


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
