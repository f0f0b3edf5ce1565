"""What a session sends: replies, what is pushed to it, and news of what it listens to.

Replies go out in the order of the requests. What comes between them, replies of NEXTs that waited
and notifications, leaves only when all that was appended until then is durable, as replies do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from fastjournal import limits
from fastjournald.account import NEVER
from fastjournald.lookahead import missing_news

if TYPE_CHECKING:
    from fastjournald.server import Server


class Sending:
    """The half of a session that sends.

    Args:
        server: Engine, commit and clock.
        stream: The connected socket, or TLS on it.
    """

    def __init__(self, server: Server, stream: trio.abc.HalfCloseableStream) -> None:
        self._server = server
        self._account = server.account
        self._stream = stream
        self._sending = trio.Lock()
        self._pushed: list[bytes] = []
        self._pushing = False
        self._serving = False
        """Replies are owed: no notification comes between a request and its reply."""
        self._over = False
        # what the account looks at; times are its own
        self.held_bytes = 0
        """All that is in memory for this connection."""
        self.sending_since = NEVER
        """Since when the client takes nothing; NEVER: nothing is sent."""

    def _hold(self, change: int) -> None:
        """Count that many bytes more, or fewer, that are in memory for this connection."""
        if not self._over:
            self.held_bytes += change
            self._account.hold(change)

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            await self._send_pieces(data)

    async def _send_pieces(self, data: bytes) -> None:
        account, bytes_max = self._account, limits.SEND_BYTES_MAX
        self.sending_since = account.now
        if len(data) <= bytes_max:
            await self._stream.send_all(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), bytes_max):
                await self._stream.send_all(view[start : start + bytes_max])
                self.sending_since = account.now
        self.sending_since = NEVER

    def push(self, data: bytes, nursery: trio.Nursery) -> None:
        """Send, as soon as it may be shown, what the client did not ask for just now."""
        self._hold(len(data))
        self._pushed.append(data)
        self.rouse(nursery)

    def rouse(self, nursery: trio.Nursery) -> None:
        """There may be something to send that the client did not ask for just now."""
        if not self._pushing and (self._pushed or self._has_news()):
            self._pushing = True
            nursery.start_soon(self._send_pushed)

    def _has_news(self) -> bool:
        return not self._serving and self._server.engine.has_news(self)

    async def _send_pushed(self) -> None:
        try:
            while self._pushed or self._has_news():
                await self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # the client is gone; what was leased to it comes back when its lease ends
            self._pushed.clear()
        finally:
            self._pushing = False

    async def _flush(self) -> None:
        """Send what was pushed, in its order, then some of the changes that it listens to."""
        server = self._server
        async with self._sending:
            while self._pushed:
                await server.commit.wait_settled(server.writer.appended)
                count, room = 0, limits.REPLIES_BYTES_MAX
                while count < len(self._pushed) and room > 0:
                    room -= len(self._pushed[count])
                    count += 1
                data = b"".join(self._pushed[:count])
                await self._send_pieces(data)
                del self._pushed[:count]
                self._hold(-len(data))
            if self._has_news():
                await server.notifier.wait_turn()
            while (missing := missing_news(server.engine, self)) is not None:
                await server.fetching.fetch(missing)
            if self._has_news():
                # what stands there now is told, and not what did when it changed
                data = server.engine.tell(self, server.clock.now_us())
                self._hold(len(data))
                await server.commit.wait_settled(server.writer.appended)
                await self._send_pieces(data)
                self._hold(-len(data))
