"""Admission control: memory budget of all connections, and reasons to close a connection. Pure.

The budget counts the bytes of requests that have arrived in part, of requests that wait after an
unsent reply, and of replies that the client has not read. While all connections together use less
than ``bytes_max``, each may buffer one turn of its requests. Above it memory is scarce: sessions
read and buffer ``SCARCE_BYTES`` at a time, larger values are refused with ``busy``, and
``net.connections`` closes the connections that use most memory without sending or reading a byte. A
connection that uses little is served as usual.

A close reason says why the daemon closes a connection that did not violate the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum

from fastjournal import limits


class CloseReason(StrEnum):
    """Label of the counter of closed connections, and event in the daemon's log."""

    SLOW_READER = "slow-reader"
    """It held most memory of those that take nothing, while memory was scarce."""
    SEND_TIMEOUT = "send-timeout"
    REQUEST_TIMEOUT = "request-timeout"
    IDLE_TIMEOUT = "idle-timeout"
    NO_ROOM = "busy"
    """Memory was scarce, and its request large."""
    AUTH_TIMEOUT = "auth-timeout"
    OVERRUN = "overrun"
    """It read too slowly for what it listens to."""
    MADE_ROOM = "made-room"
    """It had shown nothing, and another one connected beyond max-connections."""


NEVER = math.inf
"""Instant of what does not happen, on the clock of ``MemoryBudget.now``."""


class MemoryBudget:
    """Bytes in flight of all connections, with a bound.

    Args:
        bytes_max: From here on memory is scarce.
        ration: Called with the largest reply that fits when that begins, with None when it ends.
    """

    def __init__(self, bytes_max: int, ration: Callable[[int | None], object]) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """Held for all connections."""
        self.scarce = False
        """They hold more than ``bytes_max``."""
        self.now = 0.0
        """Seconds from the start to the last look at all connections: the time that they note,
        which costs them no call of a clock."""
        self._ration = ration

    def hold(self, change: int) -> None:
        """Count that many bytes more, or fewer. O(1)."""
        self.bytes += change
        if (self.bytes > self.bytes_max) is not self.scarce:
            self.look()

    def look(self) -> None:
        """Memory has become scarce, or is so no more."""
        self.scarce = not self.scarce
        self._ration(limits.SCARCE_BYTES if self.scarce else None)


class MemoryAccount:
    """Bytes in flight of one connection.

    Args:
        budget: Budget of all connections.
    """

    __slots__ = ("budget", "bytes", "closed")

    def __init__(self, budget: MemoryBudget) -> None:
        self.bytes = 0
        """Held for this connection."""
        self.budget = budget
        self.closed = False

    def hold(self, change: int) -> None:
        """Count that many bytes more, or fewer. O(1)."""
        if not self.closed:
            self.bytes += change
            self.budget.hold(change)

    def close(self) -> None:
        """Release all bytes, and stop counting."""
        self.hold(-self.bytes)
        self.closed = True
