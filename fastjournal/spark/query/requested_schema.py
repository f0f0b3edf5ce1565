"""Schemas of the views: types as a user asks for them, and the conversion of columns to these.

A column of instants is TIMESTAMP, or BIGINT microseconds if the option ``instants=us`` or the
user's own schema says so. No instant (0 in the log: none, never) is NULL in both; an instant after
the year 9999 is NULL as TIMESTAMP. A column of bytes is BINARY, or STRING if a schema says so:
UTF-8, other bytes as ``\\\\xNN``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from fastjournal.errors import BadRequestError
from fastjournal.printable import did_you_mean
from fastjournal.spark.decoding.byte_arrays import as_text
from fastjournal.spark.decoding.view_columns import (
    ARROW_TYPES,
    CORRUPT_COLUMN,
    TIMESTAMPS,
    Column,
)
from fastjournal.spark.query.source_options import Options

INSTANTS = frozenset(
    {"not_before", "timestamp", "created", "modified", "expires", "worked_on_until", "superseded"}
)
"""Columns of 64-bit microseconds that are instants; the others are durations, or say ``_us``."""

_TYPES: dict[str, tuple[DataType, ...]] = {
    "int": (IntegerType(),),
    "long": (LongType(),),
    "text": (StringType(),),
    "bytes": (BinaryType(), StringType()),
    "list": (ArrayType(BinaryType()),),
    "time": (TimestampType(), LongType()),
    "instant": (TimestampType(), LongType()),
    "flag": (BooleanType(),),
}
"""Types that a schema may name for each kind of column, the usual one first."""
_ARROW = {
    "timestamp": ARROW_TYPES["time"],
    "bigint": pa.int64(),
    "string": pa.string(),
}


class RequestedColumn(NamedTuple):
    """One column of a schema."""

    name: str
    """As the schema has it."""
    source: str
    """Name in the view."""
    kind: str
    """Key of the table of types."""
    type: str
    """Spark's name of the type that is asked for."""
    nullable: bool = True


class PartReader(DataSourceReader):
    """Reader of a view, by parts that tasks read.

    Args:
        directories: Paths or URIs.
        columns: Columns to build, in this order.
        options: Options of the load.
    """

    def __init__(
        self, directories: Sequence[str], columns: Sequence[RequestedColumn], options: Options
    ) -> None:
        self._directories = directories
        self._columns = columns
        self._options = options
        self._names = [column.source for column in columns]
        """Names of the columns in the view."""

    @abstractmethod
    def parts(self, directory: str) -> Iterable[Any]:
        """Return the parts of a directory."""

    @abstractmethod
    def batches(self, part: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, with the columns that are asked for, and perhaps others."""

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each part of each directory."""
        return [
            InputPartition(part)
            for directory in self._directories
            for part in self.parts(directory)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part with the names and types that are asked for."""
        # Spark makes one partition without a value from an empty list of partitions
        if partition.value is not None:
            for batch in self.batches(partition.value):
                yield cast_batch(batch.select(self._names), self._columns)


def view_schema(columns: Sequence[Column], options: Options) -> StructType:
    """Return the schema of a view for a user who gives none."""
    fields = []
    for name, column in _readable(columns, options, options.permissive).items():
        types = _TYPES[_kind(column)]
        # the view records also has the time of a record in microseconds
        as_us = _kind(column) == "instant" or (column.kind == "time" and options.view == "events")
        wanted = types[1] if as_us and options.instants_us else types[0]
        fields.append(StructField(name, wanted))
    return StructType(fields)


def request(
    schema: StructType, columns: Sequence[Column], options: Options
) -> list[RequestedColumn]:
    """Return what a schema asks for of a view.

    Args:
        schema: The user's own, or that of the view.
        columns: Columns of the view.
        options: Options of the load.

    Raises:
        BadRequestError: It names a column that is not there, or twice, or a type that it cannot
            have.
    """
    known = _readable(columns, options, True)
    found = list[RequestedColumn]()
    for field in schema.fields:
        column = known.get(field.name.lower(), known.get(field.name))
        if column is None:
            raise BadRequestError(
                f"the view {options.view} has no column {field.name}; it has {', '.join(known)}",
                hint=did_you_mean(field.name, list(known)),
            )
        if any(column.name == one.source for one in found):
            raise BadRequestError(
                f"the schema names the column {field.name} of the view {options.view} twice",
                hint="name it once, and select it twice from the frame",
            )
        kind, wanted = _kind(column), field.dataType.simpleString()
        allowed = [one.simpleString() for one in _TYPES[kind]]
        if wanted not in allowed:
            raise BadRequestError(
                f"the column {field.name} of the view {options.view} cannot be {wanted.upper()}; "
                f"it can be {' or '.join(allowed).upper().replace(' OR ', ' or ')}"
            )
        found.append(RequestedColumn(field.name, column.name, kind, wanted, field.nullable))
    return found


def cast_batch(batch: pa.RecordBatch, columns: Sequence[RequestedColumn]) -> pa.RecordBatch:
    """Return a batch of the columns of a view with the names and types that are asked for."""
    arrays = [_cast(array, column) for array, column in zip(batch.columns, columns, strict=True)]
    fields = [
        pa.field(column.name, array.type, column.nullable)
        for array, column in zip(arrays, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _is_text_of_bytes(column: RequestedColumn) -> bool:
    """Whether a column of bytes is asked for as STRING."""
    return column.kind == "bytes" and column.type == "string"


def _cast(array: pa.Array, column: RequestedColumn) -> pa.Array:
    if _is_text_of_bytes(column):
        return as_text(array)
    if column.kind == "time":
        return array.cast(_ARROW[column.type])
    if column.kind != "instant":
        return array
    there = pc.not_equal(array, 0)
    if column.type == "timestamp":
        there = pc.and_(pc.greater(array, 0), pc.less(array, TIMESTAMPS.stop))
    return pc.if_else(there, array, pa.scalar(None, array.type)).cast(_ARROW[column.type])


def _kind(column: Column) -> str:
    return "instant" if column.name in INSTANTS and column.kind == "long" else column.kind


def _readable(
    columns: Sequence[Column], options: Options, permissive: bool
) -> Mapping[str, Column]:
    """Return the columns of a view by name, with that of damage where it is asked for."""
    found: dict[str, Column] = {column.name: column for column in columns}
    name = options.corrupt_column
    if permissive:
        if name in found:
            raise BadRequestError(
                f"option columnNameOfCorruptRecord={name} is a column of the view {options.view}"
            )
        found[name] = CORRUPT_COLUMN
    return found
