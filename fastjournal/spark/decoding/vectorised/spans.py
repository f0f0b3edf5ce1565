"""Parts of a segment: spans of whole groups for a stream, and slices for tasks side by side.

The place of a record is certain only behind the one before it: a value may hold the bytes of
records. So each task of a slice reads the segment, checks its checksums and finds all frames; it
decodes the records of its slice only. All tasks compute the same bounds, from the size that the
segment had when its directory was listed. So each record and each damaged region that was there
then is in one slice, also where a daemon that starts cuts the torn tail between two tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from fastjournal.cmdlog.format.layout import Command
from fastjournal.errors import LogCorruptError
from fastjournal.spark.decoding.byte_arrays import Offsets, SegmentBytes
from fastjournal.spark.decoding.vectorised.frames import Frames

SLICES_MAX = 16
"""Slices of a segment: each task reads all of it."""
_END = 1 << 62
"""Behind every offset."""


class GroupSpan(NamedTuple):
    """Whole groups of a segment's records, and checksums of the segment up to their ends."""

    first: int
    """Offset of the first record; 0: of the segment."""
    stop: int
    """Offset behind the last one."""
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
        # behind damage no start-attempt belongs to a lease
        begins = segment.byte(run.body[first:]) != Command.START_ATTEMPT
        begins[: max(1 - first, 0)] = True
        if begins.any():
            return int(run.start[first + int(begins.argmax())])
    return _END
