"""Recovery: from a log directory, in any state, to the live state and the position to append at.

Recovery repairs the traces of a crash: a segment that was being rewritten is deleted, the torn tail
of the last segment is kept as ``<segment>.torn-<time>`` and cut off, durably. Damage anywhere else
stops recovery before anything has been changed, unless ``repair`` is requested.
``cmdlog.recovery.inspect_log`` has the kinds of faults, ``cmdlog.recovery.repair`` the repair.

Appending continues in the last segment if it begins like those of fastjournald. In a log that workq
wrote it continues in a new segment. Records that a killed daemon had written but not synced are
replayed too: ``LogWriter`` syncs them before anything depends on them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, SegmentInfo
from fastjournal.cmdlog.recovery.inspect_log import Diagnostic, LogInspection, Progress, inspect_log
from fastjournal.cmdlog.recovery.loss_report import format_time
from fastjournal.cmdlog.recovery.repair import keep_aside, repair_segments
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.segment_reader import StartPacker
from fastjournal.cmdlog.recovery.value_budget import ValueLimit
from fastjournal.disk import Disk, lacks_room
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.limits import (
    CLOCK_STEP_US_MIN,
    TOMBSTONE_TTL_US,
    TOMBSTONES_BYTES_MAX,
    TOMBSTONES_MAX,
)

__all__ = ["Diagnostic", "Progress", "Recovered", "recover", "verify"]


class Recovered(msgspec.Struct, gc=False):
    """A log that is ready to be appended to."""

    state: ReplayState
    sealed: list[SegmentInfo]
    """All segments but the active one, ascending."""
    active: SegmentInfo | None
    """The segment to append to; None: a new one is needed."""
    diagnostics: list[Diagnostic]
    """Everything that was cut, deleted or repaired, and where the bytes are kept."""


def recover(
    disk: Disk,
    directory: str,
    *,
    now_us: int,
    repair: bool = False,
    tombstones_max: int = TOMBSTONES_MAX,
    tombstone_ttl_us: int = TOMBSTONE_TTL_US,
    tombstones_bytes_max: int = TOMBSTONES_BYTES_MAX,
    limit: ValueLimit | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    start_packer: StartPacker | None = None,
    listed: bool = False,
) -> Recovered:
    """Replay a log and prepare it for appending.

    Args:
        disk: Disk of the log.
        directory: Directory of the log; the caller holds its append lock.
        now_us: Present instant, in microseconds since the Unix epoch: used in names of kept files.
            Durations that began more than ``CLOCK_STEP_US_MIN`` later are noted.
        repair: Take out damage, keeping its bytes aside, instead of refusing it.
        tombstones_max: Most tombstones; the oldest are dropped first.
        tombstone_ttl_us: Lifetime of a tombstone: an expired one does not hold against a new one of
            its key.
        tombstones_bytes_max: Memory of tombstones; beyond it the oldest are dropped.
        limit: Bound on the memory of the live state; None: all values are kept.
        on_progress: Called a few times a second.
        start_packer: Starts the process that packs segments ahead; None: there is none.
        listed: A remote log has checked that these segments are whole, and all there are: records
            that say otherwise do not count. A taker that followed from an older checkpoint says
            how segments are that a newer one does not have.

    Raises:
        LogCorruptError: There is damage, and ``repair`` was not requested; nothing was changed.
        LogLockedError: A repair is needed, and another process reads the log.
        LogFailedError: A file cannot be read or written.
    """

    def inspect() -> LogInspection:
        present_us = now_us + CLOCK_STEP_US_MIN
        state = ReplayState(tombstones_max, tombstone_ttl_us, tombstones_bytes_max, present_us)
        return inspect_log(disk, directory, state, on_progress, limit, start_packer)

    inspection = inspect()
    if listed:
        _drop_breaks(inspection)
    repaired: list[Diagnostic] = []
    found_at: dict[tuple[str, str], int] = {}
    if inspection.corrupt:
        if not repair:
            raise _refusal(inspection)
        repaired = _repair(disk, directory, inspection, now_us)
        # records of a repair, at the end of the last segment, are before its torn tail
        found_at = {(found.kind, found.path): found.offset for found in inspection.diagnostics}
        # positions have moved, and this proves that the log loads without repair
        inspection = inspect()
        if inspection.corrupt:
            raise _refusal(inspection)
    diagnostics = list(repaired)
    paths = {found.path for found in repaired}
    for found in inspection.diagnostics:
        offset = found_at.get((found.kind, found.path), found.offset)
        settled = msgspec.structs.replace(_settle(disk, found, now_us), offset=offset)
        if found.kind != "empty" or found.path not in paths:
            # otherwise the repair removed it, and reported that
            diagnostics.append(settled)
    if diagnostics:
        disk.sync_directory(directory)
    segments = inspection.segments
    if inspection.begins:
        return Recovered(inspection.state, segments[:-1], segments[-1], diagnostics)
    return Recovered(inspection.state, segments, None, diagnostics)


def _drop_breaks(inspection: LogInspection) -> None:
    """Drop what records say of segments: that they had other bytes, or that there were more."""
    inspection.corrupt = [found for found in inspection.corrupt if found.damage]
    inspection.diagnostics = [
        each for each in inspection.diagnostics if each.kind not in ("differs", "missing")
    ]


def _repair(disk: Disk, directory: str, inspection: LogInspection, now_us: int) -> list[Diagnostic]:
    """Take the damage out; return what was, and where its bytes are kept."""
    kept = repair_segments(disk, directory, inspection, now_us=now_us)
    return [
        msgspec.structs.replace(found, kept=kept.get((found.path, found.offset)))
        for found in inspection.diagnostics
        # leftovers of a repaired segment were removed with it
        if found.damage or (found.kind == "leftover" and not disk.exists(found.path))
    ]


def verify(
    disk: Disk,
    directory: str,
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Diagnostic]:
    """Return everything that is wrong with a log, changing nothing.

    In the log of a running daemon the last segment may look torn: a write may be on its way.

    Raises:
        LogFailedError: Something cannot be read.
    """
    return inspect_log(disk, directory, ReplayState(), on_progress).diagnostics


def _refusal(inspection: LogInspection) -> LogCorruptError:
    damage = [diagnostic for diagnostic in inspection.diagnostics if diagnostic.damage]
    first = damage[0]
    message = first.message
    if len(damage) > 1:
        message += f" (and {len(damage) - 1} more)"
    directory = first.path.rpartition("/")[0]
    without = {"missing": "it", "differs": "what is not there"}.get(
        first.kind, "the damaged bytes and keeps them aside"
    )
    return LogCorruptError(
        message,
        path=first.path,
        offset=first.offset,
        hint=f"'fj-cli log verify {directory}' lists all of it; restore the file, or --repair goes"
        f" on without {without}",
    )


def _settle(disk: Disk, diagnostic: Diagnostic, now_us: int) -> Diagnostic:
    """Repair the trace of a crash."""
    path = diagnostic.path
    if diagnostic.kind == "leftover":
        disk.unlink(path)
        return diagnostic
    directory = path.rpartition("/")[0]
    data = disk.read_slice(path, diagnostic.offset, diagnostic.bytes)
    if diagnostic.kind == "empty" and SEGMENT_HEADER.startswith(data.rstrip(b"\0")):
        disk.unlink(path)
        return diagnostic
    stamp = format_time(now_us).replace("-", "").replace(":", "")
    aside = f"{path}.torn-{stamp}"
    kept = _keep_if_room(disk, aside, data, like=path)
    if kept is not None:
        disk.sync_directory(directory)
    if diagnostic.kind == "empty":
        disk.unlink(path)
    else:
        disk.truncate(path, diagnostic.offset)
    message = diagnostic.message
    if kept is None:
        # on a full disk workers must still be able to finish: it has the room of the tail itself
        like = directory if diagnostic.kind == "empty" else path
        kept = _keep_if_room(disk, aside, data, like=like)
        message += "" if kept else "; there is no room to keep the bytes"
    return msgspec.structs.replace(diagnostic, kept=kept, message=message)


def _keep_if_room(disk: Disk, path: str, data: bytes, *, like: str) -> str | None:
    """Write the end of a segment to a new file; return its path, None where there is no room."""
    try:
        return keep_aside(disk, path, data, like=like)
    except LogFailedError as error:
        if not lacks_room(error):
            raise
        return None
