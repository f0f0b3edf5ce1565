"""Registration of the data source with one Spark session, with both of its views.

A data source yields rows; it cannot start Spark jobs of its own. The view ``entries`` is one: it
groups the records of all segments (``fastjournal.spark.entries_view``). So the registered session
gives out readers whose ``load`` answers for that view of this format with that job. Other sessions,
and PySpark's own classes, are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrameReader
from pyspark.sql.datasource import DataSourceReader

from fastjournal.spark.entries_view import entries
from fastjournal.spark.source import FOREIGN_JOURNALS, FastjournalSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ViewReader(DataFrameReader):
    """Reader of a registered session: knows the view ``entries`` too."""

    def load(self, *args: Any, **options: Any) -> DataFrame:
        """Load a table, as ``DataFrameReader.load`` does."""
        frame = super().load(*args, **options)
        given = _options(frame)
        if given is None or str(given.get("view")).lower() != "entries":
            return frame
        if str(given.get("journal")).lower() in FOREIGN_JOURNALS:
            return frame
        found = entries(frame.sparkSession, given.get("path"), mode=given.get("mode") or "failfast")
        return found.select(*(f"`{name}`" for name in frame.columns))


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("fastjournal")`` known to a session, and to no other.

    Args:
        spark: Any session of PySpark 4; where it pushes filters down, that is switched on.
    """
    with _active(spark):
        spark.dataSource.register(FastjournalSource)
    if hasattr(DataSourceReader, "pushFilters"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = spark.read
    # Spark Connect has another class: there, ask fastjournal.spark.entries for the view
    if isinstance(reader, DataFrameReader) and not isinstance(reader, ViewReader):
        session: Any = type(spark)
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
def _with_views(session: type) -> type:
    """Return the class of a session whose readers know the view ``entries``."""
    name = f"{session.__name__}WithViews"
    return type(name, (session,), {"read": property(ViewReader)})


def _options(frame: DataFrame) -> Any | None:
    """Return the options that a freshly loaded frame was read with, if it is one of ours."""
    relation = frame._jdf.queryExecution().analyzed()
    if relation.getClass().getSimpleName() != "DataSourceV2Relation":
        return None
    return relation.options() if relation.table().name() == FastjournalSource.name() else None
