"""Connections: admission of clients, delivery to each of them, timeouts, slow-consumer disconnect.

The check of timeouts closes idle connections, and those that hold most memory when memory is
scarce.

All connections are checked once a second, on trio's clock. ``MemoryBudget.now`` is the time of the
last check: a connection notes it without reading a clock.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Hashable, Mapping

import trio

from fastjournal import limits
from fastjournal.eviction_queue import EvictionQueue
from fastjournal.loglines import LogEvent, Sentence
from fastjournald.admission.memory_budget import NEVER, CloseReason
from fastjournald.engine.undelivered import DeliveredJobs
from fastjournald.net.listeners import (
    Peer,
    accept,
    is_unix,
    keep_alive,
    origin_of,
    peer_name,
    peer_of,
    take_socket,
)
from fastjournald.net.plain_socket import ClientTransport, PlainSocket
from fastjournald.net.poller import PolledTransport, Poller
from fastjournald.net.session import Session
from fastjournald.net.shared_batch import Shared
from fastjournald.net.stream_transport import Services, StepRunner, StreamTransport
from fastjournald.net.tls import Handshakes
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")

LOOK_SECONDS = 1.0
"""Interval between two checks: the precision of every timeout here."""

SLICE_SESSIONS = 1000
"""Connections that are checked between two checkpoints of the event loop."""


class ClientTimeouts:
    """Checks all connections.

    Args:
        runtime: Options, memory budget and counters.
        transports: Transports of connected clients, by session.
    """

    def __init__(self, runtime: Runtime, transports: Mapping[Hashable, ClientTransport]) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._memory = runtime.memory
        self._closed = runtime.counters.connections_closed
        self._transports = transports

    async def run(self) -> None:
        """Check all connections once a second, and close the idle ones."""
        memory, closed = self._memory, self._closed
        started = trio.current_time()
        while True:
            await trio.sleep(LOOK_SECONDS)
            memory.now = trio.current_time() - started
            before = closed.copy()
            await self._look_at_all()
            if memory.scarce:
                self._make_room()
            for reason, count in (closed - before).items():
                LOG.warning(LogEvent(reason, connections=count, held_bytes=memory.bytes))

    async def _look_at_all(self) -> None:
        for number, transport in enumerate(list(self._transports.values()), 1):
            self._look(transport)
            if number % SLICE_SESSIONS == 0:
                await trio.lowlevel.checkpoint()

    def _look(self, transport: ClientTransport) -> None:
        """Close a connection whose client exceeds a timeout."""
        config, now, session = self._config, self._memory.now, transport.session
        if session.unknown and now - session.connected_since > config.auth_timeout:
            self._closed[CloseReason.AUTH_TIMEOUT] += 1
            transport.abandon(f"no AUTH came for {config.auth_timeout} s", "auth-required")
        elif session.sending_since != NEVER:
            if now - session.sending_since > config.send_timeout:
                self._cut(transport, CloseReason.SEND_TIMEOUT)
        elif session.receiving_since == NEVER:
            return
        elif session.partial_bytes:
            seconds = config.request_timeout
            allowed = seconds + session.partial_bytes / limits.REQUEST_BYTES_PER_SECOND
            if now - session.partial_since > allowed:
                self._closed[CloseReason.REQUEST_TIMEOUT] += 1
                transport.abandon(f"the request was not whole after {seconds} s", "bad-request")
        elif (
            0 < config.idle_timeout < now - session.receiving_since
            and not self._runtime.engine.expects(session)
        ):
            self._cut(transport, CloseReason.IDLE_TIMEOUT)

    def _make_room(self) -> None:
        """Close idle connections, those that hold most first, until there is room."""
        still = self._memory.now - limits.SLOW_READER_SECONDS
        slow = [
            transport
            for session, transport in ((each.session, each) for each in self._transports.values())
            if session.account.bytes > limits.SCARCE_BYTES
            and min(session.sending_since, session.receiving_since) < still
        ]
        slow.sort(key=lambda transport: transport.session.account.bytes)
        excess = self._memory.bytes - self._memory.bytes_max
        while excess > 0 and slow:
            transport = slow.pop()
            excess -= transport.session.account.bytes
            if transport.session.sending_since != NEVER:
                self._cut(transport, CloseReason.SLOW_READER)
            else:
                transport.refuse_request()

    def _cut(self, transport: ClientTransport, reason: CloseReason) -> None:
        self._closed[reason] += 1
        transport.cut()


POLLS = True
"""Whether one task serves all plain connections, instead of a task each. Tests cover both."""


class Connections:
    """Connections of all clients.

    Args:
        runtime: Engine, log and options.
        services: Background tasks that sessions wait for.
        tls: Context of TCP connections; None: these are plain.
    """

    def __init__(self, runtime: Runtime, services: Services, tls: ssl.SSLContext | None) -> None:
        self.transports: dict[Hashable, ClientTransport] = {}
        """Transports of connected clients, by session."""
        self.tls = tls
        """Context for clients that connect from now on."""
        self.nursery: trio.Nursery | None = None
        """Nursery of the connections; None: the daemon is starting."""
        self.stopping = False
        self._runtime = runtime
        self._services = services
        runtime.engine.store.leases.name_of = self._name_of
        self._shared = Shared(
            engine=runtime.engine,
            log=runtime.writer,
            memory=runtime.memory,
            turns=runtime.turns,
            backpressure=runtime.backpressure,
            connections_closed=runtime.counters.connections_closed,
            protocol_errors=runtime.counters.protocol_errors,
            latencies=runtime.counters.latencies,
            after_requests=runtime.after_requests,
            wake_tasks=runtime.wake_tasks,
            release_undelivered=runtime.release_undelivered,
        )
        self.poller = Poller(
            runtime.commit,
            self._shared,
            runtime.clock.now_us,
            services.next_turn,
            services.is_alone,
        )
        """Serves plain connections."""
        self._handshakes = Handshakes()
        self._silent: EvictionQueue[ClientTransport] = EvictionQueue()
        self._refusing = 0

    # --- clients that connect -------------------------------------------------------------------

    async def accept(
        self, listeners: list[trio.SocketListener], accepting: trio.CancelScope
    ) -> None:
        """Serve all clients that connect, until ``accepting`` is cancelled."""
        with accepting:
            async with trio.open_nursery() as each:
                for listener in listeners:
                    each.start_soon(accept, listener, self._let_in)

    def _let_in(self, plain: trio.SocketStream) -> None:
        """Admit a client, after a TLS handshake if the address takes TLS."""
        if self.poller.over:
            # it connected while the daemon stopped
            plain.socket.close()
            return
        peer = peer_of(plain)
        origin = origin_of(plain)
        unix = is_unix(plain)
        LOG.log(logging.INFO if unix else logging.DEBUG, LogEvent("connected", **peer))
        keep_alive(plain)
        if self.tls is None or unix:
            self.serve(PlainSocket(take_socket(plain)) if POLLS else plain, peer, origin)
        else:
            assert self.nursery is not None
            self.nursery.start_soon(self._shake_hands, plain, self.tls, peer, origin)

    async def _shake_hands(
        self, plain: trio.SocketStream, tls: ssl.SSLContext, peer: Peer, origin: str
    ) -> None:
        let_in = await self._handshakes.let_in(plain, tls, origin)
        if isinstance(let_in, str):
            LOG.info(LogEvent("tls-failed", **peer, reason=Sentence(let_in)))
        else:
            self.serve(let_in, peer, origin)

    def serve(
        self, stream: trio.abc.HalfCloseableStream, peer: Peer, origin: str = ""
    ) -> ClientTransport | None:
        """Serve a client until its connection ends; None: there are too many.

        Args:
            stream: The connected socket, or TLS on it.
            peer: Its address, as fields of the log.
            origin: Its address, for the bound of each address.
        """
        assert self.nursery is not None
        session = Session(self._shared)
        session.peer = peer
        if len(self.transports) >= self._runtime.config.max_connections:
            silent = self._silent.pop()
            if silent is None:
                self.nursery.start_soon(self._refuse, session, stream)
                return None
            self._runtime.counters.connections_closed[CloseReason.MADE_ROOM] += 1
            silent.cut()
        transport = self._transport(session, stream)
        self.transports[session] = transport
        self._silent.add(origin, transport)
        session.on_first_request = lambda: self._silent.discard(origin, transport)
        transport.on_end = lambda: self._remove(transport, origin)
        transport.begin()
        if self.stopping:
            transport.stop()
        return transport

    def _steps(self, session: Session, stream: trio.abc.HalfCloseableStream) -> StepRunner:
        assert self.nursery is not None
        return StepRunner(session, stream, self._runtime, self._services, self.nursery)

    def _transport(self, session: Session, stream: trio.abc.HalfCloseableStream) -> ClientTransport:
        steps = self._steps(session, stream)
        if isinstance(stream, PlainSocket):
            return PolledTransport(steps, stream, self.poller)
        return StreamTransport(steps)

    def _remove(self, transport: ClientTransport, origin: str) -> None:
        del self.transports[transport.session]
        self._silent.discard(origin, transport)

    async def _refuse(self, session: Session, stream: trio.abc.HalfCloseableStream) -> None:
        transport = StreamTransport(self._steps(session, stream))
        self._runtime.counters.connections_refused += 1
        self._refusing += 1
        try:
            await transport.refuse(silently=self._refusing > limits.REFUSALS_MAX)
        finally:
            self._refusing -= 1

    # --- calls for the engine and the tasks -----------------------------------------------------

    def deliver(self, answers: list[tuple[Hashable, bytes]]) -> None:
        """Hand replies of waiting requests to their sessions, which send them when durable."""
        together: dict[Hashable, list[bytes]] = {}
        for session, data in answers:
            together.setdefault(session, []).append(data)
        for session, replies in together.items():
            transport = self.transports[session]
            transport.session.deliver(replies)
            transport.wake()

    def wake(self, session: Hashable) -> None:
        """Wake a session that has notifications to send."""
        # its connection may have ended since it was queued
        if (transport := self.transports.get(session)) is not None:
            transport.wake()

    def disconnect_slow_consumer(self, session: Hashable) -> None:
        """Slow-consumer disconnect: close, because the client would miss notifications."""
        self._runtime.counters.connections_closed[CloseReason.OVERRUN] += 1
        self.transports[session].cut()

    def _name_of(self, session: Hashable) -> str:
        """Return the name of a client for people: its own, address and access token."""
        if not isinstance(session, Session):
            return ""  # part of the daemon, or a test
        context = self._runtime.engine.context
        grant = None if context.grants is None else context.grants.sessions.get(session)
        peer = peer_name(session.peer)
        if name := context.client_names.get(session):
            peer = f"{name}, {peer}"
        return peer if grant is None else f"{peer} ({grant.name})"

    def has_hung_up(self, session: Hashable) -> bool:
        """Whether the client of a session sends nothing more."""
        transport = self.transports.get(session)
        return transport is None or transport.has_hung_up()

    def release_undelivered(self, deliveries: list[DeliveredJobs]) -> None:
        """Release the leases of work whose replies were never sent, in slices."""
        if deliveries and not self._runtime.writer.failed:
            assert self.nursery is not None
            self.nursery.start_soon(self._release_undelivered, deliveries)

    async def _release_undelivered(self, deliveries: list[DeliveredJobs]) -> None:
        runtime = self._runtime
        # also when the daemon stops: the release must be in the log for its next start
        with trio.CancelScope(shield=True):
            while deliveries:
                now = runtime.clock.now_us()
                deliveries = runtime.engine.release_undelivered(
                    deliveries, limits.UNDELIVERED_RELEASED_MAX, now
                )
                runtime.after_requests(now)
                await trio.lowlevel.checkpoint()
            await runtime.commit.wait_committed(runtime.writer.appended)

    def end(self, sessions: list[Hashable]) -> None:
        """Close connections whose token is no longer valid: clients may reconnect."""
        for session in sessions:
            # a session of the page has none
            if session in self.transports:
                self.transports[session].stop()

    def stop(self) -> None:
        """Answer requests that are on their way, then close all connections."""
        for transport in self.transports.values():
            transport.stop()
        self.poller.stop()

    def stop_accepting(self) -> None:
        """Stop accepting clients: the daemon stops."""
        self.stopping = True
        self._handshakes.stop()
