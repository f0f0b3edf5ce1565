"""Slot reader: one slot from front to back, its records, erased ones, damage, and where to wait.

A caller that has other work than damage bounds the work on it by a ``WorkBudget``; see
``damage_search``.

Plain blocking code without a lock: a reader gets each record once, in its state when it is read,
while others append and the forwarder erases. Only the holder of the exclusive lock of a slot may
say ``final``.
"""

from __future__ import annotations

import os
from typing import Self

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.format import (
    CRC_BYTES,
    DAMAGED,
    ERASED,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    INCOMPLETE,
    MAGIC,
    PENDING,
    RECORD_OVERHEAD,
    record_end,
)
from fastjournal.spool.reading.damage_search import DamageSearch
from fastjournal.spool.reading.slot_window import (
    CHUNK_BYTES,
    Piece,
    PieceKind,
    SlotWindow,
    WorkBudget,
)
from fastjournal.spool.slots import open_slot

_NO_END = 1 << 62


class SlotReader:
    """Reader of one slot; it keeps its position there.

    Args:
        path: The file.
        descriptor: An open descriptor to read from, which stays the caller's.
        start: Where a record starts, to begin there instead of at the front.
        end: Where a record ended, to read nothing from there on.
        is_damage: The bytes from ``start`` to ``end`` are known to be damage.
        budget: Bounds the work on damage in one go; None: it is not bounded.

    Raises:
        SpoolFailedError: It cannot be opened.
    """

    def __init__(
        self,
        path: str,
        descriptor: int | None = None,
        *,
        start: int = 0,
        end: int = _NO_END,
        is_damage: bool = False,
        budget: WorkBudget | None = None,
    ) -> None:
        self.path = path
        self._owned = descriptor is None
        if descriptor is None:
            descriptor = open_slot(path, os.O_RDONLY)
        self._descriptor = descriptor
        self._budget = budget or WorkBudget()
        self._window = SlotWindow(path, descriptor, start=start, end=end, budget=self._budget)
        self._search: DamageSearch | None = None
        """None: there was no damage so far."""
        if is_damage:
            self._search = DamageSearch(self._window, self._budget, damage_to=end)
        self.torn_at = -1
        """Where a record begins that will never be whole."""

    @property
    def position(self) -> int:
        """Everything before this byte was returned."""
        return self._window.position

    @property
    def last_bytes(self) -> bytes:
        """The last bytes before ``position``, at most CRC_BYTES, as they were read."""
        return self._window.last_bytes

    @property
    def is_busy(self) -> bool:
        """Whether the last read stopped because the budget was spent: there is more to do."""
        return self._search is not None and self._search.is_busy

    @property
    def waiting_bytes(self) -> int:
        """Bytes after ``position`` that were seen and are no whole record yet."""
        zeros_to = 0 if self._search is None else self._search.zeros_to
        return max(self._window.loaded_to, zeros_to) - self._window.position

    def read(
        self,
        count_max: int,
        *,
        bytes_max: int = 64 * CHUNK_BYTES,
        settled: bool = False,
        final: bool = False,
    ) -> list[Piece]:
        """Return the next pieces, in the order of the file.

        Args:
            count_max: Most pieces.
            bytes_max: Stop after so many bytes of pending records and damage.
            settled: Every write that had begun at the last read is over: if the record at
                ``position`` is still incomplete and a whole one is after it, it is torn.
            final: No writer is left: bytes that are no whole record are damage.

        Raises:
            SpoolFailedError: The file cannot be read, or is of another version.
        """
        pieces: list[Piece] = []
        if self._search is not None:
            self._search.is_busy = False
        if self._window.position == 0 and not self._pass_header(final):
            return pieces
        try:
            self._read_on(pieces, count_max, bytes_max, settled=settled, final=final)
        except SpoolFailedError:
            if not pieces:
                raise
            # They are passed: the caller gets them now or never. The next call fails.
        return pieces

    def _read_on(
        self, pieces: list[Piece], count_max: int, bytes_max: int, *, settled: bool, final: bool
    ) -> None:
        """Append the next pieces."""
        window, search = self._window, self._search
        retried = -1
        settled_at = window.position if settled else -1
        damage_to = 0 if search is None else search.known_to
        is_right = window.is_right
        while len(pieces) < count_max and bytes_max > 0:
            start = window.position
            at = start - window.base
            data = window.data
            end = DAMAGED if start < damage_to else record_end(data, at, is_right)
            if end > 0:
                window.position = behind = window.base + end
                if data[at] == PENDING:
                    frame = data[at + HEAD_BYTES : end - CRC_BYTES]
                    bytes_max -= len(frame)
                    pieces.append(Piece(PieceKind.PENDING, start, behind, frame))
                else:
                    pieces.append(Piece(PieceKind.ERASED, start, behind, b""))
                continue
            if end == INCOMPLETE:
                if window.load(start):
                    continue
                if at == len(data) or not (final or start in (settled_at, self.torn_at)):
                    break
                self.torn_at = start
            elif retried != start and start >= damage_to and data[at] == ERASED:
                # It can be a blank whose next record was not loaded yet.
                retried = start
                size = int.from_bytes(data[at + 1 : at + HEAD_BYTES])
                if window.load(start + size + RECORD_OVERHEAD):
                    continue
            if search is None:
                search = self._search = DamageSearch(window, self._budget, damage_to=0)
            damage = search.next_piece(final=final)
            damage_to = search.known_to
            if damage is None:
                break
            bytes_max -= len(damage.data)
            pieces.append(damage)
        if len(pieces) < count_max and bytes_max > 0:
            # Only what is incomplete is kept: a forwarder has hundreds of readers at their ends.
            window.drop_passed()

    def close(self) -> None:
        """Close the file, if it was opened here; a later read of it is an error."""
        if self._owned and self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._window.forget_descriptor()
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pass_header(self, final: bool) -> bool:
        """Step over the header; False: it is not there yet."""
        window = self._window
        window.load()
        header = window.data[:FILE_HEADER_BYTES]
        if header == FILE_HEADER:
            window.position = FILE_HEADER_BYTES
            return True
        if len(header) == FILE_HEADER_BYTES and header.startswith(MAGIC):
            raise SpoolFailedError(
                "this slot was written by another version of fastjournal",
                path=self.path,
                offset=len(MAGIC),
                hint="send it with the forwarder of that version",
            )
        # A file without a header was created before the machine died. Its records count.
        return final or len(header) == FILE_HEADER_BYTES
