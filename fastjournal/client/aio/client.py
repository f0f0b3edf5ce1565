"""``Client``: the client for trio and asyncio. Concurrent tasks share one connection.

Its methods are all that ``core.calls`` describes, and those of more than one call. A task of the
client renews the lock of a ``locked`` block while the body runs.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from random import Random
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from fastjournal.client.aio.connection import AsyncConnection
from fastjournal.client.aio.job_loop import JobLoop, LeasePool
from fastjournal.client.aio.jobs import KeptLease, release_jobs
from fastjournal.client.aio.listen import Listener
from fastjournal.client.aio.mirror import Mirror
from fastjournal.client.core import calls
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call, CallMethods, PagedCall
from fastjournal.client.core.calls.base import Domains
from fastjournal.client.core.calls.described_methods import (
    AsyncCaller,
    add_methods,
    with_arguments_of,
    wrap,
)
from fastjournal.client.core.client_credentials import Tls, find_credentials
from fastjournal.client.core.held_lease import HeldLock, LockClaims, lock_length_us
from fastjournal.client.core.leased_job import failure_of
from fastjournal.client.core.pipeline import raw, several
from fastjournal.client.core.results import Entry, Page, Written
from fastjournal.client.core.retry_policy import Reconnect, check_limits
from fastjournal.client.core.worker_options import RetryDelay, worker_options
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import CLIENT_LAST_WORDS_S, CLIENT_REPLY_BYTES_MAX, JOB_LEASE_S
from fastjournal.protocol import Reply, Request
from fastjournal.times import Duration, to_timedelta


class Lock(HeldLock, KeptLease):
    """Lock of a ``locked`` block: ``lost`` is set once it is lost, and ``loss`` says why."""

    @contextlib.asynccontextmanager
    async def hold(self, *, renew: bool) -> AsyncIterator[None]:
        """Renew it while the block runs, then unlock; see ``Client.locked``."""
        if renew:
            self._connection.start_soon(self.keep)
        with self._body:
            try:
                yield
            except BaseException:  # any error of the body ends the lock
                await self._end_at_once()
                raise
        if self._body.cancelled_caught:
            raise self._error() from self.loss
        try:
            await self._end()
        except anyio.get_cancelled_exc_class():
            await self._end_at_once()
            raise

    async def _end(self) -> None:
        """Stop the renewal, then unlock.

        Raises:
            LockLostError: The lock was lost before.
        """
        try:
            # A running renewal is finished first: it must not come after the UNLOCK.
            async with self._mutex:
                if self.loss is not None:
                    raise self._error() from self.loss
                self._note_lateness(anyio.current_time())
                try:
                    await self._connection.call(calls.unlock(self.key))
                except FastjournalError as error:
                    self._end_failed(error, anyio.current_time())
                    raise
        finally:
            self._finish()

    async def _end_at_once(self) -> None:
        """Unlock as well as can be done in a few seconds, also in a cancelled task."""
        with anyio.move_on_after(CLIENT_LAST_WORDS_S, shield=True):
            with contextlib.suppress(FastjournalError):
                await self._end()
        self._finish()


async def lock_for_block(connection: AsyncConnection, key: str | bytes, length_us: int) -> Lock:
    """Lock an entry for a block.

    A lock that the daemon gives to a task which was cancelled meanwhile is released.
    """
    lock = Lock(key, length_us, anyio.current_time())
    lock._keep_by(connection)
    call = calls.lock(key, timeout=to_timedelta(length_us))
    unlock = calls.unlock(key).request
    await connection.call(msgspec.structs.replace(call, undo=lambda _request, _reply: [unlock]))
    return lock


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


class Client(AsyncMethods):
    """Connection to a daemon that any number of tasks share: ``async with Client() as c``.

    It runs under trio and under asyncio (by anyio), in one event loop.

    A NEXT that waits holds up nobody else. A task that is cancelled while its request is in flight
    releases the leases of the reply, as soon as that comes; a change that it asked for may have
    been written. Leaving the block releases all leases that are still held, also where a scope
    around it was cancelled, and takes a few seconds at most for that.

    Where the connection is lost, the client makes another one, and sends again what is safe to
    repeat; all else raises CannotConnectError, whose ``maybe_done`` says whether the daemon may
    have carried it out. Without ``reconnect`` every request raises it (code ``not-connected``)
    after a lost connection, until ``connect`` is called.

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
        reply_timeout: Time without an answer to a request after which the connection counts
            as lost. The time that a NEXT may wait is added. None: no limit.
        reply_bytes_max: Bytes of the largest reply to accept.
        rng: Draws the pauses before connecting again.

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
    ) -> None:
        self.servers, credentials = find_credentials(address, tls, auth, name)
        self._claims = LockClaims()
        timeouts = check_limits(connect_timeout, reply_timeout, reply_bytes_max)
        self.connection = AsyncConnection(
            self.servers,
            credentials,
            plan=reconnect,
            connect_timeout_s=timeouts.connect_s,
            reply_timeout_s=timeouts.reply_s,
            reply_bytes_max=reply_bytes_max,
            rng=rng or Random(),
            start_soon=self.start_soon,
        )
        self._group: TaskGroup | None = None
        self._scopes: set[anyio.CancelScope] = set()
        """Around each task of this client."""
        self.pools: set[LeasePool] = set()
        """Leases of the job loops of this client."""

    # --- connection -----------------------------------------------------------------------------

    async def connect(self) -> None:
        await self.connection.connect()

    async def __aenter__(self) -> Client:
        self._group = await anyio.create_task_group().__aenter__()
        self.connection.is_open = True
        try:
            await self.connect()
        except BaseException:  # cancelled too: the task group must not stay open
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        group = self._group
        assert group is not None, "left without having been entered"
        group.cancel_scope.shield = True
        try:
            if self.connection.transport is not None:
                await self._release_leases(error)
        finally:  # a native cancellation of asyncio passes through the shield
            self.connection.end()
            # The tasks of the client end by this and raise nothing, so the caller's own exception
            # leaves the block as it is, not inside a group.
            self._group, self.connection.is_open = None, False
            for scope in self._scopes:
                scope.cancel()
            await group.__aexit__(None, None, None)

    async def _release_leases(self, error: BaseException | None) -> None:
        """Release what the job loops and cancelled requests hold, as well as it can be done now.

        An error that leaves the block of the client has left the body of a loop that was just
        dropped, too.
        """
        failure = failure_of(error)
        # at once: a loop that was just dropped has its pool called soon
        held = [pool.take_all(left_by_error=error is not None) for pool in self.pools]
        with anyio.move_on_after(CLIENT_LAST_WORDS_S):
            async with anyio.create_task_group() as group:
                group.start_soon(self.connection.pay)
                for jobs in held:
                    group.start_soon(release_jobs, jobs, failure)
            await self.connection.settle()

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
        wait: Duration | None = WAIT_WITHOUT_END,
        retry_delay: RetryDelay = None,
        retry_delay_max: Duration | None = None,
        attempts_max: int = 0,
        patience: Duration | None = None,
    ) -> JobLoop:
        """Work loop over due jobs: ``async for job in client.jobs("pages"): ...``.

        ``await client.jobs("pages", count=8).run(work)`` works off eight at a time, each in a task,
        and goes on after an exception. In a loop, begin the body with ``async with job: ...``: the
        job is completed at the end of the block, has failed on an exception, and the body is
        cancelled where the lease is lost. ``stop()`` ends both forms cleanly, for instance at
        SIGTERM. While a job is worked on, a task of this client renews its lease.

        Without such a block, a job is completed when the loop asks for the next one. Python does
        not tell a loop how its body was left otherwise (an exception, break, return, cancellation).
        So the lease is renewed no more, and ends the job by time, a failed attempt, unless an
        exception leaves the block of the client, too; the jobs behind it are released. Where a
        lease is lost, ``job.lost`` is set, and asking for the next one raises LeaseLostError; the
        loop can be begun again. A block around the loop, ``async with client.jobs("pages") as
        jobs``, sees how the loop is left, and has released all at its end.

        A loop goes on over lost connections and restarts of the daemon for as long as ``reconnect``
        has patience. One that waits without end also waits while the daemon is read-only. Several
        tasks may loop, each with jobs of its own; at most 64 can wait on one client.

        Args:
            count: How many to hold at a time, 1 to 65,535. A loop leases so many together, works on
                them one after the other, and renews the leases of those that wait; ``run`` works on
                all of them at once.
            lease: Length of the lease, at least 1 s. It is renewed at a third of it,
                so this is how late the work of a killed worker is found out.

        Raises:
            LeaseLostError: From the loop: the lease of the last job was lost before its end.
            CannotConnectError: From the loop: the daemon stays away.
            RefusedError: From the loop: it delivers no work, for instance ``forbidden``.
            BadRequestError: An argument that no daemon would take.
        """
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
        return JobLoop(self.connection, options, self.pools)

    def mirror(self, prefix: str | bytes) -> Mirror:
        """Local copy of the entries under a prefix: ``async with client.mirror("color:") as copy``.

        The copy is a mapping from keys to entries, which a subscription keeps current.

        Args:
            prefix: All keys that begin with this; empty: all keys.

        Raises:
            RefusedError: From the block: ``forbidden``, ``busy`` (too many listen).
            CannotConnectError: From the block: the daemon stays away.
        """
        return Mirror(self.connection, prefix)

    def start_soon(self, task: Callable[[], Awaitable[object]]) -> None:
        """Start a task that ends with this client and raises nothing.

        A cancelled scope around the client does not reach it: it releases the leases then.
        """
        if self._group is not None:
            self._group.start_soon(self._run_task, task)

    async def _run_task(self, task: Callable[[], Awaitable[object]]) -> None:
        with anyio.CancelScope(shield=True) as scope:
            self._scopes.add(scope)
            if self._group is None:  # the block was left before the task began
                scope.cancel()
            await task()
        self._scopes.discard(scope)

    def _listen_to(self, call: Call[Page[Entry]]) -> Listener:
        return Listener(self.connection, call)

    # --- many at once ---------------------------------------------------------------------------

    async def request(self, request: Request) -> Reply:
        return (await self.request_many([request]))[0]

    async def request_many(self, requests: Iterable[Request]) -> list[Reply]:
        return await self.connection.exchange(*raw(requests))

    async def call(self, call: Call[T]) -> T:
        return await self.connection.call(call)

    async def enqueue_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[Written | RefusedError]:
        return await self.call_many([calls.enqueue(**job) for job in jobs])

    async def call_many(self, many: Iterable[Call[T]]) -> list[T | RefusedError]:
        return await self.connection.exchange(*several(many, self.servers))
