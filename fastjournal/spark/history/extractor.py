"""Event extraction: fold of the records of jobs over the state of these, in order, to events. Pure.

A record tells what changed, and not always why. The records around it show the reason, which
``record_context`` finds; here are the rules that need the state of jobs:

- a job that is written in a batch, or later than its SET, is an entry *restated* under a new job
  id, by compaction, a KICK or a lease. The removal behind it ends the old id, and the new one takes
  over its state. One that nothing removes is an entry that was popped, and came back undelivered;
- the end of a lease (timeout-attempt) is a lost lease if it comes at the instant of the token or
  later, and a released one before;
- a removal says in the last digits of its TIME what took its place, or why the job goes
  (``cmdlog.format.removal_time``). In a log from before these, it is a completion if the job was
  leased, else a deletion, a purge if it stands in a batch, and a completion by NEXT (popped) if the
  tombstone has the timestamp of the entry;
- a timeout-attempt is the end of a lease, also of one that nothing is known of, unless it stands in
  the group of a failed attempt, which has ended the lease;
- compaction repeats pauses and limits: only a change is an event.

Behind a gap jobs are alive of which nothing is known. Their records are events nevertheless, with
what these records themselves tell.

Between segments nothing is kept but the live jobs, pauses and limits (``History``). So the records
may be divided by job and folded side by side, if the ids of one entry stay together
(``job_shards``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fastjournal.cmdlog.format.layout import JOB_ID_BYTES, Command
from fastjournal.cmdlog.format.operation_records import (
    Change,
    Delay,
    Extend,
    Failed,
    Limit,
    Operation,
    Pause,
    Rename,
    Resize,
    Value,
)
from fastjournal.cmdlog.format.removal_time import (
    REMOVED_BY_DELETE,
    REMOVED_BY_NEXT,
    REMOVED_BY_PURGE,
    REPLACED_BEFORE,
    REPLACED_BY_NONE,
    REPLACED_MAX,
    REPLACED_UNTOLD,
)
from fastjournal.keys import moved_not_before
from fastjournal.spark.decoding.view_columns import MICROSECONDS_MAX, text
from fastjournal.spark.history.event_records import EventRecord, event_of
from fastjournal.spark.history.event_rows import (
    POPPED,
    UNDELIVERED,
    EventKind,
    EventRow,
    LiveJob,
    job_of,
)
from fastjournal.spark.history.record_context import (
    AGAIN,
    CAME_BACK,
    IN_PURGE,
    PERHAPS_BACK,
    RESTATED,
)

_SCHEDULE, _COMPLETE, _DELETE = Command.SCHEDULE, Command.COMPLETE, Command.DELETE


class History(msgspec.Struct):
    """State between two segments."""

    jobs: dict[bytes, LiveJob] = msgspec.field(default_factory=dict)
    """Live jobs by their ids."""
    pauses: dict[bytes, int] = msgspec.field(default_factory=dict)
    """Domain to the end of its pause."""
    limits: dict[bytes, tuple[int, int, int, int]] = msgspec.field(default_factory=dict)
    """Domain to its limits."""


class EventExtractor:
    """Extracts events, segment by segment.

    Args:
        history: State at the end of the segment before; it changes.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._jobs = history.jobs
        self._undelivered: tuple[bytes, EventRecord] | None = None
        self._failed: bytes | None = None
        """Job whose failed attempt has just ended its lease; its end follows in the group."""

    def extract(self, records: Iterable[EventRecord]) -> Iterator[EventRow]:
        """Yield the events of one segment, in the order of its records.

        Args:
            records: Its records that events may come from, or those of some jobs. A removal that
                may end the old id of a restated job is behind that job's record.
        """
        for record in records:
            command = record.command
            removes = command in (_COMPLETE, _DELETE)
            if self._undelivered is not None and not (removes and self._replacement(record)):
                yield from self._came_back()
            operation = record.operation
            if operation is not None:
                yield from self._operation(record, operation)
            elif command <= _SCHEDULE:
                yield from self._stored(record)
            elif removes:
                yield from self._removed(record)
            else:
                yield from self._step(record, command)
        yield from self._came_back()

    # --- jobs -------------------------------------------------------------------------------------

    def _stored(self, record: EventRecord) -> Iterator[EventRow]:
        time = record.time
        job = self._jobs[record.target] = LiveJob(
            key=record.key,
            uri=record.uri,
            domain=record.domain,
            priority=record.priority,
            timestamp=record.timestamp,
            value_bytes=record.value_bytes,
            not_before=record.not_before,
            due=max(record.not_before, time),
            attempts=record.attempts,
            buried=record.reason is not None,
        )
        context = record.context
        if not context & RESTATED:
            yield event_of(record, EventKind.SET, job)
        elif context & (CAME_BACK | PERHAPS_BACK):
            self._undelivered = (record.target, record)
            if context & CAME_BACK:
                yield from self._came_back()

    def _came_back(self) -> Iterator[EventRow]:
        """Yield the return of a popped entry: no removal of another job followed its record."""
        if self._undelivered is not None:
            job_id, record = self._undelivered
            self._undelivered = None
            yield event_of(record, EventKind.RETURNED, self._jobs[job_id], reason=UNDELIVERED)

    def _replacement(self, record: EventRecord) -> bytes | None:
        """Return the restated job in whose favour a removal ends the old id; None: no such one."""
        ids = record.replacements
        if not ids:
            return None
        if record.removal != REPLACED_UNTOLD:
            return ids
        old = self._jobs.get(record.target)
        if old is None:
            return None
        for at in range(0, len(ids), JOB_ID_BYTES):
            job_id = ids[at : at + JOB_ID_BYTES]
            new = self._jobs.get(job_id)
            if new is not None and new is not old and new.key == old.key:
                return job_id
        return None

    def _removed(self, record: EventRecord) -> Iterator[EventRow]:
        new_id = self._replacement(record)
        job = self._jobs.pop(record.target, None)
        if new_id is not None:
            self._undelivered = None
            yield from self._transferred(record, job, self._jobs.get(new_id))
            return
        removal = record.removal
        completes = record.command == _COMPLETE and record.key is not None
        if job is None:
            if not completes and removal in (REPLACED_UNTOLD, REPLACED_BEFORE):
                # a recovery makes sure that it does not return
                return
            job = LiveJob()
        if completes and job.key is None:
            job.key, job.domain, job.priority = record.key, record.domain, record.priority
        if removal == REPLACED_UNTOLD:
            removal = self._guessed(record, job)
        if removal == REPLACED_BY_NONE:
            yield event_of(record, EventKind.COMPLETED, job)
        elif removal == REMOVED_BY_NEXT:
            yield event_of(record, EventKind.COMPLETED, job, reason=POPPED)
        elif removal in (REMOVED_BY_DELETE, REMOVED_BY_PURGE):
            if job.token and job.token <= record.time:
                yield from self._lease_over(record, job)
            purged = removal == REMOVED_BY_PURGE
            yield event_of(record, EventKind.PURGED if purged else EventKind.DELETED, job)
        else:
            if removal > REPLACED_MAX and (completes or job.token <= record.time):
                # by its URI, which waits for the end of the lease
                yield from self._lease_over(record, job)
            yield event_of(record, EventKind.REPLACED, job)

    def _guessed(self, record: EventRecord, job: LiveJob) -> int:
        """Return why a job goes by a removal of an older version, which does not tell."""
        if job.token > record.time:
            return REPLACED_BY_NONE
        if record.key is not None and record.timestamp == job.timestamp:
            return REMOVED_BY_NEXT
        return REMOVED_BY_PURGE if record.context & IN_PURGE else REMOVED_BY_DELETE

    def _transferred(
        self, record: EventRecord, old: LiveJob | None, new: LiveJob | None
    ) -> Iterator[EventRow]:
        """Let the new id of a restated entry have the state of the old one."""
        if new is None:
            return
        if old is None:
            # since when it waits, is in a gap
            new.due = new.not_before if new.not_before > record.time else None
            return
        if old.buried and not new.buried:
            yield event_of(record, EventKind.KICKED, new)
            return
        # the token of a lease from a gap stands only in the record of the new id
        new.token = old.token or new.token
        new.due, new.lease_start = old.due, old.lease_start

    def _step(self, record: EventRecord, command: int) -> Iterator[EventRow]:
        job = self._jobs.get(record.target)
        if job is None:
            job = self._jobs[record.target] = LiveJob()
        has_failed = self._failed == record.target
        self._failed = None
        if command == Command.EXPIRE:
            del self._jobs[record.target]
            yield from self._lease_over(record, job)
            yield event_of(record, EventKind.EXPIRED, job)
            return
        if command == Command.START_ATTEMPT:
            job.token = record.token or MICROSECONDS_MAX
            if not record.context & AGAIN:
                job.lease_start = record.time
                yield event_of(record, EventKind.LEASED, job)
        elif command == Command.FAIL:
            if not job.buried:
                if job.token and job.token <= record.time:
                    yield from self._lease_over(record, job)
                yield event_of(record, EventKind.BURIED, job, reason=record.reason or "")
                job.buried, job.token, job.lease_start = True, 0, 0
        elif has_failed:
            job.due = max(job.not_before, record.time)
        else:
            yield from self._lease_over(record, job, unknown=True)

    def _lease_over(
        self, record: EventRecord, job: LiveJob, *, unknown: bool = False
    ) -> Iterator[EventRow]:
        """Yield the end of a lease, if there is one, that is no completion."""
        if not job.token and not unknown:
            return
        lost = 0 < job.token <= record.time
        yield event_of(record, EventKind.LOST if lost else EventKind.RETURNED, job)
        job.attempts += lost
        job.token, job.lease_start = 0, 0
        job.due = max(job.not_before, record.time)

    # --- operations -------------------------------------------------------------------------------

    def _operation(self, record: EventRecord, operation: Operation) -> Iterator[EventRow]:
        if isinstance(operation, Pause):
            if self.history.pauses.get(operation.domain, 0) != operation.until:
                self.history.pauses[operation.domain] = operation.until
                if not operation.until:
                    del self.history.pauses[operation.domain]
                kind = EventKind.PAUSED if operation.until else EventKind.RESUMED
                yield event_of(record, kind, LiveJob(domain=text(operation.domain)))
        elif isinstance(operation, Limit):
            limits = (operation.interval_us, operation.jobs, operation.lease_us, operation.attempts)
            if self.history.limits.get(operation.domain, (0, 0, 0, 0)) != limits:
                self.history.limits[operation.domain] = limits
                if operation.is_default:
                    del self.history.limits[operation.domain]
                yield event_of(record, EventKind.LIMITED, LiveJob(domain=text(operation.domain)))
        elif isinstance(operation, Change):
            job = self._jobs.setdefault(operation.job_id, LiveJob())
            yield from self._changed(record, operation, job)

    def _changed(self, record: EventRecord, change: Change, job: LiveJob) -> Iterator[EventRow]:
        if isinstance(change, Extend):
            job.token = change.end or change.token
            if not change.end:
                # else a step of the clock moved its end
                yield event_of(record, EventKind.EXTENDED, job)
        elif isinstance(change, Delay):
            job.not_before = change.not_before
        elif isinstance(change, Failed):
            job.attempts = change.attempts - 1
            yield event_of(record, EventKind.FAILED, job, reason=text(change.error))
            job.attempts, job.token, job.lease_start = change.attempts, 0, 0
            self._failed = change.job_id
        elif isinstance(change, Value):
            job.timestamp, job.value_bytes = change.timestamp, len(change.value)
        elif isinstance(change, Resize):
            job.timestamp, job.value_bytes = change.timestamp, change.size
        elif isinstance(change, Rename):
            renamed = job_of(change.key)
            not_before = moved_not_before(job.key or b"", change.key, job.not_before)
            if job.key is None:
                # whether that is a move, only the key so far would tell
                job.not_before, job.due = max(not_before, job.not_before), None
            elif not_before != job.not_before:
                job.not_before, job.due = not_before, max(not_before, record.time)
            job.key, job.domain, job.priority = renamed.key, renamed.domain, renamed.priority
            job.timestamp = change.timestamp
            yield event_of(record, EventKind.RENAMED, job)
