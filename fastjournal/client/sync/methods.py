"""Methods of ``SyncClient`` that send one call each, see ``fastjournal.client.core.calls``.

A method has the arguments of its call, so that none of them stands twice.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from fastjournal.client.core import calls
from fastjournal.client.core.call_methods import wrap
from fastjournal.client.core.calls import Call, Scan
from fastjournal.client.core.results import Entry, Page
from fastjournal.client.core.shared_locks import Claims
from fastjournal.client.sync.listen import SyncListener
from fastjournal.errors import FastjournalError

P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate[SyncMethods, P], T]:
    """Return a method that sends the call and returns its result."""

    def method(self: SyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(build(*args, **kwargs))

    return wrap(method, build)


def _iterator(build: Callable[P, Scan]) -> Callable[Concatenate[SyncMethods, P], Iterator[Entry]]:
    """Return a method that gives the entries of a scan, a page in memory at a time."""

    def method(self: SyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Entry]:
        return self.entries_of(build(*args, **kwargs))

    return wrap(method, build, "Iterator[Entry]")


def _listener(
    build: Callable[P, Call[Page]],
) -> Callable[Concatenate[SyncMethods, P], SyncListener]:
    """Return a method that gives the changes that a call asks for."""

    def method(self: SyncMethods, /, *args: P.args, **kwargs: P.kwargs) -> SyncListener:
        return self._listen_to(build(*args, **kwargs))

    return wrap(method, build, "SyncListener")


class SyncMethods(ABC):
    """Whoever can send a call has these."""

    _claims: Claims

    @abstractmethod
    def call(self, call: Call[T]) -> T:
        """Send one of ``fastjournal.client.core.calls``; return its result."""

    @abstractmethod
    def _listen_to(self, call: Call[Page]) -> SyncListener:
        """Return the changes that a call asks for."""

    # --- values -----------------------------------------------------------------------------------

    set = _method(calls.set_)
    """Set a key to a value; return the timestamp of the write."""

    get = _method(calls.get)
    """Return the entry under a key, or lease it, or set its expiry."""

    delete = _method(calls.delete)
    """Delete an entry with all its keys; with its lease token: complete the job."""

    add = _method(calls.add)
    """Add to a stored number; return the entry with the new one."""

    flip = _method(calls.flip)
    """Flip a stored boolean; return the entry with the new one."""

    truncate = _method(calls.truncate)
    """Cut a buffer or string off behind so many bytes, or lengthen it with zero bytes."""

    rename = _method(calls.rename)
    """Move an entry to another primary key."""

    link = _method(calls.link)
    """Put an entry under one more key."""

    lock = _method(calls.lock)
    """Lock an entry for this connection: what others write gets ``locked``."""

    unlock = _method(calls.unlock)
    """End a lock of this connection."""

    range = _iterator(calls.range_)
    """Iterate over the entries under the keys of a range, in byte order."""

    prefix = _iterator(calls.prefix)
    """Iterate over the entries under the keys that begin with a prefix, in byte order."""

    regex = _iterator(calls.regex)
    """Iterate over the entries under the keys that an expression matches, in byte order."""

    listen = _listener(calls.listening)
    """Listen to changes of a key, a prefix, a range or an expression."""

    # --- work -------------------------------------------------------------------------------------

    next = _method(calls.next_)
    """Lease what is due, most urgent first, or wait for it."""

    release = _method(calls.release)
    """Give a leased entry back."""

    touch = _method(calls.touch)
    """Extend a lease and return the new token, or without a token move the expiry."""

    bury = _method(calls.bury)
    """Set an entry aside: NEXT hands it out no more until it is kicked."""

    kick = _method(calls.kick)
    """Make a buried entry ready again; return 1, or 0 where it is not buried."""

    kick_domain = _method(calls.kick_domain)
    """Make buried entries of a domain ready again; return how many."""

    pause = _method(calls.pause)
    """Have NEXT hand out nothing of a domain for a while."""

    resume = _method(calls.resume)
    """End the pause of a domain."""

    # --- the daemon -------------------------------------------------------------------------------

    nop = _method(calls.nop)
    """Ask for nothing; return the daemon's clock, an instant in microseconds."""

    auth = _method(calls.auth)
    """Say who is there; ``auth=`` of the client does it at every connect."""

    stats = _method(calls.stats)
    """Return counts of the daemon, a domain or an entry as the JSON object that came."""

    daemon_stats = _method(calls.daemon_stats)
    """Return counts of the whole daemon."""

    domain_stats = _method(calls.domain_stats)
    """Return counts of a domain."""

    entry_stats = _method(calls.entry_stats)
    """Return all that is known of an entry but its value."""

    snapshot = _method(calls.snapshot)
    """Take a snapshot; return the path of its directory on the daemon's machine."""

    # --- more than one call -----------------------------------------------------------------------

    def entries_of(self, scan: Scan) -> Iterator[Entry]:
        """Iterate over what a scan finds: the pages one after the other, one in memory."""
        call: Call[Page] | None = scan.first
        while call is not None:
            page = self.call(call)
            call = None if page.cursor is None else scan.following(page.cursor)
            yield from page

    @contextlib.contextmanager
    def locked(self, key: str | bytes, *, timeout_us: int | None = None) -> Iterator[None]:
        """Hold a lock on an entry while the block runs.

        For the daemon the connection holds the lock. So blocks of threads that share this client
        exclude each other here, where they name the entry by the same key.

        Args:
            key: Any of its keys.
            timeout_us: Microseconds after which the lock ends by itself; None: 60 s.

        Raises:
            RefusedError: ``locked`` (another connection, or another block of this client, holds
                it), ``not-found``; at the end of the block ``not-found`` or ``not-owner`` where
                the lock ended before it, by its time or with the connection: others may have
                written meanwhile.
        """
        with self._claims.hold(key):
            self.lock(key, timeout_us=timeout_us)
            try:
                yield
            except BaseException:
                with contextlib.suppress(FastjournalError):
                    self.unlock(key)
                raise
            self.unlock(key)
