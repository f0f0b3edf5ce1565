"""Cancellation of requests with jobs or in waiting, in both clients against a real daemon."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
import trio
import trio.testing

from fastjournal import (
    CannotConnectError,
    Client,
    ProtocolError,
    Reconnect,
    RefusedError,
    SyncClient,
    build_journal_key,
)
from fastjournal.client.core import calls
from fastjournal.protocol import Function, Meta, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from fastjournal.times import to_datetime
from tests.integration.both_clients import KINDS, connected
from tests.integration.daemon_process import DaemonProcess
from tests.integration.lasting_daemon import lasting_daemon

WAIT_S = 60
QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=30)
JOB = build_journal_key("d", "1")


daemon = lasting_daemon()


@pytest.fixture
def producer(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with SyncClient(daemon.address) as client:
        yield client
        for key in (JOB, build_journal_key("d", "2")):
            client.call_many([calls.delete(key)])


def state(client: SyncClient, key: bytes = JOB) -> str:
    return client.entry_stats(key).state


async def cancelled_wait(client: Client) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, calls.next_("d", wait=WAIT_S))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()


async def test_cancellation_of_more_waits_than_a_connection_may_have_leaves_it_free(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async with Client(daemon.address) as client:
        for _ in range(200):
            await cancelled_wait(client)
        # None of them stands any more: the job goes to who asks now.
        producer.set(JOB)
        jobs = await client.next("d", wait=WAIT_S)
        assert [entry.key for entry in jobs] == [JOB]


async def test_listener_that_ends_leaves_no_subscription(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async with Client(daemon.address) as client:
        for _ in range(50):
            async with client.listen("k"):
                pass
        await client.nop()
        assert producer.daemon_stats().subscriptions == 0


async def test_pipeline_that_is_cancelled_releases_the_leases_of_its_replies(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    producer.set(JOB)
    many = [calls.next_("d"), calls.next_("nothing", wait=WAIT_S), calls.get(JOB)]
    async with Client(daemon.address) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_many, many)
                while state(producer) != "worked on":  # noqa: ASYNC110 - in another process
                    await trio.sleep(0.001)
                await trio.testing.wait_all_tasks_blocked(0.01)
                scope.cancel()
        await client.nop()
        assert state(producer) == "ready"


def handed_out(request: Request) -> Reply:
    return Reply(request.identifier, timeout=7, pairs=[Pair(JOB, meta=Meta())])


class LosesTheSecond:
    """Hands out a job, and ends the connection at the NEXT of another domain, ``losses`` times."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.released = threading.Event()

    def __call__(self, request: Request) -> Answer:
        if request.key == b"lost" and self.losses:
            self.losses -= 1
            return [Do.CLOSE]
        if request.function == Function.RELEASE:
            self.released.set()
        if request.function == Function.NEXT:
            return [handed_out(request)]
        return [Reply(request.identifier)]


MANY = [calls.next_("d"), calls.next_("lost")]


async def test_pipeline_that_fails_releases_the_leases_of_its_replies() -> None:
    script = LosesTheSecond(1)
    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address, reconnect=QUICK) as client:
            with pytest.raises(CannotConnectError):
                await client.call_many(MANY)
            with trio.fail_after(20):
                await trio.to_thread.run_sync(script.released.wait)


async def test_client_that_ends_waits_for_the_releases_in_flight() -> None:
    script = LosesTheSecond(1)
    plan = Reconnect(first_pause=0.5, patience=30)
    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address, reconnect=plan) as client:
            with pytest.raises(CannotConnectError):
                await client.call_many(MANY)
            await trio.testing.wait_all_tasks_blocked()  # it pauses before it connects again
        assert script.released.is_set()


def test_blocking_pipeline_that_fails_releases_the_leases_of_its_replies() -> None:
    script = LosesTheSecond(1)
    with ScriptedDaemon(script) as daemon, SyncClient(daemon.address, reconnect=QUICK) as client:
        with pytest.raises(CannotConnectError):
            client.call_many(MANY)
        assert script.released.is_set()


# --- signals that raise -----------------------------------------------------------------------


class AlarmError(Exception):
    """Exception that the signal handler raises."""


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Raises AlarmError in the main thread after so many seconds."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda after_s: signal.setitimer(signal.ITIMER_REAL, after_s) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_blocking_interrupted_wait_is_cancelled(
    daemon: DaemonProcess, producer: SyncClient, alarm: Callable[[float], None]
) -> None:
    with SyncClient(daemon.address) as client:
        for _ in range(5):
            alarm(0.05)
            with pytest.raises(AlarmError):
                client.next("d", wait=WAIT_S)
        producer.set(JOB)
        assert state(producer) == "ready"
        assert [entry.key for entry in client.next("d")] == [JOB]


def test_blocking_interrupted_pipeline_releases_the_leases_of_its_replies(
    daemon: DaemonProcess, producer: SyncClient, alarm: Callable[[float], None]
) -> None:
    producer.set(JOB)
    with SyncClient(daemon.address) as client:
        alarm(0.2)
        with pytest.raises(AlarmError):
            client.call_many([calls.next_("d"), calls.next_("nothing", wait=WAIT_S)])
        assert state(producer) == "ready"
        assert client.nop()


def test_blocking_work_that_comes_while_a_wait_is_interrupted_is_released(
    alarm: Callable[[float], None],
) -> None:
    waiting: list[Request] = []

    def script(request: Request) -> Answer:
        if request.function == Function.NEXT:
            waiting.append(request)
            return []
        if request.function == Function.CANCEL:
            assert request.count == waiting[0].identifier
            return [handed_out(waiting[0]), Reply(request.identifier, error="not-found")]
        return [Reply(request.identifier)]

    with ScriptedDaemon(script) as daemon, SyncClient(daemon.address) as client:
        alarm(0.05)
        with pytest.raises(AlarmError):
            client.next("d", wait=WAIT_S)
        assert client.nop() == to_datetime(0)
    assert [Function(request.function).name for request in daemon.requests] == [
        "NEXT",
        "CANCEL",
        "RELEASE",
        "NOP",
    ]
    assert (daemon.requests[2].key, daemon.requests[2].timeout) == (JOB, 7)


@pytest.mark.parametrize("step", ["before", "after"])
def test_blocking_exception_while_a_request_is_started_leaves_a_sound_client(
    daemon: DaemonProcess, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncClient(daemon.address) as client:
        assert client.nop()
        link = client.connection.transport
        assert link is not None
        connection = link.multiplexer._connection
        send = connection.send

        def interrupted(request: Request) -> bytes:
            if step == "after":
                link.multiplexer._unsent.append(send(request))
            raise AlarmError

        monkeypatch.setattr(connection, "send", interrupted)
        with pytest.raises(AlarmError):
            client.get("k")
        with pytest.raises(RefusedError, match="nothing stands"):
            client.get("k")
        assert client.nop()


class Tells:
    """Hands out a job, and answers everything else with plain success."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, request: Request) -> Answer:
        if request.function == Function.RELEASE:
            self.released.set()
        return [
            handed_out(request) if request.function == Function.NEXT else Reply(request.identifier)
        ]


@pytest.mark.parametrize("kind", KINDS)
async def test_pipeline_with_a_reply_that_lacks_something_releases_the_leases(
    kind: str,
) -> None:
    script = Tells()
    with ScriptedDaemon(script) as daemon:
        async with connected(kind, daemon.address, reconnect=QUICK) as client:
            with pytest.raises(ProtocolError, match="exactly one pair"):
                await client.call_many([calls.next_("d"), calls.get("without-a-pair")])
            assert await client.next("d"), "the connection is of use"
        assert script.released.is_set()
