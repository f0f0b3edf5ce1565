"""Event extraction: from the records of whole segments, in order, to events. Pure.

A record tells what changed, and not always why. The records around it show the reason:

- a job that is written in a batch, or later than its SET, is an entry *restated* under a new job
  id, by compaction, a KICK or a lease. The removal behind it names the old id, and by its distance
  the new one. One that nothing removes is an entry that was popped, and came back undelivered;
- the end of a lease (timeout-attempt) is a lost lease if it comes at the instant of the token or
  later, and a released one before;
- a removal says in the last digits of its TIME what took its place, or why the job goes
  (``cmdlog.format.removal_time``). In a log from before these, it is a completion if the job was
  leased, else a deletion, a purge if it stands in a batch, and a completion by NEXT (popped) if the
  tombstone has the timestamp of the entry;
- compaction repeats pauses and limits: only a change is an event.

Between segments nothing is kept but the live jobs, pauses and limits (``History``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Change,
    Delay,
    Extend,
    Failed,
    Lease,
    Limit,
    Pause,
    Rename,
    Resize,
    Tombstone,
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
    decode_replaced,
)
from fastjournal.keys import moved_not_before, parse_journal_key
from fastjournal.spark.columns import MICROSECONDS_MAX, cut, text
from fastjournal.spark.event_rows import Event, EventKind, Job
from fastjournal.spark.rows import Row

_NEAR = 8
"""Records that are kept for a removal behind them: a group of compaction has four."""

POPPED = "popped"
UNDELIVERED = "undelivered"


class History(msgspec.Struct):
    """State between two segments."""

    jobs: dict[bytes, Job] = msgspec.field(default_factory=dict)
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
        self._near: deque[bytes] = deque(maxlen=_NEAR)
        self._restated: set[bytes] = set()
        self._undelivered: tuple[bytes, Row] | None = None
        self._batch = 0
        self._batch_size = 0
        self._following: Row | None = None
        self._again = False

    def extract(self, rows: Iterable[Row]) -> Iterator[Event]:
        """Yield the events of one segment, in the order of its records.

        Args:
            rows: All of its records, from ``rows.read_segment``.
        """
        self._near.clear()
        self._restated.clear()
        self._batch = 0
        for row, self._following in _with_next(row for row in rows if row.record is not None):
            assert row.record is not None
            command = row.record.command
            removes = command in (Command.COMPLETE, Command.DELETE)
            if self._undelivered is not None and not (removes and self._replacement(row)):
                yield from self._came_back()
            if command <= Command.SCHEDULE:
                if row.operation is None:
                    yield from self._stored(row)
                else:
                    yield from self._operation(row)
            elif removes:
                yield from self._removed(row)
            else:
                yield from self._step(row, command)
            self._near.append(row.target if row.entry is not None else b"")
            if isinstance(row.operation, Batch):
                self._batch = self._batch_size = row.operation.following
            elif self._batch:
                self._batch -= 1
        yield from self._came_back()

    # --- jobs -------------------------------------------------------------------------------------

    def _stored(self, row: Row) -> Iterator[Event]:
        entry, time = row.entry, _time(row)
        assert entry is not None
        journal = row.journal
        job = self._jobs[row.target] = Job(
            key=entry.key,
            uri=entry.uri,
            domain=None if journal is None else text(journal.domain),
            priority=None if journal is None else journal.priority,
            timestamp=entry.timestamp,
            value_bytes=len(entry.value),
            not_before=entry.not_before,
            due=max(entry.not_before, time),
            attempts=entry.attempts,
            buried=entry.reason is not None,
        )
        if row.foreign or (not self._batch and entry.modified >= time):
            yield _event(row, EventKind.SET, job)
            return
        self._restated.add(row.target)
        if not self._batch:
            self._undelivered = (row.target, row)

    def _came_back(self) -> Iterator[Event]:
        """Yield the return of a popped entry: no removal of another job followed its record."""
        if self._undelivered is not None:
            job_id, row = self._undelivered
            self._undelivered = None
            yield _event(row, EventKind.RETURNED, self._jobs[job_id], reason=UNDELIVERED)

    def _replacement(self, row: Row) -> bytes | None:
        """Return the restated job in whose favour a removal ends the old id; None: no such one."""
        distance = _removal(row)
        if REPLACED_UNTOLD < distance <= min(len(self._near), REPLACED_MAX):
            near = self._near[-distance]
            return near if near in self._restated else None
        old = self._jobs.get(row.target) if distance == REPLACED_UNTOLD else None
        if old is None:
            return None
        for job_id in self._near:
            new = self._jobs.get(job_id) if job_id in self._restated else None
            if new is not None and new is not old and new.key == old.key:
                return job_id
        return None

    def _removed(self, row: Row) -> Iterator[Event]:
        new_id = self._replacement(row)
        job = self._jobs.pop(row.target, None)
        if new_id is not None:
            self._undelivered = None
            yield from self._transferred(row, job, self._jobs.get(new_id))
            return
        removal = _removal(row)
        if job is None:
            if row.completion is not None:
                job = _job_of(row.completion.key)
            elif removal in (REPLACED_UNTOLD, REPLACED_BEFORE):
                # a recovery makes sure that it does not return
                return
            else:
                job = Job()
        if removal == REPLACED_UNTOLD:
            removal = self._guessed(row, job)
        if removal == REPLACED_BY_NONE:
            yield _event(row, EventKind.COMPLETED, job)
        elif removal == REMOVED_BY_NEXT:
            yield _event(row, EventKind.COMPLETED, job, reason=POPPED)
        elif removal in (REMOVED_BY_DELETE, REMOVED_BY_PURGE):
            if job.token and job.token <= _time(row):
                yield from self._lease_over(row, job)
            purged = removal == REMOVED_BY_PURGE
            yield _event(row, EventKind.PURGED if purged else EventKind.DELETED, job)
        else:
            if removal > REPLACED_MAX and (row.completion is not None or job.token <= _time(row)):
                # by its URI, which waits for the end of the lease
                yield from self._lease_over(row, job)
            yield _event(row, EventKind.REPLACED, job)

    def _guessed(self, row: Row, job: Job) -> int:
        """Return why a job goes by a removal of an older version, which does not tell."""
        if job.token > _time(row):
            return REPLACED_BY_NONE
        if row.completion is not None and row.completion.timestamp == job.timestamp:
            return REMOVED_BY_NEXT
        # a dead letter and its tombstone are a batch, too
        following = self._following
        pair = following is not None and isinstance(following.operation, Tombstone)
        in_purge = self._batch > 0 and not (self._batch_size == 2 and pair)
        return REMOVED_BY_PURGE if in_purge else REMOVED_BY_DELETE

    def _transferred(self, row: Row, old: Job | None, new: Job | None) -> Iterator[Event]:
        """Let the new id of a restated entry have the state of the old one."""
        if old is None or new is None:
            return
        if old.buried and not new.buried:
            yield _event(row, EventKind.KICKED, new)
            return
        new.due, new.token, new.lease_start = old.due, old.token, old.lease_start

    def _step(self, row: Row, command: Command) -> Iterator[Event]:
        job = self._jobs.get(row.target)
        if command == Command.EXPIRE:
            if job is not None:
                del self._jobs[row.target]
                yield from self._lease_over(row, job)
                yield _event(row, EventKind.EXPIRED, job)
            return
        if job is None:
            job = self._jobs[row.target] = Job()
        if command == Command.START_ATTEMPT:
            job.token = row.token or MICROSECONDS_MAX
            if not self._again:
                job.lease_start = _time(row)
                yield _event(row, EventKind.LEASED, job)
        elif command == Command.FAIL:
            if not job.buried:
                if job.token and job.token <= _time(row):
                    yield from self._lease_over(row, job)
                yield _event(row, EventKind.BURIED, job, reason=text(row.reason or b""))
                job.buried, job.token, job.lease_start = True, 0, 0
        elif job.token or job.key is None:
            yield from self._lease_over(row, job, unknown=job.key is None)
        else:
            # behind a failed attempt
            job.due = max(job.not_before, _time(row))

    def _lease_over(self, row: Row, job: Job, *, unknown: bool = False) -> Iterator[Event]:
        """Yield the end of a lease, if there is one, that is no completion."""
        if not job.token and not unknown:
            return
        lost = 0 < job.token <= _time(row)
        yield _event(row, EventKind.LOST if lost else EventKind.RETURNED, job)
        job.attempts += lost
        job.token, job.lease_start = 0, 0
        job.due = max(job.not_before, _time(row))

    # --- operations -------------------------------------------------------------------------------

    def _operation(self, row: Row) -> Iterator[Event]:
        operation = row.operation
        if isinstance(operation, Lease):
            self._again = operation.again
        elif isinstance(operation, Pause):
            if self.history.pauses.get(operation.domain, 0) != operation.until:
                self.history.pauses[operation.domain] = operation.until
                if not operation.until:
                    del self.history.pauses[operation.domain]
                kind = EventKind.PAUSED if operation.until else EventKind.RESUMED
                yield _event(row, kind, Job(domain=text(operation.domain)))
        elif isinstance(operation, Limit):
            limits = (operation.interval_us, operation.jobs, operation.lease_us, operation.attempts)
            if self.history.limits.get(operation.domain, (0, 0, 0, 0)) != limits:
                self.history.limits[operation.domain] = limits
                if operation.is_default:
                    del self.history.limits[operation.domain]
                yield _event(row, EventKind.LIMITED, Job(domain=text(operation.domain)))
        elif isinstance(operation, Change):
            job = self._jobs.setdefault(operation.job_id, Job())
            yield from self._changed(row, operation, job)

    def _changed(self, row: Row, change: Change, job: Job) -> Iterator[Event]:
        if isinstance(change, Extend):
            job.token = change.token
            yield _event(row, EventKind.EXTENDED, job)
        elif isinstance(change, Delay):
            job.not_before = change.not_before
        elif isinstance(change, Failed):
            job.attempts = change.attempts - 1
            yield _event(row, EventKind.FAILED, job, reason=text(change.error))
            job.attempts, job.token, job.lease_start = change.attempts, 0, 0
        elif isinstance(change, Value):
            job.timestamp, job.value_bytes = change.timestamp, len(change.value)
        elif isinstance(change, Resize):
            job.timestamp, job.value_bytes = change.timestamp, change.size
        elif isinstance(change, Rename):
            renamed = _job_of(change.key)
            not_before = moved_not_before(job.key or b"", change.key, job.not_before)
            if not_before != job.not_before:
                job.not_before, job.due = not_before, max(not_before, _time(row))
            job.key, job.domain, job.priority = renamed.key, renamed.domain, renamed.priority
            job.timestamp = change.timestamp
            yield _event(row, EventKind.RENAMED, job)


def _with_next(rows: Iterable[Row]) -> Iterator[tuple[Row, Row | None]]:
    """Yield each row and the one behind it."""
    before: Row | None = None
    for row in rows:
        if before is not None:
            yield before, row
        before = row
    if before is not None:
        yield before, None


def _job_of(key: bytes) -> Job:
    """Return a job of which only the key is known."""
    journal = parse_journal_key(key)
    if journal is None:
        return Job(key=key)
    return Job(key=key, domain=text(journal.domain), priority=journal.priority)


def _removal(row: Row) -> int:
    """Return why a job goes; workq's own removals do not tell."""
    return decode_replaced(row.raw, 0) if row.ours else REPLACED_UNTOLD


def _time(row: Row) -> int:
    assert row.record is not None
    return row.record.time_us or 0


def _event(row: Row, kind: EventKind, job: Job, *, reason: str | None = None) -> Event:
    time, start = _time(row), job.lease_start
    leased = bool(start) and kind not in (EventKind.SET, EventKind.RENAMED)
    ends = leased and kind not in (EventKind.LEASED, EventKind.EXTENDED)
    wait = kind == EventKind.LEASED or reason == POPPED
    return Event(
        time=time,
        event=kind,
        domain=job.domain,
        priority=job.priority,
        key=job.key,
        uri=job.uri,
        job_id=row.target.hex() if row.target else None,
        attempt=job.attempts + 1 if leased or reason == POPPED else None,
        due=None if job.due is None else cut(job.due),
        lease_start=start if leased else None,
        wait_us=None if not wait or job.due is None else max(time - job.due, 0),
        run_us=max(time - start, 0) if ends else None,
        reason=reason,
        value_bytes=job.value_bytes,
        segment=row.segment,
        offset=row.offset,
    )
