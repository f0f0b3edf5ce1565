"""Recovery: from a log directory, in whatever state, to what is live and where to append.

What a crash leaves is dealt with: a segment that was being rewritten is deleted, the torn tail of
the last segment is kept as ``<segment>.torn-<time>`` and cut off, durably. Damage anywhere else
stops recovery before anything has been changed, unless ``repair`` is asked for. See
``cmdlog.recovery.inspect_log`` for what is what, ``cmdlog.recovery.repair`` for how damage is taken
out.

The last segment goes on being appended to if it begins as ours do. In a log that workq recorded
appending goes on in a new segment. What a killed daemon had written but not synced is replayed too:
``LogWriter`` syncs it before anything is built on it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER
from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournal.cmdlog.recovery.inspect_log import Finding, Progress, Survey, take_survey
from fastjournal.cmdlog.recovery.loss_report import format_time
from fastjournal.cmdlog.recovery.repair import keep_aside, repair_segments
from fastjournal.cmdlog.recovery.replay_state import LogState
from fastjournal.cmdlog.recovery.value_budget import ValueLimit
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError
from fastjournal.limits import TOMBSTONE_TTL_US, TOMBSTONES_BYTES_MAX, TOMBSTONES_MAX

__all__ = ["Finding", "Progress", "Recovered", "recover", "verify"]


class Recovered(msgspec.Struct, gc=False):
    """A log that is ready to be appended to."""

    state: LogState
    sealed: list[SegmentInfo]
    """All segments but the active one, ascending."""
    active: SegmentInfo | None
    """The segment to append to; None: a new one is needed."""
    findings: list[Finding]
    """What was cut, deleted or repaired, and where the bytes are kept."""


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
) -> Recovered:
    """Replay a log and make it fit to be appended to.

    Args:
        disk: Where the log is.
        directory: Of the log; the caller holds its append lock.
        now_us: The present, in microseconds since the Unix epoch: names what is kept aside.
        repair: Take out damage, keeping its bytes aside, instead of refusing it.
        tombstones_max: Of more than so many the oldest are forgotten.
        tombstone_ttl_us: How long a tombstone stands: one that is over does not hold against a new
            one under its key.
        tombstones_bytes_max: Of those that take more in memory the oldest are forgotten.
        limit: How much memory what is live may take; None: all values are kept.
        on_progress: Called a few times a second.

    Raises:
        LogCorruptError: There is damage, and ``repair`` was not asked for; nothing was changed.
        LogLockedError: A repair is due, and another process reads the log.
        LogFailedError: Something cannot be read or written.
    """
    state = LogState(tombstones_max, tombstone_ttl_us, tombstones_bytes_max)
    survey = take_survey(disk, directory, state, on_progress, limit)
    repaired: list[Finding] = []
    found_at: dict[tuple[str, str], int] = {}
    if survey.faults:
        if not repair:
            raise _refusal(survey)
        kept = repair_segments(disk, directory, survey, now_us=now_us)
        repaired = [
            msgspec.structs.replace(finding, kept=kept.get((finding.path, finding.offset)))
            for finding in survey.findings
            # what was left over of a segment that has been repaired went with that
            if finding.damage or (finding.kind == "leftover" and not disk.exists(finding.path))
        ]
        # what a repair says of segments at the end of the last one stands before its torn tail
        found_at = {(found.kind, found.path): found.offset for found in survey.findings}
        # positions have moved, and this proves that the log loads without repair
        state = LogState(tombstones_max, tombstone_ttl_us, tombstones_bytes_max)
        survey = take_survey(disk, directory, state, on_progress, limit)
        if survey.faults:
            raise _refusal(survey)
    settled = [_settle(disk, finding, now_us) for finding in survey.findings]
    findings = repaired + [
        msgspec.structs.replace(
            finding, offset=found_at.get((finding.kind, finding.path), finding.offset)
        )
        for finding in settled
    ]
    if findings:
        disk.sync_directory(directory)
    segments = survey.segments
    if survey.begins:
        return Recovered(survey.state, segments[:-1], segments[-1], findings)
    return Recovered(survey.state, segments, None, findings)


def verify(
    disk: Disk,
    directory: str,
    *,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Finding]:
    """Return everything that is wrong with a log, changing nothing.

    In the log of a running daemon the last segment may look torn: a write may be on its way.

    Raises:
        LogFailedError: Something cannot be read.
    """
    return take_survey(disk, directory, LogState(), on_progress).findings


def _refusal(survey: Survey) -> LogCorruptError:
    damage = [finding for finding in survey.findings if finding.damage]
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
        hint=f"'fj-cli log verify {directory}' tells all of it; restore the file, or --repair goes"
        f" on without {without}",
    )


def _settle(disk: Disk, finding: Finding, now_us: int) -> Finding:
    """Deal with what a crash has left."""
    path = finding.path
    if finding.kind == "leftover":
        disk.unlink(path)
        return finding
    data = disk.read_slice(path, finding.offset, finding.bytes)
    kept = None
    if not (finding.kind == "empty" and SEGMENT_HEADER.startswith(data.rstrip(b"\0"))):
        stamp = format_time(now_us).replace("-", "").replace(":", "")
        kept = keep_aside(disk, f"{path}.torn-{stamp}", data, like=path)
        directory = path.rpartition("/")[0]
        disk.sync_directory(directory)
    if finding.kind == "empty":
        disk.unlink(path)
    else:
        disk.truncate(path, finding.offset)
    return msgspec.structs.replace(finding, kept=kept)
