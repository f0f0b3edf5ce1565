"""Analysis jobs about the state at a snapshot: backlog, ages, starving domains, size of the log.

They read the exported entries, and the sizes of the records of the snapshot. Executors compute all
of it. The numbers of the backlog are those of STATS (docs/protocol.md): an entry counts as worked
on until the log says that its lease ended, and one that waits for the end of other work on its URI
counts as delayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    counts = [f.expr(f"count_if({test})").alias(name) for name, test in conditions.items()]
    oldest = f.expr("coalesce(max(CASE WHEN due THEN late_us END), 0)").alias("oldest_due_us")
    return entries.groupBy("domain", "priority").agg(*counts, oldest)


def ages(entries: DataFrame) -> DataFrame:
    """Return the waiting entries by domain and age since their creation."""
    bounds = " ".join(
        f"WHEN age_us < {seconds * _SECOND_US} THEN '{name}'" for name, seconds in AGES
    )
    age = f.expr(f"CASE {bounds} ELSE '{OLDEST}' END").alias("age")
    counts = [
        f.expr("count_if(due)").alias("due"),
        f.expr("count_if(NOT due)").alias("delayed"),
    ]
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
        f.expr("count_if(event = 'set')").alias("set"),
        f.expr("count_if(event = 'leased')").alias("leased"),
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
    """Return an instant as microseconds; 0 stands for none."""
    column = f.col(name)
    if dict(frame.dtypes)[name].startswith("timestamp"):
        column = f.unix_micros(column.cast("timestamp"))
    return f.coalesce(column, f.lit(0))
