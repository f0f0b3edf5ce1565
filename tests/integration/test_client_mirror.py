"""Mirror: the local copy equals the daemon, under load and over restarts, in both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from random import Random

import anyio
import pytest
import trio

from fastjournal import (
    CannotConnectError,
    Client,
    FastjournalError,
    Mirror,
    Reconnect,
    RefusedError,
    SyncClient,
)
from fastjournal.protocol import Flag, Function, Meta, Pair, Reply, Request
from fastjournal.testing.scripted_daemon import Answer, ScriptedDaemon
from tests.integration.daemon_process import DaemonProcess

QUICK = Reconnect(first_pause=0.01, longest_pause=0.1, patience=60)
TIMEOUT_S = 60
KEYS = 300
LOOPS: dict[str, Callable[..., object]] = {
    "trio": trio.run,
    "asyncio": lambda main, *args: asyncio.run(main(*args)),
}


class Load:
    """Threads that set and delete entries at random until they are stopped."""

    def __init__(self, address: str, seed: int) -> None:
        self._address = address
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(seed + n,)) for n in range(2)]
        self.writes = [0, 0]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, seed: int) -> None:
        random, number = Random(seed), seed % 2
        with SyncClient(self._address, reconnect=QUICK) as client:
            while not self._over.is_set():
                key = f"color:{random.randrange(KEYS):04d}"
                with contextlib.suppress(RefusedError):  # another thread was first, or is newer
                    if random.random() < 0.3:
                        client.delete(key)
                    else:
                        persist = random.random() < 0.7
                        client.set(key, random.random(), persist=persist, overwrite=True)
                self.writes[number] += 1


def there(address: str) -> dict[bytes, object]:
    with SyncClient(address, reconnect=QUICK) as client:
        return {entry.key: entry.decoded() for entry in client.prefix("color:")}


def here(copy: Mirror) -> dict[bytes, object]:
    return {key: entry.decoded() for key, entry in copy.items()}


@pytest.mark.parametrize("loop", LOOPS)
def test_client_copy_equals_the_daemon_under_load_and_over_kills(
    loop: str, daemon: DaemonProcess
) -> None:
    async def main() -> None:
        async with Client(daemon.address, reconnect=QUICK) as client:
            async with client.mirror("color:") as copy:
                load = Load(daemon.address, seed=7)
                try:
                    for _ in range(3):
                        written = sum(load.writes)
                        with anyio.fail_after(TIMEOUT_S):
                            while sum(load.writes) < written + 500:  # noqa: ASYNC110 - threads
                                await anyio.sleep(0.01)
                        await anyio.to_thread.run_sync(daemon.kill)
                        await anyio.to_thread.run_sync(daemon.start)
                finally:
                    await anyio.to_thread.run_sync(load.stop)
                expected = await anyio.to_thread.run_sync(there, daemon.address)
                assert len(expected) > KEYS / 3
                with anyio.fail_after(TIMEOUT_S):
                    while not (copy.is_current and here(copy) == expected):
                        await copy.changed()
                assert copy.failure is None
            assert not copy.is_current

    LOOPS[loop](main)


@pytest.mark.parametrize("loop", LOOPS)
def test_client_copy_takes_over_single_changes(loop: str, daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with Client(daemon.address) as client:
            for number in range(2500):  # three pages
                await client.set(f"user:{number:04d}", number, persist=False)
            async with client.mirror("user:") as copy:
                assert sum(entry.decoded() for entry in copy.values()) == 2499 * 2500 // 2
                await client.set("user:0000", 7, overwrite=True)
                await client.delete("user:0001")
                await client.set("other", 1)
                await client.set("user:x", "new")
                with anyio.fail_after(TIMEOUT_S):
                    while b"user:x" not in copy:
                        await copy.changed()
                assert copy[b"user:0000"].decoded() == 7
                assert b"user:0001" not in copy
                assert len(copy) == 2500
            await client.set("user:y", 1)
            stats = await client.daemon_stats()
            assert stats.subscriptions == 0

    LOOPS[loop](main)


LISTEN = int(Flag.LISTEN)
both_loops = pytest.mark.parametrize("loop", LOOPS)


class Script:
    """Daemon with one entry, which ends a subscription at the PAUSE of a domain."""

    def __init__(self) -> None:
        self.subscription = 0
        self.subscribed = 0
        self.refusals: list[str] = []
        """Answers to the next subscriptions."""
        self.end = "busy"
        """Error with which a subscription ends."""

    def __call__(self, request: Request) -> Answer:
        if request.function == Function.PAUSE:
            over = Reply(self.subscription, flags=LISTEN, error=self.end)
            return [Reply(request.identifier), over]
        if request.function != Function.GET:
            return [Reply(request.identifier)]
        if request.flags & LISTEN:
            self.subscribed += 1
            self.subscription = request.identifier
            error = self.refusals.pop(0) if self.refusals else ""
            return [Reply(request.identifier, error=error, pairs=[])]
        pair = Pair(b"color:sky", 1, b"blue", meta=Meta(created_us=self.subscribed))
        return [Reply(request.identifier, pairs=[pair])]


async def wait_for(copy: Mirror, condition: Callable[[], bool]) -> None:
    with anyio.fail_after(TIMEOUT_S):
        while not condition():
            await copy.changed()


@both_loops
def test_client_copy_subscribes_again_after_a_refusal_that_passes(loop: str) -> None:
    script = Script()

    async def main(address: str) -> None:
        async with (
            Client(address, reconnect=QUICK) as client,
            client.mirror("color:") as copy,
        ):
            script.refusals = ["busy too many listen", "shutting-down", "read-only"]
            await client.pause("d", 1)
            await wait_for(copy, lambda: script.subscribed == 5 and copy.is_current)
            meta = copy[b"color:sky"].meta
            assert meta is not None
            assert meta.created_us == 5  # it was read anew, after the last subscription
            assert copy.failure is None

    with ScriptedDaemon(script) as daemon:
        LOOPS[loop](main, daemon.address)


@both_loops
@pytest.mark.parametrize("reconnect", [QUICK, None])
def test_client_copy_ends_after_a_refusal_for_good(loop: str, reconnect: Reconnect | None) -> None:
    script = Script()
    script.end = "busy" if reconnect is None else "forbidden"

    async def main(address: str) -> None:
        async with (
            Client(address, reconnect=reconnect) as client,
            client.mirror("color:") as copy,
        ):
            await client.pause("d", 1)
            with pytest.raises(RefusedError, match=script.end):
                await wait_for(copy, lambda: False)
            assert not copy.is_current
            assert script.subscribed == 1

    with ScriptedDaemon(script) as daemon:
        LOOPS[loop](main, daemon.address)


@both_loops
def test_client_copy_that_was_left_tells_those_who_wait_for_a_change(
    loop: str, daemon: DaemonProcess
) -> None:
    async def wait(copy: Mirror, waiting: anyio.Event, caught: list[FastjournalError]) -> None:
        waiting.set()
        try:
            await wait_for(copy, lambda: False)
        except FastjournalError as error:
            caught.append(error)

    async def main() -> None:
        waiting, caught = anyio.Event(), list[FastjournalError]()
        async with Client(daemon.address) as client, anyio.create_task_group() as group:
            await client.set("color:sky", "blue")
            async with client.mirror("color:") as copy:
                group.start_soon(wait, copy, waiting, caught)
                await waiting.wait()
        assert [error.code for error in caught] == ["not-connected"]
        with anyio.fail_after(TIMEOUT_S), pytest.raises(CannotConnectError, match="mirror"):
            await copy.changed()
        assert copy[b"color:sky"].decoded() == "blue"  # what was copied stays

    LOOPS[loop](main)
