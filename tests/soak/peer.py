"""A connection of the soak: requests out, replies in, lost where the daemon closes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from fastjournal.protocol import ClientConnection, encode_request
from fastjournal.protocol.constants import Flag
from fastjournal.protocol.messages import Reply, Request

SILENCE_SECONDS = 60.0
"""Far longer than any answer takes."""

LISTEN = int(Flag.LISTEN)


class LostError(Exception):
    """The daemon has closed the connection."""


@contextmanager
def _lost() -> Iterator[None]:
    """Raise :class:`LostError` where the block finds the connection ended by the daemon."""
    try:
        yield
    except trio.BrokenResourceError:
        raise LostError from None


class Peer:
    """A connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._connection = ClientConnection()

    async def send(self, *requests: Request) -> None:
        """Send requests in one piece."""
        await self.send_bytes(b"".join(encode_request(request) for request in requests))

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are, a whole request or not."""
        with _lost():
            await self._stream.send_all(data)

    async def send_end(self) -> None:
        """End the sending half of the connection."""
        with _lost():
            await self._stream.send_eof()

    async def wait(self) -> None:
        """Wait until the daemon sends or ends the connection; what it sends is lost."""
        with _lost():
            await self._stream.receive_some(1)

    async def reply(self) -> Reply:
        """Return the next reply; notifications are passed over."""
        with trio.fail_after(SILENCE_SECONDS):
            while True:
                event = self._connection.next_event()
                if isinstance(event, Reply):
                    if not event.flags & LISTEN:
                        return event
                    continue
                with _lost():
                    data = await self._stream.receive_some(65536)
                if not data:
                    raise LostError
                self._connection.receive_data(data)

    async def ask(self, request: Request) -> Reply:
        """Send a request and return its reply."""
        await self.send(request)
        reply = await self.reply()
        assert reply.identifier == request.identifier
        return reply
