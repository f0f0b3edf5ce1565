"""Active segment: counters of the segment that the log writer appends to, and its resumption.

The writer counts its appends in the attributes itself, so an append calls nothing here. A segment
is created when the writer begins one, and described when it is sealed.
"""

from __future__ import annotations

from fastjournal.cmdlog.format.records import decode_bounds, encode_time
from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournal.disk import Disk
from fastjournal.errors import LogFailedError


class ActiveSegment:
    """A segment while it is appended to."""

    __slots__ = ("bytes", "crc", "first_us", "high", "last_us", "low", "number", "records")

    def __init__(self, number: int) -> None:
        self.number = number
        self.bytes = 0
        """Bytes appended, those in the writer's buffer too."""
        self.crc = 0
        """CRC-32C of the bytes that are written."""
        self.first_us: int | None = None
        """Time of the first record, in microseconds; None without records."""
        self.last_us: int | None = None
        """Time of the last record."""
        self.records = 0
        self.low: bytes | None = None
        """Bytes of the earliest time of a record; None: not known."""
        self.high: bytes | None = None
        """Those of the latest one."""

    def info(self) -> SegmentInfo:
        """Return the description of the segment, as it is kept of a sealed one."""
        min_us, max_us = None, None
        if self.low is not None and self.high is not None:
            min_us, max_us = decode_bounds(self.low, self.high)
        return SegmentInfo(
            self.number,
            self.bytes,
            self.crc,
            self.first_us,
            self.last_us,
            self.records,
            min_us,
            max_us,
        )


def resume_segment(disk: Disk, path: str, active: SegmentInfo) -> ActiveSegment:
    """Return the segment of an earlier process, to append to it.

    Args:
        disk: Where the segment is.
        path: Path of its file.
        active: Its description, by recovery.

    Raises:
        LogFailedError: The file cannot be read, or has another length than described.
    """
    length = disk.size(path)
    if length != active.bytes:
        raise LogFailedError(
            f"the active segment has {length} bytes, not {active.bytes}",
            path=path,
            hint="something else wrote to it; start again",
        )
    segment = ActiveSegment(active.number)
    segment.bytes, segment.crc, segment.records = active.bytes, active.crc32c, active.records
    segment.first_us, segment.last_us = active.first_us, active.last_us
    if active.min_us is not None and active.max_us is not None:
        segment.low, segment.high = encode_time(active.min_us), encode_time(active.max_us)
    return segment
