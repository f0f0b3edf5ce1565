"""Loss report: the records lost in damage, with readable keys and their approximate time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from fastjournal.cmdlog.format.envelope import Completion, Envelope
from fastjournal.cmdlog.format.layout import CRC_BYTES, TIME_BYTES, Command, decode_uvarint
from fastjournal.cmdlog.format.operation_records import (
    Change,
    KeyOperation,
    Link,
    Rename,
    unpack_content,
)
from fastjournal.cmdlog.format.records import Record, decode_body, decode_time
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, CorruptRegion, SegmentScan, find_head
from fastjournal.cmdlog.recovery.workq_jobs import entry_of
from fastjournal.errors import LogCorruptError

_NAMED_MAX = 8
"""Records of one stretch of damage that the report names."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def describe_loss(
    data: bytes, scan: SegmentScan, damage: CorruptRegion, jobs: Mapping[bytes, ReplayedEntry]
) -> str:
    """Return a description of the records that were lost in damage.

    Args:
        data: The segment.
        scan: Scan of it.
        damage: The damaged region.
        jobs: Live jobs after the segment, by id.
    """
    clues = _looks_like(data, damage, jobs)
    before = [run for run in scan.runs if run.end <= damage.offset]
    after = [run for run in scan.runs if run.start >= damage.end]
    if before:
        run = before[-1]
        clues.append(f"the record before it is of {_when(data, run.offset(len(run) - 1))}")
    if after:
        clues.append(f"the one behind it of {_when(data, after[0].start)}")
    return ", ".join(clues)


def _looks_like(
    data: bytes, damage: CorruptRegion, jobs: Mapping[bytes, ReplayedEntry]
) -> list[str]:
    """Return which records the damaged bytes look like, by key where a key is readable."""
    clues: list[str] = []
    at = damage.offset
    while HEADER_BYTES <= at < damage.end and len(clues) < _NAMED_MAX:
        try:
            body_bytes, body = decode_uvarint(data, at + TIME_BYTES, damage.end)
            end = min(body + body_bytes, damage.end - CRC_BYTES)
            record = decode_body(data, at, body, end)
        except (LogCorruptError, IndexError):
            end = at
        else:
            key = _key_of(record, jobs)
            named = "" if key is None else f", key {key!r}"
            clues.append(f"it looks like {record.command.name} of job {record.job_id.hex()}{named}")
        at = find_head(data, max(end, at + 1), damage.end)
    return clues


def _key_of(record: Record, jobs: Mapping[bytes, ReplayedEntry]) -> bytes | None:
    """Return the key that a record is about, as far as its bytes can be believed."""
    try:
        content = unpack_content(record)
        if content is None and record.command <= Command.SCHEDULE:
            return entry_of(record).key
    except LogCorruptError:
        return None
    if isinstance(content, Envelope | KeyOperation | Rename | Link):
        return content.key
    if isinstance(content, Completion) and content.timestamp is not None:
        return content.key
    job_id = content.job_id if isinstance(content, Change) else record.job_id
    job = jobs.get(job_id)
    return None if job is None else job.key


def _when(data: bytes, offset: int) -> str:
    us = time_at(data, offset)
    try:
        return "no time" if us is None else format_time(us)
    except OverflowError:
        return "an impossible time"


def format_time(us: int) -> str:
    """Return an instant as ``2026-11-20T10:11:12.123456Z``.

    Raises:
        OverflowError: It is outside the years 1 to 9999.
    """
    instant = _EPOCH + timedelta(microseconds=us)
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time_at(data: bytes, offset: int) -> int | None:
    """Return the time of the record at an offset; None: it has none."""
    return decode_time(data[offset : offset + TIME_BYTES])
