"""Readers of a registered session, which answer for the view ``entries`` with a plan of Spark.

A data source yields rows; it cannot plan shuffles of its own. The view ``entries`` needs these: it
groups the records of all segments (``fastjournal.spark.live_entries.entries_view``).
"""

from __future__ import annotations

import json
import os
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from fastjournal.spark.cluster.java_errors import translating_workers
from fastjournal.spark.data_source.source import FastjournalSource
from fastjournal.spark.decoding.view_columns import CORRUPT_COLUMN
from fastjournal.spark.live_entries import entries_view
from fastjournal.spark.live_entries.partition_replay import ENTRY_COLUMNS
from fastjournal.spark.query.requested_schema import RequestedColumn, cast_texts, is_text_of_bytes
from fastjournal.spark.query.source_options import Options

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
