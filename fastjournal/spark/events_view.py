"""View of the table ``events`` in Spark: the rows that its commits name."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import date
from typing import TYPE_CHECKING

from fastjournal.disk import OsDisk
from fastjournal.spark.columns import sql_schema
from fastjournal.spark.day_store import hadoop_uri
from fastjournal.spark.event_commits import read_commits
from fastjournal.spark.event_rows import EVENT_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SEGMENT = "CAST(substring_index(segment, '-', 1) AS INT) AS segment"


def events(
    spark: SparkSession, output: str | os.PathLike[str], *, days: Collection[date] | None = None
) -> DataFrame:
    """Return the events of all commits, with their UTC day in the column ``day``.

    Args:
        spark: Any session on this machine.
        output: Directory in which ``events`` stands, as ``fj-nightly --output`` has it.
        days: UTC days; files of others are not looked at. None: all.

    Raises:
        LogCorruptError: A commit cannot be understood.
        LogFailedError: There is no such table, or it cannot be read.
    """
    table = f"{os.path.abspath(output)}/events"
    # without a scheme Spark would look in the file system of fs.defaultFS
    place = hadoop_uri(table)
    wanted = None if days is None else {f"day={day}" for day in days}
    files = [
        f"{place}/{file}"
        for commit in read_commits(OsDisk(), f"{table}/_commits")
        for segment in commit.segments
        for file in segment.files
        if wanted is None or file.partition("/")[0] in wanted
    ]
    stored = [column for column in EVENT_COLUMNS if column.name != "segment"]
    schema = f"{sql_schema(stored)}, day DATE, segment STRING"
    if files:
        found = spark.read.schema(schema).option("basePath", place).parquet(*files)
    else:
        found = spark.createDataFrame([], schema)
    names = [column.name for column in EVENT_COLUMNS]
    return found.selectExpr("day", *(_SEGMENT if name == "segment" else name for name in names))
