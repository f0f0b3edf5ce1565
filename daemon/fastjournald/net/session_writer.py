"""Writer of a session: replies, answers of waiting requests, and news of what it listens to.

All of it goes through one outbox, in the order in which it was made: so replies go out in the order
of the requests, and nothing leaves before what was appended when it was made is durable.
"""

from __future__ import annotations

import trio

from fastjournal import limits
from fastjournald.admission.memory_budget import NEVER
from fastjournald.engine.prefetch import missing_news
from fastjournald.net.hangup import has_hung_up
from fastjournald.net.outbox import Outbox
from fastjournald.net.services import Services
from fastjournald.runtime import Runtime


class Sending:
    """The half of a session that sends.

    Args:
        runtime: Engine, commit and clock.
        services: Background tasks that it waits for.
        stream: The connected socket, or TLS on it.
    """

    def __init__(
        self, runtime: Runtime, services: Services, stream: trio.abc.HalfCloseableStream
    ) -> None:
        self._runtime = runtime
        self._services = services
        self._memory = runtime.memory
        assert runtime.engine.context.handouts is not None
        self._handouts = runtime.engine.context.handouts
        self._stream = stream
        self._sending = False
        """Some task does. Not a ``trio.Lock``: to take one that nobody holds is one more turn of
        the event loop, which costs as much as a small request."""
        self._senders = trio.lowlevel.ParkingLot()
        """Tasks that want to send next."""
        self._outbox = Outbox()
        self._pushing = False
        self._serving = False
        """Replies are owed: no notification comes between a request and its reply."""
        self._over = False
        # what the timeouts look at, on the clock of the memory budget
        self.held_bytes = 0
        """All that is in memory for this connection."""
        self.sending_since = NEVER
        """Since when the client takes nothing; NEVER: nothing is sent."""

    def _hold(self, change: int) -> None:
        """Count that many bytes more, or fewer, that are in memory for this connection."""
        if not self._over:
            self.held_bytes += change
            self._memory.hold(change)

    def _put(self, data: bytes, *, pushed: bool = False) -> None:
        """Let messages leave, in their turn, once all that was appended until now is settled."""
        handouts = self._handouts.take(self)
        self._hold(self._outbox.put(data, self._runtime.writer.appended, handouts, pushed=pushed))

    async def _send_pieces(self, data: bytes) -> None:
        memory, bytes_max = self._memory, limits.SEND_BYTES_MAX
        self.sending_since = memory.now
        if len(data) <= bytes_max:
            await self._stream.send_all(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), bytes_max):
                await self._stream.send_all(view[start : start + bytes_max])
                self.sending_since = memory.now
        self.sending_since = NEVER

    def _end_sending(self) -> None:
        """Let the next task send."""
        self._sending = False
        if self._senders:
            self._senders.unpark()

    async def _send_settled(self) -> None:
        """Send what is settled by now, and all that stood in the outbox before it."""
        outbox, writer = self._outbox, self._runtime.writer
        while self._sending:
            await self._senders.park()
        self._sending = True
        try:
            if outbox.failed:
                # cut off in the middle of a message: nothing can follow that
                raise trio.BrokenResourceError
            while outbox.pieces:
                if outbox.pushed_work and self.has_hung_up():
                    self._give_back(pushed_only=True)
                data = outbox.begin(writer.settled)
                if not data:
                    break
                await self._send_pieces(data)
                self._hold(-outbox.done())
        finally:
            self._end_sending()

    def push(self, data: bytes, nursery: trio.Nursery) -> None:
        """Send, as soon as it may be shown, what the client did not ask for just now."""
        self._put(data, pushed=True)
        self.wake(nursery)

    def wake(self, nursery: trio.Nursery) -> None:
        """There may be something to send that the client did not ask for just now."""
        if not self._pushing and (self._outbox.pieces or self._has_news()):
            self._pushing = True
            nursery.start_soon(self._send_pushed)

    def _has_news(self) -> bool:
        return not self._serving and self._runtime.engine.notifications.has_news(self)

    async def _send_pushed(self) -> None:
        try:
            while self._outbox.pieces or self._has_news():
                await self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # the client is gone, and its session about to end
            pass
        finally:
            self._pushing = False

    def has_hung_up(self) -> bool:
        """Whether the client has gone, or at least sends nothing more."""
        return has_hung_up(self._stream)

    def _give_back(self, *, pushed_only: bool) -> None:
        """Let work wait again that stands in the outbox: the client is gone."""
        handouts, held = self._outbox.withdraw(pushed_only=pushed_only)
        self._hold(-held)
        self._runtime.give_back(handouts)

    async def _flush(self) -> None:
        """Send all that is in the outbox, then some of the changes that the client listens to."""
        engine, services = self._runtime.engine, self._services
        await self._send_all()
        if self._has_news():
            await services.wait_news_turn()
        while (missing := missing_news(engine.context, self)) is not None:
            await services.fetch(missing)
        if self._has_news() and not self._outbox.pieces:
            # what stands there now is told, and not what did when it changed
            data = engine.notifications.tell(self, self._runtime.clock.now_us())
            if data:
                self._put(data)
                await self._send_all()

    async def _send_all(self) -> None:
        """Send all that is in the outbox, as it gets settled."""
        while self._outbox.pieces:
            await self._runtime.commit.wait_settled(self._outbox.mark)
            await self._send_settled()
