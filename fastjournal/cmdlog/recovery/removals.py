"""Removals (complete, delete) whose replacement is lost in damage: a repair does not apply them.

The record of a new entry comes before the removal of the entry that it replaces, both in one
append. A power loss may keep the removal and lose the new record, and real damage may hit any
record. Then the old entry is intact, and applying the removal would lose it.

So each removal says whether another entry replaced the removed one, and where its record is:
``cmdlog.format.endings``. A delete says nothing: it comes after its operation ``end``. If that is
lost, a delete directly after damage that may have contained an entry is treated as one of the lost
entry. So is a complete of another program. An expire record is always applied.

Only removals after damage in the same segment are doubtful: a segment without damage is replayed
unchanged.
"""

from __future__ import annotations

import msgspec

from fastjournal.cmdlog.format.endings import REPLACED_BY_URI, UNKNOWN, distance, how_of
from fastjournal.cmdlog.format.envelope import is_ours, unpack_completion
from fastjournal.cmdlog.format.layout import (
    JOB_TAIL_BYTES,
    RECORD_BYTES_MIN,
    TIME_BYTES,
    Command,
)
from fastjournal.cmdlog.format.operation_records import End, unpack_operation
from fastjournal.cmdlog.format.records import (
    instant_at,
    is_operation,
    job_id_at,
    payload_offset,
    result_at,
)
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, CorruptRegion, RecordRun, SegmentScan
from fastjournal.errors import LogCorruptError

LOST, SUPERSEDED, RENAMED, UNTOLD, FOLLOWS = 1, 2, 3, 4, 5
"""Reason why a removal is doubtful: its replacement is in the damage; is an entry anywhere before;
is the entry that the operation right before it renames; it is unknown whether there is one; or it
is the delete after a doubtful operation."""

NOT_APPLIED = "what takes the place of the entry that this removes is lost"

_ENTRY_BYTES_MIN = RECORD_BYTES_MIN + 2 * TIME_BYTES + 20
"""Damage of fewer bytes held no entry."""


def doubtful_removals(data: bytes, scan: SegmentScan) -> dict[int, int]:
    """Return the offsets of the removals after damage that may have lost their replacement."""
    doubtful: dict[int, int] = {}
    for run in scan.runs:
        if run.start > HEADER_BYTES:
            before = max(damage.end - damage.offset for damage in scan.damage_before(run))
            doubtful |= _in_run(data, run, 0, before)
    return doubtful


def doubtful_behind(data: bytes, run: RecordRun, offset: int) -> dict[int, int]:
    """Return the doubtful ones of a run if the record before ``offset`` cannot be decoded."""
    first = run.ends.index(offset) + 1
    return _in_run(data, run, first, offset - run.offset(first - 1))


def _in_run(data: bytes, run: RecordRun, first: int, lost_bytes: int) -> dict[int, int]:
    doubtful: dict[int, int] = {}
    bodies = run.bodies
    ended: bytes | None = None
    """Job of the operation right before, that is about to be deleted."""
    for index in range(first, len(run)):
        body, start, end = bodies[index], run.offset(index), run.ends[index]
        command, before = data[body], ended
        ended = None
        if command == Command.DELETE:
            if job_id_at(data, body) == before:
                if run.offset(index - 1) in doubtful:
                    doubtful[start] = FOLLOWS
                continue
            how = UNKNOWN
        elif command == Command.COMPLETE:
            how = _how_of_result(data, body, end)
        else:
            operation = _removing_end(data, body, end)
            if operation is None:
                continue
            ended, how = operation.job_id, how_of(operation.facts)
        away = distance(how)
        if how == REPLACED_BY_URI:
            doubtful[start] = SUPERSEDED
        elif how == UNKNOWN:
            if index == first and lost_bytes >= _ENTRY_BYTES_MIN:
                doubtful[start] = UNTOLD
        elif away and index - away < first:
            doubtful[start] = LOST
        elif away == 1 and is_operation(data, bodies[index - 1]):
            doubtful[start] = RENAMED
    return doubtful


def _how_of_result(data: bytes, body: int, end: int) -> int:
    """Return how the entry of a complete record ended."""
    try:
        result = result_at(data, body, end)
        return how_of(unpack_completion(result).facts) if is_ours(result) else UNKNOWN
    except (msgspec.MsgspecError, ValueError, LogCorruptError):
        return UNKNOWN


def _removing_end(data: bytes, body: int, end: int) -> End | None:
    """Return the operation in a record, if it removes a job."""
    if data[body] != Command.ADD or not is_operation(data, body):
        return None
    try:
        payload = data[payload_offset(data, body) : end - JOB_TAIL_BYTES]
        operation = unpack_operation(payload) if is_ours(payload) else None
    except (msgspec.MsgspecError, ValueError):
        return None
    return operation if isinstance(operation, End) and operation.removes else None


def _stands(
    kind: int, job: ReplayedEntry | None, time: int, *, leaves_tombstone: bool, unnamed: bool
) -> bool:
    """Whether a doubtful removal is not applied, so that the entry is kept.

    Args:
        kind: Why it is doubtful.
        job: Job that it removes, in the state before it.
        time: Time of the removal.
        leaves_tombstone: Whether it may leave one, as a complete record may.
        unnamed: Whether the record before it renames an entry that does not exist.
    """
    if kind == LOST:
        # also the tombstone of one that is not there is that of another's coming
        return job is not None or leaves_tombstone
    if job is None:
        return False
    if kind == SUPERSEDED:
        return not job.superseded
    if kind == RENAMED:
        return unnamed
    if job.more.foreign:
        return False
    if not leaves_tombstone:
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
        standing: Job ids that are kept for that reason, to the positions of the removals.
        pardoned: Positions of those that a later record confirms.
        unnamed: Position after the operation that renames a job that does not exist.
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

    def hold_back(
        self, job_id: bytes, data: bytes, base: int, start: int, end: int, *, leaves_tombstone: bool
    ) -> bool:
        """Skip a removal by fastjournald if its replacement is lost; return whether it is skipped.

        Args:
            job_id: Job that it removes.
            data: The segment.
            base: Position of its first byte.
            start: Offset of the removal.
            end: Offset after it.
            leaves_tombstone: Whether it may leave a tombstone.
        """
        kind = self.doubtful.get(start)
        if kind is None:
            return False
        job = self._state.jobs.get(job_id)
        unnamed = base + start == self.unnamed
        time = instant_at(data, start)
        if kind == FOLLOWS:
            if job is None or job_id not in self.standing:
                return False
        elif not _stands(kind, job, time, leaves_tombstone=leaves_tombstone, unnamed=unnamed):
            return False
        told = NOT_APPLIED if job is None else f"{NOT_APPLIED}, so that stands: key {job.key!r}"
        self.unapplied.append(CorruptRegion(start, end, told))
        self.standing[job_id] = base + start
        return True

    def pardon(self, key: bytes, timestamp: int, facts: bytes) -> None:
        """Remove the entry of a key that an unapplied removal kept, because a later one removes it.

        Except if the later one only says that a newer entry took its URI, and that is lost, too.
        """
        job = self._state.keys.get(key)
        if job is not None and job.key == key and job.timestamp <= timestamp:
            if how_of(facts) == REPLACED_BY_URI and not job.superseded:
                return
            removal = self.standing.pop(job.job_id, None)
            if removal is not None:
                self.pardoned.add(removal)
                self._state.remove(job)
