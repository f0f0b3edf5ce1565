"""Tables of a nightly run, computed by Spark into the staging tree of their store."""

from __future__ import annotations

from datetime import date

from pyspark.sql import DataFrame, SparkSession

import fastjournal.spark
from fastjournal.cmdlog.snapshot import Manifest
from fastjournal.spark.cluster.java_errors import translating_output
from fastjournal.spark.decoding.view_columns import RECORD_COLUMNS, sql_schema
from fastjournal.spark.execution.process_pool import run_apart
from fastjournal.spark.export.snapshot_export import PART_BYTES, export_snapshot
from fastjournal.spark.live_entries.entry_rows import ENTRY_COLUMNS
from fastjournal.spark.nightly import history_jobs, state_jobs
from fastjournal.spark.nightly.day_store import DayStore
from fastjournal.spark.nightly.inputs import Night
from fastjournal.spark.query.paths import list_directory
from fastjournal.spark.storage.files import below, hadoop_glob, hadoop_uri, is_s3
from fastjournal.spark.storage.store_frames import read_parquet, stored_schema, write_parquet

STATE_TABLES = ("entries", "backlog", "ages", "starving", "log")
TABLES = (*STATE_TABLES, *history_jobs.HISTORY_JOBS)

_RECORD_NAMES = ("segment", "offset", "size")
_RECORDS = sql_schema([column for column in RECORD_COLUMNS if column.name in _RECORD_NAMES])


def compute_history(spark: SparkSession, night: Night, days: list[date]) -> None:
    """Write the tables of the history on days into the staging tree."""
    events = _events(spark, night, days)
    history = fastjournal.spark.events(spark, night.history, missing_ok=True)
    for name, job in history_jobs.HISTORY_JOBS.items():
        found = history_jobs.with_uris(events, history) if job is history_jobs.churn else events
        _write(job(found), name, night.store)


def _events(spark: SparkSession, night: Night, days: list[date]) -> DataFrame:
    """Return the events of days; no run may have had an archive yet."""
    found = fastjournal.spark.events(spark, night.history, days=days, missing_ok=True)
    return history_jobs.of_days(found, days)


def _write(frame: DataFrame, name: str, store: DayStore) -> None:
    """Write a table into the staging tree: a file a day, its rows in one order."""
    columns = [column for column in frame.columns if column != "dt"]
    ordered = frame.repartition("dt").sortWithinPartitions("dt", *columns)
    place = store.staged(name)
    with translating_output(place):
        if is_s3(place):
            write_parquet(ordered, place, by="dt")
        else:
            ordered.write.mode("overwrite").partitionBy("dt").parquet(hadoop_uri(place))


def _staged_entries(night: Night) -> str:
    return night.store.staged(f"entries/dt={night.day}")


def export_entries(night: Night, manifest: Manifest) -> None:
    """Write the live entries of the snapshot into the staging tree, on this machine."""
    assert night.snapshot is not None
    if manifest.bytes > PART_BYTES:
        run_apart(export_snapshot, night.snapshot, _staged_entries(night))
    else:
        export_snapshot(night.snapshot, _staged_entries(night))


def compute_state(spark: SparkSession, night: Night, manifest: Manifest) -> None:
    """Write the tables of the state at the snapshot into the staging tree.

    On one machine ``export_entries`` has written the entries before.
    """
    assert night.snapshot is not None
    store, day = night.store, night.day
    staged = _staged_entries(night)
    if night.cluster and str(spark.sparkContext.master).startswith("local"):
        export_entries(night, manifest)
    elif night.cluster:
        _write_whole(fastjournal.spark.entries(spark, night.snapshot), staged)
    entries = _read_whole(spark, staged)
    journal = state_jobs.journal(entries, manifest.taken_us)
    backlog = state_jobs.backlog(journal)
    events = _events(spark, night, [day])
    records = spark.read.format("fastjournal").schema(_RECORDS).load(night.snapshot)
    tables = {
        "backlog": backlog,
        "ages": state_jobs.ages(journal),
        "starving": state_jobs.starving(backlog, state_jobs.leases_of(events)),
        "log": state_jobs.log_segments(records, entries),
    }
    for name, table in tables.items():
        ordered = table.coalesce(1).sortWithinPartitions(*table.columns)
        _write_whole(ordered, store.staged(f"{name}/dt={day}"))


def _write_whole(frame: DataFrame, place: str) -> None:
    with translating_output(place):
        if is_s3(place):
            write_parquet(frame, place)
        else:
            frame.write.mode("overwrite").parquet(hadoop_uri(place))


def _read_whole(spark: SparkSession, place: str) -> DataFrame:
    """Return the rows of a directory of Parquet files."""
    if not is_s3(place):
        return spark.read.parquet(hadoop_glob(place))
    names = sorted(str(one.base_name) for one in list_directory(place))
    files = [below(place, name) for name in names if name.endswith(".parquet")]
    if not files:
        return spark.createDataFrame([], sql_schema(ENTRY_COLUMNS))
    return read_parquet(spark, files, stored_schema(files[0]))
