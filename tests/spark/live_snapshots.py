"""Snapshots with a live index, of logs that no daemon has written."""

from __future__ import annotations

from pathlib import Path

from fastjournal.cmdlog.live_index import RUN_ENTRIES_MAX, LiveIndexWriter
from fastjournal.cmdlog.recovery.inspect_log import inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.snapshot import begin_snapshot
from fastjournal.disk import OsDisk
from fastjournal.spark.live_entries.entry_parts import records_of
from fastjournal.testing.logs import START_US


def take_live_snapshot(
    log: Path, snapshots: Path, *, run_entries: int = RUN_ENTRIES_MAX, taken_us: int = START_US
) -> Path:
    """Take a snapshot of a log directory, and return it.

    Args:
        log: Directory of the log, in which nothing is damaged.
        snapshots: Where to take it, on the same file system.
        run_entries: Entries of a run of the live index, at most.
        taken_us: When it is taken.
    """
    disk = OsDisk()
    inspection = inspect_log(disk, str(log), ReplayState())
    assert not inspection.corrupt, inspection.diagnostics
    partial = begin_snapshot(disk, str(log), str(snapshots), inspection.segments, taken_us)
    write = partial.create_live_index().write
    writer = LiveIndexWriter(write, taken_us, inspection.segments)
    for number, records in records_of(inspection.state).items():
        for first in range(0, len(records.offsets), run_entries):
            offsets = records.offsets[first : first + run_entries]
            changes = {at: records.changes[at] for at in offsets if at in records.changes}
            writer.add_run(number, offsets, changes)
    return Path(partial.finish(writer.finish()))
