"""Job loops of both clients against a real daemon: what ends a job, and how."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.lowlevel
import trio.testing

from fastjournal import (
    BadRequestError,
    Client,
    EntryStats,
    FastjournalError,
    Job,
    LeaseLostError,
    RefusedError,
    SyncClient,
    SyncJob,
    build_journal_key,
)
from fastjournal.protocol import Function, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.two_jobs import QUICK, key_of
from tests.integration.worker_process import wait_until

S = 1_000_000


def states(client: SyncClient) -> dict[str, str]:
    """Where the two jobs stand; those that are done do not."""
    found = {}
    for name in ("1", "2"):
        try:
            found[name] = client.entry_stats(key_of(name)).state
        except RefusedError:
            continue
    return found


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
            await trio.sleep(0.01)


class BodyError(Exception):
    """Exception that a body raises."""


def raises(_job: object) -> int:
    raise ZeroDivisionError


BROKEN_DELAYS = [raises, lambda _job: "1", lambda _job: -1, lambda _job: True, lambda _job: 2**64]


# --- trio -------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", BROKEN_DELAYS)
async def test_retry_delay_that_fails_gives_the_job_back_and_leaves_the_client_alone(
    daemon: DaemonProcess,
    producer: SyncClient,
    delay: Callable[[object], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Client(daemon.address) as client:
        with pytest.raises(BodyError):
            async for job in client.jobs("d", retry_delay=delay):
                async with job:
                    raise BodyError
        assert states(producer) == {"1": "ready", "2": "ready"}
        with pytest.raises(BodyError):
            async with client.jobs("d", retry_delay=delay) as jobs:
                async for _job in jobs:
                    raise BodyError
        assert states(producer) == {"1": "ready", "2": "ready"}
        await client.nop()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


async def leave_by_break(client: Client) -> None:
    async for _job in client.jobs("d", lease=1, count=2):
        break


async def leave_by_return(client: Client) -> object:
    async for job in client.jobs("d", lease=1, count=2):
        return job.key
    return None


async def leave_by_exception(client: Client) -> None:
    with contextlib.suppress(BodyError):
        async for _job in client.jobs("d", lease=1, count=2):
            raise BodyError


async def leave_by_cancellation(client: Client) -> None:
    with anyio.CancelScope() as scope:
        async for _job in client.jobs("d", lease=1, count=2):
            scope.cancel()
            await anyio.sleep_forever()


LEAVE = [leave_by_break, leave_by_return, leave_by_exception, leave_by_cancellation]


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("closes", [False, True])
async def test_job_of_an_async_loop_that_is_left_ends_with_its_lease_and_counts(
    daemon: DaemonProcess,
    producer: SyncClient,
    leave: Callable[[Client], Awaitable[object]],
    closes: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Client(daemon.address) as client:
        await leave(client)
        if not closes:
            # the next one, whose body has not begun, is released
            await until(lambda: states(producer) == {"1": "worked on", "2": "ready"})
            await until(lambda: states(producer) == {"1": "ready", "2": "ready"})
            assert not client.pools
    await until(lambda: states(producer) == {"1": "ready", "2": "ready"})
    assert [producer.entry_stats(key_of(name)).attempts for name in ("1", "2")] == [1, 0]
    (record,) = caplog.records
    assert "a loop was left in the middle of job b'd:128:" in record.message


async def test_error_that_leaves_the_client_with_the_loop_is_reported_at_once(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with pytest.raises(BodyError):
        async with Client(daemon.address) as client:
            async for _job in client.jobs("d", retry_delay=3600):
                raise BodyError("no route")
    assert producer.entry_stats(key_of("1")).last_error == "BodyError: no route"
    assert states(producer) == {"1": "delayed", "2": "ready"}
    with trio.CancelScope() as scope:
        async with Client(daemon.address) as client:
            async for _job in client.jobs("d"):
                scope.cancel()
                await trio.sleep_forever()
    assert producer.entry_stats(key_of("2")).attempts == 0
    assert states(producer) == {"1": "delayed", "2": "ready"}


async def test_job_that_outlives_its_async_loop_can_be_ended_and_its_block_renews_it(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async with Client(daemon.address) as client:
        job = await anext(client.jobs("d", lease=1))
        await trio.testing.wait_all_tasks_blocked()
        first = producer.entry_stats(job.key).worked_on_until_us
        async with job:
            await until(lambda: producer.entry_stats(job.key).worked_on_until_us > first + 2 * S)
        job = await anext(client.jobs("d"))
        await trio.testing.wait_all_tasks_blocked()
        await job.complete()
    assert states(producer) == {}


async def test_block_around_the_loop_has_released_everything_at_its_end(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async with Client(daemon.address) as client:
        async with client.jobs("d", count=2, retry_delay=3600) as jobs:
            async for _job in jobs:
                assert states(producer) == {"1": "worked on", "2": "worked on"}
                break
        assert states(producer) == {"1": "ready", "2": "ready"}
        with pytest.raises(BodyError):
            async with client.jobs("d", count=2, retry_delay=lambda _: 3600) as jobs:
                async for _job in jobs:
                    raise BodyError
        assert states(producer) == {"1": "delayed", "2": "ready"}
        with trio.CancelScope() as scope:
            async with client.jobs("d", retry_delay=3600) as jobs:
                async for _job in jobs:
                    scope.cancel()
                    await trio.sleep_forever()
        assert states(producer) == {"1": "delayed", "2": "ready"}


async def test_block_around_the_body_ends_the_job(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async with Client(daemon.address) as client:
        async for job in client.jobs("d", wait=None, retry_delay=3600):
            try:
                async with job:
                    if job.value == b"1":
                        raise BodyError
                assert states(producer) == {"1": "delayed"}
            except BodyError:
                assert states(producer) == {"1": "delayed", "2": "ready"}
    assert states(producer) == {"1": "delayed"}


async def test_lease_is_extended_while_the_body_runs(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    def until_us() -> list[int]:
        known: list[EntryStats] = [producer.entry_stats(key_of(name)) for name in ("1", "2")]
        return [entry.worked_on_until_us for entry in known]

    async with Client(daemon.address) as client:
        async for job in client.jobs("d", count=2, lease=1, wait=None):
            if job.value == b"1":
                first = until_us()
                # several leases long; both are held, also the one whose body has not begun
                await until(lambda: min(until_us()) > max(first) + 2 * S)  # noqa: B023 - awaited here
                assert not job.lost.is_set()
    assert states(producer) == {}


async def test_block_is_cancelled_when_its_lease_is_lost(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    done = []
    async with Client(daemon.address) as client:
        async for job in client.jobs("d", lease=1, wait=None):
            try:
                async with job:
                    if job.value == b"1":
                        producer.delete(job.key)
                        await trio.sleep_forever()
                    done.append(job.value)
            except LeaseLostError:
                done.append(b"lost")
    assert done == [b"lost", b"2"]


async def test_job_whose_lease_was_lost_unnoticed_is_an_error_at_its_completion(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async with Client(daemon.address) as client:
        with pytest.raises(LeaseLostError, match="the entry is gone"):
            async for job in client.jobs("d"):
                producer.delete(job.key)


async def test_daemon_that_is_killed_in_the_middle_of_a_body_takes_nothing_away(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    seen = []
    async with Client(daemon.address, reconnect=QUICK) as client:
        async for job in client.jobs("d", lease=12):
            if not seen:
                before = producer.entry_stats(job.key).worked_on_until_us
                daemon.kill()
                await trio.to_thread.run_sync(daemon.start)
                await until(lambda: producer.entry_stats(key_of("1")).worked_on_until_us > before)  # noqa: B023 - awaited
                assert not job.lost.is_set()
            seen.append(job.value)
            if len(seen) == 2:
                await job.complete()
                break
    assert seen == [b"1", b"2"]
    assert states(producer) == {}


async def test_jobs_of_many_loops_are_done_once_while_the_daemon_is_killed(
    daemon: DaemonProcess,
) -> None:
    done: list[bytes] = []
    over = trio.Event()

    async def work(client: Client) -> None:
        while not over.is_set():
            try:
                async for job in client.jobs("e", lease=5, wait=0.2, count=2):
                    await trio.sleep(0.005)
                    await job.complete()
                    done.append(job.value)
            except LeaseLostError:
                continue  # an extension was lost with the connection: somebody does it again

    async def produce(client: Client) -> None:
        for n in range(150):
            await client.set(build_journal_key("e", str(n)), b"%d" % n)
            await trio.sleep(0.005)

    async with Client(daemon.address, reconnect=QUICK) as client, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(work, client)
        nursery.start_soon(produce, client)
        for at in (20, 70):
            await until(lambda: len(done) >= at)  # noqa: B023 - awaited here
            daemon.kill()
            await trio.to_thread.run_sync(daemon.start)
        await until(lambda: len(done) == 150)
        over.set()
    assert sorted(done, key=int) == [b"%d" % n for n in range(150)]


# --- blocking ---------------------------------------------------------------------------------


def test_blocking_blocks_around_the_loop_or_the_body_are_exact(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client:
        with client.jobs("d", retry_delay=3600) as jobs:
            for _job in jobs:
                break
        assert states(producer) == {"1": "ready", "2": "ready"}
        for job in client.jobs("d", retry_delay=lambda job: 3600, wait=None):
            try:
                with job:
                    if job.value == b"1":
                        raise BodyError
            except BodyError:
                continue
        assert states(producer) == {"1": "delayed"}
        with pytest.raises(BodyError), client.jobs("d") as jobs:
            raise BodyError


def test_blocking_body_extends_its_lease_and_learns_that_it_is_lost(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client:
        jobs = client.jobs("d", lease=60, wait=None)
        with pytest.raises(LeaseLostError):
            for job in jobs:
                before = producer.entry_stats(job.key).worked_on_until_us
                job.extend()
                job.extend(600)
                assert producer.entry_stats(job.key).worked_on_until_us > before + 500 * S
                producer.bury(job.key)
                with pytest.raises(LeaseLostError):
                    job.extend()
        for job in jobs:
            job.bury("for later")
            with pytest.raises(RuntimeError):
                job.release()
    assert states(producer) == {"1": "buried", "2": "buried"}


def test_blocking_killed_daemon_takes_nothing_away(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    seen = []
    with SyncClient(daemon.address, reconnect=QUICK) as client:
        for job in client.jobs("d", wait=None):
            if not seen:
                daemon.kill()
                daemon.start()
            seen.append(job.value)
    assert seen == [b"1", b"2"]
    assert states(producer) == {}


def test_attempts_that_failed_at_one_worker_count_for_the_next(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    producer.delete(key_of("2"))
    for number in range(2):
        with SyncClient(daemon.address, reconnect=QUICK) as worker:
            for job in worker.jobs("d", attempts_max=3):
                assert (job.attempts, job.domain) == (number, b"d")
                assert job.last_error() == (f"failure {number - 1}" if number else None)
                assert job.fail(f"failure {number}", delay=0).buried is False
                break
        assert producer.entry_stats(key_of("1")).last_error == f"failure {number}"
    # also those of a daemon that was killed meanwhile
    daemon.kill()
    daemon.start()
    with SyncClient(daemon.address, reconnect=QUICK) as worker:
        for job in worker.jobs("d", attempts_max=3):
            assert job.attempts == 2
            assert job.fail("failure 2").buried
            break
        stats = worker.entry_stats(key_of("1"))
    assert stats.state == "buried"
    assert (stats.attempts, stats.last_error) == (3, "failure 2")
    assert stats.buried_reason == "failure 2"
    producer.limit("d", attempts=1)
    producer.kick(key_of("1"))
    with SyncClient(daemon.address, reconnect=QUICK) as worker:
        for job in worker.jobs("d", retry_delay=0):
            failed = job.fail("failure 3")
            assert (failed.buried, failed.delay_us) == (True, None), "by the daemon"
            break
    assert producer.entry_stats(key_of("1")).buried_reason == "failure 3"


WAIT_S = 60.0


def renewal_threads() -> set[threading.Thread]:
    """Return the threads that renew leases."""
    return {each for each in threading.enumerate() if each.name == "fastjournal lease renewal"}


@pytest.fixture
def renewing() -> Callable[[], set[threading.Thread]]:
    """Return what gives those of this test: loops of other tests may be garbage that is there."""
    of_others = renewal_threads()
    return lambda: renewal_threads() - of_others


def until_us(client: SyncClient, *names: str) -> list[int]:
    """When the leases of jobs end."""
    return [client.entry_stats(key_of(name)).worked_on_until_us for name in names]


def test_lease_is_renewed_beside_a_body_that_is_longer(
    daemon: DaemonProcess, producer: SyncClient, renewing: Callable[[], set[threading.Thread]]
) -> None:
    seen = []
    with SyncClient(daemon.address) as client:
        for job in client.jobs("d", count=2, lease=1, wait=None):
            if not seen:
                first = until_us(producer, "1", "2")
                # several leases long; both are held, also the one whose body has not begun
                wait_until(lambda: min(until_us(producer, "1", "2")) > max(first) + 2 * S)  # noqa: B023 - at once
                assert not job.lost.is_set()
                assert len(renewing()) == 1
            seen.append(job.value)
        wait_until(lambda: not renewing())
        assert (seen, producer.domain_stats("d").entries) == ([b"1", b"2"], 0)


def test_lease_that_is_lost_is_told_to_the_body_and_the_loop_can_be_begun_again(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client:
        jobs = client.jobs("d", lease=1, wait=None)
        job = next(jobs)
        producer.bury(job.key)
        assert job.lost.wait(WAIT_S)
        assert isinstance(job.loss, RefusedError)
        with pytest.raises(LeaseLostError, match="the lease was lost"):
            next(jobs)
        assert [job.value for job in jobs] == [b"2"]


def test_lease_is_renewed_while_another_thread_waits_on_the_client(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client:
        for job in client.jobs("d", lease=1, wait=None):
            thread = threading.Thread(target=client.next, args=["other"], kwargs={"wait": WAIT_S})
            thread.start()
            wait_until(lambda: client.connection.busy)
            (first,) = until_us(producer, "1")
            wait_until(lambda: until_us(producer, "1")[0] > first + 2 * S)  # noqa: B023 - at once
            assert thread.is_alive()
            assert not job.lost.is_set()
            producer.set("other:1:0:x")
            thread.join()
            break
        del job
        gc.collect()
    wait_until(lambda: producer.entry_stats(key_of("1")).state == "ready")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_lease_that_ends_while_a_daemon_is_silent_is_told_to_the_body(
    daemon: DaemonProcess,
    producer: SyncClient,
    elsewhere: bool,
) -> None:
    with SyncClient(daemon.address) as client, client.jobs("d", lease=2, wait=None) as jobs:
        job = next(jobs)
        if elsewhere:
            thread = threading.Thread(target=client.next, args=["other"], kwargs={"wait": WAIT_S})
            thread.start()
            wait_until(lambda: client.connection.busy)
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            # the client itself waits for a minute of silence, and connects for half of one
            assert job.lost.wait(20)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert job.loss is not None
        if elsewhere:
            producer.set("other:1:0:x")
            thread.join()


def test_lease_that_the_body_extends_is_renewed_in_time_and_not_shortened(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client, client.jobs("d", lease=120, wait=None) as jobs:
        job = next(jobs)
        job.extend(3)
        short = until_us(producer, "1")[0]
        # though the thread has begun to sleep for half a minute
        wait_until(lambda: until_us(producer, "1")[0] > short + 60 * S)
        job.extend(3600)
        assert 3400 < job.keep() < 3600
        assert not job.lost.is_set()


def test_lease_without_renewal_is_lost_and_has_no_thread(
    daemon: DaemonProcess, producer: SyncClient, renewing: Callable[[], set[threading.Thread]]
) -> None:
    with SyncClient(daemon.address) as client:
        jobs = client.jobs("d", lease=1, wait=None, renew=False)
        next(jobs)
        assert not renewing()
        wait_until(lambda: producer.entry_stats(key_of("1")).attempts == 1)
        with pytest.raises(LeaseLostError):
            next(jobs)
        jobs = client.jobs("d", wait=None, renew=False)
        assert producer.entry_stats(next(jobs).key).worked_on_until_us > (time.time() + 200) * S


ENDS_IN_A_BODY = """
import sys
from fastjournal import SyncClient
client = SyncClient(sys.argv[1])
jobs = client.jobs("d", lease=60)
job = next(jobs)
print(job.key.decode(), flush=True)
"""


def test_lease_thread_does_not_keep_a_program_that_ends(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    program = [sys.executable, "-W", "error", "-c", ENDS_IN_A_BODY, daemon.address]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip().encode() == key_of("1")
    assert producer.entry_stats(key_of("1")).state == "ready"


BACKENDS = ("trio", "asyncio")


def test_run_goes_on_after_an_exception_and_keeps_a_short_traceback(
    daemon: DaemonProcess, producer: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    def work(job: Job | SyncJob) -> None:
        if job.decoded() == "1":
            raise BodyError("SMTP 550")
        done.append(job.decoded(str))

    async def work_in_task(job: Job) -> None:
        work(job)

    async def main() -> None:
        async with Client(daemon.address) as client:
            assert await client.jobs("d", wait=None, retry_delay=3600).run(work_in_task) == 2

    def check_failed() -> None:
        stats = producer.entry_stats(key_of("1"))
        assert (stats.state, stats.attempts) == ("delayed", 1)
        first, *frames = (stats.last_error or "").splitlines()
        assert first == "BodyError: SMTP 550"
        assert any("in work" in line for line in frames)
        assert "BodyError: SMTP 550" in caplog.text
        caplog.clear()
        producer.delete(key_of("1"))
        for name in ("1", "2"):
            producer.set(key_of(name), name)

    assert producer.jobs("d", wait=None, retry_delay=3600).run(work) == 2
    check_failed()
    asyncio.run(main())
    check_failed()
    assert done == ["2", "2"]
    with pytest.raises(BadRequestError, match="on_error is 'continue' or 'raise'"):
        producer.jobs("d").run(work, on_error="stop")  # type: ignore[arg-type] # the fault


@pytest.mark.parametrize("backend", BACKENDS)
def test_run_leaves_seven_jobs_alone_where_the_eighth_raises(
    daemon: DaemonProcess, producer: SyncClient, backend: str
) -> None:
    names = [str(number) for number in range(3, 11)]
    for name in names:
        producer.set(build_journal_key("e", name), name)
    begun: list[str] = []
    done: list[str] = []

    async def main() -> None:
        failed, all_begun = anyio.Event(), anyio.Event()

        async def work(job: Job) -> None:
            name = job.decoded(str)
            begun.append(name)
            if len(begun) == 8:
                all_begun.set()
            await all_begun.wait()
            if name == "7":
                failed.set()
                raise BodyError("SMTP 550")
            await failed.wait()
            for _ in range(20):  # a cancellation would come at one of these
                await anyio.lowlevel.checkpoint()
            done.append(name)

        async with Client(daemon.address) as client:
            loop = client.jobs("e", count=8, wait=None, retry_delay=3600)
            with anyio.fail_after(60):
                assert await loop.run(work) == 8

    anyio.run(main, backend=backend)
    assert sorted(done, key=int) == [name for name in names if name != "7"]
    stats = producer.domain_stats("e")
    assert (stats.entries, stats.delayed) == (1, 1)
    (left,) = producer.prefix("e:")
    failed = producer.entry_stats(left.key)
    assert failed.attempts == 1
    assert (failed.last_error or "").startswith("BodyError: SMTP 550")


def test_run_ends_at_an_interrupt_and_where_it_is_to_raise(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    def raising(error: BaseException) -> Callable[[SyncJob], None]:
        def work(_job: SyncJob) -> None:
            raise error

        return work

    for error in (KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(error)):
            producer.jobs("d", count=2).run(raising(error))
        assert states(producer) == {"1": "ready", "2": "ready"}
        assert producer.entry_stats(key_of("1")).attempts == 0
    with pytest.raises(BodyError):
        producer.jobs("d", count=2).run(raising(BodyError()), on_error="raise")
    assert producer.entry_stats(key_of("1")).last_error == "BodyError"
    assert states(producer)["2"] == "ready"


def block(observer: SyncClient) -> None:
    """Block the event loop until the lease of job 1 is over, and its last words come too late."""
    wait_until(lambda: observer.entry_stats(key_of("1")).state == "ready")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("words_s", [0, 60])
def test_loop_that_its_body_blocks_says_that_the_program_did_not_run(
    daemon: DaemonProcess,
    producer: SyncClient,
    backend: str,
    words_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client gives a completion some seconds beyond the lease; a body may block for longer."""
    monkeypatch.setattr("fastjournal.client.aio.jobs.CLIENT_LAST_WORDS_S", words_s)

    async def main() -> None:
        async with Client(daemon.address) as client:
            jobs = client.jobs("d", lease=1)
            job = await anext(jobs)
            with pytest.raises(LeaseLostError) as caught:
                async with job:
                    block(producer)
            assert isinstance(job.loss, FastjournalError)
            assert job.loss.code == "stalled"
            assert caught.value.__cause__ is job.loss
            jobs = client.jobs("d", lease=1)
            job = await anext(jobs)
            block(producer)
            await job.lost.wait()
            assert job.loss is not None
            assert job.loss.code == "stalled"

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_run_fails_a_job_that_stalls_the_program_for_the_second_time(
    daemon: DaemonProcess, producer: SyncClient, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer.delete(key_of("2"))
    begun = []

    async def work(job: Job) -> None:
        begun.append(job.attempts)
        block(producer)

    async def main() -> None:
        async with Client(daemon.address) as client:
            jobs = client.jobs("d", lease=1, wait=None, retry_delay=3600)
            with anyio.fail_after(60):
                assert await jobs.run(work) == 3

    with caplog.at_level(logging.INFO, "fastjournal"):
        anyio.run(main, backend=backend)
    assert len(begun) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    stats = producer.entry_stats(key_of("1"))
    assert stats.state == "delayed"
    assert stats.last_error is not None
    assert stats.last_error.startswith("this program did not run for ")
    assert stats.attempts == begun[1] + 2


STOPPED = """
import sys, time
from fastjournal import SyncClient
with SyncClient(sys.argv[1]) as client:
    for job in client.jobs("d", lease=1):
        print("begun", flush=True)
        job.lost.wait()
        print(job.loss, flush=True)
        break
"""


def test_blocking_worker_that_was_stopped_says_that_the_program_did_not_run(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", STOPPED, daemon.address], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begun\n"
    os.kill(worker.pid, signal.SIGSTOP)
    wait_until(lambda: producer.entry_stats(key_of("1")).state == "ready")
    os.kill(worker.pid, signal.SIGCONT)
    output, _ = worker.communicate(timeout=60)
    assert "this program did not run for " in output


@pytest.mark.parametrize("backend", BACKENDS)
def test_reply_that_came_while_the_program_did_not_run_is_read(backend: str) -> None:
    may_answer = threading.Event()

    def answer(request: Request) -> Answer:
        if request.function == Function.NOP:
            assert may_answer.wait(60)
        return [Reply(request.identifier)]

    async def main() -> None:
        for _ in range(1):
            may_answer.clear()
            with ScriptedDaemon(answer) as daemon:
                client = Client(daemon.address, reply_timeout=2, reconnect=None)
                async with client, anyio.create_task_group() as group:
                    group.start_soon(client.nop)
                    while not any(r.function == Function.NOP for r in daemon.requests):
                        await anyio.lowlevel.checkpoint()
                    may_answer.set()
                    time.sleep(2.2)  # noqa: ASYNC251 - the stall

    anyio.run(main, backend=backend)


def test_jobs_of_several_domains_or_a_prefix_are_worked_off_by_one_loop(
    daemon: DaemonProcess,
) -> None:
    with SyncClient(daemon.address) as client:
        for key in ("a:1:0:1", "a:1:0:2", "b:1:0:1", "c/d:1:0:1", "other:1:0:1"):
            client.set(key, "v")
        turns = [job.key for job in client.jobs(["b", "a"], wait=None)]
        assert turns == [b"b:1:0:1", b"a:1:0:1", b"a:1:0:2"]
        assert [job.key for job in client.jobs(prefix="c/", wait=None)] == [b"c/d:1:0:1"]
        assert [pair.key for pair in client.peek(["other", "a"]).pairs] == [b"other:1:0:1"]
