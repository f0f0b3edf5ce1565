"""Stream transport: a task that serves one client over a trio stream, for TLS; and the step runner.

The task is a loop of these (``StreamTransport.converse``):

    receive_some -> session.receive_data (bytes to requests) -> session.next_step (the engine
    applies them and appends records) -> commit.wait_settled (one write and one sync for all
    sessions) -> send_all

``StepRunner`` carries out the steps of a session that wait for something, and sends. The poller,
which serves plain connections, uses it too: each wait exists once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Protocol

import msgspec
import trio

from fastjournal import limits
from fastjournal.loglines import LogEvent
from fastjournal.protocol import Request
from fastjournal.sockets import LINGER_SECONDS, linger
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
    AskServer,
    ReadValues,
    RunScan,
    Step,
    WaitRoom,
    WaitTurn,
)
from fastjournald.runtime import Runtime
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import Unreadable

LOG = logging.getLogger("fastjournald")

STOP_SECONDS = 0.25
"""Time in which a stopping daemon still accepts requests that are arriving."""


class Fetch(Protocol):
    """Type of ``Services.fetch``."""

    def __call__(self, missing: Missing, earlier: Iterable[Entry] = (), /) -> Awaitable[Unreadable]:
        """Read values, and those of ``earlier`` again that were evicted meanwhile.

        Returns:
            The reads that failed.
        """


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that a connection makes of background tasks, most of them to wait."""

    fetch: Fetch
    """Reads values that are on disk only."""
    evict: Callable[[], object]
    """Evicts values from memory, if there are too many."""
    run_scan: Callable[[Scan, Callable[[], bool], Callable[[], bool], Share], Awaitable[bytes]]
    """Returns the reply to a scan. The second argument returns whether the client is lost, the
    third whether it has ended its requests."""
    carry_out: Callable[[Hashable, Request], Awaitable[bytes]]
    """Returns the reply to a request that the engine does not carry out: SNAPSHOT, REMOTE."""
    wait_turn: Callable[[Share, int], Awaitable[None]]
    """Waits until a client may begin work of that size."""
    queue_up: Callable[[Share, Callable[[], object], int], QueuedClient]
    """The same by a call, without a task that waits. Then the turn budget must be asked."""
    pass_on: Callable[[Share], Awaitable[None]]
    """Yields to other clients, and waits for the next turn of this one."""
    next_turn: Callable[[], None]
    """Ends a turn and begins the next one, where no task has anything to do."""
    is_alone: Callable[[float], bool]
    """Returns whether no other task runs in this turn, nor within so many seconds."""
    wait_matched: Callable[[], Awaitable[None]]
    """Waits while the queue of unmatched changes is full (backpressure)."""
    wait_notification_turn: Callable[[], Awaitable[None]]
    """Waits until a session may be notified of some changes."""


class StepRunner:
    """Carries out the steps of one session that wait, and sends its messages, one task at a time.

    Args:
        session: State machine of the connection.
        stream: The connected socket, or TLS on it.
        runtime: Group commit and clock.
        services: Background tasks that it waits for.
        nursery: For a task that sends beside the task that carries out the steps.
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
        self.stream = stream
        self.runtime = runtime
        self.services = services
        self.nursery = nursery
        self.evict = None if runtime.engine.store.values is None else services.evict
        """Evicts values after a commit; None: there is no bound on values in memory."""
        self.sending = False
        """Some task sends. Not a ``trio.Lock``: to take a free one is one more turn of the event
        loop, which costs as much as a small request."""
        self.rest: bytes | memoryview = b""
        """Unsent end of the messages that the session returned last."""
        self.is_cut_off = False
        """Sending failed, or is going on, in the middle of a message: nothing else can follow."""
        self._senders = trio.lowlevel.ParkingLot()
        """Tasks that wait to send."""
        self._pushing = False
        """A task sends beside the steps."""

    def now_us(self) -> int:
        """Return the instant."""
        return self.runtime.clock.now_us()

    def has_hung_up(self) -> bool:
        """Whether the client sends nothing more."""
        return has_hung_up(self.stream)

    def _is_lost(self) -> bool:
        return is_lost(self.stream)

    # --- steps ----------------------------------------------------------------------------------

    async def carry_out(self, step: Step) -> None:
        """Carry out a step, except RECEIVE and CLOSE."""
        session, services = self.session, self.services
        match step:
            case _ if step is COMMIT:
                await self._commit()
            case WaitTurn(expected):
                await services.wait_turn(session.share, expected)
            case WaitRoom(size):
                await self.runtime.backpressure.wait_turn(size)
            case ReadValues(missing, earlier):
                session.values_read(await services.fetch(missing, earlier))
            case RunScan(scan):
                session.take_reply(
                    await services.run_scan(scan, self._is_lost, self.has_hung_up, session.share)
                )
            case AskServer(request):
                session.take_reply(await services.carry_out(session, request))
            case _ if step is PASS_ON:
                await services.pass_on(session.share)
            case _ if step is FLUSH:
                await self._flush()
                self.wake()
            case _ if step is MATCH:
                await services.wait_matched()
            case _ if step is PENALTY:
                LOG.info(LogEvent("auth-failed", **session.peer))
                await trio.sleep(limits.AUTH_FAILURE_SECONDS)

    async def _commit(self) -> None:
        session, runtime = self.session, self.runtime
        if runtime.writer.settled < session.mark:
            await runtime.commit.wait_settled(session.mark)
        session.committed()
        if self.evict is not None:
            self.evict()
        await self._send_settled()

    async def close(self) -> None:
        """Carry out CLOSE: send all messages and the end of the stream, and linger."""
        session = self.session
        while session.has_unsent or session.has_notifications():
            await self._flush()
        session.disconnect()
        await self._begin_sending()
        try:
            await self.stream.send_eof()
        finally:
            self._end_sending()
        await linger(self.stream, limits.RECEIVE_BYTES_MAX)

    # --- sending --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Send notifications and replies to requests that waited, in a task beside the steps."""
        session = self.session
        if not self._pushing and (session.has_unsent or session.has_notifications()):
            self._pushing = True
            self.nursery.start_soon(self._push)

    async def _push(self) -> None:
        session = self.session
        try:
            while session.has_unsent or session.has_notifications():
                await self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # the client is lost, and its session about to end
            pass
        finally:
            self._pushing = False

    async def _flush(self) -> None:
        """Send all messages, then notifications of some changes."""
        session, services = self.session, self.services
        await self._send_all()
        if session.has_notifications():
            await services.wait_notification_turn()
        unreadable: dict[bytes, str] = {}
        while (missing := session.missing_notifications(unreadable)) is not None:
            unreadable.update(await services.fetch(missing))
        if session.tell(self.now_us(), unreadable):
            await self._send_all()

    async def _send_all(self) -> None:
        """Send all messages, as the log gets settled up to each."""
        session = self.session
        while session.has_unsent:
            await self.runtime.commit.wait_settled(session.unsent_mark)
            await self._send_settled()

    async def _send_settled(self) -> None:
        """Send the settled replies."""
        session, commit = self.session, self.runtime.commit
        await self._begin_sending()
        try:
            if self.is_cut_off:
                raise trio.BrokenResourceError
            if self.rest:
                rest, self.rest = self.rest, b""
                await self._send(rest)
            while data := session.data_to_send(commit.releasable(), self.has_hung_up):
                await self._send(data)
        finally:
            self._end_sending()

    async def _send(self, data: bytes | memoryview) -> None:
        session, memory = self.session, self.runtime.memory
        self.is_cut_off = True
        session.sending_since = memory.now
        if len(data) <= limits.SEND_BYTES_MAX:
            await self.stream.send_all(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), limits.SEND_BYTES_MAX):
                await self.stream.send_all(view[start : start + limits.SEND_BYTES_MAX])
                session.sending_since = memory.now
        session.sending_since = NEVER
        self.is_cut_off = False
        session.data_sent()

    async def _begin_sending(self) -> None:
        """Wait until no other task sends."""
        while self.sending:
            await self._senders.park()
        self.sending = True

    def _end_sending(self) -> None:
        """Wake the next task that waits to send."""
        self.sending = False
        if self._senders:
            self._senders.unpark()


class StreamTransport:
    """Transport of one client's connection, with a task of its own.

    Args:
        steps: Session, stream, and the waits.
    """

    def __init__(self, steps: StepRunner) -> None:
        self.session = steps.session
        self._stream = steps.stream
        self._steps = steps
        self._life = trio.CancelScope()
        self._receiving = trio.CancelScope()
        self._receive_until = math.inf
        self.on_end: Callable[[], object] = do_nothing
        """Called when the connection has ended."""

    # --- life -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Serve the client, from the first byte on."""
        self._steps.nursery.start_soon(self.run)

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
                    LOG.debug(LogEvent("client-lost"))
                finally:
                    self.session.end()
                    await trio.aclose_forcefully(self._stream)
        finally:
            self.on_end()
            # a reference cycle less: this leaves memory at once
            self.on_end = self.session.on_first_request = do_nothing

    async def converse(self) -> None:
        """Receive, advance the session, commit, send: until the session closes."""
        session, steps = self.session, self._steps
        while (step := session.next_step(steps.now_us())) is not CLOSE:
            await (self._receive() if step is RECEIVE else steps.carry_out(step))

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
        """Close a connection over the limit; unless ``silently``, send an error reply."""
        try:
            if not silently:
                with trio.move_on_after(LINGER_SECONDS):
                    self.session.refuse(self._steps.now_us())
                    await self._steps.close()
        except trio.BrokenResourceError:
            LOG.debug(LogEvent("client-lost"))
        finally:
            self.session.end()
            await trio.aclose_forcefully(self._stream)

    # --- calls of others ------------------------------------------------------------------------

    def wake(self) -> None:
        """Send notifications and replies to requests that waited."""
        self._steps.wake()

    def stop(self) -> None:
        """Stop with the daemon: answer requests that are on their way, then close."""
        self._receive_until = self._receiving.deadline = trio.current_time() + STOP_SECONDS

    def abandon(self, sentence: str, code: str) -> None:
        """End the wait for the rest of a request: send the client an error, and close."""
        self.session.abandon(sentence, code)
        self._receiving.cancel()

    def refuse_request(self) -> None:
        """Send the client an error: there is no room for the rest of its request; and close."""
        self.session.refuse_request()
        self._receiving.cancel()

    def cut(self) -> None:
        """Close at once: messages that the client has not taken are lost."""
        self._life.cancel()

    def has_hung_up(self) -> bool:
        """Whether the client sends nothing more."""
        return self._steps.has_hung_up()
