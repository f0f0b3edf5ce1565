"""``Client``: the trio client. Concurrent tasks share one connection."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

import trio

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
from fastjournal.client.streams import close_stream, open_stream
from fastjournal.client.trio_methods import TrioMethods
from fastjournal.clock import unique_timestamp
from fastjournal.errors import FastjournalError, RefusedError
from fastjournal.limits import CLIENT_REPLY_BYTES_MAX, RECEIVE_BYTES_MAX
from fastjournal.protocol import Reply, Request

T = TypeVar("T")

_LAST_WORDS_S = 1.0
"""After a send failed: seconds to receive the error that the daemon sent before it closed."""


class Client(TrioMethods):
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
