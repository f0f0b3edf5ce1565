"""Segment reader: reads and scans the segments of a log, some of them ahead by a segment packer.

The packer takes the next segments, as many as it has room for. If it has not finished the next one,
the reader does not wait, but scans another one itself: so two CPUs have work to the end. The packer
only saves work: the reader reads each segment itself, and uses the result of the packer if it is of
the same bytes. So damage, or any failure of the packer, gives the same result as without one.

An unreadable sector is a corrupt region like any other: filler bytes replace it, so that every
checksum over it is wrong. A segment that is wholly unreadable is left to people: all of it may
return with the device.

A packed segment is the result of a scan of a segment and its entry blocks, in one buffer. A worker
process packs a segment, which is most of the work of reading it; the daemon unpacks it nearly
without a step of the interpreter for each record. Only a segment without damage is packed.

Byte layout of a packed segment, in the byte order of the machine: u32 offset of each record's body,
u32 offset after each record, the packed rows of the blocks (``cmdlog.recovery.entry_blocks``), and
the *index*, a msgpack array of the blocks: index of the first record, highest arrival, offset and
length of the rows, and whether they are plain. ``PackedSegment`` has the offset of the index and
the facts of the segment.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.layout import SegmentInfo, segment_name
from fastjournal.cmdlog.format.records import decode_bounds, outer_stamps
from fastjournal.cmdlog.recovery.entry_blocks import (
    EntryBlock,
    entry_blocks,
    pack_rows,
    row_blocks,
    unpack_rows,
)
from fastjournal.cmdlog.recovery.loss_report import time_at
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, RecordRun, SegmentScan, scan_segment
from fastjournal.disk import Disk
from fastjournal.errors import LogFailedError

SECTOR_BYTES = 4096
"""A device gives so many bytes or none: what a page and a physical sector hold."""
_PIECE_BYTES = 1 << 20
_FILLER = b"\xfeunreadable sector "


def read_segment(disk: Disk, path: str) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the bytes of a segment, and the ranges of it that cannot be read.

    Raises:
        LogFailedError: It cannot be opened, nothing of it can be read, or it is another error than
            that of a failing device; also where all can be read when it is tried again.
    """
    try:
        return disk.read(path), []
    except LogFailedError as error:
        if not _is_of_the_device(error):
            raise
        pieces, unreadable = _read_in_pieces(disk, path)
        if not unreadable or sum(map(len, pieces)) == sum(end - at for at, end in unreadable):
            raise
        return b"".join(pieces), unreadable


def _read_in_pieces(disk: Disk, path: str) -> tuple[list[bytes], list[tuple[int, int]]]:
    size = disk.size(path)
    pieces: list[bytes] = []
    unreadable: list[tuple[int, int]] = []
    waiting = [(at, min(at + _PIECE_BYTES, size)) for at in range(0, size, _PIECE_BYTES)][::-1]
    while waiting:
        start, end = waiting.pop()
        try:
            pieces.append(disk.read_slice(path, start, end - start))
            continue
        except LogFailedError as error:
            if not _is_of_the_device(error):
                raise
        if end - start > SECTOR_BYTES:
            middle = start + (end - start + SECTOR_BYTES) // (2 * SECTOR_BYTES) * SECTOR_BYTES
            waiting += ((middle, end), (start, middle))
            continue
        pieces.append((_FILLER * (SECTOR_BYTES // len(_FILLER) + 1))[: end - start])
        if unreadable and unreadable[-1][1] == start:
            unreadable[-1] = (unreadable[-1][0], end)
        else:
            unreadable.append((start, end))
    return pieces, unreadable


def _is_of_the_device(error: LogFailedError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO


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


class SegmentPacker(Protocol):
    """Packs segments, in another process for example."""

    def ask(self, number: int) -> bool:
        """Ask for a segment; False: it has no room for it."""

    def is_packing(self, number: int) -> bool:
        """Whether it was asked for a segment, and has not answered."""

    def wait(self) -> None:
        """Wait until it has answered or has ended."""

    def take(self, number: int) -> tuple[PackedSegment, memoryview] | None:
        """Return its answer, which stays until ``release``; None: there is none."""

    def release(self, number: int) -> None:
        """Give the room of a segment back."""

    def close(self) -> None:
        """End it."""


StartPacker = Callable[[Sequence[int]], SegmentPacker | None]
"""Starts a packer for segments of these sizes; None: there is none."""


class Segment(msgspec.Struct, gc=False):
    """A segment that was read and scanned."""

    number: int
    data: bytes
    scan: SegmentScan
    unreadable: list[tuple[int, int]]
    """Ranges that the device cannot read."""
    crc32c: int
    """CRC-32C of ``data``."""
    ready: Iterator[EntryBlock] | None = None
    """Entry blocks of its one run, where that was made ready; else None."""
    outer: tuple[bytes, bytes] | None = None
    """Bytes of the earliest and the latest time, where these were made ready; else None."""

    def blocks(self, run: RecordRun) -> Iterator[EntryBlock]:
        """Return the entry blocks of a run, in ascending order; once."""
        return entry_blocks(self.data, self.number, run) if self.ready is None else self.ready

    def info(self, usable: int) -> SegmentInfo:
        """Return what is known of its first bytes, so many."""
        data = self.data
        times: list[int | None] = []
        records = 0
        for run in self.scan.runs:
            whole = sum(1 for end in run.ends if end <= usable) if run.end > usable else len(run)
            if whole:
                records += whole
                times += (time_at(data, run.start), time_at(data, run.offset(whole - 1)))
        first_us, last_us = (times[0], times[-1]) if times else (None, None)
        stamps = self.outer or outer_stamps(
            stamp for run in self.scan.runs for stamp in run.stamps(data)
        )
        # those of records after the usable ones do not matter: bounds may be wider
        min_us, max_us = decode_bounds(*stamps) if records else (None, None)
        crc = self.crc32c if usable == len(data) else google_crc32c.value(data[:usable])
        return SegmentInfo(self.number, usable, crc, first_us, last_us, records, min_us, max_us)


class SegmentReader:
    """Reads the segments of a log, mostly in ascending order, each once.

    Args:
        disk: Where the log is.
        directory: Directory of the log.
        numbers: Numbers of the segments, ascending.
        packer: Packs segments ahead; None: there is none. It is closed by ``close``.
        name_of: Returns the file name of a segment.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        numbers: Sequence[int],
        packer: SegmentPacker | None,
        name_of: Callable[[int], str] = segment_name,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._name_of = name_of
        self._left = list(numbers)
        """Segments that are not begun, ascending."""
        self._packer = packer
        self._ahead: Segment | None = None
        """One that the reader made ready while it would have waited."""
        self._in_use: int | None = None
        """Segment whose room of the packer is in use."""

    def close(self) -> None:
        """End the packer."""
        if self._packer is not None:
            self._packer.close()

    def read(self, number: int) -> Segment:
        """Return a segment; that of the call before is used up.

        Raises:
            LogFailedError: It cannot be read; see ``read_segment``.
        """
        if number in self._left:
            self._left.remove(number)
        packer = self._packer
        if packer is None:
            return self._scan(number)
        if self._in_use is not None:
            packer.release(self._in_use)
            self._in_use = None
        self._ask(packer)
        while packer.is_packing(number):
            if self._ahead is None and self._left:
                # one that cannot be read fails when it is wanted
                with suppress(LogFailedError):
                    self._ahead = self._make_ready(self._left.pop(0))
            else:
                packer.wait()
            self._ask(packer)
        ahead = self._ahead
        if ahead is not None and ahead.number == number:
            self._ahead = None
            return ahead
        answer = packer.take(number)
        if answer is None:
            return self._scan(number)
        self._in_use = number
        return self._unpack(number, *answer)

    def _ask(self, packer: SegmentPacker) -> None:
        while self._left and packer.ask(self._left[0]):
            del self._left[0]

    def _unpack(self, number: int, packed: PackedSegment, buffer: memoryview) -> Segment:
        data, unreadable = self._read(number)
        crc32c = google_crc32c.value(data)
        if unreadable or (packed.bytes, packed.crc32c) != (len(data), crc32c):
            return Segment(number, data, scan_segment(data), unreadable, crc32c)
        scan = SegmentScan(len(data), [unpack_run(packed, buffer)], [])
        blocks, outer = unpack_blocks(packed, buffer), (packed.low, packed.high)
        return Segment(number, data, scan, [], crc32c, blocks, outer)

    def _make_ready(self, number: int) -> Segment:
        segment = self._scan(number)
        if len(segment.scan.runs) == 1:
            blocks = entry_blocks(segment.data, number, segment.scan.runs[0])
            segment.ready = iter(list(blocks))
        return segment

    def _scan(self, number: int) -> Segment:
        data, unreadable = self._read(number)
        return Segment(number, data, scan_segment(data), unreadable, google_crc32c.value(data))

    def _read(self, number: int) -> tuple[bytes, list[tuple[int, int]]]:
        return read_segment(self._disk, f"{self._directory}/{self._name_of(number)}")
