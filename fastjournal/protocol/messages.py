"""Messages that travel in frames: requests, replies, pairs, metadata.

All times are microseconds: an instant counts from the Unix epoch, a duration is a length.
"""

from __future__ import annotations

import msgspec

from fastjournal.protocol.constants import QUERY_MASK, QUERY_SHIFT


class Request(msgspec.Struct, gc=False):
    """One FJ request.

    ``flags`` holds the bits as they stand on the wire. Those that say which fields follow (KEY16,
    VALUE width, TIMEOUT, COUNT, TTL) are set by the encoder from the fields themselves; whoever
    builds a request gives only the others, and QUERY (``Query.RANGE << QUERY_SHIFT`` is set by the
    encoder wherever ``second_key`` is not None).
    """

    function: int
    identifier: int = 0
    flags: int = 0
    timestamp: int = 0
    """Instant at which the client issued the command."""
    key: bytes = b""
    second_key: bytes | None = None
    value_type: int | None = None
    """None: the request carries no value."""
    value: bytes = b""
    timeout: int | None = None
    ttl: int | None = None
    count: int | None = None

    @property
    def query(self) -> int:
        """The QUERY field of the flags, see ``Query``."""
        return (self.flags & QUERY_MASK) >> QUERY_SHIFT


class Meta(msgspec.Struct, gc=False):
    """The metadata block of a pair, 68 bytes on the wire."""

    timestamp: int = 0
    """Instant of the last write, by the writer's clock."""
    created: int = 0
    modified: int = 0
    accessed: int = 0
    expires: int = 0
    """0: never."""
    ttl: int = 0
    """Duration by which a read moves the expiry; 0: none."""
    worked_on_until: int = 0
    """0: not worked on; else the lease token."""
    not_before: int = 0
    """0: no journal key."""
    priority: int = 0
    state: int = 0
    """Bits of ``State``."""
    attempts: int = 0


class Pair(msgspec.Struct, gc=False):
    """One entry of a reply."""

    key: bytes
    value_type: int = 0
    value: bytes = b""
    second_key: bytes = b""
    meta: Meta | None = None


class Reply(msgspec.Struct, gc=False):
    """One JR reply, or a notification (flag LISTEN).

    ``flags``: whoever builds a reply gives only WORKED_ON, TWO_KEYS and LISTEN; the encoder sets
    the rest from the fields. META is set where the pairs carry a metadata block.
    """

    identifier: int = 0
    flags: int = 0
    timestamp: int = 0
    """Instant: the daemon's clock."""
    error: str = ""
    """Empty: success; else a code and optionally one space and a sentence."""
    timeout: int | None = None
    ttl: int | None = None
    cursor: bytes | None = None
    pairs: list[Pair] | None = None
    """None: no COUNT field; else that many pairs."""

    @property
    def code(self) -> str:
        """The error code; empty for success."""
        return self.error.partition(" ")[0]
