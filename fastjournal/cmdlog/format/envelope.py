"""Envelope: the msgpack array that fastjournal puts into a payload or result of workq's.

Byte layout, all of them: ``46 4a`` (``FJ``), a version byte ``01``, then one msgpack array.

- The payload of an add or schedule record is an *envelope*: the array of ``Envelope``'s fields.
- The payload of an add record whose name is ``fj.op`` is an *operation*, see
  ``cmdlog.format.operation_records``.
- The result of a complete record is the array of ``Completion``'s fields, that of a fail record
  the array of ``Failure``'s. An empty result carries nothing.

A payload or result that does not start with these three bytes is foreign (workq's own).

A field with a default may be left out with all fields after it; no other field may. Later versions
add fields at the end, with a default, and a reader skips unknown ones. Facts:
``cmdlog.format.endings``.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from fastjournal.cmdlog.format.endings import SERIAL_MAX

MAGIC = b"FJ\x01"
MAGIC_BYTES = len(MAGIC)
PLAIN_NAME = "fj.kv"
"""Name of jobs that carry an entry under a plain key."""
OPERATION_NAME = "fj.op"
"""Name of operations."""
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Byte: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]


class Envelope(msgspec.Struct, array_like=True, gc=False):
    """Envelope: all fields that an entry must keep. Times are microseconds."""

    key: bytes
    uri: bytes | None
    """The second key given in the SET."""
    links: list[bytes]
    """Further keys, by LINK."""
    value_type: Byte
    value: bytes
    timestamp: Number
    """Instant of the last write, by the writer's clock: decides which write wins."""
    created: Number
    modified: Number
    arrival: Annotated[int, msgspec.Meta(ge=0, le=SERIAL_MAX)]
    """Serial number of the entry, which orders entries of one priority and instant. It stays when
    the entry is written again."""
    not_before: Number
    """Instant before which it must not start; 0 for a plain key."""
    expires: Number
    """Instant; 0: never."""
    ttl: Number
    """Duration by which a read moves the expiry; 0: none."""
    attempts: Number
    token: Number
    """Worked on until this instant (the lease token); 0: not worked on."""
    superseded: Number
    """Timestamp of the SET that took its URI while it was worked on; 0: none."""
    reason: bytes | None
    """Buried, with this reason; None: not buried."""
    first_due: Number
    """When the work on its URI was first due that SETs put off since; 0: when it is due itself."""
    taken: tuple[Number, ...] = ()
    """Further keys of a superseded entry that newer entries took: 0 is its URI, n the n-th link."""
    erases: bool = False
    """Whether the record erased a tombstone under its key. If the entry is removed without a
    tombstone, compaction has to write an erasure in its place."""
    error: bytes | None = None
    """Error of the last failed attempt; None: none failed."""
    due: Number = 0
    """Instant since which it can be leased; 0: since ``not_before`` or ``modified``, the later."""
    origin: Byte = 0
    """Why it is written: one of ``ORIGIN_SET`` and those below it."""


ORIGIN_SET = 0
ORIGIN_KICK = 1
"""A KICK made a buried entry wait again."""
ORIGIN_AGAIN = 2
"""It is written again as it is, under another job id: no event."""
ORIGIN_UNDELIVERED = 3
"""It was popped, and restored, because the reply could not be sent."""


class Completion(msgspec.Struct, array_like=True, gc=False):
    """The result of a complete record: how the entry ended, and the tombstone that it leaves."""

    timestamp: Number | None
    """Timestamp of the tombstone; None: there is none."""
    key: bytes
    """The primary key, so that the tombstone outlives the record of its entry. Without a tombstone
    the domain; empty: it has none."""
    facts: bytes
    priority: Byte = 0
    """Only without a tombstone, when no key has it."""


class Failure(msgspec.Struct, array_like=True, gc=False):
    """The result of a fail record: buried."""

    reason: bytes
    domain: bytes
    priority: Byte
    facts: bytes


encode_fields = msgspec.msgpack.Encoder().encode
"""Returns the bytes after ``MAGIC``, of a struct or of the tuple of its fields.

The daemon writes one for every SET and DELETE: a tuple costs a quarter of the struct."""
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_completion = msgspec.msgpack.Decoder(Completion).decode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode


def pack(content: msgspec.Struct | tuple[object, ...]) -> bytes:
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
    return _decode_envelope(memoryview(payload)[MAGIC_BYTES:])


def unpack_completion(result: bytes) -> Completion:
    """Return what the result of a complete record that ``is_ours`` says.

    Raises:
        msgspec.MsgspecError: It is not one.
    """
    return _decode_completion(memoryview(result)[MAGIC_BYTES:])


def unpack_failure(result: bytes) -> Failure:
    """Return what the result of a fail record that ``is_ours`` says.

    Raises:
        msgspec.MsgspecError: It is not one.
    """
    return _decode_failure(memoryview(result)[MAGIC_BYTES:])
