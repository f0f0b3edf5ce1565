"""Job loops of both clients against a real daemon: what ends a job, and how."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import trio
import trio.lowlevel
import trio.testing

from fastjournal import (
    Client,
    EntryStats,
    LeaseLostError,
    RefusedError,
    SyncClient,
    build_journal_key,
)
from fastjournal.limits import CLIENT_LAST_WORDS_S
from tests.integration.daemon_process import DaemonProcess
from tests.integration.two_jobs import QUICK, key_of

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


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
            async for _job in client.jobs("d", retry_delay=delay):
                raise BodyError
        await until(lambda: states(producer) == {"1": "ready", "2": "ready"})
        with pytest.raises(BodyError):
            async with client.jobs("d", retry_delay=delay) as jobs:
                async for _job in jobs:
                    raise BodyError
        assert states(producer) == {"1": "ready", "2": "ready"}
        await client.nop()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


async def test_loop_passes_an_exception_on_as_it_is_and_releases_the_job(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async with Client(daemon.address) as client:
        with pytest.raises(BodyError):
            async for _job in client.jobs("d"):
                raise BodyError
        await until(lambda: states(producer) == {"1": "ready", "2": "ready"})
    with pytest.raises(BodyError):
        async with Client(daemon.address) as client:
            async for _job in client.jobs("d", retry_delay=3600):
                raise BodyError
    assert states(producer) == {"1": "delayed", "2": "ready"}


async def test_job_is_released_by_break_return_and_cancellation(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async def return_from_body(client: Client) -> object:
        async for job in client.jobs("d"):
            return job.key
        return None

    async with Client(daemon.address) as client:
        async for _job in client.jobs("d"):
            break
        await until(lambda: states(producer)["1"] == "ready")
        assert await return_from_body(client) == key_of("1")
        await until(lambda: states(producer)["1"] == "ready")
        with trio.move_on_after(0.05):
            async for _job in client.jobs("d"):
                await trio.sleep_forever()
        await until(lambda: states(producer)["1"] == "ready" and not client.pools)


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
        with trio.move_on_after(0.05):
            async with client.jobs("d", retry_delay=3600) as jobs:
                async for _job in jobs:
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


def test_release_of_many_jobs_with_a_daemon_that_is_gone_takes_a_few_seconds(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        started_s = 0.0
        with pytest.raises(BodyError):
            async with Client(daemon.address) as client, client.jobs("d", count=2) as jobs:
                async for _job in jobs:
                    daemon.kill()
                    clock.autojump_threshold = 0.1
                    started_s = trio.current_time()
                    raise BodyError
        assert trio.current_time() - started_s < 1.5 * CLIENT_LAST_WORDS_S

    trio.run(main, clock=clock)


# --- blocking ---------------------------------------------------------------------------------


def test_blocking_exception_or_a_break_releases_the_job(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    with SyncClient(daemon.address) as client:
        for _job in client.jobs("d", count=2):
            assert states(producer) == {"1": "worked on", "2": "worked on"}
            break
        wait_until(lambda: states(producer) == {"1": "ready", "2": "ready"})
        with pytest.raises(BodyError):
            for _job in client.jobs("d", retry_delay=3600):
                raise BodyError
    assert states(producer) == {"1": "delayed", "2": "ready"}


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
    producer.limit("d", attempts=3)
    producer.kick(key_of("1"))
    with SyncClient(daemon.address, reconnect=QUICK) as worker:
        for job in worker.jobs("d", retry_delay=0):
            failed = job.fail("failure 3")
            assert (failed.buried, failed.delay_us) == (True, None), "by the daemon"
            break
    assert producer.entry_stats(key_of("1")).buried_reason == "failure 3"
