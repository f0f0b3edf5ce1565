"""Methods of ``Client``: all that ``core.calls`` describes, and those of more than one call."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio.lowlevel

from fastjournal.client.aio.connection import AsyncConnection
from fastjournal.client.aio.listen import Listener
from fastjournal.client.aio.locks import Lock, lock_for_block
from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call, CallMethods, PagedCall
from fastjournal.client.core.calls.described_methods import AsyncCaller, add_methods, wrap
from fastjournal.client.core.held_lease import LockClaims, lock_length_us
from fastjournal.client.core.results import Entry, Page
from fastjournal.times import Duration

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncMethods, P], Coroutine[Any, Any, T]]:
    """Return a method that sends the call and returns its result."""

    async def method(self: AsyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.call(build(*args, **kwargs))

    return method


def _iterator(
    build: Callable[P, PagedCall[T]],
) -> Callable[Concatenate[AsyncMethods, P], AsyncIterator[T]]:
    """Return a method that gives what a scan finds, a page in memory at a time."""

    def method(self: AsyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return _PagedEntries(self, build(*args, **kwargs))

    return method


def _listener(
    build: Callable[P, Call[Page[Entry]]],
) -> Callable[Concatenate[AsyncMethods, P], Listener]:
    """Return a method that gives the changes that a call asks for."""

    def method(self: AsyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> Listener:
        return self._listen_to(build(*args, **kwargs))

    return wrap(method, build, "listen", "Listener")


class AsyncMethods(CallMethods, AsyncCaller):
    """Methods of ``Client``, for any object that can send a call."""

    _claims: LockClaims
    connection: AsyncConnection

    @abstractmethod
    def _listen_to(self, call: Call[Page[Entry]]) -> Listener:
        """Return the changes that a call asks for."""

    listen = _listener(calls.listening)
    """Listen to changes of a key, a prefix, a range or an expression."""

    @contextlib.asynccontextmanager
    async def locked(
        self,
        key: str | bytes,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - of the lock
        renew: bool = False,
    ) -> AsyncIterator[Lock]:
        length_us = lock_length_us(timeout, renew=renew)
        with self._claims.hold(key):
            lock = await lock_for_block(self.connection, key, length_us)
            async with lock.hold(renew=renew):
                yield lock


class _PagedEntries(Generic[T]):
    """Iterates over what a scan finds: the pages one after the other, one in memory."""

    def __init__(self, client: AsyncMethods, scan: PagedCall[T]) -> None:
        self._client = client
        self._scan = scan
        self._call: Call[Page[T]] | None = scan.first
        self._page: deque[T] = deque()

    def __aiter__(self) -> _PagedEntries[T]:
        return self

    async def __anext__(self) -> T:
        while not self._page:
            if self._call is None:
                await anyio.lowlevel.checkpoint()
                raise StopAsyncIteration
            page = await self._client.call(self._call)
            self._call = None if page.cursor is None else self._scan.following(page.cursor)
            self._page.extend(page.entries)
        return self._page.popleft()


add_methods(AsyncMethods, _method, _iterator, "AsyncIterator")
