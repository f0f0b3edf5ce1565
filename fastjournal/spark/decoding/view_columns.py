"""Columns of the views: types, schemas, and the conversion of values that all views share.

Keys, URIs and values are binary, as they are in the log: ``CAST(key AS STRING)`` shows them. Text
for people (domain, id, name, reason) is a string; bytes in it that are no UTF-8 stand as
``\\\\xNN``. Instants and durations are 64-bit microseconds here; one beyond 2**63-1, some 290,000
years ahead, is shown as 2**63-1. ``requested_schema`` makes timestamps of instants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from fastjournal.cmdlog.format.layout import Command
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
    "numbers": "ARRAY<BIGINT>",
    "time": "TIMESTAMP",
    "flag": "BOOLEAN",
}
ARROW_TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "list": pa.list_(pa.field("element", pa.binary())),
    "numbers": pa.list_(pa.field("element", pa.int64())),
    "time": pa.timestamp("us", tz="UTC"),
    "flag": pa.bool_(),
}


class HasKind(Protocol):
    """A column of any view."""

    @property
    def name(self) -> str:
        """As in the table."""

    @property
    def kind(self) -> str:
        """Key of the tables of types."""


class Column(NamedTuple):
    """One column of a view."""

    name: str
    kind: str
    value: Callable[[RecordRow], Any]

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


def sql_schema(columns: Sequence[HasKind]) -> str:
    """Return the schema as Spark reads it from a string."""
    return ", ".join(f"`{column.name}` {_SQL[column.kind]}" for column in columns)


def to_batch(rows: Sequence[RecordRow], columns: Sequence[Column]) -> pa.RecordBatch:
    """Return rows as an Arrow batch."""
    arrays = [
        pa.array([column.value(row) for row in rows], type=column.arrow) for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])


CORRUPT_COLUMN = Column("_corrupt", "text", lambda row: row.corrupt)
"""Only in mode permissive: file, offset and what is wrong there."""
