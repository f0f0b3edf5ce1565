"""Registration of the data source with one Spark session, with all of its views.

A data source yields rows; it cannot start Spark jobs of its own. The view ``entries`` is one: it
groups the records of all segments (``fastjournal.spark.entries_view``). So the registered session
gives out readers whose ``load`` answers for that view of this format with that job. Other sessions,
and PySpark's own classes, are as they were.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, DataFrameReader

from fastjournal.spark import entries_view
from fastjournal.spark.columns import CORRUPT_COLUMN
from fastjournal.spark.options import Options
from fastjournal.spark.requested_schema import RequestedColumn, cast_texts, is_text_of_bytes
from fastjournal.spark.session import translating
from fastjournal.spark.source import FastjournalSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ViewReader(DataFrameReader):
    """Reader of a registered session: knows the view ``entries`` too."""

    def load(self, *args: Any, **options: Any) -> DataFrame:
        """Load a table, as ``DataFrameReader.load`` does."""
        with translating():
            frame = super().load(*args, **options)
        given = _options(frame)
        if given is None:
            return frame
        checked = Options(given)
        source = FastjournalSource(given)
        # Spark leaves the schema of a user unchecked until rows are read
        columns = source.check_schema(frame.schema)
        directories = source.check_directories()
        if checked.view != "entries" or checked.foreign is not None:
            return frame
        return _with_types(_entries(frame.sparkSession, directories, checked), columns)


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("fastjournal")`` known to a session, and to no other.

    Args:
        spark: Any session; its pushdown of filters into Python data sources is switched on.
    """
    with _active(spark):
        spark.dataSource.register(FastjournalSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = spark.read
    # Spark Connect has another class: there, ask fastjournal.spark.entries for the view
    if isinstance(reader, DataFrameReader) and not isinstance(reader, ViewReader):
        session: Any = type(spark)
        spark.__class__ = _with_views(session)


def entries(
    spark: SparkSession,
    paths: str | os.PathLike[str] | list[str],
    *,
    mode: str = "failfast",
    instants: str = "timestamp",
) -> DataFrame:
    """Return what was live at the end of a log or snapshot, one row an entry.

    Each log is read once at this call, without values, and its chosen records when rows are asked
    for.

    Args:
        spark: A session with the data source registered.
        paths: Path, URI or glob, or a list of these; each directory is a log of its own.
        mode: ``failfast`` or ``permissive``; the latter has a column ``_corrupt``, and a row for
            every stretch of damage.
        instants: ``timestamp``, or ``us`` for numbers of microseconds.

    Raises:
        BadRequestError: A directory holds no log, or an argument is unknown.
        LogCorruptError: It is damaged, or a segment is missing, was cut or replaced, in mode
            ``failfast``.
    """
    texts = [os.fspath(path) for path in (paths if isinstance(paths, list) else [paths])]
    given = {"view": "entries", "mode": mode, "instants": instants, "paths": json.dumps(texts)}
    source = FastjournalSource(given)
    columns = source.check_schema(source.schema())
    found = _entries(spark, source.check_directories(), Options(given))
    return _with_types(found, columns)


def _entries(spark: SparkSession, directories: list[str], options: Options) -> DataFrame:
    mode = options.choice("mode")
    found = [entries_view.entries(spark, one, mode=mode) for one in directories]
    return reduce(DataFrame.unionByName, found)


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
def _with_views(session: type) -> type:
    """Return the class of a session whose readers know the view ``entries``."""
    name = f"{session.__name__}WithViews"
    return type(name, (session,), {"read": property(ViewReader)})


def _options(frame: DataFrame) -> dict[str, str] | None:
    """Return the options that a freshly loaded frame was read with, if it is one of ours."""
    relation = frame._jdf.queryExecution().analyzed()
    if relation.getClass().getSimpleName() != "DataSourceV2Relation":
        return None
    if relation.table().name() != FastjournalSource.name():
        return None
    return dict(relation.options().asCaseSensitiveMap())
