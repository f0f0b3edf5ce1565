"""The numbers of the FJ/JR protocol, version 1: flags, types, states, error codes.

Source: docs/protocol.md. Where the published flag table names PERSIST twice (bits 9 and 12), a
receiver treats bit 12 as bit 9 and a sender sets bit 9 only.
"""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Final, Literal, Self

from fastjournal.protocol.functions import Function

__all__ = [
    "ATTEMPTS_REACHED",
    "QUERY_MASK",
    "QUERY_SHIFT",
    "REPLY_MAGIC",
    "REQUEST_MAGIC",
    "VALUE_MASK",
    "VALUE_SHIFT",
    "VERSION",
    "Effect",
    "ErrorCode",
    "Flag",
    "Function",
    "Query",
    "State",
    "ValueType",
]

REQUEST_MAGIC = b"FJ"
REPLY_MAGIC = b"JR"
VERSION = 1


class Flag(IntFlag):
    """Bits of the flags field of requests and replies."""

    KEY16 = 1 << 0
    TIMEOUT = 1 << 3
    UPDATE_TIMEOUT = 1 << 4
    OVERWRITE = 1 << 5
    WORKED_ON = 1 << 6
    TWO_KEYS = 1 << 7
    """In a reply: every pair has a second key."""
    CURSOR = 1 << 8
    """In a reply: a cursor follows the error."""
    PERSIST = 1 << 9
    DATA = 1 << 10
    LISTEN = 1 << 11
    PERSIST_ALIAS = 1 << 12
    COUNT = 1 << 13
    TTL = 1 << 14
    META = 1 << 15


VALUE_SHIFT = 1
VALUE_MASK = 0b11 << VALUE_SHIFT
"""Width of the value size: 0 no value, 1 u8, 2 u16, 3 u32."""

QUERY_SHIFT = 7
QUERY_MASK = 0b11 << QUERY_SHIFT
"""Bits 7 and 8 of a request."""


class Query(IntEnum):
    """The QUERY field of a request's flags (bits 7 and 8)."""

    KEY = 0
    RANGE = 1
    """Two keys follow: a range, or the second key of SET, RENAME, LINK and KICK."""
    REGEX = 2
    CURSOR = 3


class ValueType(IntEnum):
    """The type byte of a value."""

    VOID = 0
    BUFFER = 1
    STRING = 2
    INTEGER = 3
    FLOAT = 4
    BOOLEAN = 5


class State(IntFlag):
    """State bits of a metadata block."""

    PERSISTENT = 1 << 0
    LOCKED = 1 << 1
    BURIED = 1 << 2
    JOURNAL = 1 << 3
    PAUSED = 1 << 4


class Effect(Enum):
    """Effect of an error on a kept request, such as a record of a spool, in words."""

    DONE = "no repeat: done"
    """Newer work replaced it."""
    DEAD = "no repeat"
    """No daemon will ever take it."""
    LATER = "repeat it later"
    """It alone is sent again after a pause."""
    SKEWED = "repeat it for an hour"
    """As LATER, then DEAD: clocks are set right within an hour, or never."""
    HOLD = "repeat all later"
    """The daemon takes nothing at the moment."""


ATTEMPTS_REACHED: Final = "attempts reached max-attempts"
"""Reason of an entry that is buried because of a lost lease."""


class ErrorCode(StrEnum):
    """Error codes: the word that an error starts with, its effect, and what it means."""

    effect: Effect
    passes: bool
    """The same request may succeed later, without any action."""
    closes: bool
    """The daemon may close the connection after it, for what the reply says: requests that follow
    are not to blame."""

    def __new__(cls, word: str, effect: Effect, *marks: Literal["passes", "closes"]) -> Self:
        """Make a code of its declaration."""
        code = str.__new__(cls, word)
        code._value_ = word
        code.effect = effect
        code.passes, code.closes = "passes" in marks, "closes" in marks
        return code

    NOT_FOUND = "not-found", Effect.DEAD
    """No entry has that key."""
    EXISTS = "exists", Effect.DEAD
    """An entry has that key already."""
    STALE = "stale", Effect.DONE
    """The entry under that key, or a tombstone, is newer; for a repeated request: already
    delivered."""
    WORKED_ON = "worked-on", Effect.LATER
    """The entry is leased."""
    LEASE_LOST = "lease-lost", Effect.DEAD
    """The token is not that of the entry's lease."""
    LOCKED = "locked", Effect.LATER, "passes"
    """Another connection has locked the entry."""
    NOT_OWNER = "not-owner", Effect.DEAD
    """UNLOCK by another connection than the one that locked."""
    TYPE_MISMATCH = "type-mismatch", Effect.DEAD
    """The stored value has another type than the function needs."""
    OVERFLOW = "overflow", Effect.DEAD
    """The number does not fit its stored width."""
    BAD_KEY = "bad-key", Effect.DEAD
    """A key is empty or has over 4,096 bytes, or is not the required kind of key."""
    BAD_VALUE = "bad-value", Effect.DEAD
    """A value is missing, or does not have the form of its type."""
    BAD_REGEX = "bad-regex", Effect.DEAD
    """The expression is not RE2 syntax."""
    BAD_CURSOR = "bad-cursor", Effect.DEAD
    """The cursor (continuation token) does not come from this daemon."""
    BAD_REQUEST = "bad-request", Effect.DEAD, "closes"
    """The message cannot be framed, or an argument is missing."""
    TOO_LARGE = "too-large", Effect.DEAD, "closes"
    """A size is over the daemon's limit."""
    UNKNOWN_FUNCTION = "unknown-function", Effect.DEAD
    """This version has no function of that number."""
    UNSUPPORTED_VERSION = "unsupported-version", Effect.HOLD, "closes"
    """The message's version is not 1."""
    CLOCK_SKEW = "clock-skew", Effect.SKEWED
    """The timestamp is too far ahead of the daemon's clock."""
    READ_ONLY = "read-only", Effect.HOLD, "passes"
    """The daemon accepts no changes now: its disk is nearly full."""
    NOT_PERSISTED = "not-persisted", Effect.HOLD, "passes"
    """The change could not be written."""
    NOT_READABLE = "not-readable", Effect.LATER
    """The value is on disk only, and cannot be read; the request had no effect. Also in
    notifications."""
    AUTH_REQUIRED = "auth-required", Effect.HOLD, "closes"
    """AUTH has to come first."""
    AUTH_FAILED = "auth-failed", Effect.HOLD, "closes"
    """The token of AUTH is wrong."""
    FORBIDDEN = "forbidden", Effect.LATER
    """The rights or the prefixes of this connection's token do not allow it."""
    BUSY = "busy", Effect.HOLD, "passes", "closes"
    """A bound is reached; try again later."""
    SHUTTING_DOWN = "shutting-down", Effect.HOLD, "passes", "closes"
    """The daemon is stopping."""
