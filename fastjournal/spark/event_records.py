"""Event records: what the event extraction needs of each record of a whole segment.

``segment_records`` decodes a segment with the vectorised reader, whose columns become one slim
struct a record. ``row_records`` makes the same of rows, record by record; it is the oracle of
the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Operation,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.format.removal_time import REPLACED_UNTOLD, decode_replaced
from fastjournal.spark.columns import COMMAND_NAMES, cut, text
from fastjournal.spark.event_rows import POPPED, Event, EventKind, Job
from fastjournal.spark.files import SegmentFile
from fastjournal.spark.rows import Row
from fastjournal.spark.vectorised.reader import read_data

_COMMANDS = {name: command for command, name in COMMAND_NAMES.items()}
_SCHEDULE, _START, _FAIL = Command.SCHEDULE, Command.START_ATTEMPT, Command.FAIL
_REMOVALS = (Command.COMPLETE, Command.DELETE)


class EventRecord(msgspec.Struct, gc=False):
    """A record, as far as events need it. Instants are microseconds; 0: none."""

    segment: int
    offset: int
    time: int
    command: Command
    target: bytes
    """Id of the job that it concerns."""
    key: bytes | None = None
    """Key of an entry, or of the tombstone of a completion."""
    uri: bytes | None = None
    domain: str | None = None
    priority: int | None = None
    timestamp: int = 0
    """Timestamp of the same."""
    value_bytes: int | None = None
    """None: the record carries no entry."""
    not_before: int = 0
    modified: int = 0
    attempts: int = 0
    reason: str | None = None
    """Reason of a burial, or of an entry that is buried."""
    token: int = 0
    """Lease token of a start-attempt; 0: unknown."""
    is_foreign: bool = False
    """It carries the job of another program."""
    operation: Operation | None = None
    removal: int = REPLACED_UNTOLD
    """Why a job goes, see ``cmdlog.format.removal_time``."""


def event_of(record: EventRecord, kind: EventKind, job: Job, *, reason: str | None = None) -> Event:
    """Return an event that a record tells of a job."""
    time, start, due = record.time, job.lease_start, job.due
    leased = start > 0 and kind is not EventKind.SET and kind is not EventKind.RENAMED
    ends = leased and kind is not EventKind.LEASED and kind is not EventKind.EXTENDED
    waits = due is not None and (kind is EventKind.LEASED or reason == POPPED)
    return Event(
        time,
        kind,
        job.domain,
        job.priority,
        job.key,
        job.uri,
        record.target.hex() or None,
        job.attempts + 1 if leased or reason == POPPED else None,
        None if due is None else cut(due),
        start if leased else None,
        max(time - due, 0) if waits and due is not None else None,
        max(time - start, 0) if ends else None,
        reason,
        job.value_bytes,
        record.segment,
        record.offset,
    )


# --- from rows ------------------------------------------------------------------------------------


def row_records(rows: Iterable[Row]) -> Iterator[EventRecord]:
    """Yield the records of rows, those of damage left out."""
    for row in rows:
        if row.record is not None:
            yield _of_row(row, row.record.command, row.record.time_us or 0)


def _of_row(row: Row, command: Command, time: int) -> EventRecord:
    found = EventRecord(row.segment, row.offset, time, command, row.target)
    found.operation = row.operation
    if row.operation is None and row.token is not None:
        found.token = cut(row.token)
    if command in _REMOVALS and row.ours:
        found.removal = decode_replaced(row.raw, 0)
    content = row.entry or row.completion
    if content is not None:
        found.key, found.timestamp = content.key, content.timestamp
        if row.journal is not None:
            found.domain, found.priority = text(row.journal.domain), row.journal.priority
    entry = row.entry
    if entry is not None:
        found.uri, found.value_bytes = entry.uri, len(entry.value)
        found.not_before, found.modified = cut(entry.not_before), cut(entry.modified)
        found.attempts, found.is_foreign = entry.attempts, row.foreign
    reason = row.reason if entry is None else entry.reason
    found.reason = None if reason is None else text(reason)
    return found


# --- from columns ---------------------------------------------------------------------------------

_NAMES = (
    *("offset", "time_us", "command", "_target", "key", "uri", "domain", "priority", "timestamp"),
    *("value", "not_before", "modified", "attempts", "reason", "token", "foreign", "operation"),
    *("following", "_ours"),
)


def segment_records(data: bytes, segment: SegmentFile) -> Iterator[EventRecord]:
    """Yield the records of a segment; the first one comes when all are decoded.

    Args:
        data: The segment.
        segment: Where it is; its checksum, if it is known, stands for those of its records.

    Raises:
        LogCorruptError: It is damaged.
    """
    # Arrow arrays of slices: about as large as the segment
    batches = [_slim(batch) for batch in read_data(data, segment, _NAMES, permissive=False)]
    for batch in batches:
        yield from _of_batch(data, segment.number, batch)


def _slim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the lengths of values in the place of these."""
    place = batch.schema.get_field_index("value")
    return batch.set_column(place, "value", pc.binary_length(batch.column(place)))


def _of_batch(data: bytes, segment: int, batch: pa.RecordBatch) -> Iterator[EventRecord]:
    columns = [batch.column(name).to_pylist() for name in _NAMES]
    commands = _COMMANDS
    for (
        offset, time, name, target, key, uri, domain, priority, timestamp, value_bytes,
        not_before, modified, attempts, reason, token, foreign, tag, following, ours,
    ) in zip(*columns, strict=True):  # fmt: skip
        command = commands[name]
        found = EventRecord(segment, offset, time or 0, command, target)
        if command <= _SCHEDULE:
            if tag is not None:
                found.operation = _operation(data, offset, tag, token, following)
            else:
                found.key, found.uri, found.domain, found.priority = key, uri, domain, priority
                found.timestamp, found.value_bytes = timestamp, value_bytes
                found.not_before, found.modified, found.attempts = not_before, modified, attempts
                found.reason, found.is_foreign = reason, foreign
        elif command == _START:
            found.token = token or 0
        elif command in _REMOVALS:
            found.key, found.domain, found.priority = key, domain, priority
            found.timestamp = timestamp or 0
            if ours:
                found.removal = decode_replaced(data, offset)
        elif command == _FAIL:
            found.reason = reason
        yield found


def _operation(
    data: bytes, offset: int, tag: str, token: int | None, following: int | None
) -> Operation:
    """Return an operation; those that come with every lease are made of their columns."""
    if tag == "batch":
        return Batch(following or 0)
    record, _ = decode_record(data, offset)
    return unpack_operation(record.payload)
