"""Event records from rows that were decoded one by one: the oracle of the vectorised extraction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Change,
    DomainOperation,
    Lease,
    Tombstone,
)
from fastjournal.cmdlog.format.removal_time import decode_replaced
from fastjournal.spark.decoding.rows import RecordRow
from fastjournal.spark.decoding.view_columns import cut, text
from fastjournal.spark.history.event_records import EventRecord
from fastjournal.spark.history.record_context import RecordFacts, find_context


def row_records(rows: Iterable[RecordRow]) -> Iterator[EventRecord]:
    """Yield the records of the rows of a segment, those of damage left out."""
    given = [(row, row.record) for row in rows if row.record is not None]
    found = [_of_row(row, record.command, record.time_us or 0) for row, record in given]
    context = find_context(_facts_of_rows([row for row, _ in given], found))
    for record, flags in zip(found, context.flags.tolist(), strict=True):
        record.context = flags
    for removal, job in zip(context.removals, context.replacements, strict=True):
        found[removal].replacements += found[job].target
    for record, (row, _) in zip(found, given, strict=True):
        if row.operation is None or isinstance(row.operation, DomainOperation | Change):
            yield record


def _facts_of_rows(rows: Sequence[RecordRow], records: Sequence[EventRecord]) -> RecordFacts:
    operations = [row.operation for row in rows]
    modified = [0 if row.entry is None else cut(row.entry.modified) for row in rows]
    later = [time < one.time for time, one in zip(modified, records, strict=True)]
    return RecordFacts(
        np.array([one.command for one in records], np.int64),
        np.array([row.entry is not None and not row.foreign for row in rows], np.bool_),
        np.array(later, np.bool_),
        np.array([one.following if isinstance(one, Batch) else -1 for one in operations], np.int64),
        np.array([one.again if isinstance(one, Lease) else -1 for one in operations], np.int64),
        np.array([isinstance(one, Tombstone) for one in operations], np.bool_),
        np.array([isinstance(one, DomainOperation) for one in operations], np.bool_),
        np.array([one.removal for one in records], np.int64),
    )


def _of_row(row: RecordRow, command: Command, time: int) -> EventRecord:
    found = EventRecord(row.segment, row.offset, time, command, row.target)
    found.operation = row.operation
    if row.operation is not None:
        return found
    if row.token is not None:
        found.token = cut(row.token)
    if command in (Command.COMPLETE, Command.DELETE) and row.ours:
        found.removal = decode_replaced(row.raw, 0)
    content = row.entry or row.completion
    if content is not None:
        found.key, found.timestamp = content.key, content.timestamp
        if row.journal is not None:
            found.domain, found.priority = text(row.journal.domain), row.journal.priority
    entry = row.entry
    if entry is not None:
        found.uri, found.value_bytes = entry.uri, len(entry.value)
        found.not_before, found.attempts = cut(entry.not_before), entry.attempts
    reason = row.reason if entry is None else entry.reason
    found.reason = None if reason is None else text(reason)
    return found
