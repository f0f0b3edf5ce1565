"""Window over a slot: the part of its bytes that is in memory, from the reader's position on.

A piece is a record, an erased record, or damage; the work budget bounds the work on damage and dead
letters in one turn.

Range checksums are the CRC-32C of many ranges of the same bytes. Each byte is read once. Damage may
contain many claimed records, large and overlapping, and computing the checksum of each from its
bytes costs the square of their number. A CRC is linear: that of a range follows from those of the
bytes up to its start and up to its end, and from its length. So the checksum of the bytes up to
each block is kept, and each range costs as much as a block, independent of its length.
"""

from __future__ import annotations

import errno
import math
import os
from enum import Enum
from typing import Final

import google_crc32c
import msgspec

from fastjournal.spool.format import CRC_BYTES, HEAD_BYTES, RECORD_BYTES_MAX, RECORD_OVERHEAD
from fastjournal.spool.shifted_checksums import shifted
from fastjournal.spool.slots import spool_failed

_BLOCK_BYTES: Final = 1024
_BLOCKS_MAX: Final = 65_536
"""Blocks before the range that are kept, at least: a range may begin in one of them again."""

_extend: Final = google_crc32c.extend


class RangeChecksums:
    """Range checksums of a file, of which a part is in memory."""

    def __init__(self) -> None:
        self._origin = 0
        """Where the first block begins in the file."""
        self._marks: list[int] = []
        """Checksum of the bytes from ``_origin`` to the begin of each block."""

    def floor(self, at: int) -> int:
        """Return from where on bytes have to stay in memory for ranges that begin at ``at``."""
        blocks = min((at - self._origin) // _BLOCK_BYTES, len(self._marks) - 1)
        return self._origin + blocks * _BLOCK_BYTES if blocks >= 0 else at

    def is_right(self, data: bytes, base: int, at: int, end: int) -> bool:
        """Return whether the record at ``at`` to ``end`` of the bytes has the right checksum.

        Args:
            data: Bytes of the file.
            base: Where they begin in the file.
            at: Where the record begins, in ``data``.
            end: Where it ends.
        """
        start, stop = base + at + 1, base + end - CRC_BYTES
        marks = self._marks
        last = self._origin + (len(marks) - 1) * _BLOCK_BYTES
        if not marks or start < self._origin or last < base:
            self._origin, self._marks = base, [0]
        before = self._up_to(data, base, start)
        found = self._up_to(data, base, stop) ^ shifted(before, stop - start)
        self._trim(start)
        return found == int.from_bytes(data[end - CRC_BYTES : end])

    def _up_to(self, data: bytes, base: int, at: int) -> int:
        """Return the checksum of the bytes from ``_origin`` to ``at``, offsets in the file."""
        marks = self._marks
        block = (at - self._origin) // _BLOCK_BYTES
        place = self._origin - base
        while len(marks) <= block:
            first = place + (len(marks) - 1) * _BLOCK_BYTES
            marks.append(_extend(marks[-1], data[first : first + _BLOCK_BYTES]))
        found: int = _extend(marks[block], data[place + block * _BLOCK_BYTES : at - base])
        return found

    def _trim(self, start: int) -> None:
        """Drop marks far before ``start``."""
        blocks = (start - self._origin) // _BLOCK_BYTES - _BLOCKS_MAX
        if blocks > _BLOCKS_MAX:
            del self._marks[:blocks]
            self._origin += blocks * _BLOCK_BYTES


PIECE_UNITS: Final = 200
"""Work of a piece that is read: a slot may have erased records by the million."""

OPENING_UNITS: Final = 16 * 1024
"""Work of a slot that is opened in vain: it gives no record."""


class WorkBudget:
    """Budget of work: units that are left, about one for each byte that is searched.

    Args:
        units: How many there are.
    """

    __slots__ = ("_units", "left")

    def __init__(self, units: float = math.inf) -> None:
        self._units = self.left = units

    @property
    def is_spent(self) -> bool:
        """Whether the rest has to wait."""
        return self.left <= 0

    def spend(self, units: float) -> None:
        """Note work that was done."""
        self.left -= units

    def refill(self) -> None:
        """Begin again."""
        self.left = self._units


class PieceKind(Enum):
    """Kind of a piece of a slot."""

    PENDING = "pending"
    ERASED = "erased"
    DAMAGE = "damage"


class Piece(msgspec.Struct, gc=False, frozen=True):
    """Piece of a slot: its bytes ``offset`` to ``end``."""

    kind: PieceKind
    offset: int
    end: int
    data: bytes
    """The frame of a pending record, the raw bytes of damage; empty for an erased record, and for
    a run of zero bytes."""

    @property
    def is_zeros(self) -> bool:
        """Whether this is damage of nothing but zero bytes, and without a copy of them."""
        return self.kind is PieceKind.DAMAGE and not self.data


CHUNK_BYTES = 1024 * 1024
"""One read of the file: some thousand usual records."""

LOADED_BYTES_PER_UNIT = 16
"""So many bytes are read, or compared with zero, for one unit of a budget."""


class SlotWindow:
    """Window over one slot.

    Args:
        path: The file, for errors.
        descriptor: An open descriptor to read from, which stays the caller's.
        start: Where the window begins, in bytes.
        end: Nothing is read from this byte on.
        budget: Bounds the work; each read spends of it.
    """

    __slots__ = (
        "_budget",
        "_checksums",
        "_descriptor",
        "_end",
        "_passed",
        "base",
        "data",
        "path",
        "position",
    )

    def __init__(
        self, path: str, descriptor: int, *, start: int, end: int, budget: WorkBudget
    ) -> None:
        self.path = path
        self._descriptor = descriptor
        self._end = end
        self._budget = budget
        self.position = start
        """Everything before this byte was returned, and need not stay in memory."""
        self.data = b""
        self.base = start
        """Where ``data`` starts in the file."""
        self._checksums: RangeChecksums | None = None
        """Of the bytes in memory; None: no place in damage was judged."""
        self._passed = b""
        """Last bytes before ``base``, as far as they were read here."""

    @property
    def loaded_to(self) -> int:
        """Where ``data`` ends in the file."""
        return self.base + len(self.data)

    @property
    def last_bytes(self) -> bytes:
        """The last bytes before ``position``, at most CRC_BYTES, as they were read."""
        return self._bytes_before(self.position)

    def forget_descriptor(self) -> None:
        """Read no more, because the caller closes the descriptor: another file may get its number.

        Each later read raises SpoolFailedError (EBADF).
        """
        self._descriptor = -1

    def load(self, whole_at: int | None = None) -> bool:
        """Read on after the data in memory; False: the file has no more.

        Args:
            whole_at: Where a record starts that is to be whole then; None: any bytes do.

        Raises:
            SpoolFailedError: The file cannot be read.
        """
        at = len(self.data) if whole_at is None else whole_at - self.base
        head = self.data[at : at + HEAD_BYTES]
        wanted = max(CHUNK_BYTES, len(self.data) // 4)  # what is there is copied
        if len(head) == HEAD_BYTES:
            record_bytes = int.from_bytes(head[1:]) + RECORD_OVERHEAD
            wanted = max(wanted, min(record_bytes, RECORD_BYTES_MAX) - len(self.data) + at)
        more = self.read_at(self.loaded_to, wanted)
        if more:
            self.drop_passed(more)
        return bool(more)

    def load_to(self, at: int) -> None:
        """Read on until the bytes before ``at`` are in memory, or the file ends.

        Raises:
            SpoolFailedError: The file cannot be read.
        """
        while self.loaded_to < at and self.load():
            pass

    def read_at(self, at: int, count: int) -> bytes:
        """Return at most ``count`` bytes of the file from ``at`` on; the window stays as it is.

        Raises:
            SpoolFailedError: The file cannot be read.
        """
        try:
            more = os.pread(self._descriptor, max(0, min(count, self._end - at)), at)
        except OSError as error:
            raise spool_failed("read", self.path, error) from error
        self._budget.spend(len(more) // LOADED_BYTES_PER_UNIT)
        return more

    def drop_passed(self, more: bytes = b"") -> None:
        """Drop the bytes before ``position``, and append the bytes that were read."""
        checksums, position = self._checksums, self.position
        base = max(self.base, position if checksums is None else checksums.floor(position))
        self._passed = self._bytes_before(base)
        self.data = self.data[base - self.base :] + more
        self.base = base

    def restart_behind_zeros(self) -> None:
        """Drop all bytes: ``position`` is after a run of zero bytes that was not kept."""
        self.data, self.base, self._passed = b"", self.position, bytes(CRC_BYTES)
        self._checksums = None

    def is_right(self, data: bytes, at: int, end: int) -> bool:
        """Return whether the record at ``at`` to ``end`` of ``data`` has the right checksum."""
        if self._checksums is None:
            self._checksums = RangeChecksums()
        return self._checksums.is_right(data, self.base, at, end)

    def behind_hole(self, at: int) -> int:
        """Return where the next bytes of the file are that are no hole: from ``at`` on.

        Raises:
            SpoolFailedError: The file cannot be read.
        """
        try:
            found = os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return at  # the file system does not say
            if error.errno != errno.ENXIO:
                raise spool_failed("read", self.path, error) from error
            found = max(at, os.fstat(self._descriptor).st_size)
        return min(found, self._end)

    def _bytes_before(self, at: int) -> bytes:
        """Return the last bytes before a place, at most CRC_BYTES, as far as they were read."""
        end = at - self.base
        before = self.data[max(end - CRC_BYTES, 0) : end]
        return before if len(before) == CRC_BYTES else (self._passed + before)[-CRC_BYTES:]
