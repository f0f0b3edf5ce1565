"""Journals of beanstalkd and Kestrel as the views ``records`` and ``entries``.

A thin adapter of the readers in ``fastjournal.foreign`` to Spark. Queues of Kestrel have nothing in
common, nor have the files of beanstalkd where their records are shown as they are: a partition has
queues, or files, side by side, of about ``PARTITION_BYTES``. The records of one job of beanstalkd
stand in several files, so one task replays all of them for the view ``entries``. The directory is
local to the executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError
from fastjournal.foreign.beanstalkd import BeanstalkdJournal, beanstalkd_records
from fastjournal.foreign.formats import Format, list_binlogs
from fastjournal.foreign.items import Fault, ForeignJournal, ForeignRecord, Item
from fastjournal.foreign.kestrel import KestrelJournal, kestrel_records
from fastjournal.foreign.kestrel_files import list_queues
from fastjournal.foreign.windowed_file import find_size
from fastjournal.keys import parse_journal_key
from fastjournal.spark.decoding.view_columns import ARROW_TYPES, CORRUPT_COLUMN, cut, text
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_batch

BATCH_ROWS = 2048
BATCH_BYTES = 1024 * 1024
PARTITION_BYTES = 64 * 1024 * 1024


class ForeignColumn(NamedTuple):
    """One column of a view of a foreign journal."""

    name: str
    kind: str
    value: Callable[[Any], Any]


def _fields(record: ForeignRecord) -> str:
    shown = {
        name: text(value) if isinstance(value, bytes) else value
        for name, value in record.fields.items()
    }
    return msgspec.json.encode(shown).decode()


def _part(name: str) -> Callable[[Item], Any]:
    def value(item: Item) -> Any:
        found = getattr(parse_journal_key(item.key), name)
        return text(found) if isinstance(found, bytes) else found

    return value


FOREIGN_COLUMNS: dict[str, tuple[ForeignColumn, ...]] = {
    "records": (
        ForeignColumn("file", "text", lambda record: record.path),
        ForeignColumn("offset", "long", lambda record: record.offset),
        ForeignColumn("size", "long", lambda record: record.size),
        ForeignColumn("record", "text", _fields),
        ForeignColumn("value", "bytes", lambda record: record.value),
    ),
    "entries": (
        ForeignColumn("key", "bytes", lambda item: item.key),
        ForeignColumn("domain", "text", _part("domain")),
        ForeignColumn("priority", "int", _part("priority")),
        ForeignColumn("not_before", "long", lambda item: cut(_part("not_before_us")(item))),
        ForeignColumn("id", "text", _part("id")),
        ForeignColumn("value", "bytes", lambda item: item.value),
        ForeignColumn("timestamp", "long", lambda item: cut(item.timestamp)),
        ForeignColumn("expires", "long", lambda item: cut(item.expires)),
        ForeignColumn("reason", "text", lambda item: item.reason),
        ForeignColumn("file", "text", lambda item: item.path),
        ForeignColumn("offset", "long", lambda item: item.offset),
    ),
}
"""Columns of each view; ``record`` has the decoded fields of a record as JSON."""


class ForeignPartition(InputPartition):
    """Part of a journal."""

    def __init__(self, directory: str, names: frozenset[Any]) -> None:
        super().__init__(directory)
        self.directory = directory
        self.names = names
        """Names of queues of Kestrel, or numbers of binlogs of beanstalkd."""


class ForeignReader(DataSourceReader):
    """Reads a view of a foreign journal.

    Args:
        directories: Directories of journals.
        format: Their format, beanstalkd or Kestrel.
        view: ``records`` or ``entries``.
        columns: Columns to build, in this order.
        permissive: Damage becomes a row.
    """

    def __init__(
        self,
        directories: list[str],
        format: Format,
        view: str,
        columns: list[RequestedColumn],
        *,
        permissive: bool,
    ) -> None:
        self._directories = directories
        self._format = format
        self._view = view
        self._columns = columns
        self._permissive = permissive

    def partitions(self) -> list[InputPartition]:
        """Return partitions of about ``PARTITION_BYTES``."""
        disk = OsDisk()
        return [
            ForeignPartition(directory, names)
            for directory in self._directories
            for names in self._parts(disk, directory)
        ]

    def _parts(self, disk: OsDisk, directory: str) -> list[frozenset[Any]]:
        """Return the names of queues or binlogs that a task reads, in their order."""
        if self._format is Format.KESTREL:
            queues = list_queues(disk, directory)
            return _side_by_side(
                (name, sum(find_size(disk, path) or 0 for path in paths))
                for name, paths in queues.items()
            )
        numbers = list_binlogs(disk, directory)
        if self._view == "entries":
            return [frozenset(numbers)]
        return _side_by_side(
            (number, find_size(disk, f"{directory}/binlog.{number}") or 0) for number in numbers
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part of a journal."""
        if not isinstance(partition, ForeignPartition):
            # Spark makes one partition of another type from an empty list of partitions
            return
        faults: list[Fault] = []
        columns = [_column(self._view, column.source) for column in self._columns]
        rows: list[Any] = []
        size = 0
        for row in self._rows(partition, faults):
            rows.append(row)
            size += len(row.value or b"")
            if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._batch(columns, rows)
                rows, size = [], 0
        yield self._batch(columns, [*rows, *self._damage(faults)])

    def _rows(self, part: ForeignPartition, faults: list[Fault]) -> Iterable[Item | ForeignRecord]:
        disk, directory, names = OsDisk(), part.directory, part.names
        if self._view == "records":
            if self._format is Format.KESTREL:
                return kestrel_records(disk, directory, faults, queues=names)
            return beanstalkd_records(disk, directory, faults, binlogs=names)
        journal: ForeignJournal
        if self._format is Format.KESTREL:
            journal = KestrelJournal(disk, directory, queues=names)
        else:
            journal = BeanstalkdJournal(disk, directory)
        faults += journal.faults
        return journal.items()

    def _damage(self, faults: list[Fault]) -> list[Fault]:
        """Return the damage as rows; what a killed server leaves at the end is none."""
        damage = [fault for fault in faults if fault.damage]
        if damage and not self._permissive:
            raise LogCorruptError(damage[0].message, path=damage[0].path, offset=damage[0].offset)
        return damage

    def _batch(self, columns: list[ForeignColumn], rows: list[Any]) -> pa.RecordBatch:
        arrays = [
            pa.array([_cell(column, row) for row in rows], type=ARROW_TYPES[column.kind])
            for column in columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])
        return cast_batch(batch, self._columns)


def _side_by_side(sizes: Iterable[tuple[Any, int]]) -> list[frozenset[Any]]:
    """Return names in sets of about ``PARTITION_BYTES``, in their order."""
    found, names, size = [], list[Any](), 0
    for name, more in sizes:
        if names and size + more > PARTITION_BYTES:
            found.append(frozenset(names))
            names, size = [], 0
        names.append(name)
        size += more
    return [*found, frozenset(names)] if names else found


def _column(view: str, name: str) -> ForeignColumn:
    if name == CORRUPT_COLUMN.name:
        return ForeignColumn(name, CORRUPT_COLUMN.kind, lambda _: None)
    return next(column for column in FOREIGN_COLUMNS[view] if column.name == name)


def _cell(column: ForeignColumn, row: Any) -> Any:
    if not isinstance(row, Fault):
        return column.value(row)
    if column.name == CORRUPT_COLUMN.name:
        return f"{row.path} at offset {row.offset}: {row.message}"
    return {"file": row.path, "offset": row.offset}.get(column.name)
