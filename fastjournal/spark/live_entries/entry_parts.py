"""Parts of the live entries of a log: what one task reads, by bytes of the log.

A snapshot names the records of its live entries (``cmdlog.live_index``): a part is some segments,
or a slice of a large one. A log without that index is one part: a task replays it by the daemon's
own recovery, and reads the records that this leaves live.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from fastjournal.cmdlog.live_index import LIVE_NAME, LiveIndex, LiveRecords, ReadBytes
from fastjournal.cmdlog.snapshot import open_live_index
from fastjournal.errors import LogCorruptError
from fastjournal.spark.live_entries.fetch import damage_row, read_entries
from fastjournal.spark.live_entries.log_replay import ReplayedLog
from fastjournal.spark.query.paths import open_whole
from fastjournal.spark.storage.files import LogDirectory, SegmentFile, resolve, translating

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
    manifest = log.manifest
    if manifest is None or manifest.live is None:
        return None
    path = f"{log.path}/{LIVE_NAME}"
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


def find_parts(directory: str) -> list[EntryPart]:
    """Return the parts of the live entries of a log or snapshot.

    Raises:
        BadRequestError: It is no log.
        LogCorruptError: The files of a snapshot are not those that its manifest lists.
        LogFailedError: It cannot be read.
    """
    log = open_whole(directory)
    return parts_of_index(directory, log.segments, find_index(log))


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
