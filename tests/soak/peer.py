"""A connection of the soak: requests out, replies in, lost where the daemon closes it."""

from __future__ import annotations

import trio

from fastjournal.protocol import ClientConnection, encode_request
from fastjournal.protocol.constants import Flag
from fastjournal.protocol.messages import Reply, Request

SILENCE_SECONDS = 60.0
"""Far longer than any answer takes."""

LISTEN = int(Flag.LISTEN)


class LostError(Exception):
    """The daemon has closed the connection."""


class Peer:
    """A connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._connection = ClientConnection()

    async def send(self, *requests: Request) -> None:
        """Send requests in one piece."""
        try:
            await self.stream.send_all(b"".join(encode_request(request) for request in requests))
        except trio.BrokenResourceError:
            raise LostError from None

    async def reply(self) -> Reply:
        """Return the next reply; notifications are passed over."""
        with trio.fail_after(SILENCE_SECONDS):
            while True:
                event = self._connection.next_event()
                if isinstance(event, Reply):
                    if not event.flags & LISTEN:
                        return event
                    continue
                try:
                    data = await self.stream.receive_some(65536)
                except trio.BrokenResourceError:
                    raise LostError from None
                if not data:
                    raise LostError
                self._connection.receive_data(data)

    async def ask(self, request: Request) -> Reply:
        """Send a request and return its reply."""
        await self.send(request)
        reply = await self.reply()
        assert reply.identifier == request.identifier
        return reply
