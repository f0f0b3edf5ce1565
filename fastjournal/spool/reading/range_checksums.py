"""Range checksums: CRC-32C of many ranges of the same bytes, each byte looked at once.

Damage may look like any number of records that claim to be large and overlap. To take the checksum
of each from its bytes costs the square of their number. A CRC is linear: that of a range follows
from those of the bytes up to its start and up to its end, and from its length. So the checksum of
the bytes up to each block is kept, and each range costs as much as a block, however long it is.
"""

from __future__ import annotations

from typing import Final

import google_crc32c

from fastjournal.spool.format import CRC_BYTES
from fastjournal.spool.shifted_checksums import shifted

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
