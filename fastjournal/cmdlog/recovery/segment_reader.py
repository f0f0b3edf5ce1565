"""Segment reader: reads and scans the segments of a log, some of them ahead by a segment packer.

The packer takes the next segments, as many as it has room for. When it is not done with the one
that is wanted, the reader does not wait, but makes another one ready itself: so two processors have
work to the end. The packer only saves work: the reader reads each segment itself, and what
the packer says counts if it is about the same bytes. So damage, and whatever becomes of the packer,
leaves the same result as without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.records import decode_bounds, outer_stamps
from fastjournal.cmdlog.format.segments import SegmentInfo, segment_name
from fastjournal.cmdlog.recovery.bad_sectors import read_segment
from fastjournal.cmdlog.recovery.entry_blocks import EntryBlock, entry_blocks
from fastjournal.cmdlog.recovery.loss_report import time_at
from fastjournal.cmdlog.recovery.packed_segment import PackedSegment, unpack_blocks, unpack_run
from fastjournal.cmdlog.recovery.scan import RecordRun, SegmentScan, scan_segment
from fastjournal.disk import Disk
from fastjournal.errors import LogFailedError


class SegmentPacker(Protocol):
    """Packs segments, in another process for example."""

    def ask(self, number: int) -> bool:
        """Ask for a segment; False: it has no room for it."""

    def is_packing(self, number: int) -> bool:
        """Whether it was asked for a segment, and has not answered."""

    def wait(self) -> None:
        """Wait until it has answered something, or is gone."""

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
        # those of records behind the usable ones do not matter: bounds may be wider
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
        """Those that nobody has begun, ascending."""
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
