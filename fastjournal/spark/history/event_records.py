"""Event records: what the event extraction needs of each record of a whole segment.

``read_rows`` decodes a segment with the vectorised reader into an Arrow table of slim rows, which
have what the records around each record tell (``record_context``). So rows of different jobs may be
divided afterwards. ``records_of`` makes one struct a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.format.layout import JOB_ID_BYTES, Command
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Change,
    DomainOperation,
    Lease,
    Operation,
    Tombstone,
    tag_of,
    unpack_operation,
)
from fastjournal.cmdlog.format.records import decode_record
from fastjournal.cmdlog.format.removal_time import REPLACED_UNTOLD, decode_replaced
from fastjournal.errors import LogCorruptError
from fastjournal.spark.decoding.byte_arrays import Mask, Numbers
from fastjournal.spark.decoding.vectorised.vectorised_reader import read_data
from fastjournal.spark.decoding.view_columns import COMMAND_NAMES, cut
from fastjournal.spark.history.event_rows import POPPED, EventKind, EventRow, LiveJob
from fastjournal.spark.history.job_shards import LINKS_SCHEMA
from fastjournal.spark.history.record_context import RecordContext, RecordFacts, find_context
from fastjournal.spark.storage.files import SegmentFile

_SCHEDULE, _START, _FAIL = Command.SCHEDULE, Command.START_ATTEMPT, Command.FAIL
_COMPLETE_OR_DELETE = (Command.COMPLETE, Command.DELETE)
_NO_IDS = b""


class EventRecord(msgspec.Struct, gc=False):
    """A record, as far as events need it. Instants are microseconds; 0: none."""

    segment: int
    offset: int
    time: int
    command: int
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
    attempts: int = 0
    reason: str | None = None
    """Reason of a burial, or of an entry that is buried."""
    token: int = 0
    """Lease token of a start-attempt; 0: unknown."""
    operation: Operation | None = None
    removal: int = REPLACED_UNTOLD
    """Why a job goes, see ``cmdlog.format.removal_time``."""
    context: int = 0
    """Flags by the records around it, see ``record_context``."""
    replacements: bytes = _NO_IDS
    """Ids of restated jobs before a removal, in whose favour it may end an old id, side by side."""


def event_of(
    record: EventRecord, kind: EventKind, job: LiveJob, *, reason: str | None = None
) -> EventRow:
    """Return an event that a record tells of a job."""
    time, start, due = record.time, job.lease_start, job.due
    leased = start > 0 and kind is not EventKind.SET and kind is not EventKind.RENAMED
    ends = leased and kind is not EventKind.LEASED and kind is not EventKind.EXTENDED
    waits = due is not None and (kind is EventKind.LEASED or reason == POPPED)
    return EventRow(
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


_LEASE, _BATCH, _TOMBSTONE = (pa.array([tag_of(one)]) for one in (Lease, Batch, Tombstone))
_OF_DOMAIN = pa.array([tag_of(one) for one in get_args(DomainOperation)])
_OF_JOB = pa.array([tag_of(one) for one in get_args(Change)])
_COPIED = ("key", "uri", "domain", "priority", "timestamp")
_ALSO_COPIED = ("not_before", "attempts", "reason", "token")
_NAMES = (
    *("offset", "time_us", "command", "_target", *_COPIED, "_value_bytes", *_ALSO_COPIED),
    *("modified", "foreign", "operation", "following", "_ours"),
)

ROWS_SCHEMA = pa.schema(
    [
        ("target", pa.binary(JOB_ID_BYTES)),
        ("offset", pa.int64()),
        ("time", pa.int64()),
        ("command", pa.uint8()),
        ("key", pa.binary()),
        ("uri", pa.binary()),
        ("domain", pa.string()),
        ("priority", pa.int32()),
        ("timestamp", pa.int64()),
        ("value_bytes", pa.int64()),
        ("not_before", pa.int64()),
        ("attempts", pa.int32()),
        ("reason", pa.string()),
        ("token", pa.int64()),
        ("operation", pa.binary()),
        ("removal", pa.int16()),
        ("context", pa.uint8()),
        ("replacements", pa.binary()),
    ]
)
"""Rows of a segment that events may come from, in order; an operation is its payload."""


class SegmentRows(NamedTuple):
    """Rows of a segment, and its instants."""

    table: pa.Table
    links: pa.Table
    """Ids of jobs and those that may go on for them, of ``LINKS_SCHEMA``."""
    first_us: int | None = None
    """Earliest instant of a record but a tombstone, which compaction may write again with the time
    of its first record; in microseconds since the Unix epoch."""
    last_us: int | None = None
    """Latest instant of one."""


def read_rows(data: bytes, segment: SegmentFile, skipped: int = 0) -> SegmentRows:
    """Return the rows of a segment.

    Args:
        data: The segment.
        segment: Where it is; its checksum, if it is known, stands for those of its records.
        skipped: Bytes at its begin whose records are left out.

    Raises:
        LogCorruptError: It is damaged.
    """
    batches = list(read_data(data, segment, _NAMES, permissive=False))
    if not batches:
        return SegmentRows(ROWS_SCHEMA.empty_table(), LINKS_SCHEMA.empty_table())
    found = pa.Table.from_batches(batches)
    if skipped:
        found = found.filter(pc.greater_equal(found.column("offset"), skipped))
    found = found.combine_chunks()
    return SegmentRows(*_rows(data, segment, found), *_outer_times(found))


def outer_times(data: bytes, segment: SegmentFile) -> tuple[int | None, int | None]:
    """Return the earliest and the latest instant of a segment, as ``read_rows`` has them.

    Raises:
        LogCorruptError: It is damaged.
    """
    batches = list(read_data(data, segment, ["time_us", "operation"], permissive=False))
    return _outer_times(pa.Table.from_batches(batches)) if batches else (None, None)


def _outer_times(found: pa.Table) -> tuple[int | None, int | None]:
    tombstones = pc.is_in(found.column("operation"), _TOMBSTONE)
    times = found.column("time_us").filter(pc.invert(tombstones))
    outer = pc.min_max(pc.fill_null(times, 0)).as_py()
    return outer["min"], outer["max"]


def segment_records(data: bytes, segment: SegmentFile, skipped: int = 0) -> Iterator[EventRecord]:
    """Yield the records of a segment that events may come from; see ``read_rows``."""
    return records_of(read_rows(data, segment, skipped).table, segment.number)


def records_of(table: pa.Table, segment: int) -> Iterator[EventRecord]:
    """Yield the records of rows of a segment.

    Args:
        table: Rows, with the columns of ``ROWS_SCHEMA``.
        segment: Number of the segment.
    """
    columns = [table.column(name).to_pylist() for name in ROWS_SCHEMA.names]
    for (
        target, offset, time, command, key, uri, domain, priority, timestamp, value_bytes,
        not_before, attempts, reason, token, operation, removal, context, replacements,
    ) in zip(*columns, strict=True):  # fmt: skip
        found = EventRecord(segment, offset, time, command, target)
        found.context = context
        if operation is not None:
            found.operation = unpack_operation(operation)
        elif command <= _SCHEDULE:
            found.key, found.uri, found.domain, found.priority = key, uri, domain, priority
            found.timestamp, found.value_bytes = timestamp, value_bytes
            found.not_before, found.attempts, found.reason = not_before, attempts, reason
        elif command == _START:
            found.token = token or 0
        elif command in _COMPLETE_OR_DELETE:
            found.key, found.domain, found.priority = key, domain, priority
            found.timestamp, found.removal = timestamp or 0, removal
            found.replacements = replacements
        elif command == _FAIL:
            found.reason = reason
        yield found


def _rows(data: bytes, segment: SegmentFile, found: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of all records that events may come from with their context, and links."""
    tags, offsets = found.column("operation"), found.column("offset").to_numpy()
    is_job = tags.is_null().to_numpy()
    kept = is_job | _is_in(tags, _OF_JOB) | _is_in(tags, _OF_DOMAIN)
    payloads = list[bytes | None]([None] * len(found))
    for row in np.flatnonzero(kept & ~is_job).tolist():
        payloads[row] = decode_record(data, int(offsets[row]))[0].payload
    facts = _facts(data, found, offsets, is_job)
    context = find_context(facts)
    columns = {name: found.column(name) for name in (*_COPIED, *_ALSO_COPIED, "offset")}
    columns |= {
        "target": _job_ids(found.column("_target"), segment),
        "time": pc.fill_null(found.column("time_us"), 0),
        "command": pa.array(facts.command, pa.uint8()),
        "value_bytes": found.column("_value_bytes"),
        "operation": pa.array(payloads, pa.binary()),
        "removal": pa.array(facts.removal, pa.int16()),
        "context": pa.array(context.flags, pa.uint8()),
    }
    new_ids = columns["target"].take(pa.array(context.replacements))
    columns["replacements"] = _side_by_side(new_ids, context, len(found))
    links = [columns["target"].take(pa.array(context.removals)), new_ids]
    table = pa.table([columns[name] for name in ROWS_SCHEMA.names], ROWS_SCHEMA)
    return table.filter(pa.array(kept)), pa.table(links, LINKS_SCHEMA)


def _is_in(tags: Any, chosen: pa.Array) -> Mask:
    found: Mask = pc.is_in(tags, chosen).to_numpy()
    return found


def _facts(data: bytes, found: pa.Table, offsets: Numbers, is_job: Mask) -> RecordFacts:
    tags = found.column("operation")
    times = pc.fill_null(found.column("time_us"), 0).to_numpy()
    command = pc.index_in(found.column("command"), _COMMANDS).to_numpy().astype(np.int64) + 1
    again = np.full(len(found), -1)
    for row in np.flatnonzero(_is_in(tags, _LEASE)):
        lease = unpack_operation(decode_record(data, int(offsets[row]))[0].payload)
        again[row] = isinstance(lease, Lease) and lease.again
    removes = (command == Command.COMPLETE) | (command == Command.DELETE)
    rows = np.flatnonzero(removes & found.column("_ours").to_numpy())
    removal = np.full(len(found), REPLACED_UNTOLD)
    removal[rows] = [decode_replaced(data, at) for at in offsets[rows].tolist()]
    leads = _is_in(tags, _BATCH)
    following = found.column("following").fill_null(0).to_numpy()
    is_entry = is_job & (command <= _SCHEDULE)
    return RecordFacts(
        command,
        is_entry & ~found.column("foreign").fill_null(False).to_numpy(),
        found.column("modified").fill_null(0).to_numpy() < times,
        np.where(leads, following, -1).astype(np.int64),
        again,
        _is_in(tags, _TOMBSTONE),
        _is_in(tags, _OF_DOMAIN),
        removal,
    )


_COMMANDS = pa.array([COMMAND_NAMES[command] for command in sorted(Command)])
"""Names of the commands 1, 2 and so on."""


def _job_ids(ids: Any, segment: SegmentFile) -> pa.Array:
    try:
        return ids.combine_chunks().cast(pa.binary(JOB_ID_BYTES))
    except pa.ArrowInvalid as error:
        raise LogCorruptError(
            "a record names a job id of another length", path=segment.path
        ) from error


def _side_by_side(new_ids: pa.Array, context: RecordContext, count: int) -> pa.Array:
    """Return the ids of restated jobs for each of so many records."""
    chosen = np.bincount(context.removals, minlength=count)
    ends = np.concatenate([[0], np.cumsum(chosen)]) * JOB_ID_BYTES
    data = new_ids.buffers()[1] or pa.py_buffer(b"")
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends.astype(np.int32)), data]
    )
