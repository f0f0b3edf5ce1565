"""Frames of all records of a segment: found at once, checked, cut into spans and slices.

A record begins with a time whose first four bytes are always the same, so every offset with these
bytes, followed by a possible size and a command, may be one. Where each one ends the next has to
begin: a chain from the header to the end of the file that leaves no byte out.

*Parts.* A stream reads spans of whole groups, parallel tasks read slices. The offset of a record is
certain only after the one before it: a value may contain the bytes of records. So each task of a
slice reads the segment, checks its checksums and finds all frames; it decodes the records of its
slice only. All tasks compute the same bounds, from the size that the segment had when its directory
was listed. So each record and each damaged region of that time is in one slice, also if a starting
daemon cuts the torn tail between two tasks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    SEGMENT_HEADER,
    SIMPLE_BODY_BYTES,
    TIME_BYTES,
    TIME_VERSION,
    Command,
)
from fastjournal.cmdlog.recovery.scan import RecordRun, scan_segment
from fastjournal.errors import LogCorruptError
from fastjournal.spark.decoding.byte_arrays import Mask, Offsets, SegmentBytes

_TIME_HEAD = (TIME_VERSION, 0, 0, 0)
"""How a time between the years 1 and 34,000 begins."""

_BLOCK_BYTES = 256 * 1024


class Frames(NamedTuple):
    """Offsets of records, of their bodies, and after their bodies, so of their checksums."""

    start: Offsets
    body: Offsets
    end: Offsets


def find_frames(segment: SegmentBytes) -> Frames | None:
    """Return the frames of a segment; None where they do not fill it, which the scan explains."""
    data = segment.bytes
    first = len(SEGMENT_HEADER)
    if data[:first].tobytes() != SEGMENT_HEADER or segment.size == first:
        return None
    start = _find_heads(data)
    size = segment.uvarints(start + TIME_BYTES)
    body = size.end
    command = segment.byte(body)
    possible = size.valid & (size.numbers >= SIMPLE_BODY_BYTES) & (size.numbers < segment.size)
    possible &= (command >= Command.ADD) & (command <= Command.TIMEOUT_ATTEMPT)
    start, body = start[possible], body[possible]
    end = body + size.numbers[possible].astype(np.int64)
    chain = _chain(start, end + CRC_BYTES, first, segment.size)
    return None if chain is None else Frames(start[chain], body[chain], end[chain])


def _find_heads(data: npt.NDArray[np.uint8]) -> Offsets:
    """Return the offsets of bytes that may begin a record; in blocks, which stay in the cache."""
    found: list[Offsets] = []
    behind = len(data) - len(_TIME_HEAD) + 1
    for first in range(0, behind, _BLOCK_BYTES):
        stop = min(first + _BLOCK_BYTES, behind)
        is_head = data[first:stop] == _TIME_HEAD[0]
        for index, byte in enumerate(_TIME_HEAD[1:], 1):
            is_head &= data[first + index : stop + index] == byte
        found.append(np.flatnonzero(is_head) + first)
    return np.concatenate(found)


def _chain(start: Offsets, behind: Offsets, first: int, size: int) -> Offsets | None:
    """Return which records follow each other directly from ``first`` to ``size``."""
    if not len(start) or start[0] > first:
        return None
    following = np.searchsorted(start, behind)
    leads_on = following == np.arange(1, len(start) + 1)
    leads_on[:-1] &= start[1:] == behind[:-1]
    leads_on[-1:] = False
    breaks = np.flatnonzero(~leads_on).tolist()
    kept = np.ones(len(start), np.bool_)
    at = int(np.searchsorted(start, first))
    kept[:at] = False
    index = bisect_left(breaks, at)
    while True:
        last = breaks[index]
        if behind[last] == size:
            kept[last + 1 :] = False
            return np.flatnonzero(kept)
        at = int(following[last])
        if at >= len(start) or start[at] != behind[last]:
            return None
        # heads inside of a record
        kept[last + 1 : at] = False
        while breaks[index] < at:
            index += 1


def frames_of(run: RecordRun) -> Frames:
    """Return the frames of a run of records that the scan found."""
    behind = np.array(run.ends, np.int64)
    start = np.concatenate((np.array([run.start]), behind[:-1]))
    return Frames(start, np.array(run.bodies, np.int64), behind - CRC_BYTES)


def valid_frames(data: bytes, segment: SegmentBytes) -> Frames:
    """Return the frames of the records of a segment, without those in damage."""
    frames = find_frames(segment)
    if frames is not None:
        return frames
    runs = [frames_of(run) for run in scan_segment(data).runs]
    if not runs:
        return Frames(*(np.zeros(0, np.int64) for _ in range(3)))
    return Frames(*(np.concatenate(parts) for parts in zip(*runs, strict=True)))


def right_checksums(data: bytes, segment: SegmentBytes, start: Offsets, end: Offsets) -> Mask:
    """Return which records have the right checksum.

    Args:
        data: The segment.
        segment: The same bytes.
        start: Offsets of the records.
        end: Offsets after their bodies, so of their checksums.
    """
    crc32c = google_crc32c.value
    spans = zip(start.tolist(), end.tolist(), strict=True)
    found = np.array([crc32c(data[at:behind]) for at, behind in spans], np.uint32)
    right: Mask = found == segment.unsigned32(end)
    return right


SLICES_MAX = 16
"""Slices of a segment: each task reads all of it."""
_END = 1 << 62
"""After every offset."""


class GroupSpan(NamedTuple):
    """Whole groups of a segment's records, and checksums of the segment up to their ends."""

    first: int
    """Offset of the first record; 0: of the segment."""
    stop: int
    """Offset after the last one."""
    first_crc32c: int | None = None
    stop_crc32c: int | None = None

    def check(self, data: bytes, path: str) -> None:
        """Check that the segment is the one that the span was found in.

        Raises:
            LogCorruptError: It is not.
        """
        for offset, crc32c in ((self.first, self.first_crc32c), (self.stop, self.stop_crc32c)):
            if offset and crc32c is not None and google_crc32c.value(data[:offset]) != crc32c:
                raise LogCorruptError(
                    "the segment was rewritten since a part of it was read",
                    path=path,
                    offset=offset,
                    hint="read an archive or a snapshot, whose segments never change",
                )


class SegmentSlice(NamedTuple):
    """One of some slices of a segment, of about the same size."""

    number: int
    """The first one is 0."""
    slices: int
    """How many there are."""


def slices_of(size: int, slice_bytes: int) -> list[SegmentSlice]:
    """Return the slices of a segment of ``size`` bytes, of about ``slice_bytes`` each."""
    count = min(max(round(size / slice_bytes), 1), SLICES_MAX)
    return [SegmentSlice(number, count) for number in range(count)]


class RecordBounds(NamedTuple):
    """Offsets of the records and damaged regions that are asked for."""

    first: int = 0
    stop: int = _END

    def holds(self, offset: int) -> bool:
        """Whether what begins at an offset is asked for."""
        return self.first <= offset < self.stop

    def within(self, start: Offsets) -> slice:
        """Return which of ascending offsets are asked for."""
        first, stop = np.searchsorted(start, (self.first, self.stop))
        return slice(int(first), int(stop))


def slice_bounds(
    part: SegmentSlice, size: int, segment: SegmentBytes, runs: Sequence[Frames]
) -> RecordBounds:
    """Return the bounds of a slice: no lease and its start-attempts are in two slices.

    Args:
        part: Which slice.
        size: Bytes of the segment when its directory was listed, the same in all tasks.
        segment: Bytes of the segment.
        runs: All its runs of valid records, in order.
    """
    number, slices = part
    first = _bound(number * size // slices, segment, runs) if number else 0
    if number + 1 == slices:
        return RecordBounds(first)
    return RecordBounds(first, _bound((number + 1) * size // slices, segment, runs))


def _bound(offset: int, segment: SegmentBytes, runs: Sequence[Frames]) -> int:
    """Return the first offset from this one on at which a slice may begin."""
    for run in runs:
        first = int(np.searchsorted(run.start, offset))
        # after damage no start-attempt belongs to a lease
        begins = segment.byte(run.body[first:]) != Command.START_ATTEMPT
        begins[: max(1 - first, 0)] = True
        if begins.any():
            return int(run.start[first + int(begins.argmax())])
    return _END
