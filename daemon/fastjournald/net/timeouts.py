"""Timeouts: closes idle connections, and those that hold most memory when memory is scarce.

All connections are checked once a second, on trio's clock. ``MemoryBudget.now`` is the time of the
last check: a connection notes it without reading a clock.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping

import trio

from fastjournal import limits
from fastjournal.loglines import LogEvent
from fastjournald.admission.memory_budget import NEVER, CloseReason
from fastjournald.net.plain_socket import ClientTransport
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
