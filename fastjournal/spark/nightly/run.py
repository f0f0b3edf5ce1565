"""Run of the nightly analysis: from archive and snapshot to tables and reports.

    OUTPUT/events/day=2026-11-20/    events, from ``history.archive_taking``
    OUTPUT/entries/dt=2026-11-20/    state at the snapshot, from ``export.snapshot_export``
    OUTPUT/backlog, ages, starving, log                     the same, from ``analysis_jobs``
    OUTPUT/throughput, hours, attempts, failures, churn     the history, from ``analysis_jobs``
    OUTPUT/reports/2026-11-20.html

The tables of the history are computed for all days of the trend whose events have changed since;
those of the state once a day, from the first snapshot after it: a later one shows another state.
``day_store`` replaces days, and survives crashes.

A description of a day has the spans and gaps of its report (``DayState.covered``). So a report is
written again after its tables, and after a gap was added or filled; the next run writes one that a
crash between tables and report prevented.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from functools import cache, partial

import msgspec
from pyspark.sql import SparkSession

from fastjournal.cmdlog.archive import list_archived
from fastjournal.cmdlog.snapshot import Manifest, list_snapshots, read_manifest
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError, LogFailedError
from fastjournal.spark.cluster.java_errors import translating_workers
from fastjournal.spark.execution.cluster_tasks import ClusterTasks, process_pool, processors
from fastjournal.spark.export.snapshot_export import PART_BYTES
from fastjournal.spark.history.archive_taking import known_gaps, take_archive
from fastjournal.spark.history.coverage import Span, extended, gaps_of, joined, on_day, spans
from fastjournal.spark.history.days import (
    begin_us,
    days_to_prune,
    is_pruned,
    stale_days,
    trend_days,
)
from fastjournal.spark.history.event_files import (
    EventDirectory,
    EventFile,
    TakenSegment,
    open_events,
)
from fastjournal.spark.history.remote_history import UNUSED
from fastjournal.spark.history.remote_taking import find_work, read_taken, take_work
from fastjournal.spark.nightly.analysis_jobs import (
    HISTORY_JOBS,
    STATE_TABLES,
    TABLES,
    compute_history,
    compute_state,
    export_entries,
)
from fastjournal.spark.nightly.day_store import DayState, HistoryTables, StateTables
from fastjournal.spark.nightly.preparation import Night, snapshot_manifest
from fastjournal.spark.nightly.report.diagnosis import Slow, diagnose
from fastjournal.spark.nightly.report.figures import Figures, TableReader, TableRow, hours_of, load
from fastjournal.spark.nightly.report.report_page import render
from fastjournal.spark.session import is_local

JOBS_VERSION = 2
"""Raised when a job computes another table: days are computed again."""
_DAY = timedelta(days=1)


class NightOutcome(msgspec.Struct):
    """Results of a run."""

    report: str
    """Path or URI of the HTML page."""
    figures: Figures
    slow: list[Slow]
    faults: list[str] = msgspec.field(default_factory=list)
    """Sentences about segments of the remote log that could not be read, and are gaps now."""


@translating_workers()
def run_night(
    start: Callable[[], SparkSession], night: Night, *, tell: Callable[[str], None] = lambda _: None
) -> NightOutcome:
    """Bring events, tables and reports up to date, write the report of a day, and prune.

    Args:
        start: Starts the Spark session; called if there is anything to compute.
        night: Inputs.
        tell: Called with each step.

    Raises:
        LogError: Something cannot be read or written, or is damaged.
        BadRequestError: The snapshot is older than the end of the day.
    """
    start = cache(start)
    store = night.store
    store.begin()
    _, events = open_events(night.history)
    if night.archive is not None:
        tell("taking the archive into the events")
        _take_archive(start, night.archive, events, cluster=night.cluster)
    faults = []
    if night.remote_log is not None:
        tell("taking the remote log into the events")
        faults = _take_remote_log(start, night.remote_log, events, cluster=night.cluster)
    manifest = None if night.snapshot is None else snapshot_manifest(night.snapshot)
    if manifest is not None and manifest.taken_us < begin_us(night.day + timedelta(days=1)):
        raise BadRequestError(
            f"the snapshot was taken before {night.day} ended", hint="name a newer one, or --date"
        )
    states = store.states()
    # days that pruning removes again are not computed
    shown = trend_days(night.day)[-(night.keep_days or 0) :]
    files = _without_late(night, events, states, shown)
    taken = events.segments(files)
    sources = _segments_by_day(files)
    known = {
        day: one.history.segments
        for day, one in states.items()
        if one.history is not None and one.history.jobs == JOBS_VERSION
    }
    stale = stale_days(shown, sources, known)
    if manifest is not None and not night.cluster:
        # before Spark: the memory of both is not needed at once
        tell("exporting the live entries")
        export_entries(night, manifest)
    if stale or manifest is not None:
        tell("starting Spark")
        spark = start()
        # a session of spark-submit has the zone of its machine, and the hours of tables are UTC
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        # its default is a deprecated type without statistics
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        if stale:
            tell("running the jobs on the history")
            compute_history(spark, night, stale)
            days = {
                str(day): HistoryTables(sources.get(str(day), []), JOBS_VERSION) for day in stale
            }
            store.publish(states, days, HISTORY_JOBS)
        if manifest is not None:
            tell("running the jobs on the snapshot")
            compute_state(spark, night, manifest)
            own = {str(night.day): _state_of(night, manifest, taken)}
            store.publish(states, own, STATE_TABLES)
    tell("writing the report")
    covered = _coverage(night, states, files, events, taken)
    outcome = write_reports(night, states, covered, shown)
    store.end()
    store.prune(TABLES, days_to_prune(states, night.day, night.keep_days))
    events.remove(file for file in files if file.day < _first_kept(night))
    outcome.faults = faults
    return outcome


def _take_archive(
    start: Callable[[], SparkSession], archive: str, events: EventDirectory, *, cluster: bool
) -> None:
    """Take the archive: in executors of a cluster, else in processes here."""
    size = int(archive_figures(archive)["bytes"])
    if cluster and size:
        spark = start()
        if not is_local(str(spark.sparkContext.master)):
            tasks = ClusterTasks(spark)
            take_archive(OsDisk(), archive, events, tasks, parallel=tasks.parallel)
            return
    processes = processors() if size > PART_BYTES else 1
    with process_pool(processes) as pool:
        take_archive(OsDisk(), archive, events, pool, parallel=processes)


def _take_remote_log(
    start: Callable[[], SparkSession], url: str, events: EventDirectory, *, cluster: bool
) -> list[str]:
    """Take the remote log, as the archive is taken; return sentences about what is lost."""
    work = find_work(url, events)
    if cluster and work.bytes:
        spark = start()
        if not is_local(str(spark.sparkContext.master)):
            tasks = ClusterTasks(spark)
            return take_work(url, events, work, tasks, tasks.parallel).faults
    processes = processors() if work.bytes > PART_BYTES else 1
    with process_pool(processes) as pool:
        return take_work(url, events, work, pool, processes).faults


def _first_kept(night: Night) -> str:
    """Return the first day whose events stay."""
    return str(
        date.min if night.keep_events is None else night.day - _DAY * (night.keep_events - 1)
    )


def _without_late(
    night: Night, events: EventDirectory, states: Mapping[str, DayState], shown: Sequence[date]
) -> list[EventFile]:
    """Return the event files; those that came to days that were pruned before are removed again.

    They would be a history of that segment alone, with gaps around it.
    """
    files = events.listed()
    sources, wanted = _segments_by_day(files), {str(day) for day in shown}
    late = set[str]()
    for day in sources:
        history = states.get(day, DayState()).history
        computed = None if history is None else history.segments
        if day < _first_kept(night) and (day not in wanted or is_pruned(sources[day], computed)):
            late.add(day)
    events.remove(file for file in files if file.day in late)
    return [file for file in files if file.day not in late]


def _state_of(night: Night, manifest: Manifest, taken: Sequence[TakenSegment]) -> StateTables:
    """Return what the tables of the state were computed from."""
    assert night.snapshot is not None
    last = manifest.segments[-1].number if manifest.segments else 0
    has_all = last in {segment.number for segment in taken}
    return StateTables(night.snapshot, manifest.taken_us, last if has_all else None)


def _segments_by_day(files: Iterable[EventFile]) -> dict[str, list[str]]:
    """Return the segments of the events of each day."""
    found = defaultdict[str, list[str]](list)
    for file in files:
        found[file.day].append(file.segment)
    return dict(found)


def _coverage(
    night: Night,
    states: Mapping[str, DayState],
    files: Sequence[EventFile],
    events: EventDirectory,
    taken: Sequence[TakenSegment],
) -> list[Span]:
    """Return the spans and gaps of the history; of days whose events were pruned as last shown."""
    known, last = ([], 0) if night.archive is None else known_gaps(OsDisk(), night.archive)
    remote = read_taken(events)
    if remote is not None:
        known, last = [*known, *remote.gaps], max(last, remote.last)
    gaps = [gap for gap in gaps_of(taken, known, last) if gap.reason != UNUSED]
    found = spans(taken, gaps)
    first = files[0].day if files else str(date.max)
    for day, state in states.items():
        if day < first and state.covered is not None:
            found += state.covered
    seals = [
        (one.state.sealed, one.state.taken_us)
        for one in states.values()
        if one.state is not None and one.state.sealed is not None
    ]
    return extended(joined(found), seals)


# --- reports --------------------------------------------------------------------------------------


def write_reports(
    night: Night, states: dict[str, DayState], covered: list[Span], days: Iterable[date]
) -> NightOutcome:
    """Write the report of the day of a run, and those of older days that show other figures now.

    Args:
        night: Inputs.
        states: Descriptions of the days, whose tables are in place.
        covered: Spans and gaps of the history.
        days: Days whose reports may change; one without tables has none.
    """
    for day in days:
        state = states.get(str(day))
        if day < night.day and state is not None and state.covered != on_day(covered, day):
            _write_report(night, states, covered, day)
    return _write_report(night, states, covered, night.day)


def _write_report(
    night: Night, states: dict[str, DayState], covered: list[Span], day: date
) -> NightOutcome:
    """Write report and description of a day."""
    store, state = night.store, states.get(str(day), DayState())
    reader = TableReader(store, states)
    figures = load(
        reader,
        day,
        state,
        covered,
        archive=archive_figures(night.archive),
        snapshots=_snapshot_figures(state.snapshot),
    )
    slow = diagnose(figures, partial(hours_of, reader))
    place = store.put_report(str(day), render(figures, slow).encode())
    states[str(day)] = msgspec.structs.replace(state, covered=on_day(covered, day))
    store.describe(str(day), states[str(day)])
    return NightOutcome(place, figures, slow)


def archive_figures(archive: str | None) -> TableRow:
    """Return count and bytes of the segments that no run has taken."""
    if archive is None:
        return {"waiting": None, "bytes": None}
    disk = OsDisk()
    sizes = []
    for file in list_archived(disk, archive):
        with suppress(LogFailedError):  # the daemon may drop it at any time
            sizes.append(disk.size(f"{archive}/{file.name}"))
    return {"waiting": len(sizes), "bytes": sum(sizes)}


def _snapshot_figures(snapshot: str | None) -> TableRow:
    """Return count and bytes of the snapshots in the directory of one, on this machine.

    ``unreadable``: other snapshots whose manifest is damaged or missing; no bytes are known.
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
