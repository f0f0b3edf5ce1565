"""Connection of a Client: shared by its tasks, made again where it is lost."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import anyio
import anyio.lowlevel

from fastjournal.client.aio.streams import open_stream
from fastjournal.client.aio.transport import AsyncTransport
from fastjournal.client.core.address import Address, Servers
from fastjournal.client.core.calls import Call
from fastjournal.client.core.client_credentials import Credentials
from fastjournal.client.core.failures import (
    ConnectRound,
    ReconnectEffort,
    copy_error,
    is_waited_for_at_start,
    name_daemon,
    not_connected,
)
from fastjournal.client.core.multiplexer import InFlightRequest, Multiplexer
from fastjournal.client.core.pipeline import Pipeline, Read, Undoable, raw, single
from fastjournal.client.core.retry_policy import Reconnect
from fastjournal.errors import CannotConnectError, FastjournalError, RefusedError
from fastjournal.limits import CLIENT_LAST_WORDS_S
from fastjournal.protocol import Request

T = TypeVar("T")

StartSoon = Callable[[Callable[[], Awaitable[object]]], None]
"""Starts a task that ends with the client."""


class AsyncConnection:
    """One transport at a time, and the reconnection after its loss.

    Args:
        servers: Addresses of the daemon.
        credentials: Access token and TLS files.
        plan: Plan for lost connections; None: no reconnection.
        connect_timeout_s: Seconds to establish a connection.
        reply_timeout_s: Seconds without an answer after which a connection counts as lost.
        reply_bytes_max: Bytes of the largest reply to accept.
        rng: Draws the pauses.
        start_soon: Starts tasks, while ``is_open``; they end with the client and raise nothing.
    """

    def __init__(
        self,
        servers: Servers,
        credentials: Credentials,
        *,
        plan: Reconnect | None,
        connect_timeout_s: float,
        reply_timeout_s: float | None,
        reply_bytes_max: int,
        rng: Random,
        start_soon: StartSoon,
    ) -> None:
        self.servers = servers
        self.plan = None if plan is None else plan.for_servers(len(servers))
        self.rng = rng
        self.reply_timeout_s = reply_timeout_s
        self.transport: AsyncTransport | None = None
        self.open_stream = open_stream
        """Makes a connected stream; a daemon in this process has one of its own."""
        self.is_open = False
        """The client is inside its block."""
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_s
        self._reply_bytes_max = reply_bytes_max
        self.start_soon = start_soon
        self._connecting = anyio.Lock()
        self._effort: _SharedEffort | None = None
        self._owed: list[Request] = []
        """Releases that wait for a connection."""
        self._paying = anyio.Lock()

    @property
    def address(self) -> Address:
        """The address in use."""
        return self.servers.current

    async def connect(self) -> None:
        """Connect, unless that is done; see ``Client.connect``."""
        try:
            await self._connect_first()
        except FastjournalError as error:
            name_daemon(error, self.address)
            raise

    async def _connect_first(self) -> None:
        try:
            await self._connect()
        except CannotConnectError as error:
            if not is_waited_for_at_start(self.plan, error):
                raise
            await self.usable_transport()

    async def usable_transport(self) -> AsyncTransport:
        """Return the transport, or take part in the effort to make one.

        Raises:
            CannotConnectError: The daemon stays away, or nothing may connect again.
        """
        while self.transport is None or self.transport.multiplexer.failed:
            if not self.is_open or self.plan is None:
                await anyio.lowlevel.checkpoint()
                raise not_connected()
            effort = self._effort
            if effort is None:
                effort = self._effort = _SharedEffort(self.plan, self.rng)
                self.start_soon(functools.partial(self._reconnect, effort))
            await effort.over.wait()
            if effort.failure is not None:
                raise copy_error(effort.failure)
        return self.transport

    async def call(self, call: Call[T]) -> T:
        """Send a call; return its result."""
        return await self.exchange(*single(call))

    async def exchange(self, requests: list[Undoable], read: Read[T]) -> T:
        """Send requests; return what ``read`` makes of their replies.

        Where that fails, or is cancelled, the leases and locks of the replies are released.
        """
        pipeline = Pipeline(requests, self.plan)
        try:
            await self._carry(pipeline)
            return read(pipeline.requests)
        except BaseException as error:  # cancelled too
            self._owe(pipeline.gains())
            name_daemon(error, self.address)
            raise

    async def pay(self) -> None:
        """Send releases that wait for a connection."""
        async with self._paying:  # a client that ends waits here for what is on its way
            owed, self._owed = self._owed, []
            if not owed:
                return
            with anyio.move_on_after(CLIENT_LAST_WORDS_S), contextlib.suppress(FastjournalError):
                await self.exchange(*raw(owed))

    async def settle(self) -> None:
        """Return when all leases and locks of cancelled requests are released."""
        if self.transport is not None:
            await self.transport.settle()

    def end(self) -> None:
        """End the transport; everything in flight fails."""
        if self.transport is not None:
            self.transport.end(not_connected())

    # --- moving bytes ---------------------------------------------------------------------------

    async def _carry(self, pipeline: Pipeline) -> None:
        silence_s = pipeline.silence_s(self.reply_timeout_s)
        while True:
            try:
                transport = await self.usable_transport()
            except FastjournalError as error:
                raise pipeline.failed(error) from error.__cause__
            started: list[InFlightRequest] = []
            try:
                for request in pipeline.unanswered():
                    await transport.wait_room(silence_s)
                    if transport.multiplexer.failed:
                        break
                    started.append(transport.start(request))
                for in_flight in started:
                    await transport.wait_done(in_flight, silence_s)
            finally:
                for in_flight in started:
                    transport.abandon(in_flight)
            if not pipeline.unanswered():
                return
            name_daemon(transport.multiplexer.failure, transport.address)
            pipeline.lost(transport.multiplexer, anyio.current_time())

    def _owe(self, releases: list[Request]) -> None:
        """Have leases and locks released, by this transport or by the next one."""
        if self.transport is not None and not self.transport.multiplexer.failed:
            self.transport.owe(releases)
        elif releases:
            self._owed += releases
            self.start_soon(self.pay)

    # --- connecting -----------------------------------------------------------------------------

    async def _connect(self, timeout_s: float | None = None, *, prove: bool = False) -> None:
        if not self.is_open:
            raise RuntimeError("a Client is used inside 'async with'")
        async with self._connecting:
            if self.transport is not None and not self.transport.multiplexer.failed:
                return
            tries = ConnectRound(self.servers, timeout_s or self._connect_timeout_s, prove=prove)
            for address in tries:
                try:
                    stream = await self.open_stream(
                        address, self._credentials, tries.try_s, prove=tries.prove
                    )
                except (CannotConnectError, RefusedError) as error:
                    tries.failed(address, error)
                    continue
                self.servers.use(address)
                multiplexer = Multiplexer(reply_bytes_max=self._reply_bytes_max)
                self.transport = AsyncTransport(stream, multiplexer, address)
                self.start_soon(self.transport.run)
                return
            raise tries.failure

    async def _reconnect(self, effort: _SharedEffort) -> None:
        """Reconnect after a lost connection, with retries for a while.

        This is a task of the client: a waiting caller may be cancelled without effect on the
        others.
        """
        try:
            while (pause_s := effort.tries.pause_s(anyio.current_time())) is not None:
                await anyio.sleep(pause_s)
                timeout_s = effort.tries.try_s(self._connect_timeout_s, anyio.current_time())
                try:
                    await self._connect(timeout_s, prove=True)
                except CannotConnectError as error:
                    effort.tries.failed(error)
                else:
                    effort.failure = None
                    return
            effort.failure = effort.tries.failure
        except FastjournalError as error:
            effort.failure = error
        finally:
            self._effort = None
            effort.over.set()


class _SharedEffort:
    """An effort to connect again, for which all tasks wait that need the connection."""

    def __init__(self, plan: Reconnect, rng: Random) -> None:
        self.tries = ReconnectEffort(plan, rng, anyio.current_time())
        self.over = anyio.Event()
        self.failure: FastjournalError | None = not_connected()
        """None: there is a connection. The first value is for a client that ends meanwhile."""
