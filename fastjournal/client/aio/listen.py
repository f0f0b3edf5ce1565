"""Listening of tasks: notifications come on the connection that all tasks share."""

from __future__ import annotations

import contextlib
import math

import anyio
import anyio.lowlevel

from fastjournal.client.aio.connection import AsyncConnection
from fastjournal.client.aio.transport import AsyncTransport
from fastjournal.client.core import calls
from fastjournal.client.core.calls import Call
from fastjournal.client.core.changes import ChangeBuffer
from fastjournal.client.core.failures import name_daemon
from fastjournal.client.core.results import Change, Entry, Page
from fastjournal.errors import CannotConnectError, FastjournalError
from fastjournal.limits import CLIENT_REPEATS_MAX, LISTENER_PING_S


class Listener:
    """Changes, as they come: ``async with client.listen(...) as changes: async for change in ...``.

    It subscribes on entering the block. Iterating never ends by itself; it raises
    CannotConnectError where the daemon stays away, and may be begun again. It raises RefusedError
    (``busy``) where the daemon ended the subscription, because it costs too much.
    """

    def __init__(self, connection: AsyncConnection, call: Call[Page[Entry]]) -> None:
        self._connection = connection
        self._call = call
        self._woken = anyio.Event()
        self._changes = ChangeBuffer(self._wake)
        self._transport: AsyncTransport | None = None
        self._quiet_until = math.inf
        """When to ask whether the daemon is there, if nothing is heard before."""

    async def __aenter__(self) -> Listener:
        try:
            await self._subscribe()
        except FastjournalError as error:
            name_daemon(error, self._connection.address)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.unsubscribe(self._call.request.identifier)
            self._transport = None

    def __aiter__(self) -> Listener:
        return self

    async def __anext__(self) -> Change:
        try:
            return await self._next()
        except FastjournalError as error:
            name_daemon(error, self._connection.address)
            raise

    async def _next(self) -> Change:
        await anyio.lowlevel.checkpoint()
        while (change := self._changes.take()) is None:
            if self._changes.lost:
                await self._subscribe()
                self._changes.subscribed_again()
                continue
            self._woken = anyio.Event()
            with anyio.CancelScope(deadline=self._quiet_until) as quiet:
                await self._woken.wait()
            if quiet.cancelled_caught:
                with contextlib.suppress(CannotConnectError):
                    await self._connection.call(calls.nop())
            self._quiet_until = anyio.current_time() + LISTENER_PING_S
        return change

    def _wake(self) -> None:
        self._woken.set()

    async def _subscribe(self) -> None:
        connection, losses = self._connection, 0
        while True:
            transport = await connection.usable_transport()
            self._changes.lost = False
            self._transport = transport
            pending = transport.subscribe(self._call.request, self._changes.tell)
            try:
                await transport.wait_done(pending, connection.reply_timeout_s)
                self._call.result(pending.answer())
            except CannotConnectError:
                losses += 1
                if losses > CLIENT_REPEATS_MAX:
                    raise
            except BaseException:
                # Cancelled or refused, this subscription has ended; the next call subscribes again.
                transport.unsubscribe(pending.identifier)
                self._changes.lost = True
                raise
            else:
                self._quiet_until = anyio.current_time() + LISTENER_PING_S
                return
