"""Client under asyncio: cancellation, job loops, listeners and reconnecting in its event loop.

The suites of ``both_clients`` test the behaviour that both event loops share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

import anyio
import pytest

from fastjournal import (
    ChangeKind,
    Client,
    Job,
    SyncClient,
)
from tests.integration.daemon_process import DaemonProcess
from tests.integration.two_jobs import QUICK, key_of

TIMEOUT_S = 60


class BodyError(Exception):
    """Error of a body."""


def states(producer: SyncClient) -> dict[str, str]:
    keys = [entry.key for entry in producer.prefix("d:")]
    return {key[-1:].decode(): producer.entry_stats(key).state for key in keys}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.01)


def test_cancellation_that_comes_with_the_reply_releases_its_lease(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async def main() -> None:
        async with Client(daemon.address) as client:
            for turns in range(40):
                leasing = asyncio.create_task(client.next("d", count=2))
                for _ in range(turns):
                    await asyncio.sleep(0)
                leasing.cancel()
                try:
                    jobs = await leasing
                except asyncio.CancelledError:
                    continue
                for job in jobs:
                    assert job.token is not None
                    await client.release(job.key, job.token)
            await until(lambda: states(producer) == {"1": "ready", "2": "ready"})

    asyncio.run(main())


def test_cancellation_of_a_program_releases_what_it_holds(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async def main() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3), Client(daemon.address) as client:
                async for _job in client.jobs("d", count=2):
                    assert states(producer) == {"1": "worked on", "2": "worked on"}
                    await asyncio.sleep(TIMEOUT_S)
        assert states(producer) == {"1": "ready", "2": "ready"}

    asyncio.run(main())


@pytest.mark.parametrize("enclosed", [False, True], ids=["alone", "in-a-scope-of-anyio"])
@pytest.mark.parametrize("by", ["cancel", "timeout"])
def test_cancellation_while_a_client_releases_ends_its_tasks_and_its_connection(
    by: str, enclosed: bool, daemon: DaemonProcess
) -> None:
    """The daemon owes the reply to a NEXT, so the end of the block waits for the lease in it."""

    async def leave(client: Client, at_end: asyncio.Event) -> None:
        async with client:
            os.kill(daemon.pid, signal.SIGSTOP)
            leasing = asyncio.create_task(client.next("d", wait=60))
            await asyncio.sleep(0)
            leasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leasing
            at_end.set()

    async def leave_in_time(client: Client, at_end: asyncio.Event) -> None:
        with anyio.CancelScope() if enclosed else contextlib.nullcontext():
            async with asyncio.timeout(0.5 if by == "timeout" else None):
                await leave(client, at_end)

    async def main() -> None:
        client, at_end = Client(daemon.address), asyncio.Event()
        leaving = asyncio.create_task(leave_in_time(client, at_end))
        await at_end.wait()
        transport = client.connection.transport
        assert transport is not None
        if by == "cancel":
            await asyncio.sleep(0.05)
            assert leaving.cancel()
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await leaving
        assert not client.connection.is_open
        assert transport.multiplexer.failed
        assert asyncio.all_tasks() == {asyncio.current_task()}
        os.kill(daemon.pid, signal.SIGCONT)
        async with client:  # it can be entered again
            await client.nop()

    try:
        asyncio.run(main())
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_job_loop_completes_renews_and_ends(daemon: DaemonProcess, producer: SyncClient) -> None:
    async def main() -> list[object]:
        seen: list[object] = []
        async with Client(daemon.address) as client:
            async for job in client.jobs("d", lease=3, wait=None):
                token = job.token
                await until(lambda token=token, job=job: job.token > token)  # it was renewed
                seen.append(job.decoded())
        return seen

    assert asyncio.run(main()) == ["1", "2"]
    assert states(producer) == {}


def test_run_works_side_by_side_fails_what_raises_and_stops(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    for name in "345678":
        producer.set(key_of(name), name)

    async def main() -> None:
        running = most = 0

        async def work(job: Job) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            if job.decoded() == "5":
                await job.fail("no", delay=3600)

        async with Client(daemon.address) as client:
            assert await client.jobs("d", count=4, wait=None).run(work) == 8
            assert most == 4
            assert (await client.domain_stats("d")).delayed == 1
            loop = client.jobs("d", count=4)
            asyncio.get_running_loop().call_later(0.05, loop.stop)
            assert await loop.run(work) == 0  # it waited for work, and stops at once

            async def fail(_job: Job) -> None:
                raise BodyError("no route")

            await client.set(key_of("9"), "9")
            with pytest.raises(ExceptionGroup) as caught:
                await client.jobs("d", wait=None).run(fail, on_error="raise")
            assert caught.group_contains(BodyError)
            assert (await client.entry_stats(key_of("9"))).last_error == "BodyError: no route"

    asyncio.run(main())


def test_listener_tells_changes_over_a_restart_of_the_daemon(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with (
            Client(daemon.address, reconnect=QUICK) as client,
            client.listen(prefix="color:") as changes,
            asyncio.timeout(TIMEOUT_S),
        ):
            await client.set("color:sky", "blue")
            change = await anext(changes)
            assert (change.kind, change.key, change.decoded()) == (
                ChangeKind.SET,
                b"color:sky",
                "blue",
            )
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)
            assert (await anext(changes)).kind is ChangeKind.MISSED
            await client.delete("color:sky")
            assert (await anext(changes)).kind is ChangeKind.GONE

    asyncio.run(main())


def test_client_leaves_no_task_behind_in_asyncio(
    daemon: DaemonProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Client(daemon.address) as client:
            await client.set("k", "v")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main(), debug=True)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
