"""What fastjournal puts inside workq's payloads and results: envelopes and operations.

Byte layout, all of them: ``46 4a`` (``FJ``), a version byte ``01``, then one msgpack array.

- The payload of an add or schedule record is an *envelope*: the array of ``Envelope``'s fields.
- The payload of an add record whose name is ``fj.op`` is an *operation*: an array whose first item
  is the tag of one of the operation structs below, followed by its fields.
- The result of a complete record is the array of ``Completion``'s fields, that of a fail record
  the array of ``Failure``'s. An empty result carries nothing.

A payload or result that does not start with these three bytes is foreign (workq's own).

Fields are only ever added at the end, with a default, so that older logs stay readable.

An operation with ``following`` > 0 is the head of a *group*: that many records behind it belong
to the same request. A group is all or nothing: where the log ends before its last record, nobody
was told OK, and recovery treats the group as part of the torn tail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec

from fastjournal.limits import VALUE_BYTES_LIMIT

MAGIC = b"FJ\x01"
OPERATION_NAME = "fj.op"
PLAIN_NAME = "fj.kv"
Instant: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Envelope(msgspec.Struct, array_like=True, gc=False):
    """Everything that an entry must keep. Times are microseconds."""

    key: bytes
    uri: bytes | None
    """The second key given in the SET."""
    links: list[bytes]
    """Further keys, by LINK."""
    value_type: Annotated[int, msgspec.Meta(ge=0, le=255)]
    value: bytes
    timestamp: Instant
    """Instant of the last write, by the writer's clock: decides which write wins."""
    created: Instant
    modified: Instant
    arrival: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    """Serial number that orders entries of one priority and instant."""
    not_before: Instant = 0
    """Instant before which it must not start; 0 for a plain key."""
    expires: int = 0
    """Instant; 0: never."""
    ttl: int = 0
    """Duration by which a read moves the expiry; 0: none."""
    attempts: int = 0
    token: int = 0
    """Worked on until this instant (the lease token); 0: not worked on."""
    superseded: int = 0
    """Timestamp of the SET that took its URI while it was worked on; 0: none."""
    reason: bytes | None = None
    """Buried, with this reason; None: not buried."""
    first_due: int = 0
    """When the work on its URI was first due that SETs put off since; 0: when it is due itself."""
    taken: tuple[bytes | int, ...] = ()
    """Of a superseded entry, the further keys that are no longer its own: 0 is its URI, n the n-th
    link. Older logs tell the keys, which together with the links were more than workq takes."""
    erases: bool = False
    """Whether a tombstone stood under its key, which is gone by this: where the entry goes without
    one, cleaning has to say so in its place."""


class SegmentStart(msgspec.Struct, tag="segment", array_like=True, gc=False):
    """The first record of each segment that fastjournald writes."""

    previous: int
    """Number of the segment before this one; 0: this is the first."""
    last_token: int = 0
    """The newest lease token so far; 0: none."""
    bytes: int = 0
    """Size of the segment before this one when it was sealed; 0: not told."""
    crc32c: int = 0
    """CRC-32C of the whole segment before this one then."""


class SegmentRewritten(msgspec.Struct, tag="rewritten", array_like=True, gc=False):
    """The size and CRC-32C of a sealed segment, which hold instead of those told before."""

    number: int
    bytes: int
    crc32c: int
    done: bool = False
    """False: the segment is about to be replaced; until it is, those told before hold too."""


class SegmentRemoved(msgspec.Struct, tag="removed", array_like=True, gc=False):
    """A segment is about to be unlinked by cleaning."""

    number: int


class Lease(msgspec.Struct, tag="lease", array_like=True, gc=False):
    """A NEXT or GET leased entries: a start-attempt record follows for each of them."""

    following: int
    token: int
    again: bool = False
    """Whether a lease that goes on is only told once more: another token may be the newest."""


class Batch(msgspec.Struct, tag="batch", array_like=True, gc=False):
    """The next records belong to one request: all or nothing."""

    following: int


class Extend(msgspec.Struct, tag="extend", array_like=True, gc=False):
    """TOUCH with a token: the lease of that job now ends at ``token``."""

    job_id: bytes
    token: int


class Touch(msgspec.Struct, tag="touch", array_like=True, gc=False):
    """The expiry of that job moved to ``expires`` (0: never)."""

    job_id: bytes
    expires: int


class Delay(msgspec.Struct, tag="delay", array_like=True, gc=False):
    """RELEASE with a TTL: that job must not start before ``not_before``."""

    job_id: bytes
    not_before: int


class Value(msgspec.Struct, tag="value", array_like=True, gc=False):
    """ADD or NOT: what that job's value is now, of the same type."""

    job_id: bytes
    value: bytes
    timestamp: int
    """Of the entry, as in the operations below; its modified time is that of the record."""


class Resize(msgspec.Struct, tag="resize", array_like=True, gc=False):
    """TRUNCATE: that job's value is cut to ``size`` bytes, or filled up with zero bytes."""

    job_id: bytes
    size: Annotated[int, msgspec.Meta(ge=0, le=VALUE_BYTES_LIMIT)]
    timestamp: int


class Link(msgspec.Struct, tag="link", array_like=True, gc=False):
    """LINK: that job stands under one more key."""

    job_id: bytes
    key: bytes


class Rename(msgspec.Struct, tag="rename", array_like=True, gc=False):
    """RENAME: the primary key of that job is ``key``; the old one has a tombstone.

    What stood under ``key`` is gone without one; the tombstone under it is erased.
    """

    job_id: bytes
    key: bytes
    timestamp: int
    """Of the entry and of the tombstone."""
    old: bytes = b""
    """The key before; empty: not told."""


class Tombstone(msgspec.Struct, tag="tombstone", array_like=True, gc=False):
    """A tombstone without an entry: a persistent DELETE of nothing."""

    key: bytes
    timestamp: int


class Forget(msgspec.Struct, tag="forget", array_like=True, gc=False):
    """DELETE with OVERWRITE: the tombstone under this key is gone too."""

    key: bytes


class Pause(msgspec.Struct, tag="pause", array_like=True, gc=False):
    """PAUSE: nothing of this domain is handed out before ``until``; 0: it goes on."""

    domain: bytes
    until: int


Change: TypeAlias = Extend | Touch | Delay | Value | Resize | Link | Rename
"""Operations that change the one job that they name."""

Operation: TypeAlias = (
    SegmentStart
    | SegmentRewritten
    | SegmentRemoved
    | Lease
    | Batch
    | Tombstone
    | Forget
    | Pause
    | Change
)


class Completion(msgspec.Struct, array_like=True, gc=False):
    """The result of a complete record: the tombstone that it leaves."""

    timestamp: int
    key: bytes
    """The primary key, so that the tombstone outlives the record of its entry."""


class Failure(msgspec.Struct, array_like=True, gc=False):
    """The result of a fail record: buried."""

    reason: bytes


encode_fields = msgspec.msgpack.Encoder().encode
"""Returns what stands behind ``MAGIC``, of a struct or of the tuple of its fields.

The daemon writes one for every SET and DELETE: a tuple costs a quarter of the struct.
"""
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_operation: Callable[[memoryview], Operation] = msgspec.msgpack.Decoder(Operation).decode
_decode_completion = msgspec.msgpack.Decoder(Completion).decode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode


def pack(content: Envelope | Operation | Completion | Failure | tuple[object, ...]) -> bytes:
    """Return the payload or result that carries a struct, or the tuple of its fields."""
    return MAGIC + encode_fields(content)


def is_ours(payload: bytes) -> bool:
    """Whether fastjournald wrote this payload or result; else it is foreign."""
    return payload.startswith(MAGIC)


def unpack_envelope(payload: bytes) -> Envelope:
    """Return the entry in a payload that ``is_ours``.

    Raises:
        msgspec.MsgspecError: It is not an envelope.
    """
    return _decode_envelope(memoryview(payload)[3:])


def unpack_operation(payload: bytes) -> Operation:
    """Return the operation in the payload of a job named ``fj.op``.

    Raises:
        msgspec.MsgspecError: It is not an operation that this version knows.
    """
    return _decode_operation(memoryview(payload)[3:])


def unpack_completion(result: bytes) -> Completion:
    """Return what the result of a complete record that ``is_ours`` says.

    Raises:
        msgspec.MsgspecError: It is not one.
    """
    return _decode_completion(memoryview(result)[3:])


def unpack_failure(result: bytes) -> Failure:
    """Return what the result of a fail record that ``is_ours`` says.

    Raises:
        msgspec.MsgspecError: It is not one.
    """
    return _decode_failure(memoryview(result)[3:])
