"""Parts of the live entries of a log: the input of one task, in bytes of the log.

A snapshot names the records of its live entries (``cmdlog.live_index``): a part is some segments,
or a slice of a large one. A log without that index is one part: a task replays it by the daemon's
own recovery, and reads the records that are live afterwards.

A replay has the same positions and changes as a live index, so entries are read in the same way.
During the replay, memory holds all entries like a starting daemon, with values of less than
``VALUE_BYTES_MIN``; afterwards, 8 bytes an entry, and the changed ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, cast

import google_crc32c
import msgspec
import pyarrow as pa

from fastjournal.cmdlog.format.layout import (
    SEGMENT_HEADER,
    segment_name,
    segment_number,
    unpack_position,
)
from fastjournal.cmdlog.live_index import LiveChanges, LiveIndex, LiveRecords, ReadBytes
from fastjournal.cmdlog.recovery.inspect_log import Diagnostic, inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import NO_COLD_FIELDS, ReplayedEntry
from fastjournal.cmdlog.recovery.value_budget import ValueLimit
from fastjournal.cmdlog.snapshot import open_live_index
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError
from fastjournal.protocol import ValueType
from fastjournal.spark.decoding.rows import read_bytes
from fastjournal.spark.live_entries.fetch import damage_row, read_entries
from fastjournal.spark.query.paths import open_whole
from fastjournal.spark.storage.files import (
    LOG_IN_USE,
    LogDirectory,
    SegmentFile,
    resolve,
    translating,
)
from fastjournal.spark.storage.remote_checkpoints import RemoteSnapshot, check_live

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
    """The segments of a listed directory, as a disk for recovery: as far as they went then."""

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


PART_BYTES = 48 * 1024 * 1024
"""Bytes of the log for each part, about."""


class SegmentPart(NamedTuple):
    """Records of a segment that begin in a range of offsets."""

    segment: SegmentFile
    first: int
    stop: int


class EntryPart(NamedTuple):
    """A part of the live entries of a log."""

    directory: str
    live: LiveIndex | None
    """Live index, without the runs of other segments; None: the log is replayed."""
    pieces: tuple[SegmentPart, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the log."""
        return sum(piece.stop - piece.first for piece in self.pieces)


def find_index(log: LogDirectory) -> LiveIndex | None:
    """Return the live index of a snapshot; None: there is none to expect.

    Raises:
        LogCorruptError: The manifest lists one that is missing, torn, damaged, of another version
            or of other segments.
        LogFailedError: It cannot be read.
    """
    if log.remote is not None:
        return _index_of_checkpoint(log, log.remote)
    manifest = log.manifest
    if manifest is None or manifest.live is None:
        return None
    path = log.live_path
    hint = "restore the snapshot with all of its files, or take another snapshot"
    if log.live_bytes is None:
        raise LogCorruptError("the live index is missing", path=path, hint=hint)
    with reading(log.files, path) as read:
        index = open_live_index(read, log.live_bytes, path, manifest)
    if log.live_bytes != manifest.live.bytes:
        raise LogCorruptError(
            f"the live index has {log.live_bytes} bytes, the manifest says {manifest.live.bytes}",
            path=path,
            hint=hint,
        )
    return index


def _index_of_checkpoint(log: LogDirectory, remote: RemoteSnapshot) -> LiveIndex | None:
    """Return the live index of a checkpoint, which is written after it; None: there is none."""
    if log.live_bytes is None:
        return None
    with reading(log.files, log.live_path) as read:
        index = LiveIndex.open(read, log.live_bytes, log.live_path)
    check_live(list(map(tuple, index.segments)), remote.checkpoint, log.live_path)
    return index


def find_parts(directory: str) -> list[EntryPart]:
    """Return the parts of the live entries of a log or snapshot.

    Raises:
        BadRequestError: It is no log.
        LogCorruptError: The files of a snapshot are not those that its manifest lists.
        LogFailedError: It cannot be read.
    """
    log = open_whole(directory)
    return parts_of_index(log.uri, log.segments, find_index(log))


def parts_of_index(
    directory: str, segments: Sequence[SegmentFile], index: LiveIndex | None
) -> list[EntryPart]:
    """Return the parts of the live entries of a log whose index, if there is one, is open."""
    if index is None:
        pieces = tuple(SegmentPart(one, 0, one.bytes) for one in segments)
        return [EntryPart(directory, None, pieces)]
    with_entries = {run.segment for run in index.runs}
    found: list[EntryPart] = []
    waiting: list[SegmentPart] = []
    size = 0
    for segment in segments:
        if segment.number not in with_entries:
            continue
        number = max(round(segment.bytes / PART_BYTES), 1)
        bounds = [segment.bytes * slice_ // number for slice_ in range(number + 1)]
        for first, stop in pairwise(bounds):
            if waiting and size + stop - first > PART_BYTES:
                found.append(_part(directory, index, waiting))
                waiting, size = [], 0
            waiting.append(SegmentPart(segment, first, stop))
            size += stop - first
    if waiting:
        found.append(_part(directory, index, waiting))
    return found


def _part(directory: str, index: LiveIndex, pieces: Sequence[SegmentPart]) -> EntryPart:
    numbers = {piece.segment.number for piece in pieces}
    own = msgspec.structs.replace(
        index,
        segments=tuple(one for one in index.segments if one.number in numbers),
        runs=tuple(run for run in index.runs if run.segment in numbers),
    )
    return EntryPart(directory, own, tuple(pieces))


def read_part(
    part: EntryPart, names: Sequence[str], *, permissive: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the live entries of a part.

    Args:
        part: From ``find_parts``.
        names: Columns to build, of ``fetch.READABLE_SCHEMA``; one at least.
        permissive: Damage becomes a row with ``_corrupt``; otherwise it ends the reading.

    Raises:
        LogCorruptError: Damage, where not ``permissive``; or the live index is damaged.
        LogFailedError: Something cannot be read.
    """
    files, _ = resolve(part.directory)
    if part.live is None:
        yield from _replay(part.directory, names, permissive=permissive)
        return
    with reading(files, part.live.path) as read_index:
        for piece in part.pieces:
            records = part.live.read_records(read_index, piece.segment.number)
            chosen = _within(records, piece)
            if chosen.offsets:
                with reading(files, piece.segment.path) as read:
                    yield from read_entries(
                        read, piece.segment, chosen, names, permissive=permissive
                    )


def _within(records: LiveRecords, piece: SegmentPart) -> LiveRecords:
    offsets: array[int] = records.offsets
    first, stop = bisect_left(offsets, piece.first), bisect_left(offsets, piece.stop)
    return LiveRecords(offsets[first:stop], records.changes)


def _replay(directory: str, names: Sequence[str], *, permissive: bool) -> Iterator[pa.RecordBatch]:
    log = ReplayedLog(open_whole(directory))
    for error in log.damage:
        if not permissive:
            raise error
        yield damage_row(names, log.segment_of(error), error)
    for segment in log.segments:
        records = log.records(segment)
        if records.offsets:
            read = log.reader(segment)
            yield from read_entries(read, segment, records, names, permissive=permissive)


@contextmanager
def reading(files: Any, path: str) -> Iterator[ReadBytes]:
    """Give a function that reads a file at any place, for the block.

    Raises:
        LogFailedError: The file cannot be read.
    """
    with translating("read", path):
        file = files.open_input_file(path)

    def read(place: int, size: int) -> bytes:
        with translating("read", path):
            file.seek(place)
            data: bytes = file.read(size)
        return data

    with file:
        yield read
