"""One client's connection: receive, decode, handle, wait until durable, send.

``Session.run`` is the write path, and all of it:

    receive_some -> connection (bytes to requests) -> engine.handle (pure; appends records)
    -> commit.wait_settled (one write and one sync for all sessions) -> send_all

Nothing awaits between handling a request and appending its records: they stand in the log in the
order in which the requests were applied. No reply leaves before everything that was appended up to
then is durable, so no reply shows anybody a change that a crash could undo.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from fastjournal import limits
from fastjournal.errors import ProtocolError
from fastjournal.protocol import (
    CONNECTION_CLOSED,
    ErrorCode,
    Function,
    Request,
    ServerConnection,
    encode_error,
)

if TYPE_CHECKING:
    from fastjournald.server import Server

_QUIT = int(Function.QUIT)
_SNAPSHOT = int(Function.SNAPSHOT)

TURN_SECONDS = 0.005
"""So long are the requests of one read handled before others have their turn."""

SHORT_REPLY_BYTES = 64
"""No request with such a reply takes long: it is not worth a look at the clock."""

LINGER_SECONDS = 1.0
"""How long a closing connection goes on reading and discarding: a socket that is closed with
unread data is reset, and the reset can overtake the last replies."""

STOP_SECONDS = 0.25
"""How long a stopping daemon goes on taking requests that are on their way already."""


class Session:
    """A client's connection, from its first byte to its last.

    Args:
        server: Engine, commit and clock.
        stream: The connected socket.
    """

    def __init__(self, server: Server, stream: trio.SocketStream) -> None:
        self._server = server
        self._stream = stream
        self._connection = ServerConnection(value_bytes_max=server.settings.value_bytes_max)
        self._sending = trio.Lock()
        self._pushed: list[bytes] = []
        self._receiving = trio.CancelScope()
        self._receive_until = math.inf
        self._done = False

    async def run(self) -> None:
        """Serve the client until it goes, quits, sends garbage, or the daemon stops.

        Raises:
            LogFailedError: The log failed; the daemon must end.
        """
        engine = self._server.engine
        try:
            try:
                await self._converse()
            except ProtocolError as error:
                engine.forget(self)
                self._server.protocol_errors[error.code] += 1
                now = self._server.clock.now_us()
                await self._send(encode_error(error.identifier, now, f"{error.code} {error}"))
            await self._close()
        except trio.BrokenResourceError:
            self._server.log.debug("event=client-lost")
        finally:
            engine.forget(self)
            await trio.aclose_forcefully(self._stream)

    async def _converse(self) -> None:
        connection = self._connection
        while not self._done:
            requests = connection.next_events()
            if requests:
                await self._serve(requests)
            elif connection.next_event() is CONNECTION_CLOSED:
                # from here on nothing is handed out to it
                self._server.engine.forget(self)
                return
            else:
                # who does not read what was pushed is not listened to
                await self._flush()
                await self._receive()

    async def _receive(self) -> None:
        self._done = True
        with trio.CancelScope(deadline=self._receive_until) as self._receiving:
            data = await self._stream.receive_some(limits.RECEIVE_BYTES_MAX)
            self._connection.receive_data(data)
            self._done = False

    async def _serve(self, requests: list[Request]) -> None:
        server = self._server
        engine = server.engine
        handle = engine.handle
        now = server.clock.now_us()
        replies: list[bytes] = []
        room = limits.REPLIES_BYTES_MAX
        turn_over = perf_counter() + TURN_SECONDS
        for request in requests:
            if request.function == _SNAPSHOT:
                await self._finish(replies, now)
                replies = [await server.take_snapshot(request)]
                now = server.clock.now_us()
                continue
            reply = handle(self, request, now)
            if reply is not None:
                replies.append(reply)
                size = len(reply)
                room -= size
                if room < 0 or (size > SHORT_REPLY_BYTES and perf_counter() > turn_over):
                    await self._finish(replies, now)
                    replies, room = [], limits.REPLIES_BYTES_MAX
                    now = server.clock.now_us()
                    turn_over = perf_counter() + TURN_SECONDS
            if request.function == _QUIT:
                self._done = True
                break
        await self._finish(replies, now)

    async def _finish(self, replies: list[bytes], now: int) -> None:
        """Wait until all that was appended is durable, then send."""
        server = self._server
        server.after_requests(now)
        writer = server.writer
        if writer.settled < writer.appended:
            await server.commit.wait_settled(writer.appended)
        if self._done:
            # QUIT is answered last
            await self._flush()
        if replies:
            await self._send(b"".join(replies))

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            await self._stream.send_all(data)

    def push(self, data: bytes, nursery: trio.Nursery) -> None:
        """Send, as soon as it may be shown, what the client did not ask for just now."""
        self._pushed.append(data)
        if len(self._pushed) == 1:
            nursery.start_soon(self._send_pushed)

    async def _send_pushed(self) -> None:
        try:
            await self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # the client is gone; what was leased to it comes back when its lease ends
            self._pushed.clear()

    async def _flush(self) -> None:
        """Send what was pushed, in its order."""
        if not self._pushed:
            return
        server = self._server
        async with self._sending:
            while self._pushed:
                count = len(self._pushed)
                await server.commit.wait_settled(server.writer.appended)
                await self._stream.send_all(b"".join(self._pushed[:count]))
                del self._pushed[:count]

    def stop(self) -> None:
        """The daemon stops: answer what is on its way, then close."""
        self._receive_until = self._receiving.deadline = trio.current_time() + STOP_SECONDS

    async def _close(self) -> None:
        """Tell the client that no more comes, and let it read what was sent."""
        await self._flush()
        async with self._sending:
            await self._stream.send_eof()
        with trio.move_on_after(LINGER_SECONDS):
            while await self._stream.receive_some(limits.RECEIVE_BYTES_MAX):
                pass

    async def refuse(self, *, silently: bool) -> None:
        """Close the connection, because there are too many; unless ``silently``, say so."""
        sentence = f"{ErrorCode.BUSY} the daemon has max-connections clients"
        try:
            if not silently:
                with trio.move_on_after(LINGER_SECONDS):
                    await self._send(encode_error(0, self._server.clock.now_us(), sentence))
                    await self._close()
        except trio.BrokenResourceError:
            self._server.log.debug("event=client-lost")
        finally:
            await trio.aclose_forcefully(self._stream)
