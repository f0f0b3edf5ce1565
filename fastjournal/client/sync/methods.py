"""Methods of ``SyncClient``: all that ``core.calls`` describes, and those of more than one call."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call, CallMethods, PagedCall
from fastjournal.client.core.calls.described_methods import Caller, add_methods, wrap
from fastjournal.client.core.held_lease import LockClaims, lock_length_us
from fastjournal.client.core.results import Entry, Page
from fastjournal.client.sync.connection import SyncConnection
from fastjournal.times import Duration

if TYPE_CHECKING:
    from fastjournal.client.sync.listen import SyncListener
    from fastjournal.client.sync.locks import SyncLock

P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate[SyncMethods, P], T]:
    """Return a method that sends the call and returns its result."""

    def method(self: SyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(build(*args, **kwargs))

    return method


def _iterator(
    build: Callable[P, PagedCall[T]],
) -> Callable[Concatenate[SyncMethods, P], Iterator[T]]:
    """Return a method that gives what a scan finds, a page in memory at a time."""

    def method(self: SyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self.entries_of(build(*args, **kwargs))

    return method


def _listener(
    build: Callable[P, Call[Page[Entry]]],
) -> Callable[Concatenate[SyncMethods, P], SyncListener]:
    """Return a method that gives the changes that a call asks for."""

    def method(self: SyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> SyncListener:
        return self._listen_to(build(*args, **kwargs))

    return wrap(method, build, "listen", "SyncListener")


class SyncMethods(CallMethods, Caller):
    """Methods of ``SyncClient``, for any object that can send a call."""

    _claims: LockClaims
    connection: SyncConnection

    @abstractmethod
    def _listen_to(self, call: Call[Page[Entry]]) -> SyncListener:
        """Return the changes that a call asks for."""

    listen = _listener(calls.listening)
    """Listen to changes of a key, a prefix, a range or an expression."""

    def entries_of(self, scan: PagedCall[T]) -> Iterator[T]:
        """Iterate over the entries of a scan, with one page in memory."""
        call: Call[Page[T]] | None = scan.first
        while call is not None:
            page = self.call(call)
            call = None if page.cursor is None else scan.following(page.cursor)
            yield from page

    @contextlib.contextmanager
    def locked(
        self, key: str | bytes, *, timeout: Duration | None = None, renew: bool = False
    ) -> Iterator[SyncLock]:
        length_us = lock_length_us(timeout, renew=renew)
        from fastjournal.client.sync.locks import SyncLock  # noqa: PLC0415 - not for a request

        with (
            self._claims.hold(key),
            SyncLock(self.connection, key, length_us, renew=renew) as lock,
        ):
            yield lock


add_methods(SyncMethods, _method, _iterator, "Iterator")
