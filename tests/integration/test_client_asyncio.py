"""Client under asyncio: cancellation, job loops, listeners and reconnecting in its event loop.

The suites of ``both_clients`` test the behaviour that both event loops share.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import trustme

from fastjournal import (
    CannotConnectError,
    ChangeKind,
    Client,
    Job,
    LeaseLostError,
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


def test_client_is_shared_by_a_task_group_of_asyncio(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with Client(daemon.address) as client, asyncio.TaskGroup() as group:
            tasks = [group.create_task(count(client)) for _ in range(50)]
        assert sum(len(task.result()) for task in tasks) == 500

    async def count(client: Client) -> list[object]:
        return [(await client.add("hits", create=True)).decoded() for _ in range(10)]

    asyncio.run(main())
    with SyncClient(daemon.address) as client:
        assert client.get("hits").decoded() == 500


def test_cancellation_of_a_waiting_next_leases_nothing(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with Client(daemon.address) as client:
            for _ in range(3):
                waiting = asyncio.create_task(client.next("d", wait=60))
                await asyncio.sleep(0.02)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await client.next("d", wait=60)
            await client.set(key_of("1"), "work")
            assert (await client.domain_stats("d")).due == 1
            assert len(await client.next("d", wait=60)) == 1

    asyncio.run(main())


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


def test_job_loop_that_is_left_by_break_releases_its_job_soon(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async def main() -> None:
        async with Client(daemon.address) as client:
            async for _job in client.jobs("d", count=2):
                break
            gc.collect()
            await until(lambda: states(producer) == {"1": "ready", "2": "ready"})

    asyncio.run(main())


def test_job_whose_lease_is_lost_cancels_its_block(
    daemon: DaemonProcess, producer: SyncClient
) -> None:
    async def main() -> None:
        async with Client(daemon.address) as client:
            async for job in client.jobs("d", lease=1):
                producer.bury(job.key)  # takes the lease away
                with pytest.raises(LeaseLostError, match=r"lease.*key 'd:"):
                    async with job:
                        await asyncio.sleep(TIMEOUT_S)
                assert job.lost.is_set()
                break

    asyncio.run(main())


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
                await client.jobs("d", wait=None, retry_delay=3600).run(fail)
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


def test_client_reconnects_and_fails_where_nobody_listens(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    async def main() -> None:
        async with Client(daemon.address, reconnect=QUICK) as client:
            await client.set("k", "v")
            await asyncio.to_thread(daemon.kill)
            reading = asyncio.create_task(client.get("k"))
            await asyncio.to_thread(daemon.start)
            assert (await reading).decoded() == "v"
        with pytest.raises(CannotConnectError, match="No such file") as caught:
            async with Client(f"unix:{tmp_path}/nobody"):
                pass
        assert caught.value.code == "cannot-connect"
        with pytest.raises(CannotConnectError, match=r"cannot connect to 127.0.0.1:1: .*refused"):
            async with Client("127.0.0.1:1"):
                pass

    asyncio.run(main())


def test_tls_and_its_refusals(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    (tmp_path / "both.pem").chmod(0o600)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    pem = str(tmp_path / "both.pem")

    async def main(address: str) -> None:
        async with Client(address, tls=str(tmp_path / "ca.pem")) as client:
            await client.set("k", b"v" * 900_000)
            assert len((await client.get("k")).value) == 900_000
        with pytest.raises(CannotConnectError, match="certificate is refused") as caught:
            async with Client(address, tls=str(tmp_path / "other.pem")):
                pass
        assert caught.value.code == "tls-failed"

    options = ("--listen", "127.0.0.1:0", "--tls-cert", pem, "--tls-key", pem)
    with DaemonProcess(tmp_path, *options) as daemon:
        asyncio.run(main(daemon.address))


def test_client_leaves_no_task_behind_in_asyncio(
    daemon: DaemonProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Client(daemon.address) as client:
            await client.set("k", "v")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main(), debug=True)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
