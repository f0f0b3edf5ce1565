"""Growth of a drop-in: whether a program still writes it under its name, or it is over.

A drop-in should be whole when it appears, but a program may copy it there. So an incomplete one
counts as torn only when it has not grown for the time between two rescans.
"""

from __future__ import annotations

from typing import Final

from fastjournal.limits import RESCAN_US
from fastjournal.spool.format import FILE_HEADER_BYTES


class DropInGrowth:
    """Growth of one slot file; one that is no drop-in is never over by it.

    Args:
        is_drop_in: Whether it is one.
        has_grown: A program was seen to write it under its name.
    """

    __slots__ = ("_is_drop_in", "_seen_bytes", "_seen_us", "has_grown", "is_stalled", "read_bytes")

    def __init__(self, *, is_drop_in: bool, has_grown: bool) -> None:
        self._is_drop_in: Final = is_drop_in
        self.has_grown = has_grown
        """It was incomplete or became longer: a program writes it under its name."""
        self.is_stalled = False
        """It did not grow for the time between two rescans."""
        self.read_bytes = 0
        """Length of the file at the last read that came to its end."""
        self._seen_bytes = -1
        """Length at the last look."""
        self._seen_us = 0
        """First look at which it had this length."""

    def note_read(self, size: int, waiting_bytes: int) -> None:
        """Note the length of the file at a read that came to its end.

        Args:
            size: The length, in bytes.
            waiting_bytes: Bytes at the end that are no whole record yet.
        """
        if self._is_drop_in and (waiting_bytes or 0 < self.read_bytes < size):
            self.has_grown = True
        self.read_bytes = size

    def note_look(self, size: int, now_us: int) -> None:
        """Note the length of the file, in bytes, at an instant."""
        if size != self._seen_bytes:
            self._seen_bytes, self._seen_us, self.is_stalled = size, now_us, False
        elif now_us - self._seen_us >= RESCAN_US:
            self.is_stalled = True

    def is_over(self, position: int, waiting_bytes: int) -> bool:
        """Whether this is a drop-in that was read to its end: nothing more comes.

        One without a record, or that a program was seen to write under its name, may grow: it is
        over when it has not grown for a while.

        Args:
            position: Everything before this byte was read.
            waiting_bytes: Bytes behind it that are no whole record yet.
        """
        is_whole = position > FILE_HEADER_BYTES and not self.has_grown
        return self._is_drop_in and not waiting_bytes and (is_whole or self.is_stalled)
