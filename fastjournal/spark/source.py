"""The Spark data source ``fastjournal``: command logs and snapshots as tables.

    fastjournal.spark.register(spark)
    spark.read.format("fastjournal").option("view", "records").load(directory)

Options: ``fastjournal.spark.options``. Paths: ``fastjournal.spark.paths``. A schema given with
``.schema(...)`` chooses columns: what it leaves out is not built.

One partition is one segment. Conditions on ``segment`` and ``command`` are applied while reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from fastjournal.errors import BadRequestError
from fastjournal.spark.columns import (
    COMMAND_NAMES,
    CORRUPT_COLUMN,
    READABLE,
    RECORD_COLUMNS,
    Column,
    sql_schema,
)
from fastjournal.spark.files import SegmentFile, resolve
from fastjournal.spark.foreign_reader import FOREIGN_COLUMNS, ForeignReader
from fastjournal.spark.options import Options
from fastjournal.spark.partition_replay import ENTRY_SCHEMA
from fastjournal.spark.paths import check_journal, find_directories, open_log
from fastjournal.spark.vectorised.reader import read_batches

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class FastjournalSource(DataSource):
    """Reads command logs and snapshots; see the module."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = Options(options)

    @classmethod
    def name(cls) -> str:
        """Name of the data source in ``spark.read.format``."""
        return "fastjournal"

    def schema(self) -> str:
        """Return the columns of the view, as Spark's SQL names them."""
        options = self._checked
        self.check_directories()
        if options.foreign is not None:
            schema = sql_schema(FOREIGN_COLUMNS[options.view])
        else:
            schema = ENTRY_SCHEMA if options.view == "entries" else sql_schema(RECORD_COLUMNS)
        return f"{schema}, {sql_schema([CORRUPT_COLUMN])}" if options.permissive else schema

    def check_directories(self) -> list[str]:
        """Return the directories; check that each holds what is asked for.

        Raises:
            BadRequestError: One is missing, empty, or holds something else, which is named.
        """
        found = find_directories(self._checked)
        for directory in found:
            if self._checked.journal is not None:
                check_journal(directory, self._checked.journal)
            else:
                open_log(directory)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the view ``records``, or of a view of a foreign journal."""
        options = self._checked
        journal = options.foreign
        directories = self.check_directories()
        if journal is not None:
            known = {column.name for column in FOREIGN_COLUMNS[options.view]}
            for name in schema.fieldNames():
                if name not in known | {CORRUPT_COLUMN.name}:
                    raise BadRequestError(
                        f"the view {options.view} of {journal} has no column {name}"
                    )
            return ForeignReader(
                directories,
                journal,
                options.view,
                schema.fieldNames(),
                permissive=options.permissive,
            )
        if options.view == "entries":
            raise BadRequestError(
                "the view entries is computed by Spark from the records, which a data source "
                "alone cannot start",
                hint="use spark.read.format(...).load(...) after fastjournal.spark.register(spark)"
                ", or fastjournal.spark.entries(spark, directory)",
            )
        columns = []
        for name in schema.fieldNames():
            if name not in READABLE:
                raise BadRequestError(f"the view records has no column {name}")
            columns.append(READABLE[name])
        return RecordsReader(directories, columns, permissive=options.permissive)


class SegmentPartition(InputPartition):
    """One segment of a directory."""

    def __init__(self, directory: str, segment: SegmentFile) -> None:
        super().__init__(segment.number)
        self.directory = directory
        self.segment = segment


class RecordsReader(DataSourceReader):
    """Reads the records of the segments of directories.

    Args:
        directories: Paths or URIs.
        columns: Columns to build, in this order.
        permissive: Damage becomes a row.
    """

    def __init__(self, directories: list[str], columns: list[Column], *, permissive: bool) -> None:
        self._directories = directories
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
        return [
            SegmentPartition(directory, segment)
            for directory in self._directories
            for segment in open_log(directory).segments
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
        files, _ = resolve(partition.directory)
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
