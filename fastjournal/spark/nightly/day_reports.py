"""Reports of a nightly run: that of its day, and those of older days that show other figures now.

A description of a day says what its report shows (``reported``). Tables are published before the
reports are made from them, so the next run makes the reports that a crash between has cost.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import date
from functools import partial

import msgspec

from fastjournal.cmdlog.archive_format import list_archived
from fastjournal.cmdlog.snapshot import list_snapshots, read_manifest
from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.history.coverage import Span, extended, on_day, spans
from fastjournal.spark.history.event_table import EventTable
from fastjournal.spark.nightly.day_store import REPORTS, DayState
from fastjournal.spark.nightly.inputs import Night
from fastjournal.spark.nightly.report.diagnosis import Slow, diagnose
from fastjournal.spark.nightly.report.figures import Figures, TableRow, hours_of, load
from fastjournal.spark.nightly.report.report_page import render


class NightOutcome(msgspec.Struct):
    """Results of a run."""

    report: str
    """Path or URI of the HTML page."""
    figures: Figures
    slow: list[Slow]


def write_reports(
    night: Night, states: dict[str, DayState], table: EventTable, days: Iterable[date]
) -> NightOutcome:
    """Write the report of the day of a run, and those of older days that show other figures now.

    Args:
        night: Inputs.
        states: Descriptions of the days, whose tables are in place.
        table: The events.
        days: Days whose reports may change; one without tables has none.
    """
    store = night.store
    seals = [
        (one.sealed, one.taken_us)
        for one in states.values()
        if one.sealed is not None and one.taken_us is not None
    ]
    covered = extended(spans(table.taken, table.gaps), seals)
    for day in days:
        state = states.get(str(day))
        if day < night.day and state is not None and state.reported != _shown(state, covered, day):
            _write_report(night, states, covered, day)
    outcome = _write_report(night, states, covered, night.day)
    store.publish([])
    return outcome


def _shown(state: DayState, covered: Sequence[Span], day: date) -> str:
    """Return a fingerprint of what a report shows of its own day."""
    told = (state.source, state.taken_us, on_day(covered, day))
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()


def _write_report(
    night: Night, states: dict[str, DayState], covered: list[Span], day: date
) -> NightOutcome:
    """Write report and description of a day into the staging tree."""
    store, state = night.store, states.get(str(day), DayState(None))
    figures = load(
        store,
        day,
        state,
        covered,
        archive=archive_figures(night.archive),
        snapshots=_snapshot_figures(state.snapshot),
    )
    slow = diagnose(figures, partial(hours_of, store))
    name = f"{REPORTS}/{day}.html"
    store.write(name, render(figures, slow).encode())
    state = msgspec.structs.replace(state, reported=_shown(state, covered, day))
    states[str(day)] = state
    store.describe(day, state)
    return NightOutcome(store.place(name), figures, slow)


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
