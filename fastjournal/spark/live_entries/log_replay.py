"""Replay of a log that has no live index, by the daemon's own recovery, in one process.

The result are the same places and changes that a live index names, so entries are read in the same
way. While the log is replayed, memory holds all entries as in a daemon that starts, and values of
less than ``VALUE_BYTES_MIN``; behind it, 8 bytes an entry, and the changed ones.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import cast

import google_crc32c

from fastjournal.cmdlog.format.layout import (
    SEGMENT_HEADER,
    segment_name,
    segment_number,
    unpack_position,
)
from fastjournal.cmdlog.live_index import LiveChanges, LiveRecords, ReadBytes
from fastjournal.cmdlog.recovery.inspect_log import Diagnostic, inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import NO_COLD_FIELDS, ReplayedEntry
from fastjournal.cmdlog.recovery.value_budget import ValueLimit
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError
from fastjournal.protocol import ValueType
from fastjournal.spark.decoding.rows import read_bytes
from fastjournal.spark.storage.files import LOG_IN_USE, LogDirectory, SegmentFile

VALUE_BYTES_MIN = 256
"""Smaller values stay in memory: to note that one is on the disk takes as much."""
_VALUES = ValueLimit(
    bytes_max=0,
    entry_bytes=0,
    value_bytes_min=VALUE_BYTES_MIN,
    types_kept=(int(ValueType.INTEGER), int(ValueType.FLOAT), int(ValueType.BOOLEAN)),
    bytes_kept=8,
)


class ReplayedLog:
    """Live entries of a log, as its replay leaves them.

    Args:
        log: The log, or a snapshot.

    Raises:
        LogFailedError: Something cannot be read.
    """

    def __init__(self, log: LogDirectory) -> None:
        self._log = log
        state = ReplayState()
        disk = cast(Disk, _ListedDisk(log))
        inspection = inspect_log(disk, log.path, state, limit=_VALUES)
        self._infos = {info.number: info for info in inspection.segments}
        self._by_number = {segment.number: segment for segment in log.segments}
        self.damage = [
            self._error(found) for found in inspection.diagnostics if self._is_damage(found)
        ]
        """All that is damaged or missing."""
        self._records = records_of(state)

    @property
    def segments(self) -> list[SegmentFile]:
        """Segments that have records."""
        return [segment for segment in self._log.segments if segment.number in self._infos]

    def records(self, segment: SegmentFile) -> LiveRecords:
        """Return the records of the live entries in a segment."""
        return self._records.get(segment.number, LiveRecords(array("Q"), {}))

    def reader(self, segment: SegmentFile) -> ReadBytes:
        """Return what reads a segment, which is in memory then.

        Raises:
            LogCorruptError: It is another one by now.
            LogFailedError: It cannot be read.
        """
        data = read_bytes(self._log.files, segment)
        info = self._infos[segment.number]
        if google_crc32c.value(data[: info.bytes]) != info.crc32c:
            raise LogCorruptError(
                "the segment was replaced while it was read", path=segment.path, hint=LOG_IN_USE
            )
        return lambda place, size: data[place : place + size]

    def segment_of(self, error: LogCorruptError) -> int | None:
        """Return the number of the segment that damage is in; None: it is missing."""
        numbers = (one.number for one in self._log.segments if one.path == error.path)
        return None if error.offset is None else next(numbers, None)

    def _is_damage(self, found: Diagnostic) -> bool:
        """Whether no crash leaves this; the last segment of a log may still be written to."""
        segment = self._segment(found)
        is_sealed = segment is not None and not segment.open
        if found.kind == "empty":
            return is_sealed and found.bytes > len(SEGMENT_HEADER)
        return found.damage or (found.kind == "torn" and is_sealed)

    def _segment(self, found: Diagnostic) -> SegmentFile | None:
        number = segment_number(found.path.rpartition("/")[2])
        return None if number is None else self._by_number.get(number)

    def _error(self, found: Diagnostic) -> LogCorruptError:
        segment = self._segment(found)
        if found.kind in ("missing", "differs"):
            hint = None if self._log.manifest else LOG_IN_USE
            return LogCorruptError(found.message, path=found.path, hint=hint)
        return LogCorruptError(
            f"{found.message} ({found.bytes} bytes)",
            path=found.path if segment is None else segment.path,
            offset=found.offset,
            hint="option mode=permissive reads on behind it",
        )


class _ListedDisk:
    """The segments of a listed directory, as recovery reads a disk: as far as they went then."""

    def __init__(self, log: LogDirectory) -> None:
        self._files = log.files
        self._segments = {segment_name(segment.number): segment for segment in log.segments}

    def listdir(self, path: str) -> list[str]:
        """Return the names of the segments."""
        del path
        return sorted(self._segments)

    def size(self, path: str) -> int:
        """Return the size of a segment."""
        return self._segment(path).bytes

    def read(self, path: str) -> bytes:
        """Return a segment."""
        return read_bytes(self._files, self._segment(path))

    def read_slice(self, path: str, offset: int, size: int) -> bytes:
        """Return a part of a segment."""
        return self.read(path)[offset : offset + size]

    def _segment(self, path: str) -> SegmentFile:
        return self._segments[path.rpartition("/")[2]]


def records_of(state: ReplayState) -> dict[int, LiveRecords]:
    """Return the records that carry what is live after a replay, by segment."""
    places: defaultdict[int, array[int]] = defaultdict(lambda: array("Q"))
    changes: defaultdict[int, dict[int, LiveChanges]] = defaultdict(dict)
    for job in state.jobs.values():
        segment, offset = unpack_position(job.position)
        places[segment].append(offset)
        if not _is_plain(job):
            changes[segment][offset] = _changes_of(state, job)
    return {
        number: LiveRecords(array("Q", sorted(offsets)), changes[number])
        for number, offsets in places.items()
    }


def _is_plain(job: ReplayedEntry) -> bool:
    """Whether its record alone says all of an entry; False: perhaps not."""
    more = job.more
    if job.token or job.starts:
        return False
    # the end of a lease that its record has leaves an instant since which it is due
    return more is NO_COLD_FIELDS or not (
        more.amended
        or more.foreign
        or more.due
        or more.attempts
        or more.links
        or more.superseded
        or more.reason is not None
    )


def _changes_of(state: ReplayState, job: ReplayedEntry) -> LiveChanges:
    more = job.more
    value: bytes | tuple[int, int] | None = None
    if more.amended and not more.cold_bytes:
        value = job.value
    elif more.amended and job.job_id in state.trimmed:
        value = state.trimmed[job.job_id], more.cold_bytes
    told = {name: getattr(job, name) for name in LiveChanges.__struct_fields__ if name != "value"}
    return LiveChanges(**told, value=value)
