"""Segments that a stream has read: whether they are still the same, and their removal.

*Identity.* A log that was restored from a snapshot goes on under lower numbers, and writes other
segments under numbers that a stream has already read. Numbers and sizes alone do not show that.
These do:

- the state of an archive has the next number, and numbers of a log never fall;
- the first record of a segment has size and checksum of the segment before;
- a segment of the same size has the same first bytes: compaction makes one smaller.

*Cleaning* of an archive: segments whose batch is committed are unlinked. Spark's file sources call
this ``cleanSource``. It is off by default, because another reader of the archive may still need the
segments. A stream unlinks only the names that it has read: a file with another checksum is of a
restored log, or was put back after the stream had passed it, and is unread. Damaged segments stay
as ``<name>.damaged``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import google_crc32c
import pyarrow.fs

from fastjournal.cmdlog.archive import (
    STATE_NAME,
    ArchivedSegment,
    archived_segment,
    decode_state,
)
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.cmdlog.recovery.segment_chain import segment_start
from fastjournal.errors import LogCorruptError
from fastjournal.spark.query.paths import list_directory
from fastjournal.spark.storage.files import (
    LogDirectory,
    SegmentFile,
    read_file,
    resolve,
    translating,
)

HEAD_BYTES = 4096
"""Far more than the header of a segment and its first record take."""
RESTORED = (
    "after a restore, archive the log to another directory, and begin anew with another checkpoint"
)


class Sealed(NamedTuple):
    """A segment as it was when it was sealed."""

    number: int
    bytes: int
    """0: unknown."""
    crc32c: int


NOTHING = Sealed(0, 0, 0)
"""No segment."""


def read_head(files: Any, segment: SegmentFile) -> bytes:
    """Return the first bytes of a segment.

    Raises:
        LogFailedError: It cannot be read.
    """
    with translating("read", segment.path), files.open_input_file(segment.path) as file:
        data: bytes = file.read(min(HEAD_BYTES, segment.bytes))
        return data


def head_of(files: Any, segment: SegmentFile) -> int:
    """Return the checksum of the first bytes of a segment."""
    return int(google_crc32c.value(read_head(files, segment)))


def sealed_before(data: bytes) -> Sealed:
    """Return the segment before one, as the first record says; the number 0: it does not.

    Args:
        data: The segment, or its first ``HEAD_BYTES``.
    """
    head = data[:HEAD_BYTES]
    start = segment_start(head, scan_segment(head))
    if start is None:
        return NOTHING
    return Sealed(start.previous, start.bytes, start.crc32c)


def check_end(log: LogDirectory, read: Sealed, known: Callable[[], Collection[str]]) -> None:
    """Check that a log goes at least as far as a stream has read it.

    The state of an archive is written after the links of segments, so that a stream may be ahead of
    it; segments that the stream cannot have read show that it is not.

    Args:
        log: The log.
        read: Current segment of the stream, as far as it was read; the number 0: nothing was.
        known: Returns the names of archived segments that were read and may still be there.

    Raises:
        LogCorruptError: It ends before: it was restored.
        LogFailedError: The state of the archive cannot be read.
    """
    last = max((segment.number for segment in log.segments), default=read.number)
    if log.has_archive_state:
        below = [one for one in log.archived if one.number < read.number]
        is_there = ArchivedSegment(read.number, read.crc32c) in log.archived
        unread = bool(below) and not is_there and not {one.name for one in below} <= set(known())
        if not unread and len({one.number for one in below}) == len(below):
            return
        path = f"{log.path}/{STATE_NAME}"
        last = decode_state(read_file(log.files, path), path).next - 1
    elif log.is_archive:
        # a copy; segments go from it when they were read
        return
    if last < read.number:
        raise LogCorruptError(
            f"the log ends at segment {last}, and the stream has read up to segment {read.number}",
            path=log.path,
            hint=RESTORED,
        )


def check_link(before: Sealed, data: bytes, segment: SegmentFile) -> None:
    """Check that a segment of an archive follows the one that was read before it.

    Args:
        before: The one before it, as it was read.
        data: First bytes of the segment.
        segment: The segment.

    Raises:
        LogCorruptError: Another one was before it.
    """
    told = sealed_before(data)
    if told.number == before.number > 0 and told.bytes and told != before:
        raise LogCorruptError(
            f"segment {before.number} before it had {told.bytes} bytes and another checksum when "
            f"it was sealed; {before.bytes} bytes were read",
            path=segment.path,
            hint=f"{RESTORED}; option mode=permissive reads on, and the rest of a segment that "
            "grew without an archive is missing then",
        )


class ReadSegments(NamedTuple):
    """Names of archived segments that a stream has passed."""

    read: set[str]
    damaged: set[str]


def versions_in(data: bytes, number: int, archived: Mapping[ArchivedSegment, int]) -> list[str]:
    """Return names of the versions of a segment that its contents begin with, shortest first.

    Args:
        data: Bytes of the segment that were read.
        number: Its number.
        archived: Files of the archive, and their sizes in bytes.
    """
    versions = sorted((size, one) for one, size in archived.items() if one.number == number)
    return [
        one.name
        for size, one in versions
        if size <= len(data) and google_crc32c.value(data[:size]) == one.crc32c
    ]


def check_read(directory: str, names: Collection[str], *, checksums: bool) -> ReadSegments:
    """Return the rest of the segments that a stream has read, with their shorter versions.

    Args:
        directory: The archive.
        names: Names of the segments.
        checksums: The reader went on after damage, so that each file has to be checked.

    Raises:
        LogFailedError: A segment cannot be read.
    """
    log = LogDirectory(directory)
    versions = [one.number for one in log.archived]
    found = ReadSegments(set(), set())
    for one in sorted(log.archived):
        if one.name not in names:
            continue
        if not checksums and versions.count(one.number) == 1:
            found.read.add(one.name)
            continue
        data = read_file(log.files, f"{log.path}/{one.name}")
        if google_crc32c.value(data) == one.crc32c:
            found.read.update(versions_in(data, one.number, log.archived))
        else:
            found.damaged.add(one.name)
    return found


def clean_archive(directory: str, done: ReadSegments) -> None:
    """Unlink the segments that a stream has read, and rename damaged ones.

    One segment stays if nothing else would show that the directory is an archive.

    Args:
        directory: The archive.
        done: Names; missing ones are skipped, because the daemon drops files at any time.

    Raises:
        LogFailedError: Something could not be removed. The query ends; the first commit after its
            restart tries again.
    """
    files, path = resolve(directory)
    there = {str(info.base_name) for info in list_directory(directory)}
    names = there & (done.read | done.damaged)
    left = {name for name in there if archived_segment(name)} - names
    if STATE_NAME not in there and not left and names:
        names.remove(max(names))
    for name in names & done.damaged:
        _rename(files, f"{path}/{name}", f"{path}/{name}.damaged")
    for name in names - done.damaged:
        place = f"{path}/{name}"
        with translating("remove", place):
            if _is_file(files, place):
                files.delete_file(place)


def _rename(files: pyarrow.fs.FileSystem, old: str, new: str) -> None:
    with translating("rename", old):
        if _is_file(files, old):
            files.move(old, new)


def _is_file(files: pyarrow.fs.FileSystem, path: str) -> bool:
    return bool(files.get_file_info(path).type == pyarrow.fs.FileType.File)
