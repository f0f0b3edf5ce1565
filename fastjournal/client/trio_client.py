"""``Client``: the trio client. Concurrent tasks share one connection."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import trio

from fastjournal.client import calls
from fastjournal.client.access import Tls, make_access
from fastjournal.client.address import DEFAULT_ADDRESS, Address, parse_address
from fastjournal.client.calls import (
    Call,
    results_or_refusals,
    silence_allowed_s,
)
from fastjournal.client.failures import (
    connection_lost,
    not_connected,
    reason_of,
    timed_out,
)
from fastjournal.client.multiplexer import Multiplexer, Pending, Undo
from fastjournal.client.results import Entry, Jobs, Written
from fastjournal.client.streams import close_stream, open_stream
from fastjournal.clock import unique_timestamp
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import CLIENT_REPLY_BYTES_MAX, RECEIVE_BYTES_MAX
from fastjournal.protocol import Reply, Request
from fastjournal.protocol.values import Value

T = TypeVar("T")

_LAST_WORDS_S = 1.0
"""After a send failed: seconds to receive the error that the daemon sent before it closed."""


class Client:
    """A connection to a daemon that any number of trio tasks share: ``async with Client() as c``.

    A NEXT that waits holds up nobody else. A task that is cancelled while its request is in flight
    gives back what the daemon had leased to it, as soon as the reply comes; what it asked to write
    may have been written. Arguments and results are those of ``SyncClient``; the methods are
    explained there.

    After a lost connection every request raises CannotConnectError (code ``not-connected``) until
    ``connect`` is called.

    Args:
        address: ``HOST:PORT``, ``[::1]:PORT``, ``tls://HOST:PORT`` or ``unix:PATH``.
        tls: For TCP addresses. An ``ssl.SSLContext``; or the path of a PEM file of authorities to
            trust; or True: trust those of the system. None: TLS only where the address says so.
        auth: The token that AUTH sends before all else, at every connect. None: none is sent.
        connect_timeout_s: Seconds to establish the connection.
        reply_timeout_s: Seconds without an answer to a request after which the connection counts
            as lost. The time that a NEXT may wait is added. None: no limit.
        reply_bytes_max: Bytes of the largest reply to accept.

    Raises:
        BadRequestError: The address or the token is none.
        ConfigError: The file of authorities cannot be used.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: Tls = None,
        auth: str | bytes | None = None,
        connect_timeout_s: float = 10.0,
        reply_timeout_s: float | None = 60.0,
        reply_bytes_max: int = CLIENT_REPLY_BYTES_MAX,
    ) -> None:
        self.address = parse_address(address)
        self._access = make_access(tls, auth)
        self._connect_timeout_s = connect_timeout_s
        self._reply_timeout_s = reply_timeout_s
        self._reply_bytes_max = reply_bytes_max
        self._nursery_manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None
        self._connecting = trio.Lock()
        self._link: _Link | None = None

    # --- connection -----------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect, unless it is connected.

        Raises:
            CannotConnectError: Nobody listens there, or TLS fails.
            RefusedError: ``auth-failed``.
        """
        if self._nursery is None:
            raise RuntimeError("a Client is used inside 'async with'")
        async with self._connecting:
            if self._link is not None and not self._link.multiplexer.failed:
                return
            stream = await open_stream(self.address, self._access, self._connect_timeout_s)
            multiplexer = Multiplexer(reply_bytes_max=self._reply_bytes_max)
            self._link = _Link(stream, multiplexer, self.address)
            self._nursery.start_soon(self._link.run)

    async def __aenter__(self) -> Client:
        self._nursery = await self._nursery_manager.__aenter__()
        try:
            await self.connect()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._nursery is not None, "left without having been entered"
        if self._link is not None:
            self._link.end(not_connected())
        # The two tasks of a connection end by this and raise nothing, so the caller's own
        # exception leaves the block as it is, not inside a group.
        self._nursery.cancel_scope.shield = True
        self._nursery.cancel_scope.cancel()
        self._nursery = None
        await self._nursery_manager.__aexit__(None, None, None)

    # --- requests -------------------------------------------------------------------------------

    async def nop(self) -> int:
        """Ask for nothing; return the daemon's clock, an instant in microseconds."""
        return await self.call(calls.nop())

    async def set(
        self,
        key: str | bytes,
        value: Value = b"",
        *,
        uri: str | bytes | None = None,
        persist: bool = True,
        overwrite: bool = False,
        expires: int | None = None,
        ttl: int | None = None,
        timestamp: int | None = None,
    ) -> Written:
        """Set a key to a value."""
        return await self.call(
            calls.set_(
                key,
                value,
                uri=uri,
                persist=persist,
                overwrite=overwrite,
                expires=expires,
                ttl=ttl,
                timestamp=timestamp,
            )
        )

    async def get(
        self,
        key: str | bytes,
        *,
        data: bool = True,
        meta: bool = False,
        lease_us: int | None = None,
        expires: int | None = None,
        skip_worked_on: bool = False,
    ) -> Entry:
        """Return the entry under a key."""
        return await self.call(
            calls.get(
                key,
                data=data,
                meta=meta,
                lease_us=lease_us,
                expires=expires,
                skip_worked_on=skip_worked_on,
            )
        )

    async def delete(
        self,
        key: str | bytes,
        *,
        token: int | None = None,
        overwrite: bool = False,
        persist: bool = True,
        timestamp: int | None = None,
    ) -> Written:
        """Delete an entry with all its keys; with its lease token: complete the job."""
        return await self.call(
            calls.delete(
                key, token=token, overwrite=overwrite, persist=persist, timestamp=timestamp
            )
        )

    async def next(
        self,
        domain: str | bytes = b"",
        *,
        count: int = 1,
        lease_us: int | None = None,
        wait_us: int | None = None,
        delete: bool = False,
        meta: bool = False,
    ) -> Jobs:
        """Lease what is due, most urgent first."""
        return await self.call(
            calls.next_(
                domain, count=count, lease_us=lease_us, wait_us=wait_us, delete=delete, meta=meta
            )
        )

    async def release(self, key: str | bytes, token: int, *, delay_us: int | None = None) -> None:
        """Give a leased entry back, due again in ``delay_us`` microseconds (None: as before)."""
        await self.call(calls.release(key, token, delay_us=delay_us))

    async def touch(self, key: str | bytes, token: int | None = None, *, ttl_us: int) -> int | None:
        """With a token: the lease ends in ``ttl_us`` microseconds; return the new token."""
        return await self.call(calls.touch(key, token, ttl_us=ttl_us))

    async def bury(self, key: str | bytes, token: int | None = None, *, reason: str = "") -> None:
        """Set an entry aside: NEXT hands it out no more until it is kicked."""
        await self.call(calls.bury(key, token, reason=reason))

    async def stats(self, key: str | bytes = b"", *, data: bool = False) -> dict[str, Any]:
        """Return counts of the daemon, of a domain or, with ``data``, all about one entry."""
        return await self.call(calls.stats(key, data=data))

    async def snapshot(self) -> str:
        """Take a snapshot; return the path of its directory on the daemon's machine."""
        return await self.call(calls.snapshot())

    # --- many at once ---------------------------------------------------------------------------

    async def request(self, request: Request) -> Reply:
        """Send a request as it is, and return the reply, which may be a refusal.

        A timestamp of 0 is replaced by this machine's time; the identifier is set.
        """
        return (await self._exchange([(request, None)]))[0]

    async def request_many(self, requests: Iterable[Request]) -> list[Reply]:
        """Send requests without waiting between them; return their replies in the same order."""
        return await self._exchange([(request, None) for request in requests])

    async def call(self, call: Call[T]) -> T:
        """Send one of ``fastjournal.client.calls``; return its result."""
        return call.result((await self._exchange([(call.request, call.undo)]))[0])

    async def call_many(self, many: Iterable[Call[T]]) -> list[T | RefusedError]:
        """Send many without waiting between them; each gives its result, or its refusal."""
        kept = list(many)
        replies = await self._exchange([(call.request, call.undo) for call in kept])
        return results_or_refusals(kept, replies)

    # --- moving bytes ---------------------------------------------------------------------------

    async def _exchange(self, requests: list[tuple[Request, Undo | None]]) -> list[Reply]:
        link = self._link
        if link is None or self._nursery is None or link.multiplexer.failed:
            await trio.lowlevel.checkpoint()
            raise not_connected()
        silence_s = silence_allowed_s(self._reply_timeout_s, (request for request, _ in requests))
        pendings: list[Pending] = []
        try:
            for request, undo in requests:
                await link.wait_room(silence_s)
                request.timestamp = request.timestamp or unique_timestamp()
                pendings.append(link.start(request, undo))
            for pending in pendings:
                await link.wait_done(pending, silence_s)
        finally:
            for pending in pendings:
                if not pending.done:
                    link.multiplexer.abandon(pending)
        return [pending.answer() for pending in pendings]


class _Link:
    """One connection: a task that receives and a task that sends, around a multiplexer."""

    def __init__(self, stream: trio.abc.Stream, multiplexer: Multiplexer, address: Address) -> None:
        self.multiplexer = multiplexer
        self._stream = stream
        self._address = address
        self._scope = trio.CancelScope()
        self._something_to_send = trio.Event()
        self._room = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Move bytes until the connection is over; then everything in flight has its error."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send)
                    await self._receive()
                    nursery.cancel_scope.cancel()
        finally:
            self.end(connection_lost("the client ended"))
            await close_stream(self._stream)

    def end(self, error: FastjournalError) -> None:
        """End the connection, with this error for everything in flight."""
        self.multiplexer.fail(error)
        self._room.unpark_all()
        self._scope.cancel()

    def start(self, request: Request, undo: Undo | None) -> Pending:
        """Queue a request; everything that is queued in one turn of the loop goes in one send."""
        pending = self.multiplexer.start(request, undo)
        self._something_to_send.set()
        return pending

    async def wait_room(self, silence_s: float | None) -> None:
        """Return when another request may be queued, or the connection is over."""
        while not self.multiplexer.has_room and not self.multiplexer.failed:
            with self._patience(silence_s):
                await self._room.park()

    async def wait_done(self, pending: Pending, silence_s: float | None) -> None:
        """Return when the request has its reply or its error."""
        if pending.done:
            return
        done = trio.Event()
        pending.notify = done.set
        with self._patience(silence_s):
            await done.wait()

    @contextlib.contextmanager
    def _patience(self, silence_s: float | None) -> Iterator[None]:
        with trio.move_on_after(math.inf if silence_s is None else silence_s) as scope:
            yield
        if scope.cancelled_caught:
            self.end(timed_out(self._address, silence_s))

    async def _receive(self) -> None:
        multiplexer = self.multiplexer
        try:
            while not multiplexer.failed:
                multiplexer.receive_data(await self._stream.receive_some(RECEIVE_BYTES_MAX))
                if multiplexer.has_room:
                    self._room.unpark_all()
                if multiplexer.wants_to_send:
                    self._something_to_send.set()
        except trio.BrokenResourceError as error:
            self.end(connection_lost(_cause_of(error)))

    async def _send(self) -> None:
        try:
            while True:
                await self._something_to_send.wait()
                self._something_to_send = trio.Event()
                while data := self.multiplexer.data_to_send():
                    self._room.unpark_all()
                    await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            # The receiver may still find what the daemon said before it closed.
            with trio.move_on_after(_LAST_WORDS_S):
                await trio.sleep_forever()
            self.end(connection_lost(_cause_of(error)))


def _cause_of(error: trio.BrokenResourceError) -> str:
    cause = error.__cause__
    return reason_of(cause) if isinstance(cause, OSError) else "the socket is broken"
