"""How much memory connections hold, and the end of those that stand still.

Counted are the bytes of requests that have not arrived wholly, of requests that wait behind an
unsent reply, and of replies that the client has not taken. As long as all connections together hold
less than ``bytes_max``, each may hold what one turn of it gathers. From there on memory is scarce:
sessions read and gather ``SCARCE_BYTES`` at a time, larger values are refused with ``busy``, and
those who hold most without taking or giving a byte are closed. Who holds little is served as ever.

Once a second all sessions are looked at, on trio's clock; ``now`` is the time of the last look, so
that noting it costs a session nothing.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import TYPE_CHECKING

import trio

from fastjournal import limits

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from fastjournald.config.options import Config
    from fastjournald.engine.engine import Engine
    from fastjournald.net.session import Session

LOG = logging.getLogger("fastjournald")

LOOK_SECONDS = 1.0
"""Between two looks at all sessions: the precision of every timeout here."""

SLICE_SESSIONS = 1000
"""So many are looked at before others have their turn."""

NEVER = math.inf

SLOW_READER = "slow-reader"
SEND_TIMEOUT = "send-timeout"
REQUEST_TIMEOUT = "request-timeout"
IDLE_TIMEOUT = "idle-timeout"
NO_ROOM = "busy"
AUTH_TIMEOUT = "auth-timeout"
OVERRUN = "overrun"
MADE_ROOM = "made-room"
REASONS = (
    SLOW_READER,
    SEND_TIMEOUT,
    REQUEST_TIMEOUT,
    IDLE_TIMEOUT,
    NO_ROOM,
    AUTH_TIMEOUT,
    OVERRUN,
    MADE_ROOM,
)
"""Why the daemon closes a connection that broke no rule of the protocol."""


class Account:
    """What all connections hold together.

    Args:
        config: Options.
        engine: Is told when memory is scarce, and knows who waits for something.
        sessions: All that are served, at any time.
    """

    def __init__(self, config: Config, engine: Engine, sessions: AbstractSet[Session]) -> None:
        self.bytes = 0
        """Held for all connections."""
        self.scarce = False
        """They hold more than ``bytes_max``."""
        self.now = 0.0
        """Seconds, by trio's clock, from the start to the last look at all sessions."""
        self.closed: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        """Reason to the number of connections closed for it."""
        self._config = config
        self._bytes_max = config.max_inflight
        self._engine = engine
        self._sessions = sessions

    def hold(self, change: int) -> None:
        """Count that many bytes more, or fewer."""
        self.bytes += change
        if (self.bytes > self._bytes_max) is not self.scarce:
            self.scarce = not self.scarce
            self._engine.ration(limits.SCARCE_BYTES if self.scarce else None)

    async def watch(self) -> None:
        """Look at all sessions, again and again, and close those that stand still."""
        started = trio.current_time()
        while True:
            await trio.sleep(LOOK_SECONDS)
            self.now = trio.current_time() - started
            before = self.closed.copy()
            await self._look_at_all()
            if self.scarce:
                self._make_room()
            for reason, count in (self.closed - before).items():
                LOG.warning("event=%s connections=%d held_bytes=%d", reason, count, self.bytes)

    async def _look_at_all(self) -> None:
        for number, session in enumerate(list(self._sessions), 1):
            self._look(session)
            if number % SLICE_SESSIONS == 0:
                await trio.lowlevel.checkpoint()

    def _look(self, session: Session) -> None:
        """Close a session whose client has been waited for long enough."""
        config = self._config
        if session.unknown and self.now - session.connected_since > config.auth_timeout:
            self.closed[AUTH_TIMEOUT] += 1
            session.unknown = False
            session.give_up(f"no AUTH came for {config.auth_timeout} s", "auth-required")
        elif session.sending_since != NEVER:
            if self.now - session.sending_since > config.send_timeout:
                self._close(session, SEND_TIMEOUT)
        elif session.receiving_since == NEVER:
            return
        elif session.partial_bytes:
            seconds = config.request_timeout
            allowed = seconds + session.partial_bytes / limits.REQUEST_BYTES_PER_SECOND
            if self.now - session.partial_since > allowed:
                self.closed[REQUEST_TIMEOUT] += 1
                session.give_up(f"the request was not whole after {seconds} s", "bad-request")
        elif (
            0 < config.idle_timeout < self.now - session.receiving_since
            and not self._engine.expects(session)
        ):
            self._close(session, IDLE_TIMEOUT)

    def _make_room(self) -> None:
        """Close those who hold most of all that stand still, until there is room."""
        still = self.now - limits.SLOW_READER_SECONDS
        slow = [
            session
            for session in list(self._sessions)
            if session.held_bytes > limits.SCARCE_BYTES
            and min(session.sending_since, session.receiving_since) < still
        ]
        slow.sort(key=lambda session: session.held_bytes)
        excess = self.bytes - self._bytes_max
        while excess > 0 and slow:
            session = slow.pop()
            excess -= session.held_bytes
            if session.sending_since != NEVER:
                self._close(session, SLOW_READER)
            else:
                self.refuse(session)

    def refuse(self, session: Session) -> None:
        """Tell a client that there is no room for the rest of its request."""
        self.closed[NO_ROOM] += 1
        session.give_up("connections hold max-inflight bytes; send it again later", "busy")

    def _close(self, session: Session, reason: str) -> None:
        self.closed[reason] += 1
        session.cut()
