"""Bounded stream: a client's socket for hypercorn, with deadlines, an abort and a lingering close.

hypercorn shields what it sends from cancellation and waits without a limit for a client that does
not read. Here each answer has a deadline, and ``abort`` ends a connection at once, whatever it
waits for.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf

import trio

from fastjournal import limits

LINGER_SECONDS = 1.0
"""How long a closing connection goes on reading and discarding: a socket that is closed with
unread data is reset, and the reset can overtake the answer."""

LINGER_BYTES_MAX = 1024 * 1024
"""Bytes that it discards at most: reading what nobody wants takes time of the event loop."""

RECEIVE_BYTES = 16 * 1024
"""Bytes of one read, whatever the caller asks for: they are parsed in one turn."""

GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class BoundedStream(trio.abc.HalfCloseableStream):
    """Stream of one HTTP connection.

    Args:
        stream: The client's; it stays open until ``linger``.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket
        """For hypercorn, which asks for the names of both ends."""
        self.scope = trio.CancelScope()
        """Scope of all that serves the connection; cancelled when it is closed."""
        self._sending = trio.CancelScope()
        self._lingering = trio.CancelScope()
        self._answer_until = inf
        self._closed = False
        self._aborted = False

    def begin_answer(self) -> None:
        """Give the client its time to take an answer, head and body together."""
        self._answer_until = trio.current_time() + limits.HTTP_SECONDS_MAX

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return what the client has sent, at most ``RECEIVE_BYTES``."""
        self._check_open()
        return await self._stream.receive_some(min(max_bytes or RECEIVE_BYTES, RECEIVE_BYTES))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, until the deadline of the answer.

        Raises:
            trio.BrokenResourceError: The client has gone, or did not take it in time.
        """
        self._check_open()
        deadline = min(self._answer_until, trio.current_time() + limits.HTTP_SECONDS_MAX)
        with trio.CancelScope(deadline=deadline) as self._sending:
            await self._stream.send_all(data)
            return
        self.abort()
        raise trio.BrokenResourceError("the client did not take an HTTP answer in time")

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the socket has room."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Do nothing so far: ``linger`` sends it behind all answers."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """End all tasks of the connection; ``linger`` closes its socket."""
        self._close()
        # hypercorn calls this behind an error too, which a Cancelled would replace
        await trio.lowlevel.cancel_shielded_checkpoint()

    def abort(self) -> None:
        """End all tasks of the connection, also ``linger``, and drop what was not sent."""
        self._aborted = True
        self._lingering.cancel()
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._sending.cancel()
        self.scope.cancel()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the HTTP connection is closed")

    async def linger(self) -> None:
        """Close the socket; before, let the client take the last answer."""
        try:
            if not self._aborted:
                self._lingering.deadline = trio.current_time() + LINGER_SECONDS
                with suppress(*GONE), self._lingering:
                    await self._stream.send_eof()
                    await self._discard()
        finally:
            await trio.aclose_forcefully(self._stream)

    async def _discard(self) -> None:
        left = LINGER_BYTES_MAX
        while left > 0 and (data := await self._stream.receive_some(RECEIVE_BYTES)):
            left -= len(data)
