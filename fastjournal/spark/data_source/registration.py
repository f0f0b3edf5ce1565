"""Registration of the data source with one Spark session, with all of its views.

The registered session gives out readers whose ``load`` answers for the view ``entries`` of this
format, and checks streams in the driver (``data_source.view_reader``). Its ``sql`` completes
what Spark leaves undone (``data_source.sql_statements``). Under Spark Connect the plan of a
statement is in the server, so only the readers know that view. Other sessions, and PySpark's own
classes, are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, DataFrameReader

from fastjournal.spark.cluster.java_errors import translating_workers
from fastjournal.spark.data_source.source import FastjournalSource
from fastjournal.spark.data_source.sql_statements import complete_statement
from fastjournal.spark.data_source.view_reader import ViewReader, ViewStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        from fastjournal.spark.data_source.connect_reader import (  # noqa: PLC0415 - needs packages of Connect
            ConnectReader,
        )

        spark.__class__ = _with_reader(session, ConnectReader)


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
