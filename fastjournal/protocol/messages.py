"""Messages that travel in frames: requests, replies, pairs, metadata.

All times are microseconds: an instant counts from the Unix epoch, a duration is a length. The
fields of requests and replies have the names that docs/protocol.md gives them, without a unit:
TIMEOUT is an instant, a duration or a lease token, as the function says.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from fastjournal import _native
from fastjournal.protocol.constants import QUERY_MASK, QUERY_SHIFT
from fastjournal.times import to_datetime, to_datetime_or_none, to_timedelta_or_none


class Request(msgspec.Struct, gc=False):
    """One FJ request.

    ``flags`` has the bits of the wire. The encoder sets those that say which fields follow (KEY16,
    VALUE width, TIMEOUT, COUNT, TTL) from the fields. A caller sets only the others, and QUERY
    (``Query.RANGE << QUERY_SHIFT`` is set by the encoder wherever ``second_key`` is not None).
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
    """The metadata block of a pair, 68 bytes on the wire.

    Names that end in ``_us`` are integers of microseconds; the same names without it are aware
    datetimes in UTC, or a timedelta.
    """

    timestamp_us: int = 0
    """Instant of the last write, by the writer's clock."""
    created_us: int = 0
    modified_us: int = 0
    accessed_us: int = 0
    expires_us: int = 0
    """0: never."""
    ttl_us: int = 0
    """Duration by which a read moves the expiry; 0: none."""
    worked_on_until_us: int = 0
    """0: not worked on; else the lease token."""
    not_before_us: int = 0
    """0: no journal key."""
    priority: int = 0
    state: int = 0
    """Bits of ``State``."""
    attempts: int = 0

    @property
    def timestamp(self) -> datetime:
        """Instant of the last write, by the writer's clock."""
        return to_datetime(self.timestamp_us)

    @property
    def created(self) -> datetime:
        """Instant at which the entry was created."""
        return to_datetime(self.created_us)

    @property
    def modified(self) -> datetime:
        """Instant of the last change, by the daemon's clock."""
        return to_datetime(self.modified_us)

    @property
    def accessed(self) -> datetime:
        """Instant at which the entry was last read or delivered."""
        return to_datetime(self.accessed_us)

    @property
    def expires(self) -> datetime | None:
        """Instant at which the entry vanishes; None: never."""
        return to_datetime_or_none(self.expires_us)

    @property
    def ttl(self) -> timedelta | None:
        """Length of time by which a read moves the expiry; None: it does not."""
        return to_timedelta_or_none(self.ttl_us or None)

    @property
    def worked_on_until(self) -> datetime | None:
        """Instant at which the lease ends; None: the entry is not leased."""
        return to_datetime_or_none(self.worked_on_until_us)

    @property
    def not_before(self) -> datetime | None:
        """Instant before which the work must not start; None: there is none."""
        return to_datetime_or_none(self.not_before_us)


class Pair(msgspec.Struct, gc=False):
    """One entry of a reply."""

    key: bytes
    value_type: int = 0
    value: bytes = b""
    second_key: bytes = b""
    meta: Meta | None = None


class Reply(msgspec.Struct, gc=False):
    """One JR reply, or a notification (flag LISTEN).

    ``flags``: a caller sets only WORKED_ON, TWO_KEYS and LISTEN; the encoder sets the rest from the
    fields. META is set if the pairs carry a metadata block.
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


if _native.leaves is not None:
    _native.leaves.bind_codec(Request, Reply, Pair, Meta)
