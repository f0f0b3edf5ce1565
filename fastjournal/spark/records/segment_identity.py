"""Identity of segments: whether a log is the one of which a stream has read a part.

A log that was restored from a snapshot goes on under lower numbers, and writes other segments under
numbers that a stream has behind it. Numbers and sizes alone do not show that. These do:

- the state of an archive says which number comes next, and numbers of a log never fall;
- the first record of a segment tells size and checksum of the segment before;
- a segment of the same size has the same first bytes: compaction makes one smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import google_crc32c

from fastjournal.cmdlog.archive_format import STATE_NAME, ArchivedSegment, decode_state
from fastjournal.cmdlog.format.operation_records import SegmentStart
from fastjournal.errors import LogCorruptError
from fastjournal.spark.decoding.rows import segment_rows
from fastjournal.spark.storage.files import LogDirectory, SegmentFile, read_file, translating

HEAD_BYTES = 4096
"""Far more than the header of a segment and its first record take."""
RESTORED = (
    "after a restore, archive the log to another directory, and begin anew with another checkpoint"
)


class Sealed(NamedTuple):
    """A segment as it was when it was sealed."""

    number: int
    bytes: int
    """0: not told."""
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


def sealed_before(data: bytes, segment: SegmentFile) -> Sealed:
    """Return the segment before one, as the first record says; the number 0: it does not.

    Args:
        data: The segment, or its first ``HEAD_BYTES``.
        segment: Where it is.
    """
    row = next(segment_rows(data[:HEAD_BYTES], segment, permissive=True), None)
    start = None if row is None else row.operation
    if not isinstance(start, SegmentStart):
        return NOTHING
    return Sealed(start.previous, start.bytes, start.crc32c)


def check_end(log: LogDirectory, read: Sealed, known: Callable[[], Collection[str]]) -> None:
    """Check that a log goes at least as far as a stream has read it.

    The state of an archive is written behind the links of segments, so that a stream may be ahead
    of it; segments that the stream cannot have read show that it is not.

    Args:
        log: The log.
        read: Segment in which the stream stands, as far as it was read; the number 0: nothing was.
        known: Returns the names of archived segments that were read and may be there still.

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
        data: First bytes of the segment behind it.
        segment: The segment.

    Raises:
        LogCorruptError: Another one was before it.
    """
    told = sealed_before(data, segment)
    if told.number == before.number > 0 and told.bytes and told != before:
        raise LogCorruptError(
            f"segment {before.number} before it had {told.bytes} bytes and another checksum when "
            f"it was sealed; {before.bytes} bytes were read",
            path=segment.path,
            hint=f"{RESTORED}; option mode=permissive reads on, and the rest of a segment that "
            "grew without an archive is missing then",
        )
