"""Removals (complete, delete) whose replacement is lost in damage: a repair does not apply them.

The record of a new entry stands before the removal of the one whose place it takes, both in one
append. A power loss may keep the removal and lose the new record, and real damage may hit any
record. The old entry is intact then, and to apply the removal would lose it.

So the TIME of each removal says whether something took the place of what it removes, and where
that stands: ``cmdlog.format.removal_time``. Where an older version did not tell, a removal directly
behind damage that may have held an entry is taken for one that belongs to it.

Only what stands behind damage in the same segment is doubtful: a segment without damage is replayed
as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastjournal.cmdlog.format.layout import RECORD_BYTES_MIN, TIME_BYTES, Command
from fastjournal.cmdlog.format.partial_decode import is_operation, job_id_at
from fastjournal.cmdlog.format.records import instant_at
from fastjournal.cmdlog.format.removal_time import REPLACED_BY_URI, REPLACED_MAX, decode_replaced
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, CorruptRegion, RecordRun, SegmentScan

LOST, SUPERSEDED, RENAMED, UNTOLD = 1, 2, 3, 4
"""Why a removal is doubtful: its replacement is in the damage; is an entry anywhere before; is the
entry that the operation right before it renames; or it is not told whether there is one."""

NOT_APPLIED = "what takes the place of the entry that this removes is lost"

_REPLACEABLE = (Command.COMPLETE, Command.DELETE)
"""Removals whose TIME tells what took the place of the entry."""
_BETWEEN = (Command.START_ATTEMPT, Command.FAIL)
"""With the operation of a lease, between a copy by compaction and the removal of the original."""
_BETWEEN_MAX = 3
_ENTRY_BYTES_MIN = RECORD_BYTES_MIN + 2 * TIME_BYTES + 20
"""Damage of fewer bytes held no entry."""


def doubtful_removals(data: bytes, scan: SegmentScan) -> dict[int, int]:
    """Return the offsets of the removals behind damage that may have lost their replacement."""
    doubtful: dict[int, int] = {}
    for run in scan.runs:
        if run.start > HEADER_BYTES:
            before = max(damage.end - damage.offset for damage in scan.damage_before(run))
            doubtful |= _in_run(data, run, 0, before)
    return doubtful


def doubtful_behind(data: bytes, run: RecordRun, offset: int) -> dict[int, int]:
    """Return those of a run in which the record before ``offset`` cannot be understood."""
    first = run.ends.index(offset) + 1
    return _in_run(data, run, first, offset - run.offset(first - 1))


def _in_run(data: bytes, run: RecordRun, first: int, lost_bytes: int) -> dict[int, int]:
    doubtful: dict[int, int] = {}
    bodies = run.bodies
    for index in range(first, len(run)):
        body = bodies[index]
        if data[body] not in _REPLACEABLE:
            continue
        start = run.offset(index)
        replaced = decode_replaced(data, start)
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


def _may_belong(data: bytes, bodies: Sequence[int]) -> bool:
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


def _stands(
    kind: int, job: ReplayedEntry | None, command: int, time: int, *, unnamed: bool
) -> bool:
    """Whether a doubtful removal is not applied, so that the entry stands.

    Args:
        kind: Why it is doubtful.
        job: Job that it removes, as the records before it left it.
        command: ``Command.COMPLETE`` or ``Command.DELETE``.
        time: Time of the removal.
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
    return job.leased_until <= time and (job.uri is not None or bool(job.more.links))


class UnappliedRemovals:
    """The removals that a replay does not apply, as their replacement is lost.

    Args:
        state: Live state.

    Attributes:
        doubtful: Offsets of the doubtful removals in the current segment, and why each is.
        unapplied: Those of them that are not applied.
        standing: Job ids that stand because of that, to the positions of the removals.
        pardoned: Positions of those of which a later record says that they are right.
        unnamed: Position behind the operation that renames a job that is not there.
    """

    def __init__(self, state: ReplayState) -> None:
        self._state = state
        self.doubtful: dict[int, int] = {}
        self.unapplied: list[CorruptRegion] = []
        self.standing: dict[bytes, int] = {}
        self.pardoned: set[int] = set()
        self.unnamed = -1

    def start_segment(self, doubtful: dict[int, int] | None) -> None:
        """Go on with a segment and its doubtful removals."""
        self.doubtful = {} if doubtful is None else doubtful
        self.unapplied = []
        self.unnamed = -1

    def hold_back(self, data: bytes, base: int, start: int, body: int, end: int) -> bool:
        """Leave a removal by fastjournald out if its replacement is lost; return whether it is.

        Args:
            data: The segment.
            base: Position of its first byte.
            start: Offset of the removal.
            body: Offset of its body.
            end: Offset behind it.
        """
        kind = self.doubtful.get(start)
        if kind is None:
            return False
        job_id = job_id_at(data, body)
        job = self._state.jobs.get(job_id)
        unnamed = base + start == self.unnamed
        if not _stands(kind, job, data[body], instant_at(data, start), unnamed=unnamed):
            return False
        told = NOT_APPLIED if job is None else f"{NOT_APPLIED}, so that stands: key {job.key!r}"
        self.unapplied.append(CorruptRegion(start, end, told))
        self.standing[job_id] = base + start
        return True

    def pardon(self, key: bytes, timestamp: int) -> None:
        """Remove what stands under a key by an unapplied removal, for a later one removes it."""
        job = self._state.keys.get(key)
        if job is not None and job.key == key and job.timestamp <= timestamp:
            removal = self.standing.pop(job.job_id, None)
            if removal is not None:
                self.pardoned.add(removal)
                self._state.remove(job)
