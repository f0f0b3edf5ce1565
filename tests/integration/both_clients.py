"""One way to drive both clients, so that one suite says what they do."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import trio

from fastjournal import Client, Entry, FastjournalError, SyncClient

KINDS = ("sync", "trio", "asyncio")


class Threaded:
    """A SyncClient whose methods are awaited; each runs in a thread."""

    def __init__(self, client: SyncClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        async def run(*args: Any, **kwargs: Any) -> Any:
            return await trio.to_thread.run_sync(functools.partial(method, *args, **kwargs))

        return run


class OnAsyncio:
    """A Client in an asyncio event loop of another thread; its methods are awaited in trio.

    A call that is cancelled in trio is cancelled in asyncio, and waited for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        self.client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self.ask, getattr(self.client, name))

    async def ask(
        self, method: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Return what the coroutine returns in the other loop."""
        future = asyncio.run_coroutine_threadsafe(method(*args, **kwargs), self._loop)
        over, token = trio.Event(), trio.lowlevel.current_trio_token()
        future.add_done_callback(lambda _: token.run_sync_soon(over.set))
        try:
            await over.wait()
        except trio.Cancelled:
            future.cancel()
            raise
        return future.result()


@asynccontextmanager
async def on_asyncio(address: str, **options: Any) -> AsyncIterator[OnAsyncio]:
    """Connect a Client in an asyncio event loop of another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    token, entered, leave = trio.lowlevel.current_trio_token(), trio.Event(), asyncio.Event()
    clients: list[Client] = []

    async def block() -> None:
        # one task enters the block of the client and leaves it
        try:
            async with Client(address, **options) as client:
                clients.append(client)
                token.run_sync_soon(entered.set)
                await leave.wait()
        finally:
            token.run_sync_soon(entered.set)

    inside = asyncio.run_coroutine_threadsafe(block(), loop)
    try:
        await entered.wait()
        if not clients:
            await trio.to_thread.run_sync(inside.result)
        yield OnAsyncio(loop, clients[0])
    finally:
        loop.call_soon_threadsafe(leave.set)
        with trio.CancelScope(shield=True), contextlib.suppress(FastjournalError):
            await trio.to_thread.run_sync(inside.result)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


AnyClient = Any
"""A Client, or one in a thread or in another event loop: the methods are the same."""


@asynccontextmanager
async def connected(kind: str, address: str, **options: Any) -> AsyncIterator[AnyClient]:
    """Connect a client of that kind."""
    if kind == "trio":
        async with Client(address, **options) as client:
            yield client
        return
    if kind == "asyncio":
        async with on_asyncio(address, **options) as other:
            yield other
        return
    blocking = SyncClient(address, **options)
    await trio.to_thread.run_sync(blocking.connect)
    with blocking:
        yield Threaded(blocking)


async def all_of(client: AnyClient, scan: str, *args: Any, **kwargs: Any) -> list[Entry]:
    """Return everything that an iterator over entries gives."""
    if isinstance(client, Threaded):
        method = getattr(client.client, scan)
        return await trio.to_thread.run_sync(lambda: list(method(*args, **kwargs)))
    if isinstance(client, OnAsyncio):
        return await client.ask(_all_of, client.client, scan, args, kwargs)
    return await _all_of(client, scan, args, kwargs)


async def _all_of(client: Client, scan: str, args: Any, kwargs: Any) -> list[Entry]:
    return [entry async for entry in getattr(client, scan)(*args, **kwargs)]
