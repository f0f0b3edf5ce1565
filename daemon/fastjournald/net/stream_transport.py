"""Stream transport: moves the bytes of one session over a trio stream, and carries out its waits.

A task for each connection, for TLS. ``StreamTransport.converse`` is all of it:

    receive_some -> session.receive_data (bytes to requests) -> session.next_step (the engine
    applies them and appends records) -> commit.wait_settled (one write and one sync for all
    sessions) -> send_all

Plain connections share one task: ``net.poller``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Protocol

import msgspec
import trio

from fastjournal import limits
from fastjournal.protocol import Request
from fastjournald.admission.memory_budget import NEVER
from fastjournald.admission.turn_budget import QueuedClient, Share
from fastjournald.engine.engine import Missing, Scan
from fastjournald.net.plain_socket import do_nothing, has_hung_up, is_lost
from fastjournald.net.session import Session
from fastjournald.net.session_steps import (
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
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Unreadable


class Fetch(Protocol):
    """Type of ``Services.fetch``."""

    def __call__(self, missing: Missing, earlier: Iterable[Entry] = (), /) -> Awaitable[Unreadable]:
        """Read values; those of ``earlier`` once more, where they left memory meanwhile.

        Returns:
            The reads that failed.
        """


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a connection."""

    fetch: Fetch
    """Reads values that are on disk only."""
    evict: Callable[[], object]
    """Lets values leave memory, if there are too many."""
    run_scan: Callable[[Scan, Callable[[], bool], Callable[[], bool], Share], Awaitable[bytes]]
    """Returns the reply to a scan; the second argument tells whether the client is lost, the third
    whether it has ended its requests."""
    take_snapshot: Callable[[Hashable, Request], Awaitable[bytes]]
    """Returns the reply to a SNAPSHOT."""
    wait_turn: Callable[[Share, int], Awaitable[None]]
    """Returns when a client may begin work of that size."""
    queue_up: Callable[[Share, Callable[[], object], int], QueuedClient]
    """The same by a call, without a task that waits; then the turn budget has to be asked."""
    pass_on: Callable[[Share], Awaitable[None]]
    """Lets others have their turn, and returns when the client may go on."""
    wait_matched: Callable[[], Awaitable[None]]
    """Returns when no longer so many changes wait to be matched that no more should come."""
    wait_notification_turn: Callable[[], Awaitable[None]]
    """Returns when a session may be notified of some changes."""


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


LOG = logging.getLogger("fastjournald")


LINGER_SECONDS = 1.0
"""How long a closing connection goes on reading and discarding: a socket that is closed with
unread data is reset, and the reset can overtake the last replies."""


class StepRunner:
    """Waits for what one session waits for.

    Args:
        session: Decides.
        stream: The connected socket, or TLS on it.
        runtime: Group commit and clock.
        services: Background tasks that it waits for.
        nursery: For a task that sends beside the one that carries out the steps.
    """

    def __init__(
        self,
        session: Session,
        stream: trio.abc.HalfCloseableStream,
        runtime: Runtime,
        services: Services,
        nursery: trio.Nursery,
    ) -> None:
        self.sender = Sender(session, stream, runtime, services, nursery)
        """Sends the messages of the session."""
        self._session = session
        self._stream = stream
        self._runtime = runtime
        self._services = services
        self._evict = None if runtime.engine.store.values is None else services.evict

    async def commit(self) -> None:
        """Carry out the step COMMIT."""
        session, runtime = self._session, self._runtime
        if runtime.writer.settled < session.mark:
            await runtime.commit.wait_settled(session.mark)
        session.committed()
        if self._evict is not None:
            self._evict()
        await self.sender.send_settled()

    async def carry_out(self, step: Step) -> None:
        """Carry out a step, but for RECEIVE, COMMIT and CLOSE."""
        session, services = self._session, self._services
        match step:
            case WaitTurn(expected):
                await services.wait_turn(session.share, expected)
            case WaitRoom(size):
                await self._runtime.backpressure.wait_turn(size)
            case ReadValues(missing, earlier):
                session.values_read(await services.fetch(missing, earlier))
            case RunScan(scan):
                session.take_reply(
                    await services.run_scan(scan, self._is_lost, self._has_hung_up, session.share)
                )
            case TakeSnapshot(request):
                session.take_reply(await services.take_snapshot(session, request))
            case _ if step is PASS_ON:
                await services.pass_on(session.share)
            case _ if step is FLUSH:
                await self.sender.flush()
                self.sender.wake()
            case _ if step is MATCH:
                await services.wait_matched()
            case _ if step is PENALTY:
                LOG.info("event=auth-failed %s", session.peer)
                await trio.sleep(limits.AUTH_FAILURE_SECONDS)

    async def close(self) -> None:
        """Tell the client that no more comes, and let it read what was sent."""
        session = self._session
        while session.has_unsent or session.has_notifications():
            await self.sender.flush()
        session.disconnect()
        await self.sender.send_eof()
        with trio.move_on_after(LINGER_SECONDS):
            while await self._stream.receive_some(limits.RECEIVE_BYTES_MAX):
                pass

    def _is_lost(self) -> bool:
        return is_lost(self._stream)

    def _has_hung_up(self) -> bool:
        return has_hung_up(self._stream)


STOP_SECONDS = 0.25
"""How long a stopping daemon goes on taking requests that are on their way already."""


class StreamTransport:
    """One client's connection: its session and its stream.

    Args:
        session: Decides.
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
        self.session = session
        self._stream = stream
        self._runtime = runtime
        self._nursery = nursery
        self._steps = StepRunner(session, stream, runtime, services, nursery)
        self._life = trio.CancelScope()
        self._receiving = trio.CancelScope()
        self._receive_until = math.inf
        self.on_end: Callable[[], object] = do_nothing
        """Called when the connection has ended."""

    # --- life -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Serve the client, from the first byte on."""
        self._nursery.start_soon(self.run)

    async def run(self) -> None:
        """Serve the client until it goes, quits, sends garbage, or the daemon stops.

        Raises:
            LogFailedError: The log failed; the daemon must end.
        """
        try:
            with self._life:
                try:
                    await self.converse()
                    await self._steps.close()
                except trio.BrokenResourceError:
                    LOG.debug("event=client-lost")
                finally:
                    self.session.end()
                    await trio.aclose_forcefully(self._stream)
        finally:
            self.on_end()
            # a reference cycle less: this leaves memory at once
            self.on_end = self.session.on_first_request = do_nothing

    async def converse(self) -> None:
        """Receive, let the session decide, wait until that is durable, send: again and again."""
        session, clock, steps = self.session, self._runtime.clock, self._steps
        while (step := session.next_step(clock.now_us())) is not CLOSE:
            if step is RECEIVE:
                await self._receive()
            elif step is COMMIT:
                await steps.commit()
            else:
                await steps.carry_out(step)

    async def _receive(self) -> None:
        data = None
        with trio.CancelScope(deadline=self._receive_until) as self._receiving:
            data = await self._stream.receive_some(limits.RECEIVE_BYTES_MAX)
        if data is None:
            # the daemon stops, or has waited for the rest of a request long enough
            self.session.stop_receiving()
        else:
            self.session.receive_data(data)

    async def refuse(self, *, silently: bool) -> None:
        """Close the connection, because there are too many; unless ``silently``, say so."""
        try:
            if not silently:
                with trio.move_on_after(LINGER_SECONDS):
                    self.session.refuse(self._runtime.clock.now_us())
                    await self._steps.close()
        except trio.BrokenResourceError:
            LOG.debug("event=client-lost")
        finally:
            self.session.end()
            await trio.aclose_forcefully(self._stream)

    # --- calls of others ------------------------------------------------------------------------

    def wake(self) -> None:
        """Send, beside everything else, what the client did not ask for just now."""
        self._steps.sender.wake()

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
