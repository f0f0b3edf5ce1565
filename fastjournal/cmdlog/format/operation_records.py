"""Operation records: all events in the log other than added and removed jobs.

An operation is an add record whose job has the name ``fj.op`` and a time to live of a millisecond,
so that workq finds it expired in replay, and skips it. Its payload: ``MAGIC``, then the msgpack
array of the tag of one of the structs below and its fields.

Each has all of its fields. Later versions add fields at the end, with a default, and a reader skips
unknown ones. Facts: ``cmdlog.format.endings``.

An operation is one of these kinds, by its object; readers of operations distinguish these:

- ``SegmentOperation``: segments of the log, see ``cmdlog.recovery.segment_chain``;
- ``GroupHead``: the next ``following`` records belong to the same request. A group is all or
  nothing: if the log ends before its last record, no client got OK, and recovery treats the group
  as part of the torn tail;
- ``KeyOperation``: a key, and its tombstone;
- ``DomainOperation``: a domain;
- ``Change``: the one job that it names.

To add one, see docs/contributing.md, "Add a log record".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec

from fastjournal.cmdlog.format.endings import SERIAL_MAX, WAITS, how_of
from fastjournal.cmdlog.format.envelope import (
    MAGIC,
    MAGIC_BYTES,
    OPERATION_NAME,
    Completion,
    Envelope,
    Failure,
    encode_fields,
    is_ours,
    unpack_completion,
    unpack_envelope,
    unpack_failure,
)
from fastjournal.cmdlog.format.layout import JOB_ID_BYTES, NO_TIME, Command
from fastjournal.cmdlog.format.records import Record, encode_head, encode_job
from fastjournal.errors import LogCorruptError
from fastjournal.limits import VALUE_BYTES_LIMIT

OPERATION_TTL_MS = 1
GROUP_RECORDS_MAX = 2**31 - 1
"""Records that a group may say it has. No request makes so many; a larger number is damage."""

# --- segments -----------------------------------------------------------------------------------


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_JobId: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=JOB_ID_BYTES, max_length=JOB_ID_BYTES)]
_Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=GROUP_RECORDS_MAX)]


class SegmentStart(msgspec.Struct, tag="segment", array_like=True, gc=False):
    """The first record of each segment that fastjournald writes."""

    previous: _Number
    """Number of the segment before this one; 0: this is the first."""
    last_token: _Number
    """The newest lease token so far; 0: none."""
    bytes: _Number
    """Size of the segment before this one when it was sealed; 0: unknown."""
    crc32c: _Number
    """CRC-32C of the whole segment before this one then."""
    last_serial: Annotated[int, msgspec.Meta(ge=0, le=SERIAL_MAX)]
    """The highest serial number of an entry so far; 0: none."""


class SegmentRewritten(msgspec.Struct, tag="rewritten", array_like=True, gc=False):
    """New size and CRC-32C of a sealed segment; they replace earlier ones."""

    number: _Number
    bytes: _Number
    crc32c: _Number
    done: bool
    """False: the segment is about to be replaced; until then the earlier ones are valid too."""


class SegmentRemoved(msgspec.Struct, tag="removed", array_like=True, gc=False):
    """Compaction is about to unlink a segment."""

    number: _Number


# --- groups -------------------------------------------------------------------------------------


class Lease(msgspec.Struct, tag="lease", array_like=True, gc=False):
    """A NEXT or GET leased entries: a start-attempt record follows for each of them."""

    following: _Count
    token: _Number
    again: bool
    """Whether it is a copy of the record of a current lease: its token may not be the newest."""
    attempts: _Number
    """Failed attempts after which an entry of this lease is buried; 0: the lease has no bound."""
    facts: bytes
    """Due instants and serial numbers of the entries, in the order of the start-attempts."""
    priorities: bytes
    """Priorities of the entries, a byte each."""
    numbers: bytes
    """Numbers of the attempts, a byte each; empty: all are the first ones."""
    domains: list[bytes | _Number]
    """Domains of the entries in the same order: a name, and how many have it; and so on."""
    since: _Number
    """When it began; 0: at the time of this record."""

    @classmethod
    def bare(cls, following: int, token: int, *, again: bool = False, attempts: int = 0) -> Lease:
        """Return a Lease without facts of the entries, which is no event."""
        return cls(following, token, again, attempts, b"", b"", b"", [], 0)


class Batch(msgspec.Struct, tag="batch", array_like=True, gc=False):
    """Atomic record group: the next records belong to one request, all or nothing."""

    following: _Count


# --- keys and domains ---------------------------------------------------------------------------


class Tombstone(msgspec.Struct, tag="tombstone", array_like=True, gc=False):
    """A tombstone without an entry: a persistent DELETE of nothing."""

    key: bytes
    timestamp: _Number


class Erasure(msgspec.Struct, tag="forget", array_like=True, gc=False):
    """DELETE with OVERWRITE: the tombstone under this key is erased."""

    key: bytes


class Pause(msgspec.Struct, tag="pause", array_like=True, gc=False):
    """PAUSE: nothing of this domain is delivered before ``until``; 0: not paused.

    An empty name: nothing of any domain.
    """

    domain: bytes
    until: _Number
    again: bool
    """Whether it is a copy that compaction wrote."""


class Limit(msgspec.Struct, tag="limit", array_like=True, gc=False):
    """LIMIT: all that holds for this domain from now on; 0: the daemon's default."""

    domain: bytes
    interval_us: _Number
    jobs: _Number
    lease_us: _Number
    attempts: Annotated[int, msgspec.Meta(ge=-1)]
    """-1: an entry is never buried."""
    again: bool
    """Whether it is a copy that compaction wrote."""

    @property
    def is_default(self) -> bool:
        """Whether nothing of its own holds for the domain any more."""
        return not (self.interval_us or self.jobs or self.lease_us or self.attempts)


class Delivered(msgspec.Struct, tag="delivered", array_like=True, gc=False):
    """The last delivery of this domain was at ``instant``: its interval counts from then."""

    domain: bytes
    instant: _Number


# --- jobs ---------------------------------------------------------------------------------------


class End(msgspec.Struct, tag="end", array_like=True, gc=False):
    """The lease of that job ended, or a buried job was removed: this operation is the change.

    The bare record after it says the same to workq: a timeout-attempt or a delete.
    """

    following: _Count
    job_id: _JobId
    timestamp: _Number | None
    """Timestamp of the tombstone that the job leaves; None: none."""
    key: bytes
    """As in ``Completion``."""
    facts: bytes
    priority: _Priority

    @property
    def removes(self) -> bool:
        """Whether the job is removed."""
        return how_of(self.facts) != WAITS


class Extend(msgspec.Struct, tag="extend", array_like=True, gc=False):
    """TOUCH with a token: the lease of that job now ends at ``token``.

    Or a step of the clock moved its end, and left its token.
    """

    job_id: _JobId
    token: _Number
    end: _Number
    """When the lease ends, where a step of the clock moved that; 0: at its token."""
    domain: bytes
    priority: _Priority
    facts: bytes


class Touch(msgspec.Struct, tag="touch", array_like=True, gc=False):
    """The expiry of that job moved to ``expires`` (0: never)."""

    job_id: _JobId
    expires: _Number
    is_instant: bool
    """Whether a client named that instant; else it is a duration from the time of the record."""


class Delay(msgspec.Struct, tag="delay", array_like=True, gc=False):
    """RELEASE with a TTL: that job must not start before ``not_before``."""

    job_id: _JobId
    not_before: _Number


class Failed(msgspec.Struct, tag="failed", array_like=True, gc=False):
    """RELEASE with a value: an attempt of that job failed; the end of its lease follows."""

    job_id: _JobId
    attempts: _Number
    """With this one."""
    error: bytes
    domain: bytes
    priority: _Priority
    facts: bytes


class Value(msgspec.Struct, tag="value", array_like=True, gc=False):
    """ADD or NOT: what that job's value is now, of the same type."""

    job_id: _JobId
    value: bytes
    timestamp: _Number
    """Timestamp of the entry, as below; its modified time is that of the record."""


class Resize(msgspec.Struct, tag="resize", array_like=True, gc=False):
    """TRUNCATE: that job's value is cut to ``size`` bytes, or filled up with zero bytes."""

    job_id: _JobId
    size: Annotated[int, msgspec.Meta(ge=0, le=VALUE_BYTES_LIMIT)]
    timestamp: _Number


class Link(msgspec.Struct, tag="link", array_like=True, gc=False):
    """LINK: that job has one more key."""

    job_id: _JobId
    key: bytes


class Rename(msgspec.Struct, tag="rename", array_like=True, gc=False):
    """RENAME: the primary key of that job is ``key``; the old one has a tombstone.

    An entry that had ``key`` is removed without a tombstone; a tombstone of ``key`` is erased.
    """

    job_id: _JobId
    key: bytes
    timestamp: _Number
    """Timestamp of the entry and of the tombstone."""
    old: bytes
    """The key before."""
    facts: bytes


SegmentOperation: TypeAlias = SegmentStart | SegmentRewritten | SegmentRemoved
GroupHead: TypeAlias = Lease | Batch | End
KeyOperation: TypeAlias = Tombstone | Erasure
DomainOperation: TypeAlias = Pause | Limit | Delivered
Change: TypeAlias = End | Extend | Touch | Delay | Failed | Value | Resize | Link | Rename
Operation: TypeAlias = SegmentOperation | GroupHead | KeyOperation | DomainOperation | Change
Content: TypeAlias = Operation | Envelope | Completion | Failure

# --- encoding -----------------------------------------------------------------------------------

_decode: Callable[[memoryview], Operation] = msgspec.msgpack.Decoder(Operation).decode


def operation_head(ttr_ms: int = 1) -> bytes:
    """Return the head of operation records; ``ttr_ms``: time to run, which means nothing."""
    return encode_head(OPERATION_NAME.encode(), ttr_ms, OPERATION_TTL_MS, 0, 0, 0)


_ADD = Command.ADD.value

_HEAD = operation_head()


def encode_operation(
    operation: Operation, time: bytes, job_id: bytes, head: bytes = _HEAD
) -> bytes:
    """Return the record of an operation.

    Args:
        operation: Which.
        time: When the record is written, from ``encode_time``.
        job_id: A fresh one.
        head: From ``operation_head``.
    """
    payload = MAGIC + encode_fields(operation)
    return encode_job(_ADD, time, job_id, head, payload, NO_TIME, time)


def unpack_operation(payload: bytes) -> Operation:
    """Return the operation in the payload of a job named ``fj.op``.

    Raises:
        msgspec.MsgspecError: It is not an operation that this version knows.
    """
    return _decode(memoryview(payload)[MAGIC_BYTES:])


def unpack_content(record: Record) -> Content | None:
    """Return what fastjournald wrote into a record; None: nothing, or it is workq's own.

    Raises:
        LogCorruptError: It cannot be understood.
    """
    is_job = record.command <= Command.SCHEDULE
    data = record.payload if is_job else record.result
    if not is_ours(data):
        return None
    try:
        if is_job:
            is_operation = record.name == OPERATION_NAME
            return unpack_operation(data) if is_operation else unpack_envelope(data)
        if record.command == Command.COMPLETE:
            return unpack_completion(data)
        return unpack_failure(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogCorruptError(f"its contents cannot be read: {error}") from error


def tag_of(operation: type[msgspec.Struct] | msgspec.Struct) -> str:
    """Return the tag that identifies an operation."""
    return str(operation.__struct_config__.tag)
