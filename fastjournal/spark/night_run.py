"""Run of the nightly analysis: from archive and snapshot to tables and report.

    OUTPUT/entries/dt=2026-11-20/    state at the snapshot, from ``fastjournal.spark.export``
    OUTPUT/backlog, ages, starving, log                 the same, from ``state_jobs``
    OUTPUT/throughput, hours, attempts, failures, churn     the history, from ``jobs``
    OUTPUT/reports/2026-11-20.html

The tables of the history are computed for all days of the trend whose events have changed since.
Those of the state are computed once a day, from the first snapshot behind it: a later one shows
another state. ``day_store`` replaces days and survives crashes.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, timedelta
from functools import cache, partial

import msgspec
from pyspark.sql import DataFrame, SparkSession

import fastjournal.spark
from fastjournal.cmdlog.archive_format import list_archived
from fastjournal.cmdlog.snapshot import Manifest, list_snapshots, read_manifest
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError, LogFailedError
from fastjournal.spark import jobs, state_jobs
from fastjournal.spark.cluster_tasks import ClusterTasks
from fastjournal.spark.columns import sql_schema
from fastjournal.spark.coverage import extended, spans
from fastjournal.spark.day_store import REPORTS, DayState, DayStore
from fastjournal.spark.days import begin_us, days_to_prune, stale_days, trend_days
from fastjournal.spark.duckdb_engine import processors
from fastjournal.spark.event_table import EventTable
from fastjournal.spark.export import PART_BYTES, export_snapshot
from fastjournal.spark.files import LogDirectory, below, hadoop_uri, is_s3
from fastjournal.spark.partition_replay import ENTRY_COLUMNS
from fastjournal.spark.paths import list_directory
from fastjournal.spark.process_pool import process_pool
from fastjournal.spark.record_columns import RECORD_COLUMNS
from fastjournal.spark.report.diagnosis import Slow, diagnose
from fastjournal.spark.report.figures import Figures, Row, hours_of, load
from fastjournal.spark.report.page import render
from fastjournal.spark.session import is_local, translating
from fastjournal.spark.store_frames import read_parquet, stored_schema, write_parquet
from fastjournal.spark.table_files import open_table

JOBS_VERSION = 1
"""Raised when a job computes another table: days are computed again."""
STATE_TABLES = ("entries", "backlog", "ages", "starving", "log")
TABLES = (*STATE_TABLES, *jobs.HISTORY_JOBS)

_RECORD_NAMES = ("segment", "offset", "size")
_RECORDS = sql_schema([column for column in RECORD_COLUMNS if column.name in _RECORD_NAMES])


class Night(msgspec.Struct):
    """Inputs of a run."""

    day: date
    store: DayStore
    history: str
    """Path or URI of the directory in which ``events`` stands."""
    archive: str | None = None
    snapshot: str | None = None
    """Snapshot of which the state is computed; None: the state stays as it is stored."""
    keep_days: int | None = None
    cluster: bool = False
    """Whether Spark may have executors on other machines; these take the archive then, too."""
    keep_events: int | None = None
    """Days whose events stay, that of the report and those before it; None: all."""


class Outcome(msgspec.Struct):
    """Results of a run."""

    report: str
    """Path or URI of the HTML page."""
    figures: Figures
    slow: list[Slow]


def snapshot_manifest(snapshot: str) -> Manifest:
    """Return the manifest of a snapshot.

    Raises:
        LogCorruptError: It is none, or is damaged.
        LogFailedError: It cannot be read.
    """
    manifest = LogDirectory(snapshot).manifest
    if manifest is None:
        raise LogCorruptError(
            "there is no manifest, so this is no snapshot",
            path=snapshot,
            hint="name the directory that 'fj-cli snapshot' printed",
        )
    return manifest


def check_archive(archive: str) -> None:
    """Check that a directory is an archive.

    Raises:
        BadRequestError: It is none.
    """
    disk = OsDisk()
    if not os.path.isdir(archive):
        raise BadRequestError(
            f"--archive {archive} is no directory", hint="name the daemon's --archive-dir"
        )
    if not disk.exists(f"{archive}/ARCHIVE.json") and not list_archived(disk, archive):
        raise BadRequestError(
            f"--archive {archive} holds no archive", hint="name the daemon's --archive-dir"
        )


@translating()
def run_night(
    start: Callable[[], SparkSession], night: Night, *, tell: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Bring the tables up to date, write the report of a day, and prune.

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
    wanted = trend_days(night.day)[-(night.keep_days or 0) :]
    # the tables of days whose events were pruned stay as they were computed
    wanted = [one for one in wanted if str(one) >= table.kept_from]
    stale = stale_days(wanted, sources, known)
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
            _compute_history(spark, night, stale)
        if manifest is not None:
            tell("running the jobs on the snapshot")
            _compute_state(spark, night, manifest)
            states[str(night.day)] = _with_snapshot(states, night, manifest, table)
        for day in {*stale, night.day}:
            if str(day) in states:
                store.describe(day, states[str(day)])
        written = [(name, day) for name in jobs.HISTORY_JOBS for day in stale]
        if manifest is not None:
            written += [(name, night.day) for name in STATE_TABLES]
        store.publish(written)
        store.begin()
    outcome = _report(night, states, table)
    store.end()
    store.prune(TABLES, days_to_prune(states, night.day, night.keep_days))
    if night.keep_events is not None:
        table.prune(night.day - timedelta(days=night.keep_events - 1))
    return outcome


def _take_archive(
    start: Callable[[], SparkSession], archive: str, table: EventTable, *, cluster: bool
) -> None:
    """Take the archive into the table: in executors of a cluster, else in processes here."""
    size = int(_archive_figures(archive)["bytes"])
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


def _compute_history(spark: SparkSession, night: Night, days: list[date]) -> None:
    events = _events(spark, night, days)
    for name, job in jobs.HISTORY_JOBS.items():
        _write(job(events), name, night.store)


def _events(spark: SparkSession, night: Night, days: list[date]) -> DataFrame:
    """Return the events of days; no run may have had an archive yet."""
    found = fastjournal.spark.events(spark, night.history, days=days, missing_ok=True)
    return jobs.of_days(found, days)


def _write(frame: DataFrame, name: str, store: DayStore) -> None:
    """Write a table into the staging tree: a file a day, its rows in one order."""
    columns = [column for column in frame.columns if column != "dt"]
    ordered = frame.repartition("dt").sortWithinPartitions("dt", *columns)
    place = store.staged(name)
    if is_s3(place):
        write_parquet(ordered, place, by="dt")
    else:
        ordered.write.mode("overwrite").partitionBy("dt").parquet(hadoop_uri(place))


def _compute_state(spark: SparkSession, night: Night, manifest: Manifest) -> None:
    assert night.snapshot is not None
    store, day = night.store, night.day
    staged = store.staged(f"entries/dt={day}")
    if str(spark.sparkContext.master).startswith("local"):
        export_snapshot(night.snapshot, staged)
    else:
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
    if is_s3(place):
        write_parquet(frame, place)
    else:
        frame.write.mode("overwrite").parquet(hadoop_uri(place))


def _read_whole(spark: SparkSession, place: str) -> DataFrame:
    """Return the rows of a directory of Parquet files."""
    if not is_s3(place):
        return spark.read.parquet(hadoop_uri(place))
    names = sorted(str(one.base_name) for one in list_directory(place))
    files = [below(place, name) for name in names if name.endswith(".parquet")]
    if not files:
        return spark.createDataFrame([], sql_schema(ENTRY_COLUMNS))
    return read_parquet(spark, files, stored_schema(files[0]))


def _report(night: Night, states: Mapping[str, DayState], table: EventTable) -> Outcome:
    store, day = night.store, night.day
    seals = [
        (one.sealed, one.taken_us)
        for one in states.values()
        if one.sealed is not None and one.taken_us is not None
    ]
    figures = load(
        store,
        day,
        states.get(str(day), DayState(None)),
        extended(spans(table.taken, table.gaps), seals),
        archive=_archive_figures(night.archive),
        snapshots=_snapshot_figures(states.get(str(day), DayState(None)).snapshot),
    )
    slow = diagnose(figures, partial(hours_of, store))
    page = render(figures, slow).encode()
    return Outcome(store.put(f"{REPORTS}/{day}.html", page), figures, slow)


def _archive_figures(archive: str | None) -> Row:
    """Return count and bytes of the segments that no run has taken."""
    if archive is None:
        return {"waiting": None, "bytes": None}
    disk = OsDisk()
    sizes = []
    for file in list_archived(disk, archive):
        with suppress(LogFailedError):  # the daemon may drop it at any time
            sizes.append(disk.size(f"{archive}/{file.name}"))
    return {"waiting": len(sizes), "bytes": sum(sizes)}


def _snapshot_figures(snapshot: str | None) -> Row:
    """Return count and bytes of the snapshots in the directory of one, on this machine.

    ``unreadable``: snapshots beside these whose manifest is damaged or gone; no bytes are known.
    """
    if snapshot is None or not os.path.isdir(snapshot):
        return {"count": None, "bytes": None, "unreadable": []}
    disk = OsDisk()
    sizes, unreadable = [], []
    for path in list_snapshots(disk, os.path.dirname(os.path.abspath(snapshot))):
        try:
            sizes.append(read_manifest(disk, path).bytes)
        except (LogCorruptError, LogFailedError):
            unreadable.append(os.path.basename(path))
    return {"count": len(sizes), "bytes": sum(sizes), "unreadable": unreadable}
