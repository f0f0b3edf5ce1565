"""Replay of one record at a time: what each kind of record changes in what is live. Pure.

The rules are those of the live daemon."""

from __future__ import annotations

import msgspec

from fastjournal.cmdlog.format.envelope import (
    MAGIC,
    Failure,
    is_ours,
    unpack_completion,
    unpack_envelope,
    unpack_failure,
)
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    JOB_TAIL_BYTES,
    OFFSET_BITS,
    RUN_BYTES,
    SHORT_FIELD_AT,
    SIMPLE_TAIL_BYTES,
    Command,
)
from fastjournal.cmdlog.format.operation_records import (
    Change,
    Delay,
    Delivered,
    End,
    Erasure,
    Extend,
    Failed,
    Limit,
    Link,
    Operation,
    Pause,
    Rename,
    Resize,
    SegmentOperation,
    SegmentStart,
    Tombstone,
    Touch,
    Value,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import (
    body_offset,
    decode_body,
    instant_at,
    is_operation,
    job_id_at,
    payload_offset,
    result_at,
)
from fastjournal.cmdlog.recovery import workq_jobs
from fastjournal.cmdlog.recovery.removals import UnappliedRemovals
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry, replayed_entry
from fastjournal.errors import LogCorruptError
from fastjournal.keys import split_journal_key
from fastjournal.limits import LEASE_US_DEFAULT


def apply_operation(state: ReplayState, operation: Operation, time: int, segment: int) -> None:
    """Apply an operation that is about a key, a domain or a job; any other does nothing.

    Args:
        state: Live state.
        operation: From a record of the log.
        time: Time of that record, an instant in microseconds.
        segment: Number of its segment.
    """
    if isinstance(operation, Tombstone):
        state.leave_tombstone(operation.key, operation.timestamp, time, operation=True)
    elif isinstance(operation, Erasure):
        state.tombstones.pop(operation.key, None)
    elif isinstance(operation, Pause):
        state.pause(operation.domain, operation.until, time, segment)
    elif isinstance(operation, Limit):
        state.limit(operation, segment)
    elif isinstance(operation, Delivered):
        state.delivered(operation.domain, operation.instant)
    elif isinstance(operation, Change):
        job = state.jobs.get(operation.job_id)
        if job is None and isinstance(operation, End | Extend | Failed | Rename):
            state.note_serial(operation.facts)
        if isinstance(operation, End):
            _end(state, job, operation, time)
            return
        if isinstance(operation, Extend) and not operation.end:
            state.last_token = operation.token
        if job is not None:
            state.note_begin(operation, time)
            _change(state, job, operation, time)
        elif isinstance(operation, Rename):
            # compaction has removed the job, but the effect on the two keys holds
            state.tombstones.pop(operation.key, None)
            state.leave_tombstone(operation.old, operation.timestamp, time, operation=True)


def _end(state: ReplayState, job: ReplayedEntry | None, end: End, time: int) -> None:
    """End the lease of a job, or remove it and leave its tombstone."""
    if not end.removes:
        if job is not None and job.token:
            state.end_lease(job, time)
        return
    if job is not None:
        state.remove(job)
    state.settle(end.job_id)
    if end.timestamp is not None:
        state.leave_tombstone(end.key, end.timestamp, time, operation=True)


def _change(state: ReplayState, job: ReplayedEntry, change: Change, time: int) -> None:
    more = job.own()
    more.amended = True
    more.erases |= isinstance(change, Rename)
    if isinstance(change, Extend):
        job.token, more.lease_end = change.token, change.end
    elif isinstance(change, Touch):
        more.expires = change.expires
    elif isinstance(change, Delay):
        job.not_before = change.not_before
    elif isinstance(change, Failed):
        more.attempts, more.error = change.attempts, change.error
    elif isinstance(change, Link):
        state.link(job, change.key)
    elif isinstance(change, Rename):
        state.rename(job, change.key, change.timestamp, time, change.old)
    elif isinstance(change, Value | Resize):
        if isinstance(change, Value):
            # also of a value that stays on the disk
            job.value, more.cold_bytes = change.value, 0
            state.trimmed.pop(job.job_id, None)
        else:
            before = more.cold_bytes or len(job.value)
            trimmed = state.trimmed
            trimmed[job.job_id] = min(trimmed.get(job.job_id, before), change.size)
            if more.cold_bytes:
                more.cold_bytes = change.size
            else:
                job.value = job.value[: change.size].ljust(change.size, b"\0")
        job.timestamp = change.timestamp
        if split_journal_key(job.key) is not None:
            more.due = job.due
        job.changed = time


_PLAIN_REMOVALS = (Command.DELETE, Command.EXPIRE)
"""Those that leave no tombstone."""


class RecordReplay:
    """Replays records, one call each, into a ``ReplayState``.

    Args:
        state: Live state so far.

    Attributes:
        data: The segment, or the one record, that is replayed.
        base: Position of its first byte.
        run: First half of the id of the newest entry: it is the same in one run of the daemon.
        removals: Those that are not applied, because what replaces the entry is lost.
    """

    def __init__(self, state: ReplayState) -> None:
        self.data = b""
        self.base = 0
        self.run = b""
        self.removals = UnappliedRemovals(state)
        self._state = state
        self._ours = False
        """Whether fastjournald wrote the segment."""

    def start_segment(self, number: int, data: bytes, doubtful: dict[int, int] | None) -> None:
        """Go on with a segment; see ``Replay.start_segment``."""
        self.data = data
        self.base = number << OFFSET_BITS
        self.run = b""
        self._ours = False
        self.removals.start_segment(doubtful)

    def begin_run(self, job_id: bytes) -> None:
        """Note the first entry of a run of the daemon in this segment."""
        self.run = job_id[:RUN_BYTES]
        self._state.begins.append((job_id, self.base >> OFFSET_BITS))

    def apply_alone(
        self, data: bytes, position: int, *, ours: bool, token: int | None, doubt: int
    ) -> None:
        """Replay a record outside of a group; see ``Replay.apply``."""
        self.data = data
        self.base = position
        self._ours = ours
        body, end = body_offset(data, 0), len(data)
        if token is not None:
            job = self._state.jobs.get(job_id_at(data, body))
            if job is not None:
                self._state.lease(job, token, instant_at(data, 0))
            return
        self.removals.doubtful = {0: doubt} if doubt else {}
        if doubt and self.is_unapplied(0, body, end):
            return
        self.apply(0, body, end)

    def is_unapplied(self, start: int, body: int, end: int) -> bool:
        """Leave a doubtful removal out if its replacement is lost; return whether it was."""
        job_id = job_id_at(self.data, body)
        job = self._state.jobs.get(job_id)
        if job is None:
            ours = self.data.startswith(MAGIC, body + SHORT_FIELD_AT)
        else:
            ours = self._ours or not job.more.foreign
        # by workq itself; a segment of ours may have lost the record that has it
        leaves_tombstone = self.data[body] == Command.COMPLETE
        return ours and self.removals.hold_back(
            job_id, self.data, self.base, start, end, leaves_tombstone=leaves_tombstone
        )

    # --- any record -----------------------------------------------------------------------------

    def apply(self, start: int, body: int, end: int) -> None:
        """Replay the record at ``start``, without the groups of leases and batches.

        Args:
            start: Offset of the record in ``data``.
            body: Offset of its body.
            end: Offset after it.

        Raises:
            LogCorruptError: It cannot be decoded.
        """
        command = self.data[body]
        try:
            if command <= Command.SCHEDULE:
                self._apply_job(start, body, end)
            elif command <= Command.FAIL:
                self._apply_result(start, body, result_at(self.data, body, end))
            elif command > Command.TIMEOUT_ATTEMPT:
                raise LogCorruptError(f"command {command} is unknown")
            elif end - body != SIMPLE_TAIL_BYTES:
                raise LogCorruptError("bytes follow the last field")
            else:
                self._apply_simple(start, body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise LogCorruptError(f"its contents cannot be read: {error}") from error

    def _apply_job(self, start: int, body: int, end: int) -> None:
        data = self.data
        at = payload_offset(data, body)
        ours = at and data.startswith(MAGIC, at)
        if ours and is_operation(data, body):
            operation = unpack_operation(data[at : end - JOB_TAIL_BYTES])
            self.apply_operation(operation, start, end)
            return
        position = self.base + start
        if ours:
            payload = data[at : end - JOB_TAIL_BYTES]
        else:
            record = decode_body(data, start, body, end - CRC_BYTES)
            payload = record.payload
            if not is_ours(payload):
                job = workq_jobs.replayed_job(record, position, end - start)
                workq_jobs.insert(self._state, job)
                return
        entry = unpack_envelope(payload)
        job = replayed_entry(entry, job_id_at(data, body), position, end - start)
        if job.job_id[:RUN_BYTES] != self.run:
            self.begin_run(job.job_id)
        self._state.place(job, instant_at(data, start))
        self._state.arrival = max(self._state.arrival, entry.arrival)

    def _apply_result(self, start: int, body: int, result: bytes) -> None:
        state = self._state
        command = self.data[body]
        job_id = job_id_at(self.data, body)
        time = instant_at(self.data, start)
        job = state.jobs.get(job_id)
        ours = is_ours(result)
        if command == Command.COMPLETE and ours:
            done = unpack_completion(result)
            if job is not None:
                state.remove(job)
            else:
                state.note_serial(done.facts)
            state.settle(job_id)
            if done.timestamp is not None:
                self.removals.pardon(done.key, done.timestamp, done.facts)
                state.leave_tombstone(done.key, done.timestamp, time)
            return
        failure = unpack_failure(result) if ours else Failure(workq_jobs.REASON_FAILED, b"", 0, b"")
        if job is None:
            state.note_serial(failure.facts)
            self._wait_for_add(job_id, command, time)
        elif job.more.foreign and not self._ours:
            workq_jobs.apply(state, job, command, time)
        elif command == Command.COMPLETE:
            state.remove(job)
        elif job.superseded:
            state.drop_superseded(job, time)
        else:
            state.bury(job, failure.reason, time)

    def _apply_simple(self, start: int, body: int) -> None:
        state = self._state
        command = self.data[body]
        job_id = job_id_at(self.data, body)
        job = state.jobs.get(job_id)
        time = instant_at(self.data, start)
        if job is None:
            if command in _PLAIN_REMOVALS:
                state.settle(job_id)
            self._wait_for_add(job_id, command, time)
        elif command in _PLAIN_REMOVALS:
            state.remove(job)
        elif job.more.foreign and not self._ours:
            workq_jobs.apply(state, job, command, time)
        elif command == Command.START_ATTEMPT:
            state.lease(job, time + (job.more.ttr_us or LEASE_US_DEFAULT), time)
        elif job.token:
            state.end_lease(job, time)
        elif not self._ours:
            # in ours compaction keeps the end of a lease for workq, where the lease itself may go
            state.odd["a timeout of a job that is not leased"] += 1

    def _wait_for_add(self, job_id: bytes, command: int, time: int) -> None:
        # In our own segments the add is always first: compaction has taken it away.
        if not self._ours:
            workq_jobs.wait_for_add(self._state, job_id, command, time)

    # --- operations -----------------------------------------------------------------------------

    def apply_operation(self, operation: Operation, start: int, end: int) -> None:
        """Apply an operation that is no head of a group, from the record at ``start``."""
        state = self._state
        segment = self.base >> OFFSET_BITS
        if isinstance(operation, SegmentOperation):
            state.chain.take(segment, operation)
            if isinstance(operation, SegmentStart):
                self._ours = True
                state.last_token = operation.last_token or state.last_token
                state.arrival = max(state.arrival, operation.last_serial)
            return
        if isinstance(operation, End) and self.removals.hold_back(
            operation.job_id,
            self.data,
            self.base,
            start,
            end,
            leaves_tombstone=operation.timestamp is not None,
        ):
            return
        if isinstance(operation, End) and operation.timestamp is not None:
            self.removals.pardon(operation.key, operation.timestamp, operation.facts)
        if isinstance(operation, Rename) and operation.job_id not in state.jobs:
            self.removals.unnamed = self.base + end
        apply_operation(state, operation, instant_at(self.data, start), segment)
