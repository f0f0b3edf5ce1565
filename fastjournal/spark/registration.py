"""Registration of the data source with one Spark session, with both of its views.

A data source yields rows; it cannot start Spark jobs of its own. The view ``entries`` is one: it
groups the records of all segments (``fastjournal.spark.entries_view``). So the registered session
gives out readers whose ``load`` answers for that view of this format with that job. Other sessions,
and PySpark's own classes, are as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql.datasource import DataSourceReader

from fastjournal.spark.entries_view import entries
from fastjournal.spark.options import Options
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
        # Spark asks for no schema where the user gives one
        directories = FastjournalSource(given).check_directories()
        checked = Options(given)
        if checked.view != "entries" or checked.foreign is not None:
            return frame
        spark = frame.sparkSession
        found = [entries(spark, one, mode=checked.choice("mode")) for one in directories]
        whole = reduce(DataFrame.unionByName, found)
        return whole.select(*(f"`{name}`" for name in frame.columns))


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


def _options(frame: DataFrame) -> dict[str, str] | None:
    """Return the options that a freshly loaded frame was read with, if it is one of ours."""
    relation = frame._jdf.queryExecution().analyzed()
    if relation.getClass().getSimpleName() != "DataSourceV2Relation":
        return None
    if relation.table().name() != FastjournalSource.name():
        return None
    return dict(relation.options().asCaseSensitiveMap())
