"""Analysis jobs about the past: aggregates of the table ``events``, by UTC day. Lazy.

Each function takes events (``fastjournal.spark.events``) and returns a frame with the column
``dt``, the day on which the events happened. Executors compute all of it. Instants are TIMESTAMP,
durations BIGINT microseconds. Percentiles are those of ``percentile_approx`` with the accuracy
``ACCURACY``: exact below so many values, else off by at most one part of that in rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from pyspark.sql import Column, DataFrame

KINDS = (
    "set",
    "replaced",
    "leased",
    "completed",
    "failed",
    "returned",
    "lost",
    "buried",
    "kicked",
    "deleted",
    "expired",
    "purged",
    "paused",
    "resumed",
)
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
    return table.select(
        "dt",
        "domain",
        "hour",
        "all_domains",
        "all_hours",
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
    return [f.expr(f"count_if(event = '{kind}')").alias(kind) for kind in kinds]


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
