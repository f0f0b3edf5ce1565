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

The view ``events`` is read whole, or from an archive as a stream. The offsets of the stream are all
that it keeps. A record alone tells its event, so it is the stream
of the records (``records.records_reader``): the same offsets, checks and bounds, and one task for
each segment. Its tasks yield the events instead. Segments that are missing or damaged
end the query, or are rows of the column ``_corrupt`` in mode ``permissive``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

import google_crc32c
import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.data_source.row_views import (
    FOREIGN_COLUMNS,
    SPOOL_COLUMNS,
    ForeignReader,
    SpoolReader,
)
from fastjournal.spark.decoding.rows import read_bytes
from fastjournal.spark.decoding.vectorised.frames import GroupSpan
from fastjournal.spark.decoding.view_columns import RECORD_COLUMNS, Column
from fastjournal.spark.history.event_rows import (
    EVENT_COLUMNS,
    batches_of,
    corrupt_batch,
    with_corrupt,
)
from fastjournal.spark.history.events_view import (
    HistoryPart,
    check_history,
    history_parts,
    read_events,
)
from fastjournal.spark.history.extractor import extract_events
from fastjournal.spark.live_entries.entry_parts import EntryPart, find_index, find_parts, read_part
from fastjournal.spark.live_entries.fetch import ENTRY_COLUMNS, READABLE_SCHEMA
from fastjournal.spark.query.paths import (
    check_journal,
    check_spool,
    find_directories,
    newest_snapshot,
    open_log,
    open_whole,
)
from fastjournal.spark.query.requested_schema import (
    PartReader,
    RequestedColumn,
    cast_batch,
    request,
    view_schema,
)
from fastjournal.spark.query.source_options import RANGE_OPTIONS, STREAM_VIEWS, Options, RecordRange
from fastjournal.spark.records.records_reader import (
    Offset,
    RecordsReader,
    RecordsStream,
    SegmentSpan,
)
from fastjournal.spark.storage.files import SegmentFile, resolve


class EventsReader(PartReader):
    """Reads the events of directories; see ``PartReader``. Gaps are damage, too."""

    def parts(self, directory: str) -> Sequence[HistoryPart]:
        """Return parts of event files, one for their gaps, or one for a log.

        Raises:
            LogCorruptError: Segments of an archive are missing, in mode ``failfast``.
        """
        return history_parts(directory, permissive=self._options.permissive)

    def batches(self, part: HistoryPart) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part."""
        return map(with_corrupt, read_events(part))


# --- stream ---------------------------------------------------------------------------------------


class EventsStream(RecordsStream):
    """Reader of a stream of events.

    Args:
        directory: The archive.
        columns: Columns to build, in this order.
        options: Options of the stream.

    Raises:
        BadRequestError: The directory is no archive.
    """

    def __init__(
        self, directory: str, columns: Sequence[RequestedColumn], options: Options
    ) -> None:
        log = open_whole(directory)
        if log.segments and not log.is_archive:
            raise BadRequestError(
                f"{directory} is no archive, and a stream of events reads one",
                hint="name the daemon's --archive-dir",
            )
        super().__init__(directory, columns, options)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return one partition for each segment between two offsets, and one of what is missing.

        Raises:
            LogCorruptError: A segment is missing, in mode ``failfast``.
        """
        if not self._permissive:
            return super().partitions(start, end)
        texts = self.faults(start, end)
        lost = [InputPartition(texts)] if texts else []
        return [*lost, *self.spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part of a segment."""
        if not isinstance(partition.value, SegmentSpan):
            yield self._cast(corrupt_batch(partition.value))
            return
        try:
            yield from map(self._cast, self._events(*partition.value))
        except LogCorruptError as error:
            if not self._permissive:
                raise
            yield self._cast(corrupt_batch([str(error)]))

    def _events(self, segment: SegmentFile, span: GroupSpan) -> Iterator[pa.RecordBatch]:
        data = read_bytes(resolve(self._directory)[0], segment)
        span.check(data, segment.path)
        if google_crc32c.value(data) != segment.crc32c:
            raise LogCorruptError("the segment has another checksum", path=segment.path)
        whole = msgspec.structs.replace(segment, last=False)
        # a damaged segment ends this before the first event
        yield from batches_of(extract_events(data[: span.stop], whole, span.first))

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return cast_batch(with_corrupt(batch).select(self._names), self._columns)


class EntriesReader(PartReader):
    """Reads what is live at the end of logs and snapshots; see ``PartReader``."""

    def parts(self, directory: str) -> Sequence[EntryPart]:
        """Return the parts: by bytes of a snapshot, and one for a log without an index."""
        return find_parts(directory)

    def batches(self, part: EntryPart) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a part."""
        # a batch without columns has no rows
        names = self._names or [READABLE_SCHEMA.names[0]]
        return read_part(part, names, permissive=self._options.permissive)


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
                check_history(directory)
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
