"""Replay of operation records: what each changes in what is live. Pure.

The rules are those of the live daemon.
"""

from __future__ import annotations

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
    Tombstone,
    Touch,
    Value,
)
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.keys import split_journal_key


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
            # compaction has removed the job, but what came of it for the two keys stands
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
