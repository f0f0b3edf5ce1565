"""Taking of an archive: each of its segments becomes event files, and is unlinked then.

A task reads one segment, and writes its events: in this process, in one of a pool, or in an
executor of Spark. Its memory is bounded by the segment. All its output is a function of that
segment, and is synced before the segment is unlinked, so no step needs a lock, and any run
continues a killed one. The lock of the archive only separates two pipelines, each of which would
get a part of the segments.

A segment that grew while the daemon had no archive comes twice, with two checksums. Each day of the
longer one has only the events after the end of the shorter one, if that has a file of the day.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from typing import NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.archive import (
    ArchivedSegment,
    archived_segment,
    list_whole,
    read_state,
)
from fastjournal.disk import Disk, DiskLock
from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.spark.execution.cluster_tasks import Here, translating_end
from fastjournal.spark.history.coverage import MissingSegments
from fastjournal.spark.history.event_files import (
    EventDirectory,
    EventFile,
    SegmentBefore,
    SegmentFacts,
)
from fastjournal.spark.history.event_rows import EventDay, day_of
from fastjournal.spark.history.extractor import extract_events, outer_times
from fastjournal.spark.records.stream_segments import NOTHING, sealed_before
from fastjournal.spark.storage.files import SegmentFile
from fastjournal.spark.storage.table_files import DiskFiles

ARCHIVE_LOCK = "nightly.lock"
"""File in an archive that is locked while its segments are taken."""
SEGMENTS_AT_ONCE = 64
"""Segments whose tasks are given out together."""
GONE, DAMAGED = "gone", "damaged"
_DAMAGED = ".damaged"


class TaskPlaces(NamedTuple):
    """Directories of the tasks: where they find segments, and put events."""

    disk: Disk
    archive: str
    events: EventDirectory
    mask: int
    """Modes that files must not have: executors have another mask than this process."""


class Outcome(NamedTuple):
    """Result of a task."""

    file: ArchivedSegment
    rows: int = 0
    lost: str = ""
    """Reason why nothing of it was read: ``GONE``, ``DAMAGED``; empty: all was."""
    why: str = ""
    """The same as a sentence."""


def take_archive(
    disk: Disk,
    archive: str,
    events: EventDirectory,
    executor: Executor | None = None,
    *,
    parallel: int = 1,
) -> int:
    """Take all segments of an archive, and unlink them; return the number of rows written.

    Args:
        disk: Where the archive is.
        archive: Its directory.
        events: Where the events are put.
        executor: Runs the tasks; None: this process.
        parallel: Tasks that it runs at once.

    Raises:
        LogLockedError: Another run takes the archive.
        LogFailedError: Something could not be read or written; what was written counts.
        LogCorruptError: Another program has written where the events are.
    """
    with closing(_lock(disk, archive)):
        if isinstance(events.files, DiskFiles):
            events.files.remove_unfinished()
        rows = take_segments(disk, archive, events, executor or Here(), parallel)
        if isinstance(events.files, DiskFiles):
            events.files.remove_unfinished()
        return rows


def take_segments(
    disk: Disk, archive: str, events: EventDirectory, executor: Executor, parallel: int
) -> int:
    """Do the same without the lock, which nothing that is written needs."""
    known = max((file.number for file in events.listed()), default=0)
    mask = os.umask(0o077)
    os.umask(mask)
    place = TaskPlaces(disk, archive, events, mask)
    waiting = list_whole(disk, archive, known)
    rows = 0
    for part in _rounds(place, waiting):
        # after the listing of the archive: files removed from it since are here
        versions = versions_of(part, events.listed())
        step = max(SEGMENTS_AT_ONCE, 2 * parallel)
        for begin in range(0, len(part), step):
            files = part[begin : begin + step]
            for one in _run(executor, place, files, versions):
                rows += one.rows
                _settle(place, one)
    return rows


def known_gaps(disk: Disk, archive: str) -> tuple[list[MissingSegments], int]:
    """Return the gaps that an archive names, and the number of the last segment that it had.

    Raises:
        LogCorruptError: The state of the archive cannot be understood.
        LogFailedError: The archive cannot be read.
    """
    state = read_state(disk, archive)
    known = [
        MissingSegments(gap.first, gap.last, gap.first_us, gap.last_us, gap.reason)
        for gap in (() if state is None else state.gaps)
        if gap.reason != "merged"
    ]
    for name in disk.listdir(archive):
        damaged = archived_segment(name.removesuffix(_DAMAGED)) if name.endswith(_DAMAGED) else None
        if damaged is not None:
            known.append(MissingSegments(damaged.number, damaged.number, None, None, DAMAGED))
    return known, 0 if state is None else state.next - 1


def _lock(disk: Disk, archive: str) -> DiskLock:
    try:
        return disk.lock(f"{archive}/{ARCHIVE_LOCK}")
    except LogLockedError as error:
        raise LogLockedError(
            "another fj-nightly takes the segments of this archive",
            path=archive,
            hint="let one pipeline take an archive; if it is this one, wait until the other has "
            "ended",
        ) from error


def _rounds(place: TaskPlaces, waiting: Sequence[ArchivedSegment]) -> list[list[ArchivedSegment]]:
    """Return segments in rounds: a longer version of one comes after all shorter ones."""
    numbers = defaultdict[int, list[ArchivedSegment]](list)
    for file in waiting:
        numbers[file.number].append(file)
    rounds = defaultdict[int, list[ArchivedSegment]](list)
    for versions in numbers.values():
        if len(versions) > 1:
            versions.sort(key=partial(_size, place))
        for number, file in enumerate(versions):
            rounds[number].append(file)
    return [rounds[number] for number in sorted(rounds)]


def _size(place: TaskPlaces, file: ArchivedSegment) -> int:
    try:
        return place.disk.size(f"{place.archive}/{file.name}")
    except LogFailedError:
        # if it is missing, the daemon has dropped it just now
        if place.disk.exists(f"{place.archive}/{file.name}"):
            raise
        return 0


def versions_of(
    part: Sequence[ArchivedSegment], known: Sequence[EventFile]
) -> Mapping[int, Sequence[EventFile]]:
    """Return the files of other versions of segments, by number."""
    wanted = {file.number: f"{file.crc32c:08x}" for file in part}
    found = defaultdict[int, list[EventFile]](list)
    for one in known:
        if wanted.get(one.number, one.crc32c) != one.crc32c:
            found[one.number].append(one)
    return found


def _run(
    executor: Executor,
    place: TaskPlaces,
    files: Sequence[ArchivedSegment],
    versions: Mapping[int, Sequence[EventFile]],
) -> list[Outcome]:
    others = [versions.get(file.number, ()) for file in files]
    hint = "free memory, and run fj-nightly again"
    with translating_end("a process that extracts events", hint):
        return list(executor.map(partial(write_events, place), files, others))


def _settle(place: TaskPlaces, one: Outcome) -> None:
    """Unlink a segment that was taken; rename a damaged one."""
    disk, path = place.disk, f"{place.archive}/{one.file.name}"
    if one.lost == DAMAGED and disk.exists(path):
        disk.rename(path, path + _DAMAGED)
    elif one.lost == GONE and disk.exists(path):
        raise LogFailedError(
            "an executor does not find the archived segment",
            path=path,
            hint="the archive has to be on a path that all executors reach; or run with "
            "--master local[*] where it is",
        )
    elif not one.lost:
        DiskFiles(disk).delete(path)


# --- one segment ----------------------------------------------------------------------------------


def write_events(place: TaskPlaces, file: ArchivedSegment, others: Sequence[EventFile]) -> Outcome:
    """Read a segment, and put its events into place.

    Args:
        place: Where.
        file: The segment.
        others: Files of other versions of it.

    Raises:
        LogFailedError: Something cannot be read or written.
        LogCorruptError: A file of another version is not as it was written.
    """
    os.umask(os.umask(0o077) | place.mask)
    path = f"{place.archive}/{file.name}"
    try:
        data = place.disk.read(path)
    except LogFailedError:
        if place.disk.exists(path):
            raise
        return Outcome(file, lost=GONE)
    if google_crc32c.value(data) != file.crc32c:
        return Outcome(file, lost=DAMAGED)
    return put_events(place.events, file, data, others)


def put_events(
    events: EventDirectory, file: ArchivedSegment, data: bytes, others: Sequence[EventFile]
) -> Outcome:
    """Put the events of a segment into place.

    Args:
        events: Where.
        file: Number and checksum of the segment.
        data: The segment.
        others: Files of other versions of it.

    Raises:
        LogFailedError: Something cannot be read or written.
        LogCorruptError: A file of another version is not as it was written.
    """
    segment = SegmentFile(file.name, file.number, len(data), False, False, file.crc32c)
    shorter = dict[str, int]()
    for other in others:
        size = events.facts(other).bytes
        if size < len(data) and f"{google_crc32c.value(data[:size]):08x}" == other.crc32c:
            shorter[other.day] = max(size, shorter.get(other.day, 0))
    days = defaultdict[str, EventDay](EventDay)
    try:
        first_us, last_us = outer_times(data, segment)
        days[day_of(first_us)] = EventDay()
        for event in extract_events(data, segment):
            day = day_of(event.time)
            if event.offset >= shorter.get(day, 0):
                days[day].add(event)
    except LogCorruptError as error:
        return Outcome(file, lost=DAMAGED, why=str(error))
    before = sealed_before(data)
    facts = SegmentFacts(
        file.number,
        f"{file.crc32c:08x}",
        len(data),
        first_us,
        last_us,
        None
        if before == NOTHING
        else SegmentBefore(before.number, before.bytes, f"{before.crc32c:08x}"),
        {day: days[day].rows for day in sorted(days)},
    )
    rows = 0
    for day in facts.rows:
        if not _is_in(events, others, days[day], day, len(data)):
            events.put(facts, day, days[day])
            rows += days[day].rows
    return Outcome(file, rows)


def _is_in(
    events: EventDirectory, others: Sequence[EventFile], own: EventDay, day: str, size: int
) -> bool:
    """Whether a longer version has all rows of a segment that was put back after it."""
    for other in others:
        if other.day == day and own.rows and events.facts(other).bytes > size:
            table: pa.Table = events.read(other)
            if table.filter(pc.less(table["offset"], size)).equals(own.table()):
                return True
    return False
