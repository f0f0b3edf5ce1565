"""Packed segment: what a scan finds in a segment, and its entry blocks, in one buffer. Pure.

A worker process packs a segment, which takes most of the work of reading it; the daemon unpacks it
nearly without a step of the interpreter for each record. Only a segment without damage is packed.

Byte layout, in the byte order of the machine: u32 offset of each record's body, u32 offset behind
each record, the packed rows of the blocks (``cmdlog.recovery.entry_blocks``), and the *index*, a
msgpack array of the blocks: index of the first record, highest arrival, offset and length of the
rows, and whether they are plain. ``PackedSegment`` has the place of the
index and the facts of the segment.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.records import outer_stamps
from fastjournal.cmdlog.recovery.entry_blocks import EntryBlock, pack_rows, row_blocks, unpack_rows
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, RecordRun, scan_segment

PACKED_SEGMENT_BYTES_MAX = 256 << 20
"""A larger segment is not packed: the memory of a start is bounded."""
_OFFSET = "I"
_OFFSET_BYTES = array(_OFFSET).itemsize
_Stamp = bytes
_Block = tuple[int, int, int, int, bool]
_decode_index = msgspec.msgpack.Decoder(list[_Block]).decode
_encode_index = msgspec.msgpack.Encoder().encode


class PackedSegment(NamedTuple):
    """Head of a packed segment."""

    number: int
    bytes: int
    """Size of the segment."""
    crc32c: int
    """CRC-32C of the whole segment."""
    records: int
    index_at: int
    """Offset of the index in the buffer."""
    index_bytes: int
    low: _Stamp
    """Bytes of the earliest time of a record."""
    high: _Stamp
    """Those of the latest one."""


def packed_bytes_max(segment_bytes: int) -> int:
    """Return how large a buffer is enough for a segment of so many bytes."""
    return 2 * segment_bytes + (1 << 20)


def pack_segment(number: int, data: bytes, buffer: memoryview) -> PackedSegment | None:
    """Pack a segment into a buffer, and return its head; None: it is damaged, or too large.

    Args:
        number: Number of the segment.
        data: The segment.
        buffer: Writable bytes.
    """
    scan = scan_segment(data)
    if not scan.clean or len(scan.runs) != 1 or len(data) > PACKED_SEGMENT_BYTES_MAX:
        return None
    (run,) = scan.runs
    index: list[_Block] = []
    at = 0

    def put(part: bytes) -> int:
        nonlocal at
        buffer[at : at + len(part)] = part
        at += len(part)
        return len(part)

    try:
        put(array(_OFFSET, run.bodies).tobytes())
        put(array(_OFFSET, run.ends).tobytes())
        for block in row_blocks(data, number, run):
            begin = at
            size = put(pack_rows(block.rows))
            index.append((block.first, block.arrival, begin, size, block.plain))
        index_bytes = put(_encode_index(index))
    except ValueError:
        # it does not fit
        return None
    crc32c = google_crc32c.value(data)
    low, high = outer_stamps(run.stamps(data))
    return PackedSegment(
        number, len(data), crc32c, len(run), at - index_bytes, index_bytes, low, high
    )


def unpack_run(packed: PackedSegment, buffer: memoryview) -> RecordRun:
    """Return the one run of a packed segment."""
    bodies, ends = array(_OFFSET), array(_OFFSET)
    size = packed.records * _OFFSET_BYTES
    bodies.frombytes(buffer[:size])
    ends.frombytes(buffer[size : 2 * size])
    return RecordRun(HEADER_BYTES, bodies, ends)


def unpack_blocks(packed: PackedSegment, buffer: memoryview) -> Iterator[EntryBlock]:
    """Yield the entry blocks of a packed segment; the buffer stays as it is meanwhile."""
    end = packed.index_at + packed.index_bytes
    for first, arrival, at, size, plain in _decode_index(buffer[packed.index_at : end]):
        yield EntryBlock(first, arrival, unpack_rows(buffer[at : at + size], plain=plain))
