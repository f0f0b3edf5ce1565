"""Transport: moves the bytes of one session over a trio stream, and carries out its waits.

``Transport.converse`` is the write path, and all of it:

    receive_some -> session.receive_data (bytes to requests) -> session.next_step (the engine
    applies them and appends records) -> commit.wait_settled (one write and one sync for all
    sessions) -> send_all

What a request does is decided elsewhere; only sockets, tasks and time are known here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import trio

from fastjournal import limits
from fastjournald.admission.memory_budget import NEVER
from fastjournald.net.hangup import has_hung_up, is_lost
from fastjournald.net.services import Services
from fastjournald.net.session import Session
from fastjournald.net.steps import (
    CLOSE,
    COMMIT,
    FLUSH,
    MATCH,
    PASS_ON,
    PENALTY,
    RECEIVE,
    ReadValues,
    RunScan,
    Step,
    TakeSnapshot,
    WaitRoom,
    WaitTurn,
)
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")

LINGER_SECONDS = 1.0
"""How long a closing connection goes on reading and discarding: a socket that is closed with
unread data is reset, and the reset can overtake the last replies."""

STOP_SECONDS = 0.25
"""How long a stopping daemon goes on taking requests that are on their way already."""


def _nothing() -> None:
    pass


class Transport:
    """One client's connection: its session and its stream.

    Args:
        session: Decides.
        stream: The connected socket, or TLS on it.
        runtime: Group commit and clock.
        services: Background tasks that it waits for.
        nursery: For a task that sends beside the one that receives.
        peer: Name of the client, for the log.
    """

    def __init__(
        self,
        session: Session,
        stream: trio.abc.HalfCloseableStream,
        runtime: Runtime,
        services: Services,
        nursery: trio.Nursery,
        peer: str,
    ) -> None:
        self.session = session
        self._nursery = nursery
        self._stream = stream
        self._runtime = runtime
        self._services = services
        self._peer = peer
        self._evict = None if runtime.engine.store.values is None else services.evict
        self._life = trio.CancelScope()
        self._receiving = trio.CancelScope()
        self._receive_until = math.inf
        self._sending = False
        """Some task does. Not a ``trio.Lock``: to take a free one is a turn of the event loop more,
        which costs as much as a small request."""
        self._senders = trio.lowlevel.ParkingLot()
        """Tasks that want to send next."""
        self._pushing = False
        self.on_end: Callable[[], object] = _nothing
        """Called when the connection has ended."""

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until it goes, quits, sends garbage, or the daemon stops.

        Raises:
            LogFailedError: The log failed; the daemon must end.
        """
        try:
            with self._life:
                try:
                    await self.converse()
                    await self._close()
                except trio.BrokenResourceError:
                    LOG.debug("event=client-lost")
                finally:
                    self.session.end()
                    await trio.aclose_forcefully(self._stream)
        finally:
            self.on_end()
            # a reference cycle less: this leaves memory at once
            self.on_end = self.session.on_first_request = _nothing

    async def converse(self) -> None:
        """Receive, let the session decide, wait until that is durable, send: again and again."""
        session, clock = self.session, self._runtime.clock
        commit, writer = self._runtime.commit, self._runtime.writer
        while (step := session.next_step(clock.now_us())) is not CLOSE:
            if step is RECEIVE:
                await self._receive()
            elif step is COMMIT:
                if writer.settled < session.mark:
                    await commit.wait_settled(session.mark)
                session.committed()
                if self._evict is not None:
                    self._evict()
                if session.outbox.pieces:
                    await self._send_settled()
            else:
                await self._carry_out(step)

    async def _receive(self) -> None:
        data = None
        with trio.CancelScope(deadline=self._receive_until) as self._receiving:
            data = await self._stream.receive_some(limits.RECEIVE_BYTES_MAX)
        if data is None:
            # the daemon stops, or has waited for the rest of a request long enough
            self.session.stop_receiving()
        else:
            self.session.receive_data(data)

    async def _carry_out(self, step: Step) -> None:
        """Wait for something that few requests wait for."""
        session, services = self.session, self._services
        match step:
            case WaitTurn(expected):
                await services.wait_turn(session.share, expected)
            case WaitRoom(size):
                await self._runtime.backpressure.wait_turn(size)
            case ReadValues(missing, earlier):
                session.values_read(await services.fetch(missing, earlier))
            case RunScan(scan):
                session.take_reply(await services.run_scan(scan, self._is_lost, session.share))
            case TakeSnapshot(request):
                session.take_reply(await services.take_snapshot(session, request))
            case _ if step is PASS_ON:
                await services.pass_on(session.share)
            case _ if step is FLUSH:
                await self._flush()
                self.wake()
            case _ if step is MATCH:
                await services.wait_matched()
            case _ if step is PENALTY:
                LOG.info("event=auth-failed %s", self._peer)
                await trio.sleep(limits.AUTH_FAILURE_SECONDS)

    async def _close(self) -> None:
        """Tell the client that no more comes, and let it read what was sent."""
        session = self.session
        while session.outbox.pieces or session.has_notifications():
            await self._flush()
        session.disconnect()
        await self._begin_sending()
        try:
            await self._stream.send_eof()
        finally:
            self._end_sending()
        with trio.move_on_after(LINGER_SECONDS):
            while await self._stream.receive_some(limits.RECEIVE_BYTES_MAX):
                pass

    async def refuse(self, *, silently: bool) -> None:
        """Close the connection, because there are too many; unless ``silently``, say so."""
        try:
            if not silently:
                with trio.move_on_after(LINGER_SECONDS):
                    self.session.refuse(self._runtime.clock.now_us())
                    await self._close()
        except trio.BrokenResourceError:
            LOG.debug("event=client-lost")
        finally:
            self.session.end()
            await trio.aclose_forcefully(self._stream)

    # --- sending --------------------------------------------------------------------------------

    async def _begin_sending(self) -> None:
        """Wait until no other task sends."""
        while self._sending:
            await self._senders.park()
        self._sending = True

    def _end_sending(self) -> None:
        """Let the next task send."""
        self._sending = False
        if self._senders:
            self._senders.unpark()

    async def _send_settled(self) -> None:
        """Send what is settled by now, and all that stood in the outbox before it."""
        outbox, writer = self.session.outbox, self._runtime.writer
        await self._begin_sending()
        try:
            if outbox.failed:
                # cut off in the middle of a message: nothing can follow that
                raise trio.BrokenResourceError
            while outbox.pieces:
                if outbox.pushed_work and self.has_hung_up():
                    self.session.withdraw(pushed_only=True)
                data = outbox.data_to_send(writer.settled)
                if not data:
                    break
                await self._send(data)
                outbox.data_sent()
        finally:
            self._end_sending()

    async def _send(self, data: bytes) -> None:
        session, memory = self.session, self._runtime.memory
        session.sending_since = memory.now
        if len(data) <= limits.SEND_BYTES_MAX:
            await self._stream.send_all(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), limits.SEND_BYTES_MAX):
                await self._stream.send_all(view[start : start + limits.SEND_BYTES_MAX])
                session.sending_since = memory.now
        session.sending_since = NEVER

    async def _send_all(self) -> None:
        """Send all that is in the outbox, as it gets settled."""
        outbox = self.session.outbox
        while outbox.pieces:
            await self._runtime.commit.wait_settled(outbox.mark)
            await self._send_settled()

    async def _flush(self) -> None:
        """Send all that is in the outbox, then some of the changes that the client listens to."""
        session, services = self.session, self._services
        await self._send_all()
        if session.has_notifications():
            await services.wait_notification_turn()
        unreadable: dict[bytes, str] = {}
        while (missing := session.missing_notifications(unreadable)) is not None:
            unreadable.update(await services.fetch(missing))
        if session.tell(self._runtime.clock.now_us(), unreadable):
            await self._send_all()

    def wake(self) -> None:
        """Send, beside everything else, what the client did not ask for just now."""
        session = self.session
        if not self._pushing and (session.outbox.pieces or session.has_notifications()):
            self._pushing = True
            self._nursery.start_soon(self._send_pushed)

    async def _send_pushed(self) -> None:
        session = self.session
        try:
            while session.outbox.pieces or session.has_notifications():
                await self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # the client is gone, and its session about to end
            pass
        finally:
            self._pushing = False

    # --- calls of others ------------------------------------------------------------------------

    def stop(self) -> None:
        """The daemon stops: answer what is on its way, then close."""
        self._receive_until = self._receiving.deadline = trio.current_time() + STOP_SECONDS

    def abandon(self, sentence: str, code: str) -> None:
        """Wait no longer for the rest of a request: tell the client, and close."""
        self.session.abandon(sentence, code)
        self._receiving.cancel()

    def refuse_request(self) -> None:
        """Tell the client that there is no room for the rest of its request, and close."""
        self.session.refuse_request()
        self._receiving.cancel()

    def cut(self) -> None:
        """Close without a word, whatever the client has not taken."""
        self._life.cancel()

    def has_hung_up(self) -> bool:
        """Whether the client has gone, or at least sends nothing more."""
        return has_hung_up(self._stream)

    def _is_lost(self) -> bool:
        return is_lost(self._stream)
