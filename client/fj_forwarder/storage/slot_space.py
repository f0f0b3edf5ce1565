"""Space of a slot file: a run of erased records becomes one blank, and its frame a hole.

A blank is one record over a whole erased run (docs/spool.md). Whether the file system can punch
holes shows at the first try.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from bisect import bisect_right
from typing import Final

from fastjournal.spool.format import CRC_BYTES, HEAD_BYTES, RECORD_BYTES_MAX, blank_ends
from fastjournal.spool.reading.slot_window import Piece, PieceKind
from fastjournal.spool.slots import spool_failed

log = logging.getLogger("fj_forwarder")

RELEASE_BYTES: Final = 1024 * 1024
"""An erased run is released when it has grown by this much: one call for thousands of records."""

_NOWHERE: Final = 1 << 62

_KEEP_SIZE: Final = 0x01
_PUNCH_HOLE: Final = 0x02
_CANNOT: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    _fallocate.restype = ctypes.c_int


def punch_hole(descriptor: int, offset: int, size: int) -> bool:
    """Make ``size`` bytes from ``offset`` a hole, which reads as zeros; the length stays.

    Returns:
        False: this system or file system cannot; nothing was changed.

    Raises:
        OSError: It failed.
    """
    if _fallocate is None:
        return False
    while _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, size) != 0:
        number = ctypes.get_errno()
        if number in _CANNOT:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


class SlotSpace:
    """Space of one slot: its erased bytes, and how much of them was released.

    Args:
        path: Path of the slot.
    """

    __slots__ = (
        "_again_at",
        "_blocked_at",
        "_can_release",
        "_look_at",
        "_marks",
        "_path",
        "_released",
        "_unreleased",
        "last_record",
    )

    def __init__(self, path: str) -> None:
        self._path = path
        self._unreleased = 0
        """Erased bytes that are not released, wherever in the file."""
        self._released = -1
        """Everything before this is released, except delayed records; -1: no record was read."""
        self.last_record = -1
        """Where the last record that was read starts."""
        self._marks: list[int] = []
        """Where some records start, at least ``RELEASE_BYTES`` apart: a blank may end there."""
        self._can_release = True
        self._blocked_at = _NOWHERE
        """The first pending record, where that kept space from being released."""
        self._again_at = 0
        """Erased bytes from which on a release that failed is tried again; 0: none did."""
        self._look_at = 0
        """Erased bytes from which on a run may follow what kept space from being released."""

    def add_read(self, piece: Piece) -> None:
        """Note a piece that was read, in the order of the file."""
        if self._released < 0:
            self._released = piece.offset
        if piece.kind is not PieceKind.DAMAGE:
            self.last_record = piece.offset
            if not self._marks or piece.offset - self._marks[-1] >= RELEASE_BYTES:
                self._marks.append(piece.offset)
        if piece.kind is PieceKind.ERASED:
            self._unreleased += piece.end - piece.offset

    def add_erased(self, size: int) -> None:
        """Note so many bytes that were erased."""
        self._unreleased += size

    def unblock(self) -> None:
        """Note that the obstacle to releasing space may have ended."""
        self._blocked_at = _NOWHERE

    def is_due(self, offset: int) -> bool:
        """Whether enough can be released, after the record at ``offset`` was erased."""
        if self._unreleased < max(RELEASE_BYTES, self._again_at) or offset < self._released:
            return False
        is_open = offset <= self._blocked_at or self._unreleased >= self._look_at
        return is_open and self._can_release

    def release(self, descriptor: int, end: int, waiting: list[tuple[int, int]]) -> None:
        """Release the erased runs before ``end``: at the start, and after delayed records.

        So a record that cannot be sent, or buried because the disk is full, does not keep the space
        of all that follow it. Its own space stays until the slot is deleted, if a run after it was
        released first.

        A failure (a full disk may have no room for a hole) costs space only: it is logged once, and
        the release is tried again when as much more is erased. The same holds where no blank can
        reach over what is at the start.

        Args:
            descriptor: The file.
            end: Nothing is released from this byte on.
            waiting: Ranges that are delayed, in the order of the file.
        """
        while True:
            start, first_pending = self._find_run(end, waiting)
            if first_pending - start < RELEASE_BYTES:
                break
            self._released = start
            try:
                self._release(descriptor, first_pending)
            except OSError as error:
                if not self._again_at:
                    failed = spool_failed("release space", self._path, error)
                    log.warning("%s; it is tried again later", failed)
                self._again_at = self._unreleased + RELEASE_BYTES
                return
            is_stuck = self._released == start
            self._again_at = self._unreleased + RELEASE_BYTES if is_stuck else 0
            if is_stuck or not self._can_release:
                break
        is_blocked = self._unreleased >= RELEASE_BYTES and first_pending != self.last_record
        self._blocked_at = first_pending if is_blocked else _NOWHERE
        self._look_at = self._unreleased + RELEASE_BYTES

    def _find_run(self, end: int, waiting: list[tuple[int, int]]) -> tuple[int, int]:
        """Return begin and end of the first erased run that is worth it, else of the first one."""
        start, first = self._released, end
        for begin, after in waiting:
            if begin >= end:
                break
            if begin - start >= RELEASE_BYTES:
                return start, begin
            if after > start:
                first = min(first, begin)
                start = after
        return (start, end) if end - start >= RELEASE_BYTES else (self._released, first)

    def _release(self, descriptor: int, end: int) -> None:
        """Make the erased run up to ``end`` one blank, and its frame a hole.

        The run ends where a whole record starts: until its CRC is written a blank counts only
        because it leads to one. ``OSError`` as it comes.
        """
        while end - self._released >= RELEASE_BYTES:
            part_end = self._boundary(end)
            if part_end - self._released < RELEASE_BYTES:
                return
            self._blank(descriptor, self._released, part_end)
            if not self._can_release:
                return
            self._unreleased -= part_end - self._released
            self._released = part_end

    def _boundary(self, end: int) -> int:
        """Return ``end``, or the last known start of a record that one blank can reach."""
        limit = self._released + RECORD_BYTES_MAX
        if end <= limit:
            return end
        reached = bisect_right(self._marks, limit)
        return max(self._released, self._marks[reached - 1]) if reached else self._released

    def _blank(self, descriptor: int, start: int, end: int) -> None:
        head, crc = blank_ends(end - start)
        before = os.pread(descriptor, HEAD_BYTES, start)
        os.pwrite(descriptor, head, start)
        hole = start + HEAD_BYTES
        if punch_hole(descriptor, hole, end - CRC_BYTES - hole):
            os.pwrite(descriptor, crc, end - CRC_BYTES)
        else:
            os.pwrite(descriptor, before, start)
            self._can_release = False
