"""Data source ``fastjournal`` of Spark: views of command logs and snapshots.

    fastjournal.spark.register(spark)
    spark.read.format("fastjournal").option("view", "records").load(directory)

Options: ``query.source_options``. Paths: ``query.paths``. A schema given with
``.schema(...)`` chooses columns: what it leaves out is not built.

One partition is one segment, or a slice of a large one. No condition of a query is pushed down:
the options of ``query.source_options`` read less.

A table of SQL (``CREATE TABLE ... USING fastjournal OPTIONS (...)``) keeps its options in the
metadata of its first column: Spark 4 gives those of the table to the inference of its schema, and
not to its readers. ``data_source.registration`` does so for a table that names its columns,
whose schema is not inferred.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from fastjournal.errors import BadRequestError
from fastjournal.spark.data_source.row_views import (
    FOREIGN_COLUMNS,
    SPOOL_COLUMNS,
    ForeignReader,
    SpoolReader,
)
from fastjournal.spark.decoding.view_columns import RECORD_COLUMNS, Column
from fastjournal.spark.history.event_rows import EVENT_COLUMNS
from fastjournal.spark.history.events_reader import EventsReader, EventsStream
from fastjournal.spark.history.events_view import history_parts
from fastjournal.spark.live_entries.entries_reader import EntriesReader
from fastjournal.spark.live_entries.entry_parts import find_index
from fastjournal.spark.live_entries.fetch import ENTRY_COLUMNS
from fastjournal.spark.query.paths import (
    check_journal,
    check_spool,
    find_directories,
    newest_snapshot,
    open_log,
)
from fastjournal.spark.query.requested_schema import (
    PartReader,
    RequestedColumn,
    request,
    view_schema,
)
from fastjournal.spark.query.source_options import RANGE_OPTIONS, STREAM_VIEWS, Options, RecordRange
from fastjournal.spark.records.records_reader import RecordsReader, RecordsStream

VIEW_COLUMNS: dict[str, Sequence[Column]] = {
    "records": RECORD_COLUMNS,
    "entries": ENTRY_COLUMNS,
    "events": EVENT_COLUMNS,
    "spool": SPOOL_COLUMNS,
}
"""Columns of the views of a log."""
_READERS: dict[str, type[PartReader]] = {
    "records": RecordsReader,
    "entries": EntriesReader,
    "events": EventsReader,
    "spool": SpoolReader,
}
TABLE_OPTIONS = "fastjournal"
"""Key of the options of a table, in the metadata of its first column."""


def keep_options(schema: StructType, options: Mapping[str, str]) -> None:
    """Put the options of a table into its schema."""
    first = schema.fields[0]
    text = msgspec.json.encode(options).decode()
    first.metadata = {**(first.metadata or {}), TABLE_OPTIONS: text}


class FastjournalSource(DataSource):
    """Reads command logs and snapshots; see the module."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = Options(options)

    @classmethod
    def name(cls) -> str:
        """Name of the data source in ``spark.read.format``."""
        return "fastjournal"

    def schema(self) -> StructType:
        """Return the columns of the view."""
        # Spark does not say here whether it reads a stream, which follows a directory of snapshots
        self.check_directories(stream=True)
        schema = view_schema(self._columns, self._checked)
        if self._checked.is_table:
            keep_options(schema, self._checked.given)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a view."""
        columns = self.check_schema(schema)
        options = self._checked
        directories = self.check_directories()
        reader = _READERS[options.view] if options.foreign is None else ForeignReader
        return reader(directories, columns, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's
        """Return the reader of a stream of the view ``records`` or ``events``."""
        columns = self.check_schema(schema)
        options = self._checked
        if RecordRange.of(options) != RecordRange():
            raise BadRequestError(
                f"the options {', '.join(RANGE_OPTIONS)} are not for a stream",
                hint="give the condition to the query: frame.where(...)",
            )
        directories = find_directories(options)
        is_one = len(directories) == 1 and options.foreign is None
        if options.view not in STREAM_VIEWS or not is_one:
            raise BadRequestError(
                "a stream reads the view records or events of one directory",
                hint="read other views, journals and lists of paths with spark.read",
            )
        stream = EventsStream if options.view == "events" else RecordsStream
        return stream(directories[0], columns, options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse to write."""
        del schema, overwrite
        raise _read_only()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's
        """Refuse to write."""
        del schema, overwrite
        raise _read_only()

    def check_directories(self, *, stream: bool = False) -> list[str]:
        """Return the directories; check that each holds what is asked for.

        Args:
            stream: A directory of snapshots is one of these.

        Raises:
            BadRequestError: One is missing, empty, or holds something else, which is named.
        """
        found = find_directories(self._checked)
        for directory in found:
            if self._checked.view == "spool":
                check_spool(directory)
            elif self._checked.view == "events":
                # a gap is an error of the reader, or a row of a stream
                history_parts(directory, permissive=True)
            elif self._checked.journal is not None:
                check_journal(directory, self._checked.journal)
            elif self._checked.view == "entries":
                find_index(open_log(directory))
            elif not stream or newest_snapshot(directory) is None:
                open_log(directory)
        return found

    def check_schema(self, schema: StructType) -> list[RequestedColumn]:
        """Return the columns that a schema asks for; take the options of a table from it.

        Raises:
            BadRequestError: It names a column that is not there, or twice, or a type that it cannot
                have; or an option of the range of records is wrong.
        """
        metadata = schema.fields[0].metadata if schema.fields else {}
        if TABLE_OPTIONS in metadata:
            stored = msgspec.json.decode(metadata[TABLE_OPTIONS], type=dict[str, str])
            self._checked = Options(stored | self._checked.given)
        options = self._checked
        RecordRange.of(options)
        return request(schema, self._columns, options)

    @property
    def _columns(self) -> Sequence[Column]:
        options = self._checked
        return (VIEW_COLUMNS if options.foreign is None else FOREIGN_COLUMNS)[options.view]


def _read_only() -> BadRequestError:
    return BadRequestError(
        "the format fastjournal is read only",
        hint="set entries with a client of the daemon, or write another format, such as parquet",
    )
