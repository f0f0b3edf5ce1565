"""Jobs that workq itself wrote: their mapping to entries, and the effect of their records.

A job becomes a journal entry: domain = name, priority = 128 - workq's within 0 to 255, id = the job
id in hex, not before = the scheduled time, else when it was created; value = payload. It expires
when its time to live has passed, counted from the scheduled time, or for an added job from its
creation or the time of its record, the later one: workq counts from the creation after a restart,
and from the add otherwise. A failed job is a buried entry, also one that has used up its attempts.

Real logs have the records of one job in slightly wrong order. A start-attempt before the timeout of
the previous attempt is counted: a job is leased while it has more starts than timeouts. A record
before the add of its job waits for that: it belongs to it if it was written after the job was
created, else to an earlier job of the same id.
"""

from __future__ import annotations

from fastjournal.cmdlog.format.envelope import Envelope
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.records import Record, decode_time
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry, replayed_entry
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.keys import journal_key_of
from fastjournal.limits import INSTANT_MAX, PRIORITY_DEFAULT, PRIORITY_MAX
from fastjournal.protocol.constants import ValueType

REASON_FAILED = b"failed"
"""Why a foreign job is buried whose fail record says nothing to us."""
REASON_ATTEMPTS = b"attempts reached max-attempts"

_EARLY_IDS_MAX = 1024
"""Ids whose first records came before their add; the disorder of workq spans a few records."""
_EARLY_RECORDS_MAX = 16
_NEEDS_JOB = (Command.FAIL, Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT)


def replayed_job(record: Record, position: int, record_bytes: int) -> ReplayedEntry:
    """Return the entry of a foreign add or schedule record, with its job.

    Raises:
        LogCorruptError: Its name is none that workq accepts.
    """
    job = replayed_entry(entry_of(record), record.job_id, position, record_bytes)
    more = job.own()
    more.foreign = True
    more.ttr_us = record.ttr_ms * 1000
    more.attempts_max = record.max_attempts
    more.fails_max = record.max_fails
    more.priority_cut = not 0 <= PRIORITY_DEFAULT - record.priority <= PRIORITY_MAX
    return job


def entry_of(record: Record) -> Envelope:
    """Return the entry of a foreign add or schedule record; its arrival is not set.

    Raises:
        LogCorruptError: Its name is none that workq accepts.
    """
    time = _instant(record.time)
    born = _instant(record.created) or time
    created = min(born, time)
    due = begins = _instant(record.not_before)
    if record.not_before_us is None:
        due, begins = created, max(born, time)
    try:
        key = journal_key_of(
            record.name.encode("latin-1"),
            record.job_id.hex(),
            not_before_us=due,
            priority=min(max(PRIORITY_DEFAULT - record.priority, 0), PRIORITY_MAX),
        )
    except BadRequestError as error:
        raise LogCorruptError(f"a job's name cannot be a domain: {error.message}") from error
    return Envelope(
        key=key,
        uri=None,
        links=[],
        value_type=ValueType.BUFFER,
        value=record.payload,
        timestamp=min(due, time),
        created=created,
        modified=created,
        arrival=0,
        not_before=due,
        expires=min(begins + record.ttl_ms * 1000, INSTANT_MAX) if record.ttl_ms else 0,
        ttl=0,
        attempts=0,
        token=0,
        superseded=0,
        reason=None,
        first_due=0,
    )


def insert(state: ReplayState, job: ReplayedEntry) -> None:
    """Insert a foreign job; this removes one of the same id, whose delete compaction dropped."""
    for old in (state.jobs.get(job.job_id), state.keys.get(job.key)):
        if old is not None:
            state.odd["an id added twice"] += 1
            state.remove(old)
    state.tombstones.pop(job.key, None)
    state.foreign = True
    state.arrival += 1
    job.arrival = state.arrival
    state.jobs[job.job_id] = job
    state.keys[job.key] = job
    early = state.early.pop(job.job_id, []) or state.early_before.pop(job.job_id, [])
    for command, time in early:
        if time >= job.created and job.job_id in state.jobs:
            state.odd["a record before the add of its job"] += 1
            apply(state, job, command, time)


def wait_for_add(state: ReplayState, job_id: bytes, command: int, time: int) -> None:
    """Keep a record of an unknown job for a while: its add may follow."""
    if command in _NEEDS_JOB:
        state.odd["a record of an unknown job"] += 1
    records = state.early.get(job_id)
    if records is None:
        if len(state.early) >= _EARLY_IDS_MAX:
            state.early_before = state.early
            state.early = {}
        records = state.early[job_id] = state.early_before.pop(job_id, [])
    if len(records) < _EARLY_RECORDS_MAX:
        records.append((command, time))


def apply(state: ReplayState, job: ReplayedEntry, command: int, time: int) -> None:
    """Apply a record without contents of ours to a foreign job."""
    more = job.own()
    if command == Command.START_ATTEMPT:
        job.starts += 1
        leased = job.starts > more.attempts and more.reason is None
        job.token = min(time + more.ttr_us, INSTANT_MAX) if leased else 0
        job.lease_start = time if leased else 0
    elif command == Command.TIMEOUT_ATTEMPT:
        more.attempts += 1
        if job.starts <= more.attempts:
            job.token = job.lease_start = 0
            if 0 < more.attempts_max <= more.attempts:
                more.reason = REASON_ATTEMPTS
    elif command == Command.FAIL:
        job.token = job.lease_start = 0
        more.reason = REASON_FAILED
    else:
        state.remove(job)


def _instant(time: bytes) -> int:
    return min(max(decode_time(time) or 0, 0), INSTANT_MAX)
