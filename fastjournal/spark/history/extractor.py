"""Event extraction from log segments: each event is a function of one record. Pure.

The records of fastjournald contain what happened (``cmdlog.format.endings``): a SET in the envelope
of the entry, a lease with its entries, and the end of a lease or of an entry with its cause. So
segments need no order and no state, and a segment always gives the same events. Entries that
compaction, a lease or a burial wrote again are marked in their records, and are no events.

The segments of workq contain less: a start-attempt is a lease, a timeout-attempt a lost lease, and
complete, fail, delete and expire end a job that only its id names. In segments of fastjournald
these records are for workq, and give no events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from fastjournal.cmdlog.format import endings
from fastjournal.cmdlog.format.endings import EventFacts, unpack_ending, unpack_leased
from fastjournal.cmdlog.format.envelope import (
    OPERATION_NAME,
    ORIGIN_KICK,
    ORIGIN_SET,
    ORIGIN_UNDELIVERED,
    is_ours,
    unpack_completion,
    unpack_envelope,
    unpack_failure,
)
from fastjournal.cmdlog.format.layout import CRC_BYTES, TIME_BYTES, Command
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    End,
    Extend,
    Failed,
    Lease,
    Limit,
    Operation,
    Pause,
    Rename,
    SegmentStart,
    Tombstone,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import Record, decode_body, instant_at, outer_stamps
from fastjournal.cmdlog.recovery import workq_jobs
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.errors import LogCorruptError
from fastjournal.keys import parse_journal_key
from fastjournal.spark.decoding.view_columns import MICROSECONDS_MAX, text
from fastjournal.spark.history.event_rows import POPPED, UNDELIVERED, EventKind, EventRow
from fastjournal.spark.storage.files import SegmentFile

_BARE = (Command.DELETE, Command.EXPIRE, Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT)
_KINDS = {
    endings.COMPLETED: EventKind.COMPLETED,
    endings.POPPED: EventKind.COMPLETED,
    endings.DELETED: EventKind.DELETED,
    endings.PURGED: EventKind.PURGED,
    endings.EXPIRED: EventKind.EXPIRED,
    endings.BURIED: EventKind.BURIED,
    endings.REPLACED_BY_URI: EventKind.REPLACED,
    endings.REPLACED_UNLOGGED: EventKind.REPLACED,
}
_FOREIGN = {
    Command.START_ATTEMPT: EventKind.LEASED,
    Command.TIMEOUT_ATTEMPT: EventKind.LOST,
    Command.COMPLETE: EventKind.COMPLETED,
    Command.FAIL: EventKind.BURIED,
    Command.DELETE: EventKind.DELETED,
    Command.EXPIRE: EventKind.EXPIRED,
}
_ORIGINS = {
    ORIGIN_SET: EventKind.SET,
    ORIGIN_KICK: EventKind.KICKED,
    ORIGIN_UNDELIVERED: EventKind.RETURNED,
}
_LEASE_ENDS = {endings.LEASE_LOST: EventKind.LOST, endings.LEASE_RETURNED: EventKind.RETURNED}


class _Subject(NamedTuple):
    """Job, and its fields in the record besides the facts."""

    job_id: bytes = b""
    key: bytes | None = None
    domain: str | None = None
    priority: int | None = None


def extract_events(data: bytes, segment: SegmentFile, skipped: int = 0) -> Iterator[EventRow]:
    """Yield the events of a segment, in the order of its records.

    Args:
        data: The segment.
        segment: Its file. An unfinished group at the end of the last segment is left out.
        skipped: Bytes at its start whose records are left out.

    Raises:
        LogCorruptError: It is damaged, or a record cannot be decoded.
    """
    ours, awaited = False, 0
    group = list[EventRow]()
    for start, body, end in _records(data, segment):
        awaited = max(awaited - 1, 0)
        if not (ours and data[body] in _BARE):
            try:
                record = decode_body(data, start, body, end - CRC_BYTES)
                operation = _operation_of(record)
                ours = ours or isinstance(operation, SegmentStart)
                if isinstance(operation, Lease | Batch | End):
                    awaited = max(awaited, operation.following)
                if start >= skipped:
                    group += _Events(record, segment.number, start).events(operation, ours=ours)
            except (msgspec.MsgspecError, ValueError) as error:
                raise LogCorruptError(
                    f"a record cannot be understood: {error}", path=segment.path, offset=start
                ) from error
            except LogCorruptError as error:
                error.path, error.offset = segment.path, start
                raise
        if not awaited:
            yield from group
            group.clear()
    if not segment.last:
        yield from group


def outer_times(data: bytes, segment: SegmentFile) -> tuple[int | None, int | None]:
    """Return the earliest and the latest instant of a segment's records, without tombstones.

    Compaction may write a tombstone again with the time of its first record.

    Raises:
        LogCorruptError: The segment is damaged.
    """
    stamps = [
        data[start : start + TIME_BYTES]
        for start, body, end in _records(data, segment)
        if not _is_tombstone(data, start, body, end)
    ]
    if not stamps:
        return None, None
    low, high = outer_stamps(stamps)
    return instant_at(low, 0), instant_at(high, 0)


def _is_tombstone(data: bytes, start: int, body: int, end: int) -> bool:
    if data[body] != Command.ADD or b"\xa9tombstone" not in data[body:end]:
        return False
    return isinstance(_operation_of(decode_body(data, start, body, end - CRC_BYTES)), Tombstone)


def _records(data: bytes, segment: SegmentFile) -> Iterator[tuple[int, int, int]]:
    """Return start, body and end of each record; a torn tail of an open segment is left out."""
    scan = scan_segment(data)
    if scan.damage and not (segment.open and scan.torn):
        damage = scan.damage[0]
        raise LogCorruptError(
            f"{damage.reason} ({damage.end - damage.offset} bytes)",
            path=segment.path,
            offset=damage.offset,
            hint="option mode=permissive reads on behind it",
        )
    return scan.spans()


def _operation_of(record: Record) -> Operation | None:
    if record.command != Command.ADD or record.name != OPERATION_NAME:
        return None
    return unpack_operation(record.payload) if is_ours(record.payload) else None


class _Events:
    """Yields the events of a record.

    Args:
        record: The record.
        segment: Number of its segment.
        offset: Its offset in the segment.
    """

    def __init__(self, record: Record, segment: int, offset: int) -> None:
        self._record = record
        self._time = record.time_us or 0
        self._segment = segment
        self._offset = offset

    def events(self, operation: Operation | None, *, ours: bool) -> Iterator[EventRow]:
        """Yield the events.

        Args:
            operation: Operation in the payload; None: there is none.
            ours: Whether fastjournald wrote the segment.

        Raises:
            LogCorruptError: The record cannot be decoded; other decoding errors mean the same.
        """
        record = self._record
        if operation is not None:
            yield from self._of_operation(operation)
        elif record.command <= Command.SCHEDULE:
            yield from self._stored()
        elif record.command <= Command.FAIL and is_ours(record.result):
            yield from self._of_result()
        elif not (ours and record.command in _BARE):
            reason = text(record.result) if record.command == Command.FAIL else None
            yield self._row(_FOREIGN[record.command], _Subject(record.job_id), reason=reason)

    def _stored(self) -> Iterator[EventRow]:
        record = self._record
        foreign = not is_ours(record.payload)
        entry = workq_jobs.entry_of(record) if foreign else unpack_envelope(record.payload)
        kind = _ORIGINS.get(entry.origin)
        if kind is not None:
            yield self._row(
                kind,
                _of_key(record.job_id, entry.key),
                uri=entry.uri,
                serial=None if foreign else entry.arrival,
                due=entry.due or max(entry.not_before, self._time),
                reason=UNDELIVERED if kind is EventKind.RETURNED else None,
                value_bytes=len(entry.value),
            )

    def _of_result(self) -> Iterator[EventRow]:
        job_id, result = self._record.job_id, self._record.result
        if self._record.command == Command.FAIL:
            failure = unpack_failure(result)
            subject = _of_domain(job_id, failure.domain, failure.priority)
            return self._ended(failure.facts, subject, text(failure.reason))
        done = unpack_completion(result)
        subject = _ended_subject(job_id, done.timestamp, done.key, done.priority)
        return self._ended(done.facts, subject)

    def _ended(
        self, packed: bytes, subject: _Subject, reason: str | None = None
    ) -> Iterator[EventRow]:
        """Yield the end of a lease and that of the entry, by the facts."""
        facts = unpack_ending(packed, self._time)
        lease_end = _LEASE_ENDS.get(facts.lease_end)
        if lease_end is not None:
            yield self._leased_row(lease_end, subject, facts)
            facts = facts._replace(lease_start=None)
        kind = _KINDS.get(facts.how)
        if endings.REPLACED <= facts.how < endings.REWRITTEN:
            kind = EventKind.REPLACED
        if kind is None:
            return
        if facts.how != endings.POPPED:
            yield self._leased_row(kind, subject, facts, reason)
            return
        waited = None if facts.due is None else max(self._time - facts.due, 0)
        yield self._row(
            kind, subject, serial=facts.serial, attempt=facts.attempt, due=facts.due,
            wait_us=waited, reason=POPPED,
        )  # fmt: skip

    def _leased_row(
        self, kind: EventKind, subject: _Subject, facts: EventFacts, reason: str | None = None
    ) -> EventRow:
        """Return an event of an entry, with its lease if there was one."""
        start = facts.lease_start
        ends = start is not None and kind is not EventKind.EXTENDED
        return self._row(
            kind,
            subject,
            serial=facts.serial,
            attempt=None if start is None else facts.attempt,
            due=facts.due,
            lease_start=start,
            run_us=max(self._time - start, 0) if ends and start is not None else None,
            reason=reason,
        )

    def _of_operation(self, operation: Operation) -> Iterator[EventRow]:
        if isinstance(operation, Lease):
            yield from self._leases(operation)
        elif isinstance(operation, End):
            subject = _ended_subject(
                operation.job_id, operation.timestamp, operation.key, operation.priority
            )
            yield from self._ended(operation.facts, subject)
        elif isinstance(operation, Extend) and operation.end:
            # a step of the clock moved the end of the lease
            return
        elif isinstance(operation, Extend | Failed):
            subject = _of_domain(operation.job_id, operation.domain, operation.priority)
            facts = unpack_ending(operation.facts, self._time)
            if isinstance(operation, Extend):
                yield self._leased_row(EventKind.EXTENDED, subject, facts)
            else:
                yield self._leased_row(EventKind.FAILED, subject, facts, text(operation.error))
        elif isinstance(operation, Rename):
            facts = unpack_ending(operation.facts, self._time)
            subject = _of_key(operation.job_id, operation.key)
            yield self._row(EventKind.RENAMED, subject, serial=facts.serial, due=facts.due)
        elif isinstance(operation, Pause | Limit) and not operation.again:
            kind = EventKind.LIMITED
            if isinstance(operation, Pause):
                kind = EventKind.PAUSED if operation.until else EventKind.RESUMED
            # without a domain: a pause of everything
            name = text(operation.domain) if operation.domain else None
            yield self._row(kind, _Subject(domain=name))

    def _leases(self, lease: Lease) -> Iterator[EventRow]:
        if lease.again:
            return
        domains = (
            domain
            for domain, number in zip(lease.domains[::2], lease.domains[1::2], strict=True)
            for _ in range(number if isinstance(number, int) else 0)
        )
        for facts in unpack_leased(lease.facts, lease.priorities, lease.numbers):
            domain = next(domains, b"")
            if isinstance(domain, int):
                raise LogCorruptError("a lease has no names of domains")
            yield self._row(
                EventKind.LEASED,
                _of_domain(b"", domain, facts.priority),
                serial=facts.serial,
                attempt=facts.attempt,
                due=facts.due,
                lease_start=self._time,
                wait_us=max(self._time - facts.due, 0),
            )

    def _row(self, kind: EventKind, subject: _Subject, **columns: Any) -> EventRow:
        for name in ("wait_us", "run_us"):
            if columns.get(name) is not None:
                columns[name] = min(columns[name], MICROSECONDS_MAX)
        return EventRow(
            time=self._time,
            event=kind,
            domain=subject.domain,
            priority=subject.priority,
            key=subject.key,
            job_id=subject.job_id.hex() or None,
            segment=self._segment,
            offset=self._offset,
            **columns,
        )


def _of_key(job_id: bytes, key: bytes) -> _Subject:
    parts = parse_journal_key(key)
    if parts is None:
        return _Subject(job_id, key)
    return _Subject(job_id, key, text(parts.domain), parts.priority)


def _of_domain(job_id: bytes, domain: bytes, priority: int) -> _Subject:
    """Return the job of a record without a key; without a domain it is a plain entry."""
    if not domain:
        return _Subject(job_id)
    return _Subject(job_id, None, text(domain), priority)


def _ended_subject(job_id: bytes, timestamp: int | None, key: bytes, priority: int) -> _Subject:
    """Return the job of a record of its end: without a tombstone, ``key`` is the domain."""
    return _of_domain(job_id, key, priority) if timestamp is None else _of_key(job_id, key)
