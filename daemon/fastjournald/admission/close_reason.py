"""Close reasons: why the daemon ends a connection that broke no rule of the protocol."""

from __future__ import annotations

from enum import StrEnum


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
