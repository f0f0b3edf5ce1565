"""Endings: how leases and entries end, in log records; their rules for daemon and replay. Pure.

The rules are those of a lost lease, and of the SET that wins (last writer wins).

*Facts* of an entry are in each record that ends a lease or an entry, or changes one: in the result
of a complete or fail record, and in the operations ``end``, ``failed``, ``extend`` and ``rename``.
So one record alone gives an event. Byte layout, 22 bytes, big endian::

    u64  due: instant since which the entry could be leased; 0: unknown, as of an entry that waited
         and that another one replaced (it is the field that costs most)
    u48  serial number of the entry (``Envelope.arrival``)
    u8   number of the attempt: failed attempts so far, and this one; 255: that many or more
    u48  instant at which its lease began, modulo 2^48; 0: it was not leased
    u8   how it ended, see below; left out: its worker completed it

A record that writes an entry again, and is no event, has only the last of these fields. The
operation ``lease`` has the first two, 14 bytes, for each of its entries.

Instants are microseconds since the Unix epoch. *How it ended* is one of the numbers below, possibly
with ``LEASE_LOST`` or ``LEASE_RETURNED``. A repair uses it too, where a segment has damage
(``cmdlog.recovery.removals``): it says which record replaced the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from fastjournal.limits import INSTANT_MAX
from fastjournal.numeric import exponential_backoff

SERIAL_MAX = (1 << 47) - 1
"""The largest serial number that a record may have; the daemon counts on from it."""

UNKNOWN = 0
COMPLETED = 1
"""Its worker completed it."""
POPPED = 2
"""A NEXT removed it."""
DELETED = 3
"""A DELETE without a lease token."""
PURGED = 4
EXPIRED = 5
BURIED = 6
WAITS = 7
"""Only its lease ended: it waits again."""
REPLACED_BY_URI = 8
"""By an entry anywhere before that took its URI while it was leased."""
REPLACED_UNLOGGED = 9
"""By an entry in memory only, which no record names."""
REPLACED = 16
"""Plus the distance: replaced by the record that is so many records before this one, in the same
append. Without a distance a start of the daemon wrote it: the other record is anywhere before."""
REWRITTEN = 32
"""Plus the distance: the entry was written again in the record so many before. No event."""
DISTANCE_MAX = 15
LEASE_LOST = 0x40
"""A lease ended with it, by time: a failed attempt."""
LEASE_RETURNED = 0x80
"""A lease ended with it that was released."""
_HOW = 0x3F
_KIND = 0x30

DUE_BYTES = 14
"""Due instant and serial number."""
SERIAL = slice(8, 14)
LEASED_BYTES = 21
"""All facts but how it ended."""
ATTEMPT_AT = 14
START = slice(15, 21)
START_AT = 2
"""Where the begin of a lease has its bytes in an instant of 8 bytes."""
ATTEMPT_MAX = 0xFF
FIRST_ATTEMPT = b"\x01"
NO_DUE = bytes(8)
NO_ATTEMPT = bytes(7)
"""Attempt and begin of a lease where the record has neither."""
NOT_LEASED = bytes(6)
"""Begin of a lease where there is none."""
HOW = [bytes((how,)) for how in range(256)]
"""The last byte of facts, for each way to end."""
_DUE = Struct(">QIH")
pack_due = Struct(">Q6s").pack
"""Takes due, and the serial number as 6 bytes; returns the first 14 bytes of facts."""
pack_attempt = Struct(">QIHB").pack
"""Takes due, serial number >> 16, serial number & 0xFFFF, and the attempt, at most ``ATTEMPT_MAX``;
returns the first part of facts."""
_LEASED = Struct(">QIHBIH")
_pack_start = Struct(">IH").pack
_START_MASK = (1 << 48) - 1


class EventFacts(NamedTuple):
    """Facts of an entry at a record."""

    how: int
    """Without the flags of the lease."""
    lease_end: int
    """``LEASE_LOST``, ``LEASE_RETURNED`` or 0."""
    serial: int | None = None
    attempt: int = 0
    due: int | None = None
    lease_start: int | None = None
    """None: it was not leased."""


class LeasedFacts(NamedTuple):
    """Facts of an entry that is leased."""

    serial: int
    priority: int
    attempt: int
    due: int


class LeaseEnd(NamedTuple):
    """State of an entry after the end of its lease."""

    lost: bool
    """It ended by time: a failed attempt."""
    attempts: int
    """Failed attempts so far."""
    first_due: int
    """Instant since which it can be leased again."""
    not_before: int
    """Instant before which it must not start again; changed by the back-off of a lost lease."""


class Backoff(NamedTuple):
    """Delays after failed attempts; microseconds."""

    first_us: int = 0
    """After the first; doubled for each earlier one. 0: no delay."""
    longest_us: int = 0


NO_BACKOFF = Backoff()


def end_of_lease(
    token: int, time: int, attempts: int, not_before: int, backoff: Backoff = NO_BACKOFF
) -> LeaseEnd:
    """Return what the end of a lease makes of its entry: the rule of a lost lease.

    The first failed attempt that is a lost lease may start again at once: its worker was restarted
    or cut off. From the second failed attempt on it waits as after a reported failure, from the
    end of the lease on: else a job that kills its workers uses up all attempts in minutes.

    Args:
        token: Lease token: the instant at which the lease ends by itself.
        time: When it ended, or when that was noticed.
        attempts: Failed attempts before.
        not_before: Instant before which the entry must not start again.
        backoff: Delays of a lost lease. Replay passes none: a record has the instant.
    """
    lost = 0 < token <= time
    ended = min(time, token)
    if lost and attempts and backoff.first_us:
        delay = exponential_backoff(*backoff, attempts)
        not_before = max(not_before, min(ended + delay, INSTANT_MAX))
    return LeaseEnd(lost, attempts + lost, max(not_before, ended), not_before)


def is_stale(
    timestamp: int, standing: int | None, holder: int | None, deleted: int | None = None
) -> bool:
    """Return whether a SET loses against newer data: last writer wins, also with equal timestamps.

    Args:
        timestamp: Timestamp of the SET.
        standing: Timestamp of the entry under its key; None: there is none.
        holder: Timestamp of the entry under its URI.
        deleted: Timestamp of the tombstone under its key, which wins against an equal one. Replay
            passes none: the SETs in the log were accepted.
    """
    return (
        (standing is not None and timestamp < standing)
        or (holder is not None and timestamp < holder)
        or (deleted is not None and timestamp <= deleted)
    )


def superseded_by(before: int, timestamp: int) -> int:
    """Return by which timestamp an entry is superseded whose URI a SET takes while it is leased.

    Args:
        before: By which it was so far; 0: by none. The first SET stays.
        timestamp: Timestamp of the SET, which may be 0.
    """
    return before or max(timestamp, 1)


def distance(how: int) -> int:
    """Return how many records before this one the replacing record is; 0: unknown."""
    how &= _HOW
    return how - (how & _KIND) if how >= REPLACED else 0


def is_rewrite(facts: bytes) -> bool:
    """Whether a record with these facts only writes an entry again."""
    return how_of(facts) & _KIND == REWRITTEN


def serial_of(facts: bytes) -> int:
    """Return the serial number in facts, also where only due instant and serial are there; or 0."""
    return int.from_bytes(facts[SERIAL]) if len(facts) >= DUE_BYTES else 0


def how_of(facts: bytes) -> int:
    """Return how it ended, without the flags of the lease; ``UNKNOWN`` where there are no facts."""
    return _how(facts) & _HOW


def _how(facts: bytes) -> int:
    if len(facts) == LEASED_BYTES:
        return COMPLETED
    return facts[-1] if facts else UNKNOWN


def pack_start(instant: int) -> bytes:
    """Return the part of facts that says when a lease began."""
    return _pack_start(instant >> 16 & 0xFFFFFFFF, instant & 0xFFFF)


def pack_ending(how: int, serial: int, attempt: int, due: int, lease_start: int) -> bytes:
    """Return the facts of an entry; ``lease_start``: 0 if it was not leased."""
    due_of = pack_attempt(due, serial >> 16, serial & 0xFFFF, min(attempt, ATTEMPT_MAX))
    return due_of + pack_start(lease_start) + HOW[how]


def unpack_start(start: bytes, time: int) -> int:
    """Return when a lease began, an instant near ``time``; 0: it was not leased."""
    began = int.from_bytes(start, "big")
    since = time - began & _START_MASK
    if since > _START_MASK >> 1:
        # the clock was set back since
        since -= _START_MASK + 1
    return time - since if began else 0


def unpack_ending(facts: bytes, time: int) -> EventFacts:
    """Return facts; ``time``: that of their record, near which the lease began."""
    how = _how(facts)
    if len(facts) < LEASED_BYTES:
        return EventFacts(how & _HOW, how & ~_HOW)
    due, high, low, attempt, _, _ = _LEASED.unpack_from(facts)
    start = unpack_start(facts[START], time)
    serial = high << 16 | low
    return EventFacts(how & _HOW, how & ~_HOW, serial, attempt, due or None, start or None)


def unpack_leased(facts: bytes, priorities: bytes, attempts: bytes) -> Iterator[LeasedFacts]:
    """Yield the facts of the entries of a lease, as far as they go.

    ``attempts``: their numbers, a byte each; empty: all are the first ones.
    """
    whole = len(facts) - len(facts) % DUE_BYTES
    numbers = attempts or FIRST_ATTEMPT * len(priorities)
    columns = zip(_DUE.iter_unpack(facts[:whole]), priorities, numbers, strict=False)
    for (due, high, low), priority, attempt in columns:
        yield LeasedFacts(high << 16 | low, priority, attempt, due)
