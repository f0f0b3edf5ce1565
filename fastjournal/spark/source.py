"""The Spark data source ``fastjournal``: command logs and snapshots as tables.

    fastjournal.spark.register(spark)
    spark.read.format("fastjournal").option("view", "records").load(directory)

Options: ``view`` = ``records`` (default) or ``entries``; ``mode`` = ``failfast`` (default) or
``permissive``, which adds the column ``_corrupt`` and reads on behind damage; ``journal`` =
``workq``, ``beanstalkd`` or ``kestrel`` for the journal of another queue. A schema given with
``.schema(...)`` chooses columns: what it leaves out is not built.

One partition is one segment. Conditions on ``segment`` and ``command`` are applied while reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError
from fastjournal.foreign.formats import Format, require_format
from fastjournal.spark.columns import (
    COMMAND_NAMES,
    CORRUPT_COLUMN,
    READABLE,
    RECORD_COLUMNS,
    Column,
    sql_schema,
)
from fastjournal.spark.files import LogDirectory, SegmentFile, resolve
from fastjournal.spark.foreign_reader import FOREIGN_COLUMNS, ForeignReader
from fastjournal.spark.partition_replay import ENTRY_SCHEMA
from fastjournal.spark.vectorised.reader import read_batches

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MODES = ("failfast", "permissive")
VIEWS = ("records", "entries")
JOURNALS = ("fastjournal", "workq", "beanstalkd", "kestrel")
FOREIGN_JOURNALS = (Format.BEANSTALKD, Format.KESTREL)


class FastjournalSource(DataSource):
    """Reads command logs and snapshots; see the module."""

    @classmethod
    def name(cls) -> str:
        """Name of the data source in ``spark.read.format``."""
        return "fastjournal"

    @property
    def _permissive(self) -> bool:
        return self._choice("mode", MODES) == "permissive"

    def _choice(self, option: str, allowed: tuple[str, ...]) -> str:
        chosen = str(self.options.get(option, allowed[0])).lower()
        if chosen not in allowed:
            raise BadRequestError(f"option {option}={chosen} is not one of {', '.join(allowed)}")
        return chosen

    def schema(self) -> str:
        """Return the columns of the view, as Spark's SQL names them."""
        view = self._choice("view", VIEWS)
        if self._journal is not None:
            require_format(OsDisk(), self._path, self._journal)
        if self._journal in FOREIGN_JOURNALS:
            schema = sql_schema(FOREIGN_COLUMNS[view])
        else:
            schema = ENTRY_SCHEMA if view == "entries" else sql_schema(RECORD_COLUMNS)
        return f"{schema}, {sql_schema([CORRUPT_COLUMN])}" if self._permissive else schema

    @property
    def _journal(self) -> Format | None:
        """Format that is asked for; None: a log of fastjournald, or of workq."""
        if "journal" not in self.options:
            return None
        return Format(self._choice("journal", JOURNALS))

    @property
    def _path(self) -> str:
        path = self.options.get("path")
        if not path:
            raise BadRequestError("no directory is given", hint="load(DIRECTORY)")
        return str(path).removeprefix("file://")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the view ``records``, or of a view of a foreign journal."""
        journal = self._journal
        if journal in FOREIGN_JOURNALS:
            view = self._choice("view", VIEWS)
            known = {column.name for column in FOREIGN_COLUMNS[view]} | {CORRUPT_COLUMN.name}
            for name in schema.fieldNames():
                if name not in known:
                    raise BadRequestError(f"the view {view} of {journal} has no column {name}")
            return ForeignReader(
                self._path, journal, view, schema.fieldNames(), permissive=self._permissive
            )
        if self._choice("view", VIEWS) == "entries":
            raise BadRequestError(
                "the view entries is computed by Spark from the records, which a data source "
                "alone cannot start",
                hint="use spark.read.format(...).load(...) after fastjournal.spark.register(spark)"
                ", or fastjournal.spark.entries(spark, directory)",
            )
        path = self.options.get("path")
        if not path:
            raise BadRequestError("no directory is given", hint="load(DIRECTORY)")
        columns = []
        for name in schema.fieldNames():
            if name not in READABLE:
                raise BadRequestError(f"the view records has no column {name}")
            columns.append(READABLE[name])
        return RecordsReader(path, columns, permissive=self._permissive)


class SegmentPartition(InputPartition):
    """One segment."""

    def __init__(self, segment: SegmentFile) -> None:
        super().__init__(segment.number)
        self.segment = segment


class RecordsReader(DataSourceReader):
    """Reads the records of a directory's segments.

    Args:
        uri: The directory.
        columns: Columns to build, in this order.
        permissive: Damage becomes a row.
    """

    def __init__(self, uri: str, columns: list[Column], *, permissive: bool) -> None:
        self._uri = uri
        self._names = [column.name for column in columns]
        self._permissive = permissive
        self._filters: list[tuple[str, str, Any]] = []

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - PySpark's name
        """Take the conditions on segment and command; return the others."""
        for condition in filters:
            if not self._take(condition):
                yield condition

    def _take(self, condition: Any) -> bool:
        kind = type(condition).__name__
        attribute = getattr(condition, "attribute", None)
        if kind not in _COMPARISONS or attribute not in (("segment",), ("command",)):
            return False
        self._filters.append((attribute[0], kind, getattr(condition, "value", None)))
        return True

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each segment that the conditions leave."""
        segments = LogDirectory(self._uri).segments
        return [
            SegmentPartition(segment)
            for segment in segments
            if all(
                _COMPARISONS[kind](segment.number, value)
                for name, kind, value in self._filters
                if name == "segment"
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment."""
        if not isinstance(partition, SegmentPartition):
            # Spark makes one partition of another type from an empty list of partitions.
            return
        files, _ = resolve(self._uri)
        yield from read_batches(
            files,
            partition.segment,
            self._names,
            permissive=self._permissive,
            commands=self._commands(),
        )

    def _commands(self) -> frozenset[str | None] | None:
        """Return the commands that the conditions leave, None among them for damage; None: all."""
        conditions = [one for one in self._filters if one[0] == "command"]
        if not conditions:
            return None
        return frozenset(
            command
            for command in (*COMMAND_NAMES.values(), None)
            if all(_COMPARISONS[kind](command, value) for _, kind, value in conditions)
        )


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda found, wanted: found == wanted,
    "In": lambda found, wanted: found in wanted,
    "IsNotNull": lambda found, _: found is not None,
    "GreaterThan": lambda found, bound: found is not None and found > bound,
    "GreaterThanOrEqual": lambda found, bound: found is not None and found >= bound,
    "LessThan": lambda found, bound: found is not None and found < bound,
    "LessThanOrEqual": lambda found, bound: found is not None and found <= bound,
}
