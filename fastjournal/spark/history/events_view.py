"""View of the table ``events`` in Spark: the rows that its commits name."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import date
from typing import TYPE_CHECKING

from fastjournal.errors import LogFailedError
from fastjournal.spark.decoding.view_columns import sql_schema
from fastjournal.spark.history.commits import files_of, read_commits
from fastjournal.spark.history.event_rows import EVENT_COLUMNS
from fastjournal.spark.storage.files import below, hadoop_glob, hadoop_uri, is_s3
from fastjournal.spark.storage.store_frames import read_parquet
from fastjournal.spark.storage.table_files import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SEGMENT = "CAST(substring_index(segment, '-', 1) AS INT) AS segment"


def events(
    spark: SparkSession,
    output: str | os.PathLike[str],
    *,
    days: Collection[date] | None = None,
    missing_ok: bool = False,
) -> DataFrame:
    """Return the events of all commits, with their UTC day in the column ``day``.

    Args:
        spark: Any session; executors reach the directory.
        output: Directory in which ``events`` stands, as ``fj-nightly --output`` has it: a path or
            URI.
        days: UTC days; files of others are not looked at. None: all.
        missing_ok: Whether a table without any commit has no rows, instead of being an error.

    Raises:
        LogCorruptError: A commit cannot be understood.
        LogFailedError: There is no such table, or it cannot be read.
    """
    table, files, path = open_table(os.fspath(output))
    commits = list(read_commits(files, f"{path}/_commits"))
    if not commits and not missing_ok:
        raise LogFailedError(
            "there is no table of events",
            path=path,
            hint="name the --output of an fj-nightly that has run with --archive, or its --history",
        )
    wanted = None if days is None else {f"day={day}" for day in days}
    names = [
        file for _, file in files_of(commits) if wanted is None or file.partition("/")[0] in wanted
    ]
    stored = [column for column in EVENT_COLUMNS if column.name != "segment"]
    schema = f"{sql_schema(stored)}, day DATE, segment STRING"
    # without a scheme Spark would look in the file system of fs.defaultFS
    place = hadoop_glob(table)
    if not names:
        found = spark.createDataFrame([], schema)
    elif is_s3(table):
        texts = schema.replace("day DATE", "day STRING")
        uris = [below(table, name) for name in names]
        found = read_parquet(spark, uris, texts, ("day", "segment"))
        found = found.withColumn("day", found["day"].cast("date"))
    else:
        paths = [f"{place}/{name}" for name in names]
        reader = spark.read.schema(schema).option("basePath", hadoop_uri(table))
        found = reader.parquet(*paths)
    columns = [column.name for column in EVENT_COLUMNS]
    return found.selectExpr("day", *(_SEGMENT if name == "segment" else name for name in columns))
