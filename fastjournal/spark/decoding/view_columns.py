"""Columns of the views: types and conversions that all share, and those of the view ``records``.

Keys, URIs and values are binary, as they are in the log: ``CAST(key AS STRING)`` shows them. Text
for people (domain, id, name, reason) is a string; bytes in it that are no UTF-8 stand as
``\\\\xNN``. Instants and durations are 64-bit microseconds here; one beyond 2**63-1, some 290,000
years ahead, is shown as 2**63-1. ``requested_schema`` makes timestamps of instants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import (
    Delay,
    DomainOperation,
    Pause,
    Resize,
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    Touch,
    Value,
    tag_of,
)
from fastjournal.spark.decoding.rows import RecordRow

MICROSECONDS_MAX = 2**63 - 1
TIMESTAMPS = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The years 1 to 9999, in microseconds: what Spark and Python can show."""

_SQL = {
    "int": "INT",
    "long": "BIGINT",
    "text": "STRING",
    "bytes": "BINARY",
    "list": "ARRAY<BINARY>",
    "time": "TIMESTAMP",
    "flag": "BOOLEAN",
}
ARROW_TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "list": pa.list_(pa.field("element", pa.binary())),
    "time": pa.timestamp("us", tz="UTC"),
    "flag": pa.bool_(),
}


class Column(NamedTuple):
    """One column of a view."""

    name: str
    kind: str
    """Key of the tables of types."""
    value: Callable[[Any], Any]
    """Takes a row of the view."""

    @property
    def arrow(self) -> pa.DataType:
        """Its Arrow type."""
        return ARROW_TYPES[self.kind]


COMMAND_NAMES = {command: command.name.lower().replace("_", "-") for command in Command}


def text(data: bytes) -> str:
    """Return bytes as text: UTF-8, other bytes as ``\\\\xNN``."""
    return data.decode("utf-8", "backslashreplace")


def cut(instant: int) -> int:
    """Return an instant or duration as far as 63 bits hold it."""
    return min(instant, MICROSECONDS_MAX)


def bounded(number: int | None) -> int | None:
    """Return a number as far as 64 bits with a sign hold it."""
    return None if number is None else max(min(number, MICROSECONDS_MAX), -MICROSECONDS_MAX - 1)


def bounded32(number: int | None) -> int | None:
    """Return a number as far as 32 bits with a sign hold it."""
    return None if number is None else max(min(number, 2**31 - 1), -(2**31))


def sql_schema(columns: Sequence[Column]) -> str:
    """Return the schema as Spark reads it from a string."""
    return ", ".join(f"`{column.name}` {_SQL[column.kind]}" for column in columns)


def to_batch(rows: Sequence[Any], columns: Sequence[Column]) -> pa.RecordBatch:
    """Return rows as an Arrow batch."""
    arrays = [
        pa.array([column.value(row) for row in rows], type=column.arrow) for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])


CORRUPT_COLUMN = Column("_corrupt", "text", lambda row: row.corrupt)
"""Only in mode permissive: file, offset and what is wrong there."""


def shown(instant: int | None) -> int | None:
    """Return an instant, if Spark and Python can show it."""
    # a range looks for anything but a number from its first one to its last
    return None if instant is None or instant not in TIMESTAMPS else instant


def _of_job(name: str) -> Callable[[RecordRow], Any]:
    def value(row: RecordRow) -> Any:
        record = row.record
        if record is None or record.command > Command.SCHEDULE:
            return None
        return getattr(record, name)

    return value


def _number_of_job(
    name: str, within: Callable[[int | None], int | None]
) -> Callable[[RecordRow], Any]:
    number = _of_job(name)
    return lambda row: within(number(row))


def _of_entry(name: str) -> Callable[[RecordRow], Any]:
    return lambda row: None if row.entry is None else getattr(row.entry, name)


def _instant_of_entry(name: str) -> Callable[[RecordRow], Any]:
    return lambda row: None if row.entry is None else cut(getattr(row.entry, name))


def _of_operation(name: str) -> Callable[[RecordRow], Any]:
    return lambda row: getattr(row.operation, name, None)


def _timestamp_of(row: RecordRow) -> int | None:
    for source in (row.entry, row.completion, row.operation):
        timestamp: int | None = getattr(source, "timestamp", None)
        if timestamp is not None:
            return cut(timestamp)
    return None


def _operation(row: RecordRow) -> str | None:
    operation = row.operation
    return None if operation is None else tag_of(operation)


def _token(row: RecordRow) -> int | None:
    return None if row.token is None else cut(row.token)


def _number(row: RecordRow) -> int | None:
    operation = row.operation
    if isinstance(operation, SegmentStart):
        return bounded(operation.previous)
    if isinstance(operation, Resize):
        return bounded(operation.size)
    if isinstance(operation, SegmentRewritten | SegmentRemoved):
        return bounded(operation.number)
    return None


def _key(row: RecordRow) -> bytes | None:
    for source in (row.entry, row.completion, row.operation):
        # without a tombstone, a domain is there
        if getattr(source, "timestamp", 0) is not None:
            key: bytes | None = getattr(source, "key", None)
            if key is not None:
                return key
    return None


def _domain(row: RecordRow) -> str | None:
    if isinstance(row.operation, DomainOperation):
        return text(row.operation.domain)
    if _names_domain(row) and row.completion is not None:
        return text(row.completion.key)
    return None if row.journal is None else text(row.journal.domain)


def _names_domain(row: RecordRow) -> bool:
    """Whether a completion leaves no tombstone, and so has a domain instead of a key."""
    completion = row.completion
    return completion is not None and completion.timestamp is None and completion.key != b""


def _priority(row: RecordRow) -> int | None:
    if _names_domain(row) and row.completion is not None:
        return row.completion.priority
    return None if row.journal is None else row.journal.priority


def _arrival(row: RecordRow) -> int | None:
    if isinstance(row.operation, SegmentStart):
        return cut(row.operation.last_serial)
    return None if row.entry is None else cut(row.entry.arrival)


def _value(row: RecordRow) -> bytes | None:
    if isinstance(row.operation, Value):
        return row.operation.value
    return None if row.entry is None else row.entry.value


def _not_before(row: RecordRow) -> int | None:
    if isinstance(row.operation, Pause):
        return cut(row.operation.until)
    if isinstance(row.operation, Delay):
        return cut(row.operation.not_before)
    return None if row.entry is None else cut(row.entry.not_before)


def _expires(row: RecordRow) -> int | None:
    if isinstance(row.operation, Touch):
        return cut(row.operation.expires)
    return None if row.entry is None else cut(row.entry.expires)


def _reason(row: RecordRow) -> str | None:
    reason = row.reason if row.entry is None else row.entry.reason
    return None if reason is None else text(reason)


def _result(row: RecordRow) -> bytes | None:
    record = row.record
    if record is None or record.command not in (Command.COMPLETE, Command.FAIL):
        return None
    return record.result


_RECORD = (
    Column("segment", "int", lambda row: row.segment),
    Column("offset", "long", lambda row: row.offset),
    Column("size", "int", lambda row: bounded32(len(row.raw))),
    Column("time", "time", lambda row: row.record and shown(row.record.time_us)),
    Column("time_us", "long", lambda row: row.record and bounded(row.record.time_us)),
    Column("command", "text", lambda row: row.record and COMMAND_NAMES[row.record.command]),
    Column("job_id", "text", lambda row: row.record and row.record.job_id.hex()),
    Column("target", "text", lambda row: row.target.hex() if row.target else None),
)
"""Columns of every record. ``target``: the job that it concerns, also if an operation names it."""

_JOB = (
    Column("name", "text", _of_job("name")),
    Column("job_priority", "long", _number_of_job("priority", bounded)),
    Column("ttr_ms", "long", _number_of_job("ttr_ms", bounded)),
    Column("ttl_ms", "long", _number_of_job("ttl_ms", bounded)),
    Column("max_attempts", "int", _number_of_job("max_attempts", bounded32)),
    Column("max_fails", "int", _number_of_job("max_fails", bounded32)),
    Column("payload", "bytes", _of_job("payload")),
    Column("scheduled_us", "long", _number_of_job("not_before_us", bounded)),
    Column("job_created_us", "long", _number_of_job("created_us", bounded)),
    Column("result", "bytes", _result),
    Column("foreign", "flag", lambda row: None if row.entry is None else row.foreign),
)
"""Columns of workq's format; ``result`` also for the end of a job. ``foreign``: workq's own job."""

_OPERATION = (
    Column("operation", "text", _operation),
    Column("following", "int", lambda row: bounded32(_of_operation("following")(row))),
    Column("token", "long", _token),
    Column("number", "long", _number),
)
"""Columns of an operation; ``token`` also for the start-attempts that follow a lease."""

_ENTRY = (
    Column("key", "bytes", _key),
    Column("uri", "bytes", _of_entry("uri")),
    Column("links", "list", _of_entry("links")),
    Column("domain", "text", _domain),
    Column("priority", "int", _priority),
    Column("not_before", "long", _not_before),
    Column("id", "text", lambda row: row.journal and text(row.journal.id)),
    Column("value_type", "int", _of_entry("value_type")),
    Column("value", "bytes", _value),
    Column("timestamp", "long", _timestamp_of),
    Column("created", "long", _instant_of_entry("created")),
    Column("modified", "long", _instant_of_entry("modified")),
    Column("expires", "long", _expires),
    Column("ttl", "long", _instant_of_entry("ttl")),
    Column("arrival", "long", _arrival),
    Column("attempts", "int", lambda row: row.entry and bounded32(row.entry.attempts)),
    Column("worked_on_until", "long", _instant_of_entry("token")),
    Column("superseded", "long", _instant_of_entry("superseded")),
    Column("reason", "text", _reason),
)
"""Columns of an entry, from an envelope, a completion, a failure, or an operation."""

RECORD_COLUMNS = (*_RECORD, *_JOB, *_OPERATION, *_ENTRY)
READABLE = {column.name: column for column in (*RECORD_COLUMNS, CORRUPT_COLUMN)}
