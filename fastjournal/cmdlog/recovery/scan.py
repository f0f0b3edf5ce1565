"""Scan of a segment: offsets of its records, of corrupt regions, of a torn write (torn tail).

A scan finds *runs* of valid records in the bytes of a segment, and *damage* around them. A record
is valid if its size fits into the file, its checksum is right and it is long enough for its
command; its fields are not decoded here. Sizes are compared with the file before anything is
extracted.

After damage the scan searches the next valid record: at the end of the damaged record, if its size
and its fields agree, else at every offset whose bytes could be a time and the head of a record. So
the records after it distinguish a flipped bit in a size from a record that a crash has cut.

The layout of records: ``cmdlog.format.layout``.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from typing import Final

import google_crc32c
import msgspec

from fastjournal import _native
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    RECORD_BYTES_MIN,
    SEGMENT_HEADER,
    SHORT_BODY_AT,
    SHORT_MAX,
    SIMPLE_BODY_BYTES,
    TIME_BYTES,
    TIME_VERSION,
)
from fastjournal.cmdlog.format.records import body_offset, crc_at, decode_body
from fastjournal.errors import LogCorruptError

HEADER_BYTES = len(SEGMENT_HEADER)

_crc32c = google_crc32c.value
_SIZE_BYTES_MAX = 5
"""Enough for sizes up to 32 GiB."""
OFFSET: Final = "I"
"""Type of an array of offsets in a segment, 32 bits each."""
OFFSET_MAX: Final = (1 << 32) - 1

# A time between the years 1 and 9999 with a plausible zone, a size, a command.
_HEAD = re.compile(
    rb"\x01\x00\x00\x00[\x00-\x49].{4}[\x00-\x3b].{3}[\x00-\x03\xfc-\xff]."
    rb"[\x80-\xff]{0,4}[\x00-\x7f][\x01-\x08]",
    re.DOTALL,
)


class RecordRun(msgspec.Struct, gc=False):
    """Adjacent valid records."""

    start: int
    """Offset of the first record."""
    bodies: Sequence[int]
    """Offset of each record's payload, whose first byte is the command."""
    ends: Sequence[int]
    """Offset after each record, which is that of the next one."""

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self.ends[-1] if self.ends else self.start

    def offset(self, index: int) -> int:
        """Return the offset of a record's first byte."""
        return self.ends[index - 1] if index else self.start

    def stamps(self, data: bytes) -> Iterator[bytes]:
        """Yield the bytes of the time of each record."""
        start, time_bytes = self.start, TIME_BYTES
        for end in self.ends:
            yield data[start : start + time_bytes]
            start = end

    def __len__(self) -> int:
        return len(self.ends)


class CorruptRegion(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are no valid records."""

    offset: int
    end: int
    reason: str


class SegmentScan(msgspec.Struct, gc=False):
    """Result of a scan: the stretches of a segment."""

    size: int
    """Bytes of the segment."""
    runs: list[RecordRun]
    damage: list[CorruptRegion]
    """In ascending order; the last one reaches to the end if no valid record is after it."""
    readable: bool = True
    """Whether the device gave all bytes: what it does not give is not torn."""

    @property
    def records(self) -> int:
        """Number of valid records."""
        return sum(len(run) for run in self.runs)

    @property
    def usable_bytes(self) -> int:
        """Bytes before the first damage."""
        return self.damage[0].offset if self.damage else self.size

    @property
    def clean(self) -> bool:
        """Whether there is no damage."""
        return not self.damage

    @property
    def torn(self) -> bool:
        """Whether the only damage is at the end, as a crash in the middle of a write leaves it.

        A bad header is damage, unless the crash came before the header was written.
        """
        if len(self.damage) != 1 or self.damage[0].end != self.size or not self.readable:
            return False
        return self.damage[0].offset >= HEADER_BYTES or self.damage[0].reason == _NO_HEADER

    def damage_before(self, run: RecordRun) -> list[CorruptRegion]:
        """Return what is between a run and the one before it; the last of it ends at the run."""
        before = max((other.end for other in self.runs if other.end < run.start), default=0)
        return [found for found in self.damage if before <= found.offset < run.start]

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (offset, offset of the payload, offset after it) of each valid record."""
        for run in self.runs:
            offset = run.start
            for body, end in zip(run.bodies, run.ends, strict=True):
                yield offset, body, end
                offset = end


_NO_HEADER = "the header was not written"


def scan_segment(data: bytes) -> SegmentScan:
    """Return where a segment's valid records and its damage are. Raises nothing."""
    scan = SegmentScan(len(data), [], [])
    at = HEADER_BYTES
    if not data.startswith(SEGMENT_HEADER):
        written = data.rstrip(b"\0")
        unwritten = len(written) < HEADER_BYTES and SEGMENT_HEADER.startswith(written)
        usual = [at for at in (HEADER_BYTES, 0) if _valid_end(data, at) is not None]
        found = usual[0] if usual else find_record(data, 0)
        at = len(data) if found is None else found
        reason = _NO_HEADER if unwritten and found is None else "the header is not a segment's"
        scan.damage.append(CorruptRegion(0, at, reason))
    while at < len(data):
        run, reason = _scan_run(data, at)
        if len(run):
            scan.runs.append(run)
        if run.end == len(data):
            break
        found = find_record(data, run.end)
        at = len(data) if found is None else found
        scan.damage.append(CorruptRegion(run.end, at, reason))
    return scan


def scan_piece(data: bytes, start: int, stop: int) -> RecordRun:
    """Return the valid records from ``start`` on that begin before ``stop``; fewer at damage."""
    return _scan_run(data, start, stop)[0]


def _scan_run(data: bytes, start: int, stop: int | None = None) -> tuple[RecordRun, str]:
    """Return the valid records from ``start`` on, and the fault after the last one."""
    bodies: MutableSequence[int] = []
    ends: MutableSequence[int] = []
    at = start
    size = len(data)
    last = size - RECORD_BYTES_MIN
    if stop is not None:
        last = min(last, stop - 1)
    if _native.leaves is not None and size <= OFFSET_MAX:
        found = _native.leaves.scan_records(data, start, last)
        bodies, ends = (array(OFFSET, each) for each in found)
        at = ends[-1] if ends else start
    crc32c = _crc32c
    time_bytes, short_body_at, crc_bytes = TIME_BYTES, SHORT_BODY_AT, CRC_BYTES
    add_body = bodies.append
    add_end = ends.append
    reason = "a record is cut"
    while at <= last:
        length = data[at + time_bytes]
        body = at + short_body_at
        if length > SHORT_MAX:
            shift = 7
            length &= 0x7F
            while body < size and shift < 7 * _SIZE_BYTES_MAX:
                byte = data[body]
                body += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
            else:
                reason = "a record's size is not a number"
                break
        end = body + length
        if end + crc_bytes > size:
            reason = f"a record of {length} bytes is cut"
            break
        if length < SIMPLE_BODY_BYTES or data[at] != TIME_VERSION:
            reason = "there is no record"
            break
        if crc32c(data[at:end]) != crc_at(data, end)[0]:
            reason = "a record's checksum is wrong"
            break
        at = end + crc_bytes
        add_body(body)
        add_end(at)
    if not any(data[at : at + RECORD_BYTES_MIN]):
        reason = "it is filled with zeros"
    return RecordRun(start, bodies, ends), reason


def find_record(data: bytes, start: int) -> int | None:
    """Return the offset of the first valid record after the damaged one at ``start``, or None.

    If the fields of the damaged record agree with its size, that size is used if a valid record or
    the end of the data is there: so nothing inside its value is taken for a record.
    """
    claimed = _claimed_end(data, start)
    if claimed is not None and _agrees(data, start, claimed):
        if claimed == len(data):
            return None
        if _valid_end(data, claimed) is not None:
            return claimed
    head = _HEAD.search(data, start + 1)
    while head is not None:
        if _valid_end(data, head.start()) is not None:
            return head.start()
        head = _HEAD.search(data, head.start() + 1)
    return None


def find_head(data: bytes, start: int, end: int) -> int:
    """Return the offset of the first bytes that look like the head of a record, else ``end``."""
    head = _HEAD.search(data, start, end)
    return end if head is None else head.start()


def _agrees(data: bytes, start: int, end: int) -> bool:
    try:
        decode_body(data, start, body_offset(data, start), end - CRC_BYTES)
    except LogCorruptError:
        return False
    return True


def _claimed_end(data: bytes, start: int) -> int | None:
    """Return where a record that looks like one claims to end; its checksum does not matter."""
    head = _HEAD.match(data, start)
    if head is None:
        return None
    length = shift = 0
    at = start + TIME_BYTES
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    end = at + length + CRC_BYTES
    if length < SIMPLE_BODY_BYTES or end > len(data):
        return None
    return end


def _valid_end(data: bytes, start: int) -> int | None:
    """Return the end of the valid record at ``start``, or None where there is none."""
    end = _claimed_end(data, start)
    if end is None or _crc32c(data[start : end - CRC_BYTES]) != crc_at(data, end - CRC_BYTES)[0]:
        return None
    return end
