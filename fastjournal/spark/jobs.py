"""The analysis jobs: tables about a snapshot, by domain, of journal entries.

``backlog``: what waits, from the entries that are live at the end. Its columns are those of STATS
(docs/protocol.md). An entry counts as worked on until the log says that its lease ended; one that
waits for the end of other work on its URI counts as delayed.

``throughput``: what happened in each minute, from the records. ``set`` counts new entries,
``leased`` start-attempts, ``completed`` entries that ended while they were leased, ``removed``
those that ended otherwise (deleted, popped, expired, replaced by a newer one), ``returned`` leases
that ran out or were released, ``buried`` entries set aside. An entry that is written again under
a new job id (its tries are used up for workq, or compaction moves it) is not new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BACKLOG_NUMBERS = ("entries", "waiting", "due", "delayed", "worked_on", "buried")
THROUGHPUT_NUMBERS = ("set", "leased", "completed", "removed", "returned", "buried")

THROUGHPUT_COLUMNS = (
    "segment INT, offset BIGINT, time TIMESTAMP, time_us BIGINT, command STRING, operation STRING, "
    "target STRING, domain STRING, modified BIGINT, foreign BOOLEAN"
)
"""Schema of what ``throughput`` needs of the view ``records``."""

_REMOVALS = "('complete', 'delete', 'expire')"
_STEPS = "('add', 'schedule', 'start-attempt', 'timeout-attempt', 'fail')"
_OF_JOB = "OVER (PARTITION BY target ORDER BY segment, offset"
_NEW = "modified >= time_us OR foreign"
"""Written at the instant of its SET; or foreign, for workq never writes a job again."""


def backlog(entries: DataFrame, now_us: int) -> DataFrame:
    """Return one row a domain: how many entries are in which state, how late the oldest is.

    Args:
        entries: The view ``entries``.
        now_us: The instant that the snapshot shows, in microseconds since the Unix epoch.
    """
    running = entries.where("state = 'worked_on' AND uri IS NOT NULL")
    running = running.groupBy("uri").agg(f.max("worked_on_until").alias("blocked_until"))
    # Where the work on the URI is the entry's own, its state is not "waiting" anyway.
    journal = entries.where("domain IS NOT NULL").join(running, "uri", "left")
    due_at = "greatest(not_before, coalesce(blocked_until, 0))"
    conditions = {
        "entries": "true",
        "waiting": "state = 'waiting'",
        "due": f"state = 'waiting' AND {due_at} <= {now_us}",
        "delayed": f"state = 'waiting' AND {due_at} > {now_us}",
        "worked_on": "state = 'worked_on'",
        "buried": "state = 'buried'",
    }
    counts = [f.expr(f"count_if({test})").alias(name) for name, test in conditions.items()]
    late = f"{now_us} - CASE WHEN {due_at} > 0 THEN {due_at} ELSE created END"
    oldest = f.expr(f"coalesce(max(CASE WHEN {conditions['due']} THEN {late} END), 0)")
    table = journal.groupBy("domain").agg(*counts, oldest.alias("oldest_due_us"))
    return table.orderBy("domain")


def throughput(records: DataFrame) -> DataFrame:
    """Return one row for each domain and minute in which something happened.

    An event of a job whose first record is no longer in the log is left out where its domain is not
    known.

    Args:
        records: The view ``records``.
    """
    events = records.where("operation IS NULL AND command IS NOT NULL").selectExpr(
        "date_trunc('minute', time) AS minute",
        "command",
        f"max(domain) {_OF_JOB} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
        " AS domain",
        f"last(CASE WHEN command IN {_STEPS} THEN command END, true) {_OF_JOB} "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before",
        f"command IN ('add', 'schedule') AND ({_NEW}) AS new",
    )
    leased = "coalesce(before, '') = 'start-attempt'"
    conditions = {
        "set": "new",
        "leased": "command = 'start-attempt'",
        "completed": f"command = 'complete' AND {leased}",
        "removed": f"command IN {_REMOVALS} AND NOT (command = 'complete' AND {leased})",
        "returned": "command = 'timeout-attempt'",
        "buried": "command = 'fail'",
    }
    counts = [f.expr(f"count_if({test})").alias(name) for name, test in conditions.items()]
    table = events.where("domain IS NOT NULL").groupBy("domain", "minute").agg(*counts)
    return table.where("+".join(THROUGHPUT_NUMBERS) + " > 0").orderBy("domain", "minute")


def throughput_in_all(by_minute: DataFrame) -> DataFrame:
    """Return one row a domain: the sums of ``throughput``, and the number of its minutes."""
    sums = [f.sum(name).alias(name) for name in THROUGHPUT_NUMBERS]
    table = by_minute.groupBy("domain").agg(*sums, f.count("*").alias("minutes"))
    return table.orderBy("domain")
