"""Registration of the data source with one Spark session, with all of its views.

The registered session gives out readers that check in the driver what Spark checks later, or never:
options, directories and schemas. Under Spark Connect all of this is left to the server. Other
sessions, and PySpark's own classes, are as they were.

Its ``sql`` completes what Spark's own statements leave undone for a Python data source. ``CREATE
TABLE name (columns) USING fastjournal OPTIONS (...)`` gets its options: Spark 4 gives the options
of a table to the inference of its schema only, and does not infer one that the statement names. So
they are put where an inferred schema has them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from fastjournal.spark.cluster.java_errors import translating_workers
from fastjournal.spark.data_source.source import TABLE_OPTIONS, FastjournalSource, keep_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "_reads_fastjournal_views"
"""Attribute of the class of a registered session."""
_SESSION_CATALOG = "spark_catalog"
_EXTERNAL = "EXTERNAL"
"""Type of a table with a path; that of another one is a directory of the warehouse."""


class ViewReader(DataFrameReader):
    """Reader of tables of a registered session."""

    def load(self, *args: Any, **options: Any) -> DataFrame:
        """Load a table, as ``DataFrameReader.load`` does.

        Raises:
            BadRequestError: A directory holds no log, or an option or the schema does not fit.
            LogCorruptError: The files of a snapshot are not those that its manifest lists.
        """
        with translating_workers():
            frame = super().load(*args, **options)
        given = _options(frame)
        if given is not None:
            source = FastjournalSource(given)
            with translating_workers():
                schema = frame.schema
            source.check_schema(schema)
            source.check_directories()
        return frame


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


def entries(
    spark: SparkSession,
    paths: str | os.PathLike[str] | list[str],
    *,
    mode: str = "failfast",
    instants: str = "timestamp",
) -> DataFrame:
    """Return what was live at the end of a log or snapshot, one row an entry.

    Entries are read when rows are asked for.

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
    given = [os.fspath(path) for path in paths] if isinstance(paths, list) else os.fspath(paths)
    reader = spark.read.format(FastjournalSource.name())
    return reader.options(view="entries", mode=mode, instants=instants).load(given)


def _options(frame: DataFrame) -> dict[str, str] | None:
    """Return the options that a freshly loaded frame was read with, if it is one of ours."""
    relation = frame._jdf.queryExecution().analyzed()
    if relation.getClass().getSimpleName() != "DataSourceV2Relation":
        return None
    if relation.table().name() != FastjournalSource.name():
        return None
    return dict(relation.options().asCaseSensitiveMap())


# --- registration ---------------------------------------------------------------------------------


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
    # a session of Spark Connect leaves all checks to its server
    if isinstance(spark.read, DataFrameReader):
        spark.__class__ = _with_views(session)


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
    """Return the class of a session with readers that check, and tables that keep options."""

    def sql(self: Any, *args: Any, **kwargs: Any) -> DataFrame:
        """Run a statement, as ``SparkSession.sql`` does."""
        with translating_workers():
            frame: DataFrame = session.sql(self, *args, **kwargs)
        _complete_statement(self, frame)
        return frame

    more = {"sql": sql, "readStream": property(ViewStreamReader), _MARK: True}
    return type(f"{session.__name__}WithViews", (session,), {"read": property(ViewReader), **more})


# --- statements -----------------------------------------------------------------------------------


def _complete_statement(spark: Any, frame: Any) -> None:
    """Complete a statement that a session has run.

    Args:
        spark: The session.
        frame: Result of its ``sql``.
    """
    plan = frame._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() == "CreateTable":
        provider = plan.tableSpec().provider()
        if provider.isDefined() and _is_ours(provider.get()):
            _keep_options(spark, plan)


def _is_ours(provider: str) -> bool:
    return provider.lower() == FastjournalSource.name()


def _as_dict(spark: Any, options: Any) -> dict[str, str]:
    return dict(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(options))


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
    if table.tableType().name() == _EXTERNAL and table.storage().locationUri().isDefined():
        location = table.storage().locationUri().get()
        utilities = jvm.org.apache.spark.sql.catalyst.catalog.CatalogUtils
        options["path"] = utilities.URIToString(location)
    keep_options(schema, options)
    java_schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    catalog.alterTableDataSchema(table_name, java_schema)
