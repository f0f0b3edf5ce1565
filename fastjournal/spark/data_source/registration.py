"""Registration of the data source with one Spark session, with all of its views.

The registered session gives out readers whose ``load`` answers for the view ``entries`` with a plan
of Spark: a data source yields rows, and cannot plan shuffles of its own, which that view needs
(``fastjournal.spark.live_entries.entries_view``). They check streams in the driver. Other sessions,
and PySpark's own classes, are as they were.

Its ``sql`` completes what Spark's own statements leave undone for a Python data source. ``CREATE
TEMPORARY VIEW ... USING fastjournal`` of the view ``entries`` gets the plan of that view. ``CREATE
TABLE name (columns) USING fastjournal OPTIONS (...)`` gets its options: Spark 4 gives the options
of a table to the inference of its schema only, and does not infer one that the statement names. So
they are put where an inferred schema has them. A table of the view ``entries`` is refused, and
removed again: Spark has created it by then.

Under Spark Connect the plan of a frame or statement is in the server. So the reader there looks at
its own options, and leaves other views, and their errors, to the server: the client need not reach
their directories.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from fastjournal.spark.cluster.java_errors import translating_workers
from fastjournal.spark.data_source.source import (
    TABLE_OPTIONS,
    FastjournalSource,
    keep_options,
    no_plan,
)
from fastjournal.spark.decoding.view_columns import CORRUPT_COLUMN
from fastjournal.spark.live_entries import entries_view
from fastjournal.spark.live_entries.partition_replay import ENTRY_COLUMNS
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_texts, is_text_of_bytes
from fastjournal.spark.query.source_options import FOREIGN_JOURNALS, Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ViewReader(DataFrameReader):
    """Reader of a registered session: knows the view ``entries`` too."""

    def load(self, *args: Any, **options: Any) -> DataFrame:
        """Load a table, as ``DataFrameReader.load`` does."""
        with translating_workers():
            frame = super().load(*args, **options)
        given = _options(frame)
        return frame if given is None else load_view(frame, given)


class ViewStreamReader(DataStreamReader):
    """Reader of streams of a registered session: checks in the driver what Spark checks later."""

    def load(self, *args: Any, **options: Any) -> DataFrame:
        """Load a stream, as ``DataStreamReader.load`` does.

        Raises:
            BadRequestError: A directory holds nothing to follow, an option or the schema does not
                fit, or an option is missing.
        """
        with translating_workers():
            frame = super().load(*args, **options)
        relation = frame._jdf.queryExecution().analyzed()
        if relation.getClass().getSimpleName() != "StreamingRelationV2":
            return frame
        if relation.table().name() == FastjournalSource.name():
            given = dict(relation.extraOptions().asCaseSensitiveMap())
            FastjournalSource(given).streamReader(frame.schema)
        return frame


def load_view(frame: DataFrame, given: dict[str, str]) -> DataFrame:
    """Return the view that options name.

    Args:
        frame: Spark's own frame of the data source with these options.
        given: The options.

    Raises:
        BadRequestError: A directory holds no log, or an option or the schema does not fit.
    """
    checked = Options(given)
    source = FastjournalSource(given)
    # Spark leaves the schema of a user unchecked until rows are read
    with translating_workers():
        schema = frame.schema
    columns = source.check_schema(schema)
    directories = source.check_directories()
    if checked.view != "entries" or checked.foreign is not None:
        return frame
    return _entries(frame.sparkSession, directories, checked, columns)


def entries(
    spark: SparkSession,
    paths: str | os.PathLike[str] | list[str],
    *,
    mode: str = "failfast",
    instants: str = "timestamp",
) -> DataFrame:
    """Return what was live at the end of a log or snapshot, one row an entry.

    Each log is read when rows are asked for: once without values, then its chosen records.

    Args:
        spark: A session with the data source registered.
        paths: Path, URI or glob, or a list of these; each directory is a log of its own.
        mode: ``failfast`` or ``permissive``; the latter has a column ``_corrupt``, and a row for
            every stretch of damage.
        instants: ``timestamp``, or ``us`` for numbers of microseconds.

    Raises:
        BadRequestError: A directory holds no log, or an argument is unknown.
        LogCorruptError: A snapshot's files are not those that its manifest lists. Other damage ends
            the query, in mode ``failfast``.
    """
    texts = [os.fspath(path) for path in (paths if isinstance(paths, list) else [paths])]
    given = {"view": "entries", "mode": mode, "instants": instants, "paths": json.dumps(texts)}
    source = FastjournalSource(given)
    columns = source.check_schema(source.schema())
    return _entries(spark, source.check_directories(), Options(given), columns)


def _entries(
    spark: SparkSession, directories: list[str], options: Options, columns: list[RequestedColumn]
) -> DataFrame:
    mode = options.choice("mode")
    asked = {column.source for column in columns}
    # a batch of Arrow without columns has no rows
    names = [one.name for one in ENTRY_COLUMNS if one.name in asked] or [ENTRY_COLUMNS[0].name]
    found = [entries_view.entries(spark, one, mode=mode, names=names) for one in directories]
    return _with_types(reduce(DataFrame.unionByName, found), columns)


def _with_types(frame: DataFrame, columns: list[RequestedColumn]) -> DataFrame:
    """Return columns of a view with the names and types that are asked for."""
    if CORRUPT_COLUMN.name not in frame.columns:
        frame = frame.selectExpr("*", f"CAST(NULL AS STRING) AS `{CORRUPT_COLUMN.name}`")
    if any(map(is_text_of_bytes, columns)):
        sources = list(dict.fromkeys(column.source for column in columns))
        texts = {column.source for column in columns if is_text_of_bytes(column)}
        types = dict(frame.select(*sources).dtypes) | dict.fromkeys(texts, "string")
        schema = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
        frame = frame.select(*sources).mapInArrow(partial(cast_texts, columns=columns), schema)
    return frame.selectExpr(*(column.sql for column in columns))


def _options(frame: DataFrame) -> dict[str, str] | None:
    """Return the options that a freshly loaded frame was read with, if it is one of ours."""
    relation = frame._jdf.queryExecution().analyzed()
    if relation.getClass().getSimpleName() != "DataSourceV2Relation":
        return None
    if relation.table().name() != FastjournalSource.name():
        return None
    return dict(relation.options().asCaseSensitiveMap())


_SESSION_CATALOG = "spark_catalog"
_EXTERNAL = "EXTERNAL"
"""Type of a table with a path; that of another one is a directory of the warehouse."""


def complete_statement(spark: Any, frame: Any) -> None:
    """Complete a statement that a session has run.

    Args:
        spark: The session.
        frame: Result of its ``sql``.
    """
    plan = frame._jdf.queryExecution().analyzed()
    statement = plan.getClass().getSimpleName()
    if statement == "CreateTempViewUsing":
        if _is_ours(plan.provider()):
            _replace_view(spark, plan)
    elif statement == "CreateTable":
        provider = plan.tableSpec().provider()
        if provider.isDefined() and _is_ours(provider.get()):
            _keep_options(spark, plan)


def _is_ours(provider: str) -> bool:
    return provider.lower() == FastjournalSource.name()


def _as_dict(spark: Any, options: Any) -> dict[str, str]:
    return dict(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(options))


def _replace_view(spark: Any, plan: Any) -> None:
    """Make a temporary view of the plan of ``entries``, if it was made of that view."""
    given = _as_dict(spark, plan.options())
    if Options(given).view != "entries" or Options(given).foreign is not None:
        return
    reader = spark.read.format(FastjournalSource.name()).options(**given)
    if plan.userSpecifiedSchema().isDefined():
        reader = reader.schema(plan.userSpecifiedSchema().get().toDDL())
    found = reader.load()
    name = plan.tableIdent().table()
    if getattr(plan, "global")():
        found.createOrReplaceGlobalTempView(name)
    else:
        found.createOrReplaceTempView(name)


def _needs_plan(options: dict[str, str]) -> bool:
    """Whether options, which may be wrong, ask for the view ``entries`` of a log."""
    found = {name.lower(): value.lower() for name, value in options.items()}
    return found.get("view") == "entries" and found.get("journal") not in FOREIGN_JOURNALS


def _keep_options(spark: Any, plan: Any) -> None:
    """Put the options of a table with columns into the metadata of its first column."""
    jvm = spark._jvm
    if plan.name().catalog().name() != _SESSION_CATALOG:
        # another catalog keeps tables in its own way: a reader without options says what to do
        return
    identifier = plan.name().identifier()
    database = jvm.scala.Option.apply([*identifier.namespace()][-1])
    table_name = jvm.org.apache.spark.sql.catalyst.TableIdentifier(identifier.name(), database)
    catalog = spark._jsparkSession.sessionState().catalog()
    table = catalog.getTableMetadata(table_name)
    schema = StructType.fromJson(json.loads(table.schema().json()))
    # IF NOT EXISTS: the table may be an older one, or of another format
    is_ours = table.provider().isDefined() and _is_ours(table.provider().get())
    if not is_ours or not schema.fields or TABLE_OPTIONS in schema.fields[0].metadata:
        return
    options = _as_dict(spark, table.storage().properties())
    if _needs_plan(options):
        # it could not be read; its definition goes, and no file
        catalog.dropTable(table_name, True, False)
        raise no_plan()
    if table.tableType().name() == _EXTERNAL and table.storage().locationUri().isDefined():
        location = table.storage().locationUri().get()
        utilities = jvm.org.apache.spark.sql.catalyst.catalog.CatalogUtils
        options["path"] = utilities.URIToString(location)
    keep_options(schema, options)
    java_schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    catalog.alterTableDataSchema(table_name, java_schema)


_MARK = "_reads_fastjournal_views"
"""Attribute of the class of a registered session."""


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("fastjournal")`` known to a session, and to no other.

    Args:
        spark: Any session.
    """
    with _active(spark):
        spark.dataSource.register(FastjournalSource)
    if getattr(type(spark), _MARK, False):
        return
    session: Any = type(spark)
    if isinstance(spark.read, DataFrameReader):
        spark.__class__ = _with_views(session)
    else:
        spark.__class__ = _with_reader(session, _connect_reader())


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one: Spark asks that one whether a data source is there already."""
    if not hasattr(spark, "_jsparkSession"):
        yield
        return
    sessions = spark._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())


@cache
def _with_views(session: Any) -> type:
    """Return the class of a session whose readers and SQL know the view ``entries``."""

    def sql(self: Any, *args: Any, **kwargs: Any) -> DataFrame:
        """Run a statement, as ``SparkSession.sql`` does."""
        with translating_workers():
            frame: DataFrame = session.sql(self, *args, **kwargs)
        complete_statement(self, frame)
        return frame

    return _with_reader(session, ViewReader, sql=sql, readStream=property(ViewStreamReader))


@cache
def _with_reader(session: Any, reader: type, **more: Any) -> type:
    """Return the class of a session with other readers."""
    name = f"{session.__name__}WithViews"
    return type(name, (session,), {"read": property(reader), _MARK: True, **more})


@cache
def _connect_reader() -> type:
    """Return the reader of a registered session of Spark Connect, which needs more packages."""
    from pyspark.sql.connect.dataframe import (  # noqa: PLC0415 - needs packages of Connect
        DataFrame as ConnectFrame,
    )
    from pyspark.sql.connect.readwriter import (  # noqa: PLC0415 - needs packages of Connect
        DataFrameReader as ConnectFrameReader,
    )

    class ConnectReader(ConnectFrameReader):
        """Reader of a registered session of Spark Connect: knows the view ``entries`` too."""

        def load(
            self,
            path: str | list[str] | None = None,
            format: str | None = None,
            schema: Any = None,
            **options: Any,
        ) -> ConnectFrame:
            """Load a table, as ``DataFrameReader.load`` does."""
            frame = super().load(path, format, schema, **options)
            if (self._format or "").lower() != FastjournalSource.name():
                return frame
            given = dict(self._options)
            if isinstance(path, list):
                given["paths"] = json.dumps(path)
            elif path is not None:
                given["path"] = path
            if Options(given).view != "entries":
                return frame
            return cast(ConnectFrame, load_view(frame, given))

    return ConnectReader
