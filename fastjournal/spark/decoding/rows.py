"""Rows of the view ``records``: the decoded records of a segment.

A row is one record, or one stretch of damaged bytes. Envelopes, operations and results that
fastjournal wrote are unpacked; a job of workq's own is converted to an entry. A start-attempt
carries the token of the lease operation before it, which the reader of the segment adds: both are
one append, which never spans two segments, so a segment can be read alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fastjournal.cmdlog.format.envelope import Completion, Envelope, Failure
from fastjournal.cmdlog.format.layout import CRC_BYTES, Command
from fastjournal.cmdlog.format.operation_records import (
    Change,
    Extend,
    Lease,
    Operation,
    unpack_content,
)
from fastjournal.cmdlog.format.records import Record, decode_body
from fastjournal.cmdlog.recovery import workq_jobs as foreign
from fastjournal.cmdlog.recovery.scan import CorruptRegion
from fastjournal.errors import LogCorruptError
from fastjournal.keys import JournalKey, parse_journal_key
from fastjournal.spark.storage.files import LOG_IN_USE, SegmentFile, read_locked


class RecordRow(msgspec.Struct, gc=False):
    """One record, or damage."""

    segment: int
    offset: int
    """Offset of the record's first byte in its segment."""
    raw: bytes
    """The whole record, or the damaged bytes."""
    record: Record | None = None
    """None: damage."""
    target: bytes = b""
    """Id of the job that it concerns: that of the record, or the one that an operation names."""
    entry: Envelope | None = None
    journal: JournalKey | None = None
    """The parts of the key of the entry, or of the completion, where it is a journal key."""
    operation: Operation | None = None
    completion: Completion | None = None
    reason: bytes | None = None
    """Reason of a fail record."""
    token: int | None = None
    """Token of a lease or a lease renewal, and of the start-attempts that belong to a lease."""
    foreign: bool = False
    """The add of a job that workq's own clients made."""
    corrupt: str | None = None


def read_bytes(files: Any, segment: SegmentFile) -> bytes:
    """Return the bytes of a segment as far as it went when its directory was listed.

    Raises:
        LogCorruptError: It is shorter than it was.
        LogFailedError: The file cannot be read.
    """
    data = read_locked(files, segment.path)
    if len(data) < segment.bytes and not segment.open:
        raise LogCorruptError(
            f"the segment has {len(data)} bytes, it had {segment.bytes}",
            path=segment.path,
            hint=LOG_IN_USE,
        )
    # Records appended since the directory was listed belong to the next listing.
    return data[: segment.bytes]


def damaged_row(segment: SegmentFile, damage: CorruptRegion, permissive: bool) -> RecordRow:
    """Return the row of damage.

    Raises:
        LogCorruptError: The damage, where not ``permissive``.
    """
    error = LogCorruptError(
        f"{damage.reason} ({damage.end - damage.offset} bytes)",
        path=segment.path,
        offset=damage.offset,
        hint="option mode=permissive reads on behind it",
    )
    if not permissive:
        raise error
    error.hint = None
    return RecordRow(segment.number, damage.offset, b"", corrupt=str(error))


def row_of(
    data: bytes, segment: SegmentFile, offset: int, body: int, end: int, *, permissive: bool
) -> RecordRow:
    """Return the row of a valid record, or of damage where its contents cannot be understood.

    Raises:
        LogCorruptError: They cannot be understood, where not ``permissive``.
    """
    try:
        return decode_row(data, segment, offset, body, end)
    except LogCorruptError as error:
        return damaged_row(segment, CorruptRegion(offset, end, error.message), permissive)


def decode_row(data: bytes, segment: SegmentFile, offset: int, body: int, end: int) -> RecordRow:
    """Return the row of the valid record at ``offset`` whose body is at ``body``.

    Raises:
        LogCorruptError: Its contents cannot be understood.
    """
    record = decode_body(data, offset, body, end - CRC_BYTES)
    row = RecordRow(segment.number, offset, data[offset:end], record, record.job_id)
    content = unpack_content(record)
    if content is None:
        row.foreign = record.command <= Command.SCHEDULE
        if row.foreign:
            row.entry = foreign.entry_of(record)
        elif record.command == Command.FAIL:
            row.reason = record.result
    elif isinstance(content, Envelope):
        row.entry = content
    elif isinstance(content, Completion):
        row.completion = content
    elif isinstance(content, Failure):
        row.reason = content.reason
    else:
        row.operation = content
        if isinstance(content, Lease | Extend):
            row.token = content.token
        if isinstance(content, Change):
            row.target = content.job_id
    if row.entry is not None:
        row.journal = parse_journal_key(row.entry.key)
    elif row.completion is not None and row.completion.timestamp is not None:
        row.journal = parse_journal_key(row.completion.key)
    return row
