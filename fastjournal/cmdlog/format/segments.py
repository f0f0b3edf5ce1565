"""Segments of the command log, sealed and active: names, record locations, facts about each.

A log directory holds segments named by a 9 digit decimal number, ``000000001.log``; the first
number is any, gaps are allowed, other names are ignored. ``cmdlog.format.layout`` has the layout of
a segment.

The location of a record, its position, is one integer: the segment's number shifted left by 40
bits, plus the offset of the record's first byte. Positions of one log sort in the order of writing.
"""

from __future__ import annotations

import re

import msgspec

OFFSET_BITS = 40
"""A segment has at most 1 TiB: far above any segment size in use."""
OFFSET_MASK = (1 << OFFSET_BITS) - 1
SEGMENT_NUMBER_MAX = 999_999_999
"""The largest number of 9 digits."""

_NAME = re.compile(r"([0-9]{9})\.log")


class SegmentInfo(msgspec.Struct, frozen=True, gc=False):
    """Facts about one segment."""

    number: int
    bytes: int
    crc32c: int
    """CRC-32C of the whole file."""
    first_us: int | None
    """Time of the first record, in microseconds since the Unix epoch; None without records."""
    last_us: int | None
    """Time of the last record."""
    records: int
    min_us: int | None = None
    """Earliest time of a record, wherever a clock was set back; None: there is no record, or one
    without a time."""
    max_us: int | None = None
    """Latest time of a record; None: as above."""

    @property
    def name(self) -> str:
        """File name in the log directory."""
        return segment_name(self.number)


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:09d}.log"


def segment_number(name: str) -> int | None:
    """Return the number in a file name, or None where it is not a segment's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def pack_position(segment: int, offset: int) -> int:
    """Return the position of the record that starts at ``offset`` of a segment."""
    return segment << OFFSET_BITS | offset


def unpack_position(position: int) -> tuple[int, int]:
    """Return the segment's number and the offset in it."""
    return position >> OFFSET_BITS, position & OFFSET_MASK
