"""Job loops as workers: failed attempts, retries of a job's end, stopping, jobs side by side."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal import (
    CannotConnectError,
    Client,
    Job,
    LeaseLostError,
    Reconnect,
    RefusedError,
    SyncClient,
)
from fastjournal.client.aio.job_loop import LeasePool
from fastjournal.protocol import Function, Meta, Pair, Reply, Request, ValueType
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.both_clients import KINDS, connected
from tests.integration.scripted_answers import ScriptedAnswers, renewed_lease
from tests.integration.worker_process import Alarm, wait_until

QUICK = Reconnect(first_pause=0.001, longest_pause=0.01, patience=30)
LEASE_S = 60
MOMENT_US = 1_000_000
"""A NEXT that waits no longer is answered at once."""
TIMEOUT_S = 60.0


class Handing:
    """Hands out jobs, whatever becomes of them, as long as there are some.

    Args:
        names: Ids of the jobs, delivered in this order.
        answers: By function, one answer after the other: an error, an end of the connection, or
            nothing; empty: success.
    """

    def __init__(self, *names: str, **answers: list[str | Do | None]) -> None:
        self.names = list(names)
        self._scripted = ScriptedAnswers(answers)
        self.attempts: Counter[bytes] = Counter()
        self.attempts_max = 0
        """Bound of the last lease; 0: none."""
        """Failures that were reported, by key."""
        self.waiting: list[Request] = []
        """NEXTs that wait."""

    def __call__(self, request: Request) -> Answer:
        answer = self._scripted.next(request)
        if answer is not None:
            return answer
        if request.function == Function.NEXT:
            return self._hand_out(request)
        if request.function == Function.RELEASE and request.value_type is not None:
            self.attempts[request.key] += 1
            if 0 < self.attempts_max <= self.attempts[request.key]:
                del self.attempts[request.key]  # it is buried, and kicked at once
        if request.function in (Function.DELETE, Function.BURY):
            del self.attempts[request.key]
        if request.function == Function.CANCEL:
            waiting, self.waiting = self.waiting, []
            return [Reply(one.identifier, pairs=[]) for one in (*waiting, request)]
        if request.function == Function.TOUCH:
            return [renewed_lease(request)]
        return [Reply(request.identifier, timeout=8)]

    def _hand_out(self, request: Request) -> Answer:
        count = request.count or 1
        self.attempts_max = json.loads(request.value or b"{}").get("attempts", 0)
        given, self.names = self.names[:count], self.names[count:]
        if not given and (request.ttl or 0) > MOMENT_US:
            self.waiting.append(request)
            return []
        keys = [key_of(name) for name in given]
        pairs = [Pair(key, meta=Meta(attempts=self.attempts[key])) for key in keys]
        return [Reply(request.identifier, timeout=7, pairs=pairs)]


def key_of(name: str) -> bytes:
    return f"d:1:1:{name}".encode()


def told(daemon: ScriptedDaemon) -> list[tuple[str, bytes]]:
    """Return function and key of each request that is about a job."""
    return [(Function(r.function).name, r.key[6:]) for r in daemon.requests if r.key[6:]]


def functions(daemon: ScriptedDaemon) -> list[str]:
    return [Function(request.function).name for request in daemon.requests]


Body = Callable[[Any], object]


async def work(kind: str, daemon: ScriptedDaemon, bodies: list[Body], **options: Any) -> None:
    """Give each job of a loop to the next body, with a client of that kind.

    A body gets the job's methods as functions that return, whatever the client.
    """
    given = {"lease": LEASE_S, "wait": None} | options
    plan = given.pop("reconnect", QUICK)
    if kind == "trio":
        async with Client(daemon.address, reconnect=plan) as client:
            async for job in client.jobs("d", **given):
                await trio.to_thread.run_sync(bodies.pop(0), FromThread(job))
        return

    async def on_asyncio() -> None:
        async with Client(daemon.address, reconnect=plan) as client:
            async for job in client.jobs("d", **given):
                of_thread = FromThread(job, asyncio.get_running_loop())
                await asyncio.to_thread(bodies.pop(0), of_thread)

    def blocking() -> None:
        if kind == "asyncio":
            asyncio.run(on_asyncio())
            return
        with SyncClient(daemon.address, reconnect=plan) as client:
            for job in client.jobs("d", **given):
                bodies.pop(0)(job)

    await trio.to_thread.run_sync(blocking)


class FromThread:
    """A job of an async client whose methods can be called by a thread."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.job = job
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.job, name)
        if not callable(found):
            return found
        return functools.partial(self._run, found)

    def _run(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.loop is not None:
            return asyncio.run_coroutine_threadsafe(method(*args, **kwargs), self.loop).result()
        return trio.from_thread.run(functools.partial(method, *args, **kwargs))


# --- failed attempts ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_failed_job_goes_back_with_a_growing_delay_and_is_buried_in_the_end(
    kind: str,
) -> None:
    seen = []

    def fail(job: Any) -> None:
        before = job.attempts
        failed = job.fail("exit 9")
        seen.append((before, failed.attempts, failed.delay_us, failed.buried, failed.reason))

    with ScriptedDaemon(Handing("x", "x", "x", "x", "x")) as daemon:
        await work(
            kind,
            daemon,
            [fail] * 5,
            retry_delay=0.01,
            retry_delay_max=0.03,
            attempts_max=4,
        )
        ends = [r for r in daemon.requests if r.function == Function.RELEASE]
        assert Function.BURY not in {r.function for r in daemon.requests}
    assert seen == [  # None: this daemon tells nothing of the entry
        (0, 1, 10_000, None, "exit 9"),
        (1, 2, 20_000, None, "exit 9"),
        (2, 3, 30_000, None, "exit 9"),
        (3, 4, None, True, "exit 9"),
        (0, 1, 10_000, None, "exit 9"),  # it was kicked meanwhile, and starts afresh
    ]
    assert [(r.timeout, r.ttl) for r in ends] == [
        *((7, 10_000), (7, 20_000), (7, 30_000), (7, None), (7, 10_000)),
    ]
    assert {(r.count, r.value) for r in ends} == {(None, b"exit 9")}
    assert set(bounds(daemon)) == {b'{"attempts":4}'}


@pytest.mark.parametrize("kind", KINDS)
async def test_failed_job_takes_the_delay_it_is_given_and_a_completed_one_starts_afresh(
    kind: str,
) -> None:
    seen = []
    bodies: list[Body] = [
        lambda job: job.fail("later", delay=0.077),
        lambda job: seen.append(job.attempts),
        lambda job: seen.append(job.attempts),
    ]
    with ScriptedDaemon(Handing("x", "x", "x")) as daemon:
        await work(kind, daemon, bodies, retry_delay=10)
        told = [(r.ttl, r.value) for r in daemon.requests if r.function == Function.RELEASE]
    assert (told, seen) == ([(77_000, b"later")], [1, 0])


@pytest.mark.parametrize("kind", KINDS)
async def test_failed_job_of_a_loop_that_says_no_delay_has_that_of_the_daemon(kind: str) -> None:
    with ScriptedDaemon(Handing("x", "y")) as daemon:
        await work(kind, daemon, [lambda job: job.fail(), lambda job: job.release()])
        ends = [r for r in daemon.requests if r.function == Function.RELEASE]
    assert [(r.ttl, r.value_type) for r in ends] == [(None, ValueType.STRING), (None, None)]


@pytest.mark.parametrize("kind", KINDS)
async def test_failed_job_with_a_bad_argument_does_not_end_and_does_not_count(kind: str) -> None:
    def fail(job: Any) -> None:
        with pytest.raises(TypeError):
            job.fail(7)
        with pytest.raises(TypeError):
            job.fail("x", delay="1")
        assert job.attempts == 0

    with ScriptedDaemon(Handing("x")) as daemon:
        await work(kind, daemon, [fail])
        assert functions(daemon) == ["NEXT", "DELETE", "NEXT"]


def bounds(daemon: ScriptedDaemon) -> list[bytes]:
    """Return the options of all NEXTs."""
    return [r.value for r in daemon.requests if r.function == Function.NEXT]


async def test_job_that_a_plain_loop_drops_has_failed_and_with_tasks_its_lease_ends_it() -> None:
    with ScriptedDaemon(Handing("x", "x", "x")) as daemon:
        async with Client(daemon.address) as client:
            for _ in range(3):
                async for job in client.jobs("d", attempts_max=2, retry_delay=0.005):
                    assert job.attempts == 0
                    break
            await client.nop()
        assert functions(daemon) == [*["NEXT"] * 3, "NOP"]
        with SyncClient(daemon.address) as blocking:
            daemon._answer.names += ["y", "y"]
            for _ in range(2):
                for one in blocking.jobs("d", attempts_max=3, retry_delay=0.005):
                    assert one.attempts == 0
                    break
        ends = [r for r in daemon.requests if r.function == Function.RELEASE]
    assert [r.ttl for r in ends] == [5_000] * 2
    assert [r.value for r in ends] == [b"left by an exception or break"] * 2


# --- retries of the end ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_completion_that_is_refused_for_now_is_sent_again(kind: str) -> None:
    with ScriptedDaemon(Handing("x", DELETE=["busy", "read-only"])) as daemon:
        await work(kind, daemon, [lambda job: job.complete()])
        assert functions(daemon) == ["NEXT", "DELETE", "DELETE", "DELETE", "NEXT"]


async def test_completion_that_is_cancelled_in_flight_is_sent_once_more() -> None:
    with ScriptedDaemon(Handing("x", DELETE=[None])) as daemon:
        async with Client(daemon.address) as client:
            with trio.move_on_after(0.05) as scope:
                async for _job in client.jobs("d", wait=None):
                    pass
            assert scope.cancelled_caught
    assert functions(daemon) == ["NEXT", "DELETE", "DELETE"]


async def test_next_that_was_lost_or_refused_for_now_is_asked_again() -> None:
    script = Handing("x", NEXT=[Do.CLOSE, "busy", "shutting-down", "read-only", Do.CLOSE])
    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address, reconnect=QUICK) as client:
            assert [job.key async for job in client.jobs("d", wait=None)] == [key_of("x")]
    assert functions(daemon) == ["NEXT"] * 6 + ["DELETE", "NEXT"]


@pytest.mark.parametrize("kind", KINDS)
async def test_end_that_is_refused_for_good_ends_nothing(kind: str) -> None:
    def end(job: Any) -> None:
        for _ in range(2):
            with pytest.raises(RefusedError) as caught:
                job.complete()
            assert caught.value.code == "forbidden"
            assert not job.finished
        job.release()
        assert job.finished
        with pytest.raises(RuntimeError):
            job.complete()

    with ScriptedDaemon(Handing("x", DELETE=["forbidden"] * 2)) as daemon:
        await work(kind, daemon, [end])
        assert functions(daemon) == ["NEXT", "DELETE", "DELETE", "RELEASE", "NEXT"]


async def test_block_whose_completion_is_refused_for_good_releases_its_job() -> None:
    async def run(client: Client) -> None:
        async for job in client.jobs("d"):
            async with job:
                pass

    def run_blocking(client: SyncClient) -> None:
        for job in client.jobs("d"):
            with job:
                pass

    with ScriptedDaemon(Handing("x", "x", DELETE=["forbidden"] * 2)) as daemon:
        async with Client(daemon.address) as client:
            with pytest.raises(RefusedError):
                await run(client)
        with SyncClient(daemon.address) as blocking, pytest.raises(RefusedError):
            run_blocking(blocking)
        assert functions(daemon) == ["NEXT", "DELETE", "RELEASE"] * 2


async def test_lease_renewal_that_fails_is_tried_again_before_the_lease_is_over() -> None:
    with ScriptedDaemon(Handing("x", TOUCH=["busy"] * 4)) as daemon:
        async with Client(daemon.address) as client:
            async for job in client.jobs("d", lease=3, wait=None):
                with trio.fail_after(TIMEOUT_S):
                    while job.token == 7:  # noqa: ASYNC110 - the renewal is a task of the client
                        await trio.sleep(0.01)
                assert not job.lost.is_set()
        assert functions(daemon).count("TOUCH") >= 5


async def test_lease_that_is_lost_says_why_and_no_end_is_sent_after_it() -> None:
    with ScriptedDaemon(Handing("x", TOUCH=["not-found gone"])) as daemon:
        async with Client(daemon.address) as client:
            jobs = client.jobs("d", lease=1)
            job = await jobs.__anext__()
            with trio.fail_after(TIMEOUT_S):
                await job.lost.wait()
            assert isinstance(job.loss, RefusedError)
            assert (job.loss.code, job.loss.message) == ("not-found", "gone")
            with pytest.raises(LeaseLostError):
                await jobs.__anext__()
        assert functions(daemon) == ["NEXT", "TOUCH"]


def test_lease_that_ends_while_the_daemon_is_away_is_lost() -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        with ScriptedDaemon(Handing("x")) as daemon:
            async with Client(daemon.address) as client:
                jobs = client.jobs("d", lease=3)
                job = await jobs.__anext__()
                daemon.__exit__(None, None, None)
                clock.autojump_threshold = 0.1
                await job.lost.wait()
                assert isinstance(job.loss, CannotConnectError)
                assert 2.9 < trio.current_time() < 3.1
                with pytest.raises(LeaseLostError):
                    await job.complete()

    trio.run(main, clock=clock)


def test_lease_renewal_that_fails_is_tried_again_by_the_thread() -> None:
    with ScriptedDaemon(Handing("x", TOUCH=["busy"] * 4)) as daemon:
        with SyncClient(daemon.address) as client:
            for job in client.jobs("d", lease=3, wait=None):
                wait_until(lambda: job.token != 7)  # noqa: B023 - at once
                assert not job.lost.is_set()
        assert functions(daemon).count("TOUCH") >= 5


@pytest.mark.parametrize("kind", KINDS)
async def test_job_that_is_abandoned_is_released_once_and_has_ended(kind: str) -> None:
    def abandon(job: Any) -> None:
        job.abandon()
        job.abandon()
        assert job.finished

    with ScriptedDaemon(Handing("x", "y", RELEASE=["", "busy"])) as daemon:
        await work(kind, daemon, [abandon] * 2, retry_delay=5)
        assert told(daemon) == [("RELEASE", b"x"), ("RELEASE", b"y")]
        assert {r.ttl for r in daemon.requests if r.function == Function.RELEASE} == {None}


# --- stopping -------------------------------------------------------------------------------------


async def test_stop_ends_a_wait_for_work_and_the_daemon_keeps_none_waiting() -> None:
    script = Handing()
    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address) as client, trio.open_nursery() as nursery:
            jobs = client.jobs("d")

            async def loop() -> None:
                assert [job async for job in jobs] == []

            nursery.start_soon(loop)
            with trio.fail_after(TIMEOUT_S):
                while not script.waiting:  # noqa: ASYNC110 - what is awaited is in another thread
                    await trio.sleep(0.01)
            jobs.stop()
        assert functions(daemon) == ["NEXT", "CANCEL"]
        assert script.waiting == []


async def test_stop_in_a_body_completes_the_job_and_releases_those_behind_it() -> None:
    with ScriptedDaemon(Handing("a", "b", "c")) as daemon:
        async with Client(daemon.address) as client:
            jobs = client.jobs("d", count=2)
            async for _job in jobs:
                jobs.stop()
            assert [job async for job in jobs] == []
        assert told(daemon) == [("DELETE", b"a"), ("RELEASE", b"b")]


def test_blocking_stop_by_another_thread_ends_a_wait_for_work() -> None:
    script = Handing()
    with ScriptedDaemon(script) as daemon, SyncClient(daemon.address) as client:
        jobs = client.jobs("d")
        stopper = threading.Thread(
            target=lambda: (wait_until(lambda: script.waiting), jobs.stop(), jobs.stop())
        )
        stopper.start()
        assert list(jobs) == []
        stopper.join()
        client.nop()
        assert functions(daemon) == ["NEXT", "CANCEL", "NOP"]


def test_blocking_stop_by_a_signal_handler_ends_a_wait_for_work(
    alarm: Alarm,
) -> None:
    with ScriptedDaemon(Handing()) as daemon, SyncClient(daemon.address) as client:
        jobs = client.jobs("d")
        alarm(jobs.stop)
        assert list(jobs) == []
        assert functions(daemon) == ["NEXT", "CANCEL"]


def test_blocking_stop_while_the_daemon_is_away_ends_the_loop_without_an_error(
    alarm: Alarm,
) -> None:
    with ScriptedDaemon(Handing("a")) as daemon:
        client = SyncClient(daemon.address, reconnect=QUICK)
        jobs = client.jobs("d")
        next(jobs).complete()
    alarm(jobs.stop)
    assert list(jobs) == []
    client.close()


# --- side by side ---------------------------------------------------------------------------------


async def test_run_asks_again_when_a_job_ends_for_it_may_have_set_another_free() -> None:
    script = Handing("a")

    async def body(job: Job) -> None:
        if job.key == key_of("a"):
            script.names.append("b")

    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address) as client:
            assert await client.jobs("d", count=4, wait=None).run(body) == 2
        assert told(daemon) == [("DELETE", b"a"), ("DELETE", b"b")]


async def test_run_asks_again_when_a_job_ends_while_the_answer_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Handing("a")
    answered = trio.Event()
    find = LeasePool.find

    async def late(pool: LeasePool, *args: Any, **options: Any) -> list[Job]:
        found = await find(pool, *args, **options)
        if not found and not answered.is_set():
            answered.set()
            while pool.held:
                await trio.lowlevel.checkpoint()
        return found

    async def body(job: Job) -> None:
        await answered.wait()
        if job.key == key_of("a"):
            script.names.append("b")

    monkeypatch.setattr(LeasePool, "find", late)
    with ScriptedDaemon(script) as daemon:
        async with Client(daemon.address) as client:
            with trio.fail_after(TIMEOUT_S):
                assert await client.jobs("d", count=4, wait=None).run(body) == 2
        assert told(daemon) == [("DELETE", b"a"), ("DELETE", b"b")]


# --- the first connection -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_connect_waits_the_first_time_where_reconnect_says_so(
    kind: str, tmp_path: Any
) -> None:
    address = f"unix:{tmp_path}/socket"
    plan = Reconnect(first_pause=0.01, longest_pause=0.05, patience=60, at_start=True)

    async def connect() -> None:
        async with connected(kind, address, reconnect=plan) as client:
            await client.nop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect)
        await trio.sleep(0.1)
        daemon = ScriptedDaemon(Handing(), unix_path=f"{tmp_path}/socket")
        daemon.__enter__()
    daemon.__exit__(None, None, None)
    assert functions(daemon) == ["NOP"]
