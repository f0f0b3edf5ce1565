"""Run of the nightly analysis: from archive and snapshot to tables and report.

    OUTPUT/entries/dt=2026-11-20/    state at the snapshot, from ``export.snapshot_export``
    OUTPUT/backlog, ages, starving, log                 the same, from ``state_jobs``
    OUTPUT/throughput, hours, attempts, failures, churn     the history, from ``history_jobs``
    OUTPUT/reports/2026-11-20.html

The tables of the history are computed for all days of the trend whose events have changed since,
and their reports are written again.
Those of the state are computed once a day, from the first snapshot behind it: a later one shows
another state. ``day_store`` replaces days and survives crashes.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache

import msgspec
from pyspark.sql import SparkSession

from fastjournal.cmdlog.snapshot import Manifest
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError
from fastjournal.spark.cluster.java_errors import translating_workers
from fastjournal.spark.execution.cluster_tasks import ClusterTasks
from fastjournal.spark.execution.process_pool import process_pool, processors
from fastjournal.spark.export.snapshot_export import PART_BYTES
from fastjournal.spark.history.days import begin_us, days_to_prune, stale_days, trend_days
from fastjournal.spark.history.event_table import EventTable
from fastjournal.spark.nightly import history_jobs
from fastjournal.spark.nightly.analysis_tables import (
    STATE_TABLES,
    TABLES,
    compute_history,
    compute_state,
    export_entries,
)
from fastjournal.spark.nightly.day_reports import NightOutcome, archive_figures, write_reports
from fastjournal.spark.nightly.day_store import DayState
from fastjournal.spark.nightly.inputs import Night, snapshot_manifest
from fastjournal.spark.session import is_local
from fastjournal.spark.storage.table_files import open_table

JOBS_VERSION = 1
"""Raised when a job computes another table: days are computed again."""


@translating_workers()
def run_night(
    start: Callable[[], SparkSession], night: Night, *, tell: Callable[[str], None] = lambda _: None
) -> NightOutcome:
    """Bring tables and reports up to date, write the report of a day, and prune.

    Args:
        start: Starts the Spark session; called where there is anything to compute.
        night: Inputs.
        tell: Called with each step.

    Raises:
        LogError: Something cannot be read or written, or is damaged.
        BadRequestError: The snapshot is older than the end of the day.
    """
    start = cache(start)
    store = night.store
    store.begin()
    _, files, path = open_table(night.history)
    table = EventTable(OsDisk(), path, files=files, guard=store.guard)
    if night.archive is not None:
        tell("taking the archive into the table of events")
        _take_archive(start, night.archive, table, cluster=night.cluster)
    manifest = None if night.snapshot is None else snapshot_manifest(night.snapshot)
    if manifest is not None and manifest.taken_us < begin_us(night.day + timedelta(days=1)):
        raise BadRequestError(
            f"the snapshot was taken before {night.day} ended", hint="name a newer one, or --date"
        )
    states = store.states()
    sources = _fingerprints(table)
    known = {day: one.source for day, one in states.items() if one.source is not None}
    # days that pruning removes again are not computed
    shown = trend_days(night.day)[-(night.keep_days or 0) :]
    # the tables of days whose events were pruned stay as they were computed
    wanted = [one for one in shown if str(one) >= table.kept_from]
    stale = stale_days(wanted, sources, known)
    if manifest is not None and not night.cluster:
        # before Spark: the memory of both is not needed at once
        tell("exporting the live entries")
        export_entries(night, manifest)
    if stale or manifest is not None:
        tell("starting Spark")
        spark = start()
        # microseconds: the default is a deprecated type without statistics
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        # a session of spark-submit has the zone of its machine, and the hours of tables are UTC
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for day in stale:
            old = states.get(str(day), DayState(None))
            states[str(day)] = msgspec.structs.replace(old, source=sources.get(str(day)))
        if stale:
            tell("running the jobs on the history")
            compute_history(spark, night, stale)
        if manifest is not None:
            tell("running the jobs on the snapshot")
            compute_state(spark, night, manifest)
            states[str(night.day)] = _with_snapshot(states, night, manifest, table)
        for day in {*stale, night.day}:
            if str(day) in states:
                store.describe(day, states[str(day)])
        written = [(name, day) for name in history_jobs.HISTORY_JOBS for day in stale]
        if manifest is not None:
            written += [(name, night.day) for name in STATE_TABLES]
        store.publish(written)
        store.begin()
    tell("writing the report")
    outcome = write_reports(night, states, table, shown)
    store.end()
    store.prune(TABLES, days_to_prune(states, night.day, night.keep_days))
    if night.keep_events is not None:
        table.prune(night.day - timedelta(days=night.keep_events - 1))
    return outcome


def _take_archive(
    start: Callable[[], SparkSession], archive: str, table: EventTable, *, cluster: bool
) -> None:
    """Take the archive into the table: in executors of a cluster, else in processes here."""
    size = int(archive_figures(archive)["bytes"])
    if cluster and size:
        spark = start()
        if not is_local(str(spark.sparkContext.master)):
            tasks = ClusterTasks(spark)
            table.update(archive, tasks, parallel=tasks.parallel)
            return
    processes = processors() if size > PART_BYTES else 1
    with process_pool(processes) as pool:
        table.update(archive, pool, parallel=processes)


def _with_snapshot(
    states: Mapping[str, DayState], night: Night, manifest: Manifest, table: EventTable
) -> DayState:
    """Return the description of the day with the snapshot of the run."""
    last = manifest.segments[-1].number if manifest.segments else 0
    has_all = last in {segment.number for segment in table.taken}
    return msgspec.structs.replace(
        states.get(str(night.day), DayState(None)),
        snapshot=night.snapshot,
        taken_us=manifest.taken_us,
        sealed=last if has_all else None,
    )


def _fingerprints(table: EventTable) -> dict[str, str]:
    """Return a fingerprint of the files of each day that has events."""
    files = defaultdict[str, list[str]](list)
    for segment in table.taken:
        for file in segment.files:
            files[file.partition("/")[0].removeprefix("day=")].append(file)
    return {
        day: hashlib.sha256("\n".join([str(JOBS_VERSION), *sorted(names)]).encode()).hexdigest()
        for day, names in files.items()
    }
