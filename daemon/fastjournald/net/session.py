"""One client's connection: receive, decode, handle, wait until durable, send.

``Session.run`` is the write path, and all of it:

    receive_some -> connection (bytes to requests) -> engine.handle (pure; appends records)
    -> commit.wait_settled (one write and one sync for all sessions) -> send_all

Nothing awaits between handling a request and appending its records: they stand in the log in the
order in which the requests were applied. All that is sent goes through the outbox, whose marks see
to it that no reply shows anybody a change that a crash could undo.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable

import trio

from fastjournal import limits
from fastjournal.errors import ProtocolError
from fastjournal.limits import BATCH_WORK, TURN_WORK
from fastjournal.protocol import (
    CONNECTION_CLOSED,
    ErrorCode,
    Function,
    Request,
    ServerConnection,
    encode_error,
)
from fastjournald.admission.close_reason import CloseReason
from fastjournald.admission.log_growth import bytes_of, grows
from fastjournald.admission.memory_budget import NEVER
from fastjournald.admission.turn_budget import Share
from fastjournald.engine.engine import Missing, Scan
from fastjournald.engine.prefetch import missing_soon
from fastjournald.net.hangup import is_lost
from fastjournald.net.services import Services
from fastjournald.net.session_writer import Sending
from fastjournald.runtime import Runtime
from fastjournald.tables.entry import Entry

LOG = logging.getLogger("fastjournald")

_QUIT = int(Function.QUIT)
_SNAPSHOT = int(Function.SNAPSHOT)
_AUTH = int(Function.AUTH)

LINGER_SECONDS = 1.0
"""How long a closing connection goes on reading and discarding: a socket that is closed with
unread data is reset, and the reset can overtake the last replies."""

STOP_SECONDS = 0.25
"""How long a stopping daemon goes on taking requests that are on their way already."""


class Session(Sending):
    """A client's connection, from its first byte to its last.

    Args:
        runtime: Engine, commit and clock.
        services: Background tasks that it waits for.
        stream: The connected socket, or TLS on it.
        peer: Name of the client, for the log.
        wake_session: Lets a session send what the client did not ask for just now.
    """

    def __init__(
        self,
        runtime: Runtime,
        services: Services,
        stream: trio.abc.HalfCloseableStream,
        peer: str,
        wake_session: Callable[[Hashable], None],
    ) -> None:
        super().__init__(runtime, services, stream)
        self._peer = peer
        self._wake_session = wake_session
        self._connection = ServerConnection(
            value_bytes_max=runtime.engine.context.settings.value_bytes_max
        )
        self._receiving = trio.CancelScope()
        self._receive_until = math.inf
        self._life = trio.CancelScope()
        self._done = False
        self._abandoned = False
        self._undecoded = b""
        self._taken_bytes = 0
        """Of the requests that are being served."""
        self._turn_bytes = 0
        """Of requests that may make the log grow, although that is far too large."""
        # what the timeouts look at, on the clock of the memory budget
        self.partial_bytes = 0
        """Of a request that is cut short."""
        self.partial_since = NEVER
        """When its first byte came."""
        self.receiving_since = NEVER
        """Since when nothing comes; NEVER: this is not what the session waits for."""
        self.unknown = runtime.engine.context.grants is not None
        """AUTH has not succeeded so far, and has to."""
        self.connected_since = self._memory.now
        self._share = Share()
        self.on_first_request: Callable[[], object] | None = None
        """Called once, when it has asked for something, after AUTH where that is needed."""

    async def run(self) -> None:
        """Serve the client until it goes, quits, sends garbage, or the daemon stops.

        Raises:
            LogFailedError: The log failed; the daemon must end.
        """
        with self._life:
            try:
                try:
                    await self._converse()
                except ProtocolError as error:
                    # it is kept by the connection: with a traceback that is a reference cycle
                    error.__traceback__ = None
                    self._forget()
                    self._runtime.counters.protocol_errors[error.code] += 1
                    now = self._runtime.clock.now_us()
                    self._put(encode_error(error.identifier, now, f"{error.code} {error}"))
                await self._close()
            except trio.BrokenResourceError:
                LOG.debug("event=client-lost")
            finally:
                self._forget()
                self._give_back(pushed_only=False)
                self._hold(-self.held_bytes)
                self._over = True
                self.receiving_since = self.sending_since = NEVER
                await trio.aclose_forcefully(self._stream)

    def _forget(self) -> None:
        """The connection is about to end; others may get what it had locked."""
        self._runtime.engine.forget(self)
        self._runtime.wake_tasks()

    async def _converse(self) -> None:
        connection = self._connection
        while not self._done:
            requests = connection.next_events()
            if requests:
                try:
                    if self._runtime.backpressure.closed:
                        await self._wait_room(requests, self._taken_bytes)
                    await self._serve(requests)
                finally:
                    self._end_turn()
                self.partial_since = self._memory.now
                if self.on_first_request is not None and not self.unknown:
                    self.on_first_request()
                    self.on_first_request = None
            elif connection.next_event() is CONNECTION_CLOSED:
                # from here on nothing is handed out to it
                self._runtime.engine.store.work += BATCH_WORK
                self._forget()
                return
            else:
                if self._outbox.pieces or self._has_news():
                    # who does not read what was pushed is not listened to
                    await self._flush()
                    self.partial_since = self._memory.now
                    self._wake_session(self)
                if self._runtime.engine.notifications.behind:
                    await self._services.wait_matched()
                await self._receive()

    async def _wait_room(self, requests: list[Request], size: int) -> None:
        """Wait while the log is far too large, holding what was decoded."""
        pressure = self._runtime.backpressure
        if grows(requests):
            held = size + len(requests) * limits.REQUEST_OBJECT_BYTES
            self._hold(held)
            await pressure.wait_turn(size)
            self._hold(-held)
            self._turn_bytes = size

    def _end_turn(self, unused: int = 0) -> None:
        """Let other writers go on, for what was carried out so far is in the log.

        Args:
            unused: Bytes of the requests that were not carried out; another turn is for them.
        """
        if self._turn_bytes:
            self._runtime.backpressure.turn_over(self._turn_bytes, unused)
            self._turn_bytes = 0

    def _unused(self, requests: list[Request], at: int) -> int:
        """Return the bytes of its turn that are for the requests from this one on."""
        return bytes_of(requests[at:]) if self._turn_bytes else 0

    async def _wait_rest(self, requests: list[Request], at: int) -> None:
        """Wait with the requests from this one on, while the log is far too large."""
        if self._runtime.backpressure.closed and not self._turn_bytes and at < len(requests):
            await self._wait_room(requests[at:], bytes_of(requests[at:]))

    async def _receive(self) -> None:
        memory, connection = self._memory, self._connection
        data: bytes | bytearray | None = self._undecoded
        if data:
            self._hold(-len(data))
            self._undecoded = b""
        else:
            data = None
            self.receiving_since = memory.now
            with trio.CancelScope(deadline=self._receive_until) as self._receiving:
                data = await self._stream.receive_some(limits.RECEIVE_BYTES_MAX)
            self.receiving_since = NEVER
            if data is None:
                # the daemon stops, or has waited for the rest of a request long enough
                self._done = not self._abandoned
                return
        if memory.scarce and len(data) > limits.SCARCE_BYTES:
            # decoded requests take ten times as much
            self._undecoded = bytes(data[limits.SCARCE_BYTES :])
            self._hold(len(self._undecoded))
            data = data[: limits.SCARCE_BYTES]
        if not self._runtime.turns.admits(self._share):
            await self._wait_turn(len(data))
        connection.receive_data(data)
        before, partial = self.partial_bytes, connection.unfinished_bytes
        self._taken_bytes = before + len(data) - partial
        if partial or before:
            self._runtime.engine.store.work += BATCH_WORK
            self._hold(partial - before)
            self.partial_bytes = partial
            if not before:
                self.partial_since = memory.now
            if memory.scarce and partial > limits.SCARCE_PARTIAL_BYTES:
                self.refuse_request()

    def refuse_request(self) -> None:
        """Tell the client that there is no room for the rest of its request."""
        self._runtime.counters.connections_closed[CloseReason.NO_ROOM] += 1
        self.abandon("connections hold max-inflight bytes; send it again later", "busy")

    def abandon(self, sentence: str, code: str) -> None:
        """Wait no longer for the rest of a request: tell the client, and close."""
        self._connection.abandon(sentence, code)
        self._abandoned = True
        self._hold(-self.partial_bytes)
        self.partial_bytes = 0
        self._receiving.cancel()

    def cut(self) -> None:
        """Close without a word, whatever the client has not taken."""
        self._life.cancel()

    async def _wait_turn(self, size: int) -> None:
        """Wait until requests of ``size`` bytes may be decoded and carried out; 0: none follow."""
        self._hold(size)
        expected = BATCH_WORK + limits.REQUEST_WORK + size // limits.READ_BYTES_A_UNIT
        await self._services.wait_turn(self._share, expected)
        self._hold(-size)

    async def _pass_on(self, replies: list[bytes], now: int) -> int:
        """Put replies into the outbox and let others have their turn; return the instant then."""
        runtime = self._runtime
        runtime.turns.charge(self._share)
        if replies:
            # they leave together with those that follow
            self._put(b"".join(replies))
            replies.clear()
        runtime.after_requests(now)
        await self._services.pass_on(self._share)
        return runtime.clock.now_us()

    def _go_on(self) -> int:
        """Begin another piece of work, after others had theirs; return the instant."""
        runtime = self._runtime
        self._share.began = runtime.engine.store.work
        return runtime.clock.now_us()

    async def _serve(self, requests: list[Request]) -> None:
        runtime = self._runtime
        engine = runtime.engine
        handle = engine.handle
        memory = self._memory
        now = runtime.clock.now_us()
        replies: list[bytes] = []
        room = limits.SCARCE_BYTES if memory.scarce else limits.REPLIES_BYTES_MAX
        store, share = engine.store, self._share
        store.work += BATCH_WORK + len(requests)
        ahead_bytes = self._taken_bytes + len(requests) * limits.REQUEST_OBJECT_BYTES
        self._hold(ahead_bytes)
        self._serving = True
        for at, request in enumerate(requests):
            if request.function == _SNAPSHOT:
                await self._finish(replies, now, self._unused(requests, at + 1))
                replies.append(await self._services.take_snapshot(self, request))
                await self._wait_rest(requests, at + 1)
                now = self._go_on()
                continue
            reply = handle(self, request, now)
            if not isinstance(reply, bytes) and reply is not None:
                await self._finish(replies, now, self._unused(requests, at))
                await self._wait_rest(requests, at)
                ahead = requests[at + 1 : at + limits.READ_AHEAD]
                reply = await self._take_longer(request, reply, ahead)
                now = self._go_on()
            if reply is not None:
                replies.append(reply)
                room -= len(reply)
                if room < 0:
                    await self._finish(replies, now, self._unused(requests, at + 1))
                    await self._wait_rest(requests, at + 1)
                    room = limits.SCARCE_BYTES if memory.scarce else limits.REPLIES_BYTES_MAX
                    now = self._go_on()
                elif store.work - share.began > TURN_WORK:
                    if runtime.backpressure.closed and not self._turn_bytes:
                        await self._finish(replies, now)
                        await self._wait_rest(requests, at + 1)
                    now = await self._pass_on(replies, now)
            if request.function == _QUIT:
                self._done = True
                break
            if request.function == _AUTH and engine.context.grants is not None:
                self.unknown = self not in engine.context.grants.sessions
                if self.unknown:
                    # so that nobody guesses fast, this answer takes its time
                    refusal = replies[-1:]
                    del replies[-1:]
                    await self._finish(replies, now)
                    await self._slow_down()
                    replies += refusal
                    now = self._go_on()
                    if self._done:
                        break
        # not held any more while the last replies are on their way
        requests.clear()
        del request
        self._hold(-ahead_bytes)
        await self._finish(replies, now)
        self._serving = False

    async def _take_longer(
        self, request: Request, outcome: Scan | Missing, ahead: list[Request]
    ) -> bytes | None:
        """Carry out a scan, or a request that needs values from the disk; return its reply.

        Values that the requests ahead of it will need are read together with its own.
        """
        runtime = self._runtime
        engine = runtime.engine
        reply: bytes | Scan | Missing | None = outcome
        had: dict[Entry, None] = {}
        while isinstance(reply, Missing):
            place = reply.entries[0].place
            # but for what others took meanwhile
            had = {entry: None for entry in had if entry.place == place}
            in_vain = any(entry in had for entry in reply.entries)
            missing = missing_soon(engine.context, reply, ahead)
            await self._services.fetch(missing, had if in_vain else ())
            had.update((entry, None) for entry in reply.entries if isinstance(entry.value, bytes))
            reply = engine.handle(self, request, runtime.clock.now_us())
        if isinstance(reply, Scan):
            reply = await self._services.run_scan(reply, lambda: is_lost(self._stream), self._share)
        return reply

    async def _slow_down(self) -> None:
        """Let whoever has shown a wrong token wait, and end the connection after some of them."""
        LOG.info("event=auth-failed %s", self._peer)
        self._done = self._runtime.engine.context.auth_failures[self] >= limits.AUTH_FAILURES_MAX
        await trio.sleep(limits.AUTH_FAILURE_SECONDS)

    async def _finish(self, replies: list[bytes], now: int, unused: int = 0) -> None:
        """Put replies into the outbox, wait until all that was appended is durable, and send.

        Args:
            replies: Which.
            now: The present.
            unused: Bytes of the requests behind these.
        """
        runtime = self._runtime
        runtime.turns.charge(self._share)
        data = b"".join(replies)
        if data:
            self._put(data)
            replies.clear()
        runtime.after_requests(now)
        writer = runtime.writer
        if writer.settled < writer.appended:
            await runtime.commit.wait_settled(writer.appended)
        self._services.evict()
        # a client that does not read must hold up no other
        self._end_turn(unused)
        if self._outbox.pieces:
            await self._send_settled()

    def stop(self) -> None:
        """The daemon stops: answer what is on its way, then close."""
        self._receive_until = self._receiving.deadline = trio.current_time() + STOP_SECONDS

    async def _close(self) -> None:
        """Tell the client that no more comes, and let it read what was sent."""
        while self._outbox.pieces or self._has_news():
            await self._flush()
        self._forget()
        while self._sending:
            await self._senders.park()
        self._sending = True
        try:
            await self._stream.send_eof()
        finally:
            self._end_sending()
        with trio.move_on_after(LINGER_SECONDS):
            while await self._stream.receive_some(limits.RECEIVE_BYTES_MAX):
                pass

    async def refuse(self, *, silently: bool) -> None:
        """Close the connection, because there are too many; unless ``silently``, say so."""
        sentence = f"{ErrorCode.BUSY} the daemon has max-connections clients"
        try:
            if not silently:
                with trio.move_on_after(LINGER_SECONDS):
                    self._put(encode_error(0, self._runtime.clock.now_us(), sentence))
                    await self._close()
        except trio.BrokenResourceError:
            LOG.debug("event=client-lost")
        finally:
            await trio.aclose_forcefully(self._stream)
