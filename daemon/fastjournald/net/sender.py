"""Sender: sends what a session has to send, one task at a time."""

from __future__ import annotations

import trio

from fastjournal import limits
from fastjournald.admission.memory_budget import NEVER
from fastjournald.net.hangup import has_hung_up
from fastjournald.net.services import Services
from fastjournald.net.session import Session
from fastjournald.runtime import Runtime


class Sender:
    """The sending half of a client's connection.

    Args:
        session: Has the messages.
        stream: The connected socket, or TLS on it.
        runtime: Group commit and clock.
        services: Background tasks that it waits for.
        nursery: For a task that sends beside the one that receives.
    """

    def __init__(
        self,
        session: Session,
        stream: trio.abc.HalfCloseableStream,
        runtime: Runtime,
        services: Services,
        nursery: trio.Nursery,
    ) -> None:
        self._session = session
        self._nursery = nursery
        self._stream = stream
        self._runtime = runtime
        self._services = services
        self.busy = False
        """Some task sends. Not a ``trio.Lock``: to take a free one is one more turn of the event
        loop, which costs as much as a small request."""
        self._senders = trio.lowlevel.ParkingLot()
        """Tasks that want to send next."""
        self.rest: bytes | memoryview = b""
        """End of the messages that the session gave last, where somebody else sent the begin."""
        self.is_cut_off = False
        """Sending has failed, or stands, in the middle of a message: nothing else can follow."""
        self._pushing = False

    async def _begin(self) -> None:
        """Wait until no other task sends."""
        while self.busy:
            await self._senders.park()
        self.busy = True

    def _end(self) -> None:
        """Let the next task send."""
        self.busy = False
        if self._senders:
            self._senders.unpark()

    async def send_settled(self) -> None:
        """Send what is settled by now."""
        session, writer = self._session, self._runtime.writer
        await self._begin()
        try:
            if self.is_cut_off:
                raise trio.BrokenResourceError
            if self.rest:
                rest, self.rest = self.rest, b""
                await self._send(rest)
            while data := session.data_to_send(writer.settled, self._has_hung_up):
                await self._send(data)
        finally:
            self._end()

    def _has_hung_up(self) -> bool:
        return has_hung_up(self._stream)

    async def _send(self, data: bytes | memoryview) -> None:
        session, memory = self._session, self._runtime.memory
        self.is_cut_off = True
        session.sending_since = memory.now
        if len(data) <= limits.SEND_BYTES_MAX:
            await self._stream.send_all(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), limits.SEND_BYTES_MAX):
                await self._stream.send_all(view[start : start + limits.SEND_BYTES_MAX])
                session.sending_since = memory.now
        session.sending_since = NEVER
        self.is_cut_off = False
        session.data_sent()

    async def _send_all(self) -> None:
        """Send all messages, as the log gets settled up to each."""
        session = self._session
        while session.has_unsent:
            await self._runtime.commit.wait_settled(session.unsent_mark)
            await self.send_settled()

    async def flush(self) -> None:
        """Send all messages, then some of the changes that the client listens to."""
        session, services = self._session, self._services
        await self._send_all()
        if session.has_notifications():
            await services.wait_notification_turn()
        unreadable: dict[bytes, str] = {}
        while (missing := session.missing_notifications(unreadable)) is not None:
            unreadable.update(await services.fetch(missing))
        if session.tell(self._runtime.clock.now_us(), unreadable):
            await self._send_all()

    async def send_eof(self) -> None:
        """Tell the client that no more comes."""
        await self._begin()
        try:
            await self._stream.send_eof()
        finally:
            self._end()

    # --- beside the session ---------------------------------------------------------------------

    def wake(self) -> None:
        """Send, beside everything else, what the client did not ask for just now."""
        session = self._session
        if not self._pushing and (session.has_unsent or session.has_notifications()):
            self._pushing = True
            self._nursery.start_soon(self._push)

    async def _push(self) -> None:
        session = self._session
        try:
            while session.has_unsent or session.has_notifications():
                await self.flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # the client is gone, and its session about to end
            pass
        finally:
            self._pushing = False
