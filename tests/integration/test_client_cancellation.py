"""Cancel scopes around and inside the trio client: cancelled at each checkpoint, no lease stays.

Each sweep runs the same program again and again against a real daemon, and cancels its scope when
the program's task has yielded for the first, the second, the third ... time, until it ends before.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType

import pytest
import trio
import trio.abc
import trio.lowlevel
import trio.testing
from trio.testing import MockClock

from fastjournal import (
    CannotConnectError,
    Client,
    Jobs,
    ProtocolError,
    Reconnect,
    RefusedError,
    SyncClient,
    build_journal_key,
)
from fastjournal.client.core import calls
from fastjournal.limits import CLIENT_LAST_WORDS_S, JOB_LEASE_S
from fastjournal.protocol import Function, Meta, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from fastjournal.times import to_datetime
from tests.integration.both_clients import KINDS, connected
from tests.integration.daemon_process import DaemonProcess, lasting_daemon

NAMES = ("1", "2", "3")


class CancelAtYield(trio.abc.Instrument):
    """Cancels a scope when the task that made this has yielded for the n-th time."""

    def __init__(self, n: int) -> None:
        self.scope = trio.CancelScope()
        self._task = trio.lowlevel.current_task()
        self._left = n

    @property
    def in_time(self) -> bool:
        return self._left <= 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self.scope.cancel()


daemon = lasting_daemon()


def key_of(name: str) -> bytes:
    return build_journal_key("d", name)


def states(client: SyncClient) -> dict[str, str]:
    """Where the jobs stand; those that are done do not."""
    found = {}
    for name in NAMES:
        with contextlib.suppress(RefusedError):
            found[name] = client.entry_stats(key_of(name)).state
    return found


Program = Callable[[str, trio.CancelScope, list[str]], Awaitable[object]]
"""Gets the daemon's address, the scope to run in, and where to note whose body has ended."""


async def body(job: object, done: list[str]) -> None:
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    done.append(job.value.decode())


async def scope_around_a_loop(address: str, scope: trio.CancelScope, done: list[str]) -> None:
    with scope:
        async with Client(address) as client:
            async for job in client.jobs("d", count=2, wait=None):
                await body(job, done)


async def scope_around_a_block_of_one_job(
    address: str, scope: trio.CancelScope, done: list[str]
) -> None:
    with scope:
        async with Client(address) as client:
            async for job in client.jobs("d", wait=None):
                async with job:
                    await body(job, done)


async def scope_around_the_body(address: str, scope: trio.CancelScope, done: list[str]) -> None:
    async with Client(address) as client, client.jobs("d", count=3, wait=None) as jobs:
        async for job in jobs:
            with scope:
                async with job:
                    await body(job, done)
            break


async def scope_around_a_completion(address: str, scope: trio.CancelScope, done: list[str]) -> None:
    async with Client(address) as client:
        async for job in client.jobs("d", wait=None):
            with scope:
                done.append(job.value.decode())
                await job.complete()
            break


async def scope_around_many_calls(address: str, scope: trio.CancelScope, _done: list[str]) -> None:
    leased: list[Jobs | RefusedError] = []
    async with Client(address) as client:
        with scope:
            many = [calls.next_("d"), calls.next_("d"), calls.next_("none", wait=0.01)]
            leased = await client.call_many(many)
        for jobs in leased:
            assert isinstance(jobs, Jobs)
            for entry in jobs:
                await client.release(entry.key, entry.token or 0)


@pytest.mark.parametrize(
    "program",
    [
        scope_around_many_calls,
        scope_around_a_loop,
        scope_around_a_block_of_one_job,
        scope_around_the_body,
        scope_around_a_completion,
    ],
)
async def test_cancellation_at_every_checkpoint_leaves_no_lease_and_repeats_no_body(
    daemon: DaemonProcess, program: Program
) -> None:
    with SyncClient(daemon.address) as producer:
        for n in range(1, 500):
            for name in NAMES:
                producer.set(key_of(name), name, overwrite=True)
            cancel, done = CancelAtYield(n), list[str]()
            trio.lowlevel.add_instrument(cancel)
            with trio.fail_after(60):
                await program(daemon.address, cancel.scope, done)
            trio.lowlevel.remove_instrument(cancel)
            found = states(producer)
            assert set(found.values()) <= {"ready"}, f"cancelled at checkpoint {n}"
            assert set(done) == set(NAMES) - set(found), f"cancelled at checkpoint {n}"
            if not cancel.in_time:
                break
        assert not cancel.in_time, "the program never ends"


class Deaf:
    """Hands out two jobs, and answers nothing else but NOPs; tells when it gets ``awaited``."""

    def __init__(self, awaited: Function, tell: Callable[[], object]) -> None:
        self._awaited = awaited
        self._tell = tell

    def __call__(self, request: Request) -> Answer:
        if request.function == self._awaited:
            self._tell()
        if request.function == Function.NEXT and self._awaited != Function.NEXT:
            pairs = [Pair(b"d:1:1:%d" % n, meta=Meta()) for n in range(2)]
            return [Reply(request.identifier, timeout=7, pairs=pairs)]
        return [Reply(request.identifier)] if request.function == Function.NOP else []


async def ask_for_work(client: Client, _clock: MockClock) -> None:
    await client.next("d", wait=60)


async def finish_a_body(client: Client, _clock: MockClock) -> None:
    async for _job in client.jobs("d", count=2):
        await trio.lowlevel.checkpoint()


async def work_for_long(client: Client, clock: MockClock) -> None:
    async for _job in client.jobs("d", count=2):
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(JOB_LEASE_S / 3)
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("work", "cancelled_at"),
    [
        (ask_for_work, Function.NEXT),
        (finish_a_body, Function.DELETE),
        (work_for_long, Function.TOUCH),
    ],
)
def test_cancellation_with_a_deaf_daemon_takes_a_client_a_few_seconds(
    work: Callable[[Client, MockClock], Awaitable[None]], cancelled_at: Function
) -> None:
    clock = MockClock()

    async def main() -> None:
        scope, token, cancelled_s = trio.CancelScope(), trio.lowlevel.current_trio_token(), []

        def cancel() -> None:
            clock.autojump_threshold = 0.05
            cancelled_s.append(trio.current_time())
            scope.cancel()

        script = Deaf(cancelled_at, lambda: token.run_sync_soon(cancel))
        with ScriptedDaemon(script) as daemon, scope:
            async with Client(daemon.address) as client:
                await work(client, clock)
        assert scope.cancelled_caught
        assert trio.current_time() - cancelled_s[0] <= 2 * CLIENT_LAST_WORDS_S

    trio.run(main, clock=clock)


WAIT_S = 60
QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=30)
JOB = build_journal_key("d", "1")


@pytest.fixture
def producer(daemon: DaemonProcess) -> Iterator[SyncClient]:
    with SyncClient(daemon.address) as client:
        # also what the sweeps above have left
        client.call_many(calls.delete(key_of(name)) for name in NAMES)
        yield client
        client.call_many(calls.delete(key_of(name)) for name in NAMES)


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


async def test_client_that_ends_waits_for_the_releases_in_flight() -> None:
    script = LosesTheSecond(1)
    plan = Reconnect(first_pause=0.5, patience=30)
    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address, reconnect=plan) as client:
            with pytest.raises(CannotConnectError):
                await client.call_many(MANY)
            await trio.testing.wait_all_tasks_blocked()  # it pauses before it connects again
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
        client.nop()  # it is connected before the first alarm
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
