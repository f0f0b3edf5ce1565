"""Making the data source known to a Spark session, with both of its views.

A data source hands out rows; it cannot start Spark jobs of its own. The view ``entries`` is one: it
groups the records of all segments (``fastjournal.spark.entries_view``). So
``DataFrameReader.load`` is taught, once in this process, to answer for that view of this format
with that job. All other reads pass through it unchanged.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrameReader
from pyspark.sql.datasource import DataSourceReader

from fastjournal.spark.entries_view import entries
from fastjournal.spark.source import FastjournalSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_plain_load = DataFrameReader.load


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("fastjournal")`` known to a session.

    Args:
        spark: Any session of PySpark 4; where it pushes filters down, that is switched on.
    """
    spark.dataSource.register(FastjournalSource)
    if hasattr(DataSourceReader, "pushFilters"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    DataFrameReader.load = _load  # type: ignore[method-assign]  # on purpose: see the module


@wraps(_plain_load)
def _load(self: DataFrameReader, *args: Any, **options: Any) -> DataFrame:
    frame = _plain_load(self, *args, **options)
    given = _options(frame)
    if given is None or str(given.get("view")).lower() != "entries":
        return frame
    found = entries(frame.sparkSession, given.get("path"), mode=given.get("mode") or "failfast")
    return found.select(*(f"`{name}`" for name in frame.columns))


def _options(frame: DataFrame) -> Any | None:
    """Return the options that a freshly loaded frame was read with, if it is one of ours."""
    relation = frame._jdf.queryExecution().analyzed()
    if relation.getClass().getSimpleName() != "DataSourceV2Relation":
        return None
    return relation.options() if relation.table().name() == FastjournalSource.name() else None
