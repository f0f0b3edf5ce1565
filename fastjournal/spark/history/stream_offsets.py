"""Offsets of a stream of events: end of the next batch, and segments between two offsets. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from fastjournal.cmdlog.archive_format import ArchivedSegment
from fastjournal.spark.records.record_stream import Offset
from fastjournal.spark.storage.files import LogDirectory, SegmentFile

READS_ON = "option mode=permissive reads on behind them; ARCHIVE.json may tell the reason"
"""Hint of the error for segments that are missing in an archive."""


def end_of_batch(
    log: LogDirectory, start: Offset, bytes_max: int | None, target: Offset | None
) -> Offset:
    """Return the end of the next batch."""
    end, left = start, bytes_max
    segments = segments_behind(log, start)
    # an offset of an earlier release has no first segment
    stream = {name: start[name] for name in ("stream", "first") if name in start}
    if segments and not start["segment"]:
        stream = {"stream": uuid.uuid4().hex, "first": segments[0].number}
    for segment in segments:
        if target is not None and place_of(segment) > place(target):
            break
        if left is not None:
            if end is not start and segment.bytes > left:
                break
            left -= segment.bytes
        assert segment.crc32c is not None
        number, size = place_of(segment)
        end = Offset(segment=number, bytes=size, crc32c=segment.crc32c, **stream)
    return end


def segments_behind(log: LogDirectory, start: Offset) -> list[SegmentFile]:
    """Return the segments, or their rests, behind an offset."""
    return [one for one in log.segments if place_of(one) > place(start)]


def archived_version(segment: SegmentFile) -> ArchivedSegment:
    """Return the version of a segment that a listing shows."""
    assert segment.crc32c is not None
    return ArchivedSegment(segment.number, segment.crc32c)


def as_planned(log: LogDirectory, segment: SegmentFile, end: Offset) -> SegmentFile:
    """Return a segment as it was when its batch was planned; it may have grown since."""
    if segment.number < end["segment"]:
        return segment
    planned = msgspec.structs.replace(segment, bytes=end["bytes"], crc32c=end["crc32c"])
    name = archived_version(planned)
    if log.archived.get(name) != planned.bytes:
        return planned
    return msgspec.structs.replace(planned, path=f"{log.path}/{name.name}")


def missing_segments(start: Offset, segments: Sequence[SegmentFile], end: Offset) -> list[str]:
    """Return texts of the numbers that are missing between two offsets."""
    first = start["segment"] + 1
    if not start["segment"]:
        first = end.get("first") or min((one.number for one in segments), default=end["segment"])
    # a batch may have only the rest of its last segment
    first = min(first, end["segment"])
    between = [one.number for one in segments if one.number >= first]
    numbers = [first - 1, *between, end["segment"] + 1]
    found = []
    for before, number in pairwise(numbers):
        if number > before + 1:
            found.append(f"segments {before + 1} to {number - 1} of the archive are")
    return found


def place(offset: Offset) -> tuple[int, int]:
    """Return number and bytes of the segment in which an offset is; these ascend."""
    return offset["segment"], offset["bytes"]


def place_of(segment: SegmentFile) -> tuple[int, int]:
    """Return the place of the end of a segment."""
    return segment.number, segment.bytes


def offset_name(offset: Offset) -> str:
    """Return the name of the files of an offset; names ascend with the places."""
    return f"{offset['segment']:09d}-{offset['bytes']:012d}-{offset['crc32c']:08x}"
