"""``SyncClient``: blocking sockets, the standard library only.

Its methods are all that ``core.calls`` describes, and those of more than one call. A thread renews
the lock of a ``locked`` block while the body runs.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from fastjournal.client.core import calls
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call, CallMethods, PagedCall
from fastjournal.client.core.calls.base import Domains
from fastjournal.client.core.calls.described_methods import (
    Caller,
    add_methods,
    with_arguments_of,
    wrap,
)
from fastjournal.client.core.client_credentials import Tls, find_credentials
from fastjournal.client.core.held_lease import HeldLock, LockClaims, lock_length_us
from fastjournal.client.core.pipeline import raw, several, single
from fastjournal.client.core.results import Entry, Page, Written
from fastjournal.client.core.retry_policy import Reconnect, check_limits
from fastjournal.client.core.worker_options import RetryDelay, worker_options
from fastjournal.client.sync.connection import SyncConnection
from fastjournal.client.sync.dialer import Dialer
from fastjournal.client.sync.jobs import LeaseKeeper, SyncKeptLease
from fastjournal.client.sync.sockets import StopSignal
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import CLIENT_REPLY_BYTES_MAX, JOB_LEASE_S
from fastjournal.protocol import Reply, Request
from fastjournal.times import Duration, to_timedelta

if TYPE_CHECKING:
    from random import Random

    from fastjournal.client.sync.job_loop import SyncJobLoop
    from fastjournal.client.sync.listen import SyncListener
    from fastjournal.client.sync.waiting import SyncWaiting


class SyncLock(HeldLock, SyncKeptLease):
    """Lock of a ``locked`` block: ``lost`` is set once it is lost, and ``loss`` says why."""

    def __init__(
        self, connection: SyncConnection, key: str | bytes, length_us: int, *, renew: bool
    ) -> None:
        super().__init__(key, length_us, connection.dialer.now_s())
        connection.call(calls.lock(key, timeout=to_timedelta(length_us)))
        self._keep_by(connection, LeaseKeeper([self]) if renew else None)

    def _exchange_renewal(self, renewal: Call[None]) -> None:
        # in the turn of this thread: the lock is that of the client's own connection
        self._connection.exchange(*single(renewal), end_s=self._lease_ends_s)

    def __enter__(self) -> SyncLock:
        if self._keeper is not None:
            self._keeper.begin()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self._end()
            return
        with contextlib.suppress(FastjournalError):
            self._end()

    def _end(self) -> None:
        """Stop the renewal, then unlock.

        Raises:
            LockLostError: The lock was lost before.
        """
        if self._keeper is not None:
            self._keeper.end()
        # A running renewal is finished first: it must not come after the UNLOCK.
        with self._mutex:
            self.finished = True
            if self.loss is not None:
                raise self._error() from self.loss
            self._note_lateness(self._now_s())
            try:
                self._connection.call(calls.unlock(self.key))
            except FastjournalError as error:
                self._end_failed(error, self._now_s())
                raise


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
        with (
            self._claims.hold(key),
            SyncLock(self.connection, key, length_us, renew=renew) as lock,
        ):
            yield lock


add_methods(SyncMethods, _method, _iterator, "Iterator")


class SyncClient(SyncMethods):
    """Connection to a daemon for programs without an event loop.

    It connects at the first use. Where the connection is lost later, it makes another one, and
    sends again what is safe to repeat; all else raises CannotConnectError, whose ``maybe_done``
    says whether the daemon may have carried it out. After ``close``, or without ``reconnect`` after
    a lost connection, every request raises it (code ``not-connected``) until ``connect`` is called.

    Threads may share a client: they take turns, so one that waits for work holds up the others. Do
    not use it on both sides of a fork.

    Args:
        address: ``HOST:PORT``, ``[::1]:PORT``, ``tls://HOST:PORT`` or ``unix:PATH``; several with
            commas for the nodes of a remote log, of which one serves. The client stays with one
            until it fails, then tries all, that one first. None: those of ``FASTJOURNAL_SERVER``,
            else of the client file (``client.toml``), else ``127.0.0.1:9923``, with the TLS files
            and the token of variables and client file where ``tls`` or ``auth`` is None.
        tls: For TCP addresses. An ``ssl.SSLContext``; or the path of a PEM file of authorities to
            trust; or True: trust those of the system. None: TLS only where the address says so.
        auth: The token that AUTH sends before all else, at every connect. None: none is sent.
        name: Name of this client for people, who see it where they look at workers.
        reconnect: Plan for lost connections; None: they are not made again.
        connect_timeout: Time to establish the connection; each of several addresses has an equal
            part of it.
        reply_timeout: Time of silence, while an answer is due, after which the connection counts
            as lost. The time that a NEXT may wait is added. None: no limit.
        reply_bytes_max: Bytes of the largest reply to accept.
        rng: Draws the pauses before connecting again.
        sleep: Pauses for so many seconds.
        monotonic: Seconds of a clock that does not jump.

    Raises:
        BadRequestError: An address or the token is none, or a number is out of range.
        ConfigError: A variable or the client file is wrong, or a file for TLS cannot be used.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        tls: Tls = None,
        auth: str | bytes | None = None,
        name: str = "",
        reconnect: Reconnect | None = Reconnect(),  # noqa: B008 - it is immutable
        connect_timeout: Duration = 10.0,
        reply_timeout: Duration | None = 60.0,
        reply_bytes_max: int = CLIENT_REPLY_BYTES_MAX,
        rng: Random | None = None,
        sleep: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers, credentials = find_credentials(address, tls, auth, name)
        self._claims = LockClaims()
        timeouts = check_limits(connect_timeout, reply_timeout, reply_bytes_max)
        self._dialer = Dialer(
            self.servers,
            credentials,
            connect_timeout_s=timeouts.connect_s,
            reply_bytes_max=reply_bytes_max,
            plan=reconnect,
            rng=rng,
            sleep=sleep,
            monotonic=monotonic,
        )
        self.connection = SyncConnection(self._dialer, timeouts.reply_s)

    # --- connection -----------------------------------------------------------------------------

    def connect(self) -> None:
        self.connection.connect()

    def close(self) -> None:
        """Close the connection; a lease goes on until it ends or is released.

        A signal handler, or another thread, may call this while a request waits: that request then
        raises CannotConnectError (code ``not-connected``).
        """
        self.connection.close()

    def __enter__(self) -> SyncClient:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- more than one request ------------------------------------------------------------------

    @with_arguments_of(worker_options)
    def jobs(
        self,
        domain: Domains = b"",
        *,
        ordered: bool = False,
        prefix: str | bytes | None = None,
        count: int = 1,
        lease: Duration = JOB_LEASE_S,
        renew: bool = True,
        wait: Duration | None = WAIT_WITHOUT_END,
        retry_delay: RetryDelay = None,
        retry_delay_max: Duration | None = None,
        attempts_max: int = 0,
        patience: Duration | None = None,
    ) -> SyncJobLoop:
        """Work loop over due jobs: ``for job in client.jobs("pages"): ...``.

        A job is completed when the loop asks for the next one. If the body is left otherwise (an
        exception, break, return), the attempt has failed: the job is due again after a delay, and
        a dead letter after the last attempt; after ``job.complete()`` nothing. ``run(work)`` goes
        on with the next job after an exception. While its body runs, a thread of the loop
        renews its lease. If the lease is lost, ``job.lost`` is set, and asking for the next job
        raises LeaseLostError; the loop can be begun again. A body that blocks all other threads (an
        extension that holds the interpreter's lock) needs a lease longer than that.

        A thread sends the release when Python frees the iterator, so at once if only the loop has
        it, and at the latest when the client is closed or the program ends.
        ``with client.jobs("pages") as jobs: for job in jobs: ...`` has released all when the block
        ends. ``with job: ...`` around the body completes or releases this job at its end.
        ``stop()`` of the loop ends it cleanly, for instance at SIGTERM.

        A loop goes on over lost connections and restarts of the daemon for as long as ``reconnect``
        has patience. One that waits without end also waits while the daemon is read-only.

        Args:
            count: How many to lease at a time, 1 to 65,535. They are worked on one after the other,
                under leases that began together.
            lease: Length of the lease, at least 1 s. It is renewed at a third of it, so this is how
                late the work of a killed worker is found out.
            renew: Renew leases by a thread. Without it the body calls ``job.extend()``, or asks for
                a lease longer than the longest work: for programs that must have one thread, for
                instance because they fork.

        Raises:
            LeaseLostError: From the loop: the lease of the last job was lost before its end.
            CannotConnectError: From the loop: the daemon stays away.
            RefusedError: From the loop: it delivers no work, for instance ``forbidden``.
            BadRequestError: An argument that no daemon would take.
        """
        from fastjournal.client.sync.job_loop import SyncJobLoop  # noqa: PLC0415 - few need it

        options = worker_options(
            domain=domain,
            ordered=ordered,
            prefix=prefix,
            count=count,
            lease=lease,
            wait=wait,
            retry_delay=retry_delay,
            retry_delay_max=retry_delay_max,
            attempts_max=attempts_max,
            patience=patience,
        )
        return SyncJobLoop(self.connection, options, renew=renew)

    def waiting(self, call: Call[T]) -> SyncWaiting[T]:
        """Have a call wait beside an event loop of others, by its descriptor.

        ``with client.waiting(calls.next_("pages", wait=60)) as waiting`` gives an object for
        ``poll`` and ``select``: call ``waiting.take()`` when it is readable. It has a connection of
        its own.

        Args:
            call: One of ``fastjournal.client.calls``.

        Raises:
            CannotConnectError: From the block: nobody listens there.
            RefusedError: From the block: ``auth-failed``.
        """
        from fastjournal.client.sync.waiting import SyncWaiting  # noqa: PLC0415 - few need it

        return SyncWaiting(self._dialer, self.connection.reply_timeout_s, call)

    def now_s(self) -> float:
        """Return the seconds of a clock that does not jump."""
        return self._dialer.now_s()

    def _listen_to(self, call: Call[Page[Entry]]) -> SyncListener:
        from fastjournal.client.sync.listen import SyncListener  # noqa: PLC0415 - few need it

        return SyncListener(self._dialer, self.connection.reply_timeout_s, call)

    # --- many at once ---------------------------------------------------------------------------

    def request(self, request: Request) -> Reply:
        return self.request_many([request])[0]

    def request_many(self, requests: Iterable[Request]) -> list[Reply]:
        return self.connection.exchange(*raw(requests))

    def call(self, call: Call[T]) -> T:
        return self.connection.call(call)

    def call_until(self, call: Call[T], stop: StopSignal) -> T:
        """Send a call, and abandon it when ``stop`` is set.

        Raises:
            Stopped: It was set; leases and locks of the reply are released.
        """
        return self.connection.call(call, stop)

    def enqueue_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[Written | RefusedError]:
        return self.call_many([calls.enqueue(**job) for job in jobs])

    def call_many(self, many: Iterable[Call[T]]) -> list[T | RefusedError]:
        return self.connection.exchange(*several(many, self.servers))
