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

from fastjournal import Client, Mirror, Reconnect, RefusedError, SyncClient
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
