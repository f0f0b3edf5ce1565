"""Removals (complete, delete) whose replacement is lost in damage: a repair does not apply them.

The record of a new entry stands before the removal of the one whose place it takes, both in one
append. A power loss may keep the removal and lose the new record, and real damage may hit any
record. The old entry is intact then, and to apply the removal would lose it.

So each removal says by itself whether something took the place of what it removes: in the part of
its TIME below a microsecond, which no clock here gives. Nanoseconds modulo 1000:

- 1 to 997: the record that takes its place is so many records before this one;
- 998: its URI was taken while it was worked on, by an entry anywhere before;
- 999: nothing took its place;
- 0: not told, by an older version. Directly behind damage that may have held an entry, the removal
  is taken for one that belongs to it.

Only what stands behind damage in the same segment is doubtful: a segment without damage is replayed
as it stands.
"""

from __future__ import annotations

import struct

from fastjournal.cmdlog.format.partial_decode import is_operation
from fastjournal.cmdlog.format.records import RECORD_BYTES_MIN, TIME_BYTES, Command, encode_time
from fastjournal.cmdlog.recovery.replayed_entry import LiveJob
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, Run, Scan

REPLACED_MAX = 997
"""Records between a replacement and the removal: a group of cleaning has three at most."""
REPLACED_BY_URI = 998
REPLACED_BY_NONE = 999

LOST, SUPERSEDED, RENAMED, UNTOLD = 1, 2, 3, 4
"""Why a removal is doubtful: its replacement is in the damage; is an entry anywhere before; is the
entry that the operation right before it renames; or it is not told whether there is one."""

NOT_APPLIED = "what takes the place of the entry that this removes is lost"

_NANOSECONDS = struct.Struct(">i")
_NANOSECONDS_AT = 9
_REMOVALS = (Command.COMPLETE, Command.DELETE)
_BETWEEN = (Command.START_ATTEMPT, Command.FAIL)
"""With the operation of a lease, between a new entry and the removal where cleaning restates it."""
_BETWEEN_MAX = 3
_ENTRY_BYTES_MIN = RECORD_BYTES_MIN + 2 * TIME_BYTES + 20
"""Damage of fewer bytes held no entry."""


def encode_removal_time(us: int, replaced: int) -> bytes:
    """Return the TIME of a removal.

    Args:
        us: The instant, in microseconds since the Unix epoch.
        replaced: How many records before it that one stands which takes the place of what it
            removes, or ``REPLACED_BY_URI`` or ``REPLACED_BY_NONE``.
    """
    return encode_time(us, replaced)


def doubtful_removals(data: bytes, scan: Scan) -> dict[int, int]:
    """Return the offsets of the removals behind damage that may have lost their replacement."""
    doubtful: dict[int, int] = {}
    for run in scan.runs:
        if run.start > HEADER_BYTES:
            before = max(damage.end - damage.offset for damage in scan.damage_before(run))
            doubtful |= _in_run(data, run, 0, before)
    return doubtful


def doubtful_behind(data: bytes, run: Run, offset: int) -> dict[int, int]:
    """Return those of a run in which the record before ``offset`` cannot be understood."""
    first = run.ends.index(offset) + 1
    return _in_run(data, run, first, offset - run.offset(first - 1))


def _in_run(data: bytes, run: Run, first: int, lost_bytes: int) -> dict[int, int]:
    doubtful: dict[int, int] = {}
    bodies = run.bodies
    for index in range(first, len(run)):
        body = bodies[index]
        if data[body] not in _REMOVALS:
            continue
        start = run.offset(index)
        (nanoseconds,) = _NANOSECONDS.unpack_from(data, start + _NANOSECONDS_AT)
        replaced = nanoseconds % 1000
        if replaced == REPLACED_BY_URI:
            doubtful[start] = SUPERSEDED
        elif not replaced:
            if lost_bytes >= _ENTRY_BYTES_MIN and _may_belong(data, bodies[first : index + 1]):
                doubtful[start] = UNTOLD
        elif replaced <= REPLACED_MAX and index - replaced < first:
            doubtful[start] = LOST
        elif replaced == 1 and is_operation(data, bodies[index - 1]):
            doubtful[start] = RENAMED
    return doubtful


def _may_belong(data: bytes, bodies: list[int]) -> bool:
    """Whether the last of these records, the first ones behind damage, may belong to an entry."""
    if len(bodies) > _BETWEEN_MAX + 1:
        return False
    *between, removal = bodies
    if data[removal] == Command.COMPLETE:
        # the entry under the key goes first, then the one under the URI
        return [data[body] for body in between] in ([], [Command.DELETE])
    return all(
        data[body] in _BETWEEN or (data[body] == Command.ADD and is_operation(data, body))
        for body in between
    )


def stands(kind: int, job: LiveJob | None, command: int, time: int, *, unnamed: bool) -> bool:
    """Whether a doubtful removal is not applied, so that the entry stands.

    Args:
        kind: Why it is doubtful.
        job: What it removes, as the records before it left it.
        command: ``Command.COMPLETE`` or ``Command.DELETE``.
        time: Of the removal.
        unnamed: Whether the record before it renames an entry that is not there.
    """
    if kind == LOST:
        # also the tombstone of one that is not there is that of another's coming
        return job is not None or command == Command.COMPLETE
    if job is None:
        return False
    if kind == SUPERSEDED:
        return not job.superseded
    if kind == RENAMED:
        return unnamed
    if job.more.foreign:
        return False
    if command == Command.DELETE:
        return True
    # by another entry with its URI, which takes nothing from one that is worked on
    return job.token <= time and (job.uri is not None or bool(job.more.links))
