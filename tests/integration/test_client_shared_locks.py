"""``locked`` among tasks and threads that share a client, and in tasks that are cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import anyio
import pytest
import trio
import trio.testing

from fastjournal import (
    Client,
    FastjournalError,
    LockLostError,
    RefusedError,
    SyncClient,
)
from fastjournal.protocol import Function, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, Do, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess
from tests.integration.worker_process import wait_until

WRITERS, ROUNDS = 6, 10


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


CONTENDED = """
import sys, time
from fastjournal import LockLostError, SyncClient
with SyncClient(sys.argv[1]) as client:
    try:
        with client.locked("k", timeout=1, renew=True) as lock:
            print("begun", flush=True)
            lock.lost.wait()
            print(lock.loss.code, flush=True)
    except LockLostError as error:
        print(error.__cause__, flush=True)
"""

CONTENDED_TASK = """
import sys
import anyio
from fastjournal import Client, LockLostError
async def main():
    async with Client(sys.argv[1]) as client:
        try:
            async with client.locked("k", timeout=1, renew=True) as lock:
                print("begun", flush=True)
                await anyio.sleep_forever()
        except LockLostError as error:
            print(lock.loss.code, flush=True)
            print(error.__cause__, flush=True)
anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.parametrize("kind", ["sync", "trio", "asyncio"])
def test_locked_block_of_a_stopped_program_learns_that_its_lock_was_lost(
    daemon: DaemonProcess, client: SyncClient, kind: str
) -> None:
    client.set("k", "v")
    program = CONTENDED if kind == "sync" else CONTENDED_TASK
    holder = subprocess.Popen(
        [sys.executable, "-c", program, daemon.address, kind], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "begun\n"
    os.kill(holder.pid, signal.SIGSTOP)
    wait_until(lambda: not client.entry_stats("k").locked_until_us)
    with client.locked("k"):
        client.set("k", "other", overwrite=True)
    os.kill(holder.pid, signal.SIGCONT)
    said, _ = holder.communicate(timeout=60)
    assert said.startswith("stalled\nthis program did not run for ")
    assert said.endswith("a longer lock)\n")
    assert holder.returncode == 0


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_locked_block_of_a_task_keeps_its_lock_beyond_its_length(
    daemon: DaemonProcess, client: SyncClient, backend: str
) -> None:
    client.set("k", "v")

    async def main() -> None:
        async with Client(daemon.address) as holder:
            async with holder.locked("k", timeout=1, renew=True):
                first = client.entry_stats("k").locked_until_us
                with anyio.fail_after(60):
                    while client.entry_stats("k").locked_until_us <= first + 1_500_000:  # noqa: ASYNC110 - a daemon sets it
                        await anyio.sleep(0.01)
                with pytest.raises(RefusedError, match="locked"):
                    client.set("k", "other", overwrite=True)
            assert not client.entry_stats("k").locked_until_us

    anyio.run(main, backend=backend)


def test_locked_block_of_a_thread_learns_that_the_daemon_was_restarted(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    client.set("k", "v")
    with SyncClient(daemon.address) as holder:

        def lose() -> None:
            with holder.locked("k", timeout=5, renew=True) as lock:
                daemon.kill()
                daemon.start()
                assert lock.lost.wait(60)
                lost.append(lock.loss)

        lost: list[object] = []
        with pytest.raises(LockLostError) as caught:
            lose()
        assert [caught.value.__cause__] == lost
        assert caught.value.code == "not-owner"
        with holder.locked("k", timeout=5, renew=True):
            pass


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_locked_block_of_a_task_is_cancelled_where_the_daemon_was_restarted(
    daemon: DaemonProcess, client: SyncClient, backend: str
) -> None:
    client.set("k", "v")

    async def lose(holder: Client) -> None:
        async with holder.locked("k", timeout=5, renew=True):
            daemon.kill()
            daemon.start()
            await anyio.sleep(60)
            raise AssertionError("it was not cancelled")

    async def main() -> None:
        async with Client(daemon.address) as holder:
            with pytest.raises(LockLostError) as caught:
                await lose(holder)
            assert isinstance(caught.value.__cause__, FastjournalError)
            async with holder.locked("k", timeout=5, renew=True):
                pass

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("kind", ["sync", "trio", "asyncio"])
def test_locked_block_whose_unlock_meets_a_cut_connection_has_lost_its_lock(kind: str) -> None:
    unlocks: list[Request] = []

    def answer(request: Request) -> Answer:
        if request.function == Function.UNLOCK:
            unlocks.append(request)
            if len(unlocks) == 1:
                return [Do.CLOSE]
            return [Reply(request.identifier, error="not-found the entry is not locked")]
        return [Reply(request.identifier)]

    async def main(address: str) -> None:
        async with Client(address) as client:
            with pytest.raises(LockLostError) as caught:
                async with client.locked("k"):
                    pass
            assert caught.value.__cause__ is not None

    with ScriptedDaemon(answer) as daemon:
        if kind == "sync":
            with (
                SyncClient(daemon.address) as client,
                pytest.raises(LockLostError),
                client.locked("k"),
            ):
                pass
        else:
            anyio.run(main, daemon.address, backend=kind)
    assert len(unlocks) == 2


def test_lock_that_waits_for_the_turn_of_another_thread_until_its_end_is_lost(
    daemon: DaemonProcess, client: SyncClient
) -> None:
    client.set("k", "v")
    with SyncClient(daemon.address) as holder:
        waiting = threading.Thread(target=holder.next, args=("d",), kwargs={"wait": 3})

        def wait() -> None:
            with holder.locked("k", timeout=1, renew=True) as lock:
                waiting.start()
                assert lock.lost.wait(60)
                assert waiting.is_alive()
                waiting.join()

        with pytest.raises(LockLostError) as caught:
            wait()
        assert isinstance(caught.value.__cause__, FastjournalError)
        assert caught.value.__cause__.code == "timed-out"
