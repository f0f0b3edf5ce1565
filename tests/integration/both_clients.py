"""One way to drive both clients, so that one suite says what they do."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from fastjournal import Client, Entry, SyncClient

KINDS = ("sync", "trio")


class Threaded:
    """A SyncClient whose methods are awaited; each runs in a thread."""

    def __init__(self, client: SyncClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        async def run(*args: Any, **kwargs: Any) -> Any:
            return await trio.to_thread.run_sync(functools.partial(method, *args, **kwargs))

        return run


AnyClient = Any
"""A Client, or a Threaded one: the methods are the same."""


@asynccontextmanager
async def connected(kind: str, address: str, **options: Any) -> AsyncIterator[AnyClient]:
    """Connect a client of that kind."""
    if kind == "trio":
        async with Client(address, **options) as client:
            yield client
        return
    with SyncClient(address, **options) as blocking:
        yield Threaded(blocking)


async def all_of(client: AnyClient, scan: str, *args: Any, **kwargs: Any) -> list[Entry]:
    """Return everything that an iterator over entries gives."""
    if isinstance(client, Threaded):
        method = getattr(client.client, scan)
        return await trio.to_thread.run_sync(lambda: list(method(*args, **kwargs)))
    return [entry async for entry in getattr(client, scan)(*args, **kwargs)]
