"""``locked`` among tasks and threads that share a client, and in tasks that are cancelled."""

from __future__ import annotations

import threading
import time

import pytest
import trio
import trio.testing

from fastjournal import Client, RefusedError, SyncClient
from fastjournal.protocol import Function, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess

WRITERS, ROUNDS = 6, 10


async def test_locked_excludes_tasks_of_one_client(daemon: DaemonProcess) -> None:
    async def count(client: Client) -> None:
        for _ in range(ROUNDS):
            while True:
                try:
                    async with client.locked("k"):
                        seen = (await client.get("k")).decoded()
                        assert isinstance(seen, int)
                        await client.set("k", seen + 1, overwrite=True)
                    break
                except RefusedError as error:
                    if error.code != "locked":
                        raise
                    await trio.sleep(0.001)

    async with Client(daemon.address) as client:
        await client.set("k", 0)
        async with trio.open_nursery() as nursery:
            for _ in range(WRITERS):
                nursery.start_soon(count, client)
        assert (await client.get("k")).decoded() == WRITERS * ROUNDS


def test_locked_excludes_threads_of_one_client(daemon: DaemonProcess) -> None:
    failed: list[BaseException] = []

    def count(client: SyncClient) -> None:
        try:
            for _ in range(ROUNDS):
                while True:
                    try:
                        with client.locked("k"):
                            seen = client.get("k").decoded()
                            assert isinstance(seen, int)
                            client.set("k", seen + 1, overwrite=True)
                        break
                    except RefusedError as error:
                        if error.code != "locked":
                            raise
                        time.sleep(0.001)
        except BaseException as error:  # the test looks at it
            failed.append(error)
            raise

    with SyncClient(daemon.address) as client:
        client.set("k", 0)
        threads = [threading.Thread(target=count, args=(client,)) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert client.get("k").decoded() == WRITERS * ROUNDS


async def test_lock_that_is_given_to_a_cancelled_task_is_released() -> None:
    held: list[Request] = []

    def answer(request: Request) -> Answer:
        if request.function == Function.LOCK:
            held.append(request)
            return []
        replies = [Reply(request.identifier)]
        if held and request.function == Function.NOP:
            replies.append(Reply(held[0].identifier))
        return replies

    with ScriptedDaemon(answer) as daemon:
        async with Client(daemon.address) as client:
            async with trio.open_nursery() as nursery:

                async def lock() -> None:
                    async with client.locked("k"):
                        raise AssertionError("it was cancelled")

                nursery.start_soon(lock)
                while not held:  # noqa: ASYNC110 - a thread sets it
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
            await client.nop()
            with trio.fail_after(60):
                while daemon.requests[-1].function != Function.UNLOCK:  # noqa: ASYNC110 - a thread
                    await trio.sleep(0.001)


async def test_block_that_ends_in_a_cancelled_scope_unlocks(daemon: DaemonProcess) -> None:
    async with Client(daemon.address) as client:
        await client.set("k", 0)
        with trio.CancelScope() as scope:
            async with client.locked("k"):
                scope.cancel()
        assert scope.cancelled_caught
        with SyncClient(daemon.address) as other:
            other.set("k", 1, overwrite=True)


def test_locks_of_other_keys_and_nested_ones_are_distinct(daemon: DaemonProcess) -> None:
    with SyncClient(daemon.address) as client:
        client.set("k", 0)
        client.set("l", 0)
        with client.locked("k"), client.locked("l"):
            with pytest.raises(RefusedError) as caught, client.locked("k"):
                pass
            assert caught.value.code == "locked"
        with client.locked("k"):
            pass


@pytest.mark.parametrize("by", ["connection", "time"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_lock_that_was_lost_is_not_renewed_by_its_client(
    daemon: DaemonProcess, client: SyncClient, kind: str, by: str
) -> None:
    client.set("k", "v")
    length = 60 if by == "connection" else 0.05

    def lose() -> None:
        if by == "connection":
            daemon.kill()
            daemon.start()
        while client.entry_stats("k").locked_until_us:
            time.sleep(0.01)

    if kind == "sync":
        with SyncClient(daemon.address) as holder:
            holder.lock("k", timeout=60)
            holder.lock("k", timeout=length, renew=True)
            lose()
            with pytest.raises(RefusedError) as caught:
                holder.lock("k", renew=True)
    else:
        async with Client(daemon.address) as other:
            await other.lock("k", timeout=60)
            await other.lock("k", timeout=length, renew=True)
            await trio.to_thread.run_sync(lose)
            with pytest.raises(RefusedError) as caught:
                await other.lock("k", renew=True)
    assert caught.value.code == "not-owner"
    assert not client.entry_stats("k").locked_until_us
