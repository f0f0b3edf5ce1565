"""Analysis jobs: aggregates of the events by UTC day, and of the state at a snapshot.

Jobs on the history take events (``fastjournal.spark.events``) and return a frame with the column
``dt``, the day on which the events happened. Instants are TIMESTAMP, durations BIGINT microseconds.
Percentiles are those of ``percentile_approx`` with the accuracy ``ACCURACY``: exact below so many
values, else off by at most one part of that in rank.

Jobs on the state read the exported entries, and the sizes of the records of the snapshot. The
numbers of the backlog are those of STATS (docs/protocol.md): an entry counts as worked on until the
log says that its lease ended, and one that waits for the end of other work on its URI counts as
delayed.

Executors compute all of it, into the staging tree of the store (``day_store``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

import fastjournal.spark
from fastjournal.cmdlog.snapshot import Manifest
from fastjournal.spark.cluster.java_errors import translating_output
from fastjournal.spark.decoding.view_columns import RECORD_COLUMNS, sql_schema
from fastjournal.spark.execution.cluster_tasks import run_apart
from fastjournal.spark.export.snapshot_export import PART_BYTES, export_snapshot
from fastjournal.spark.history.event_rows import EventKind
from fastjournal.spark.live_entries.fetch import ENTRY_COLUMNS
from fastjournal.spark.nightly.day_store import DayStore
from fastjournal.spark.nightly.preparation import Night
from fastjournal.spark.query.paths import list_directory
from fastjournal.spark.storage.files import below, hadoop_glob, hadoop_uri, is_s3
from fastjournal.spark.storage.store_frames import read_parquet, stored_schema, write_parquet

_NOT_COUNTED = (EventKind.EXTENDED, EventKind.RENAMED, EventKind.LIMITED)
KINDS = tuple(kind.value for kind in EventKind if kind not in _NOT_COUNTED)
"""Kinds of events that are counted."""
LEASE_KINDS = ("leased", "completed", "failed", "returned", "lost", "buried")
"""Kinds of events of one attempt."""
FAILURE_KINDS = ("failed", "buried", "lost")
ACCURACY = 10_000
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
REASON_CHARACTERS = 300
FAILURES_A_DAY = 1_000
URIS_A_DAY = 1_000
"""Rows that a day keeps, those with most events."""

BACKLOG_NUMBERS = ("entries", "waiting", "due", "delayed", "worked_on", "buried")
_INSTANTS = ("not_before", "worked_on_until", "created")

_SECOND_US = 1_000_000
AGES = (
    ("under 1 minute", 60),
    ("under 10 minutes", 600),
    ("under 1 hour", 3_600),
    ("under 6 hours", 21_600),
    ("under 1 day", 86_400),
    ("under 7 days", 604_800),
)
"""Classes of the age histogram and their bounds in seconds; the last one has none."""
OLDEST = "7 days and more"
STARVING_US = 3_600 * _SECOND_US
"""A domain starves when its oldest due entry waits for longer."""


# --- history --------------------------------------------------------------------------------------


def of_days(events: DataFrame, days: Sequence[date]) -> DataFrame:
    """Return the events of these days."""
    return events.where(f.col("day").isin(list(days))).withColumnRenamed("day", "dt")


def throughput(events: DataFrame) -> DataFrame:
    """Return counts by domain and minute; minutes without an event have no row."""
    minute = f.date_trunc("minute", "time").alias("minute")
    counted = events.where(f.col("event").isin(*KINDS))
    return counted.groupBy("dt", "domain", minute).agg(*_counts(KINDS))


def hours(events: DataFrame) -> DataFrame:
    """Return counts, wait and run times by domain and hour, and their totals.

    A row with ``all_domains`` or ``all_hours`` is a total over them; its ``domain`` or ``hour`` is
    null. ``wait`` is from due to leased, of all leases; ``run`` from leased to completed.
    """
    counted = events.where(f.col("event").isin(*KINDS)).withColumn(
        "hour", f.date_trunc("hour", "time")
    )
    waits = "CASE WHEN event = 'leased' THEN wait_us END"
    runs = "CASE WHEN event = 'completed' THEN run_us END"
    figures = [*_counts(KINDS), *_percentiles("wait", waits), *_percentiles("run", runs)]
    key = [f.col(name) for name in ("dt", "domain", "hour")]
    sets = [key, key[:2], [key[0], key[2]], key[:1]]
    grouped = counted.groupingSets(sets, *key)
    flags = [f.grouping("domain").alias("_domains"), f.grouping("hour").alias("_hours")]
    table = grouped.agg(*figures, *flags)
    table = table.withColumn("all_domains", f.col("_domains") == 1)
    table = table.withColumn("all_hours", f.col("_hours") == 1)
    # percentile_approx gives an array for several percentages: one pass over the values
    names = ("dt", "domain", "hour", "all_domains", "all_hours")
    return table.select(
        *names,
        *KINDS,
        *(
            f.col(f"_{name}")[at].alias(f"{name}_{percentile}_us")
            for name in ("wait", "run")
            for at, percentile in enumerate(PERCENTILES)
        ),
        *(f.col(f"{name}_max_us") for name in ("wait", "run")),
    )


def attempts(events: DataFrame) -> DataFrame:
    """Return counts by domain and number of the attempt: how often work is tried."""
    counted = events.where(f.col("event").isin(*LEASE_KINDS) & f.col("attempt").isNotNull())
    return counted.groupBy("dt", "domain", "attempt").agg(*_counts(LEASE_KINDS))


def failures(events: DataFrame) -> DataFrame:
    """Return failed attempts, burials and lost leases by domain and reason, with their span."""
    reason = f.expr(f"left(reason, {REASON_CHARACTERS})").alias("reason")
    failed = events.where(f.col("event").isin(*FAILURE_KINDS))
    table = failed.groupBy("dt", "domain", "event", reason).agg(
        f.count("*").alias("count"),
        f.min("time").alias("first_seen"),
        f.max("time").alias("last_seen"),
        f.count_distinct("serial").alias("entries"),
    )
    return _most(table, f.col("count").desc(), FAILURES_A_DAY)


def with_uris(events: DataFrame, history: DataFrame) -> DataFrame:
    """Return events with the URI of their entry, which only that of its SET has.

    Args:
        events: Some of the history.
        history: All events: an entry may have been set on a day before.
    """
    named = history.where("uri IS NOT NULL AND serial IS NOT NULL")
    place = f.struct("segment", "offset")
    uris = named.groupBy("serial").agg(f.max_by("uri", place).alias("_uri"))
    joined = events.join(uris, "serial", "left")
    return joined.withColumn("uri", f.coalesce("uri", "_uri")).drop("_uri")


def churn(events: DataFrame) -> DataFrame:
    """Return the URIs with most requests: how often they were set, merged and worked on.

    ``events``: from ``with_uris``.
    """
    kinds = ("set", "replaced", "leased", "completed")
    changed = events.where(f.col("event").isin(*kinds) & f.col("uri").isNotNull())
    table = changed.groupBy("dt", "domain", "uri").agg(*_counts(kinds))
    return _most(table, f.col("set").desc(), URIS_A_DAY)


HISTORY_JOBS = {
    "throughput": throughput,
    "hours": hours,
    "attempts": attempts,
    "failures": failures,
    "churn": churn,
}
"""Name of a table in the output, and the job that computes it."""


def _counts(kinds: Sequence[str]) -> list[Column]:
    return _counts_of({kind: f"event = '{kind}'" for kind in kinds})


def _counts_of(conditions: Mapping[str, str]) -> list[Column]:
    """Return the number of rows of each condition, by name."""
    return [f.expr(f"count_if({test})").alias(name) for name, test in conditions.items()]


def _percentiles(name: str, values: str) -> list[Column]:
    wanted = ", ".join(map(str, PERCENTILES.values()))
    return [
        f.expr(f"percentile_approx({values}, array({wanted}), {ACCURACY})").alias(f"_{name}"),
        f.expr(f"max({values})").alias(f"{name}_max_us"),
    ]


def _most(table: DataFrame, order: Column, rows: int) -> DataFrame:
    """Return the first rows of each day; ties are broken by the other columns."""
    others = [name for name, kind in table.dtypes if name != "dt"]
    window = Window.partitionBy("dt").orderBy(order, *others)
    return (
        table.withColumn("_rank", f.row_number().over(window))
        .where(f"_rank <= {rows}")
        .drop("_rank")
    )


# --- state ----------------------------------------------------------------------------------------


def journal(entries: DataFrame, taken_us: int) -> DataFrame:
    """Return the journal entries with ``due`` (BOOLEAN), ``late_us`` and ``age_us``.

    Args:
        entries: The view ``entries``, or its export; instants are TIMESTAMP or microseconds.
        taken_us: Instant of the snapshot, in microseconds since the Unix epoch.
    """
    table = entries
    for name in _INSTANTS:
        table = table.withColumn(name, _micros(entries, name))
    # work on plain entries counts, too: it holds back entries that wait with the same URI. Where it
    # is the entry's own work, its state is not "waiting" anyway
    running = table.where("state = 'worked_on' AND uri IS NOT NULL")
    running = running.groupBy("uri").agg(f.max("worked_on_until").alias("blocked_until"))
    due_at = "greatest(not_before, coalesce(blocked_until, 0))"
    waiting = table.where("domain IS NOT NULL").join(running, "uri", "left")
    return waiting.selectExpr(
        "domain",
        "priority",
        "state",
        f"state = 'waiting' AND {due_at} <= {taken_us} AS due",
        f"{taken_us} - CASE WHEN {due_at} > 0 THEN {due_at} ELSE created END AS late_us",
        f"{taken_us} - created AS age_us",
    )


def backlog(entries: DataFrame) -> DataFrame:
    """Return one row a domain and priority: entries by state, and how late the oldest is."""
    conditions = {
        "entries": "true",
        "waiting": "state = 'waiting'",
        "due": "due",
        "delayed": "state = 'waiting' AND NOT due",
        "worked_on": "state = 'worked_on'",
        "buried": "state = 'buried'",
    }
    counts = _counts_of(conditions)
    oldest = f.expr("coalesce(max(CASE WHEN due THEN late_us END), 0)").alias("oldest_due_us")
    return entries.groupBy("domain", "priority").agg(*counts, oldest)


def ages(entries: DataFrame) -> DataFrame:
    """Return the waiting entries by domain and age since their creation."""
    bounds = " ".join(
        f"WHEN age_us < {seconds * _SECOND_US} THEN '{name}'" for name, seconds in AGES
    )
    age = f.expr(f"CASE {bounds} ELSE '{OLDEST}' END").alias("age")
    counts = _counts_of({"due": "due", "delayed": "NOT due"})
    return entries.where("state = 'waiting'").groupBy("domain", age).agg(*counts)


def starving(backlog: DataFrame, leases: DataFrame) -> DataFrame:
    """Return the domains whose oldest due entry waits for long, and what was leased of them.

    Args:
        backlog: Table of that name.
        leases: Counts of the day by domain, from ``leases_of``.
    """
    late = backlog.groupBy("domain").agg(
        f.sum("due").alias("due"), f.max("oldest_due_us").alias("oldest_due_us")
    )
    late = late.where(f"due > 0 AND oldest_due_us > {STARVING_US}")
    counts = [f.expr(f"coalesce({name}, 0)").alias(name) for name in ("set", "leased")]
    return late.join(leases, "domain", "left").select(
        "domain", "due", "oldest_due_us", *counts, "last_leased"
    )


def leases_of(events: DataFrame) -> DataFrame:
    """Return what was set and leased of each domain, and when the last lease began."""
    return events.groupBy("domain").agg(
        *_counts(("set", "leased")),
        f.expr("max(CASE WHEN event = 'leased' THEN time END)").alias("last_leased"),
    )


def log_segments(records: DataFrame, entries: DataFrame) -> DataFrame:
    """Return one row a segment: its records and bytes, and those that carry a live entry.

    Args:
        records: The view ``records``: ``segment``, ``offset`` and ``size``.
        entries: The view ``entries``, or its export.
    """
    live = entries.select("segment", "offset", f.lit(True).alias("live"))
    return (
        records.join(live, ["segment", "offset"], "left")
        .groupBy("segment")
        .agg(
            f.count("*").alias("records"),
            f.sum("size").alias("bytes"),
            f.expr("count_if(live)").alias("live_records"),
            f.expr("coalesce(sum(CASE WHEN live THEN size END), 0)").alias("live_bytes"),
        )
    )


def _micros(frame: DataFrame, name: str) -> Column:
    """Return an instant as microseconds; 0: none."""
    column = f.col(name)
    if dict(frame.dtypes)[name].startswith("timestamp"):
        column = f.unix_micros(column.cast("timestamp"))
    return f.coalesce(column, f.lit(0))


# --- tables ---------------------------------------------------------------------------------------

STATE_TABLES = ("entries", "backlog", "ages", "starving", "log")
TABLES = (*STATE_TABLES, *HISTORY_JOBS)

_RECORD_NAMES = ("segment", "offset", "size")
_RECORDS = sql_schema([column for column in RECORD_COLUMNS if column.name in _RECORD_NAMES])


def compute_history(spark: SparkSession, night: Night, days: list[date]) -> None:
    """Write the tables of the history on days into the staging tree."""
    events = _events(spark, night, days)
    history = fastjournal.spark.events(spark, night.history, missing_ok=True)
    for name, job in HISTORY_JOBS.items():
        found = with_uris(events, history) if job is churn else events
        _write(job(found), name, night.store)


def _events(spark: SparkSession, night: Night, days: list[date]) -> DataFrame:
    """Return the events of days; no run may have had an archive yet."""
    found = fastjournal.spark.events(spark, night.history, days=days, missing_ok=True)
    return of_days(found, days)


def _write(frame: DataFrame, name: str, store: DayStore) -> None:
    """Write a table into the staging tree: a file a day, its rows in one order."""
    columns = [column for column in frame.columns if column != "dt"]
    ordered = frame.repartition("dt").sortWithinPartitions("dt", *columns)
    _write_whole(ordered, store.staged(name), by="dt")


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
    waiting = journal(entries, manifest.taken_us)
    numbers = backlog(waiting)
    events = _events(spark, night, [day])
    records = spark.read.format("fastjournal").schema(_RECORDS).load(night.snapshot)
    tables = {
        "backlog": numbers,
        "ages": ages(waiting),
        "starving": starving(numbers, leases_of(events)),
        "log": log_segments(records, entries),
    }
    for name, table in tables.items():
        ordered = table.coalesce(1).sortWithinPartitions(*table.columns)
        _write_whole(ordered, store.staged(f"{name}/dt={day}"))


def _write_whole(frame: DataFrame, place: str, by: str | None = None) -> None:
    """Write a frame as Parquet files in a directory, or in one for each value of a column."""
    with translating_output(place):
        if is_s3(place):
            write_parquet(frame, place, by=by)
        else:
            frame.write.mode("overwrite").parquet(hadoop_uri(place), partitionBy=by)


def _read_whole(spark: SparkSession, place: str) -> DataFrame:
    """Return the rows of a directory of Parquet files."""
    if not is_s3(place):
        return spark.read.parquet(hadoop_glob(place))
    names = sorted(str(one.base_name) for one in list_directory(place))
    files = [below(place, name) for name in names if name.endswith(".parquet")]
    if not files:
        return spark.createDataFrame([], sql_schema(ENTRY_COLUMNS))
    return read_parquet(spark, files, stored_schema(files[0]))
