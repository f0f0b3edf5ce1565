"""Search for the next record after damage, in bounded parts; runs of zero bytes are passed whole.

The work is linear in the length of the damage, for any bytes: each place that looks like a record
is judged once. A long run of zero bytes, as a crash or ``truncate`` leaves it, is one piece, of any
length and without its bytes; holes of the file are not read.
"""

from __future__ import annotations

from fastjournal.spool.format import RECORD_BYTES_MAX, search_record
from fastjournal.spool.reading.slot_window import (
    CHUNK_BYTES,
    LOADED_BYTES_PER_UNIT,
    Piece,
    PieceKind,
    SlotWindow,
    WorkBudget,
)

DAMAGE_BYTES_MAX = 8 * 1024 * 1024
"""A piece of damage has at most so many bytes: it is copied and synced in one go."""
ZERO_RUN_BYTES = 64 * 1024
"""Damage of so many zero bytes in a row, or more, is a piece of its own."""

_ZEROS = bytes(ZERO_RUN_BYTES)
_SEARCH_BYTES = 16 * 1024
_CANDIDATES_MAX = 256
"""The budget is asked after so many bytes, or places that look like a record."""
_CANDIDATE_UNITS = 1500
"""A place that looks like a record costs as much as so many bytes of the search."""
_PIECE_UNITS = 256 * 1024
"""Each piece of damage is put aside by itself, with several syncs."""


class DamageSearch:
    """Search in one slot; it moves the position of the window past the damage.

    Args:
        window: Bytes of the slot.
        budget: Bounds the work.
        damage_to: The bytes up to this one are known to be damage.
    """

    __slots__ = (
        "_budget",
        "_damage_to",
        "_ended_at",
        "_incomplete_at",
        "_search_from",
        "_window",
        "is_busy",
        "zeros_to",
    )

    def __init__(self, window: SlotWindow, budget: WorkBudget, *, damage_to: int) -> None:
        self._window = window
        self._budget = budget
        self.is_busy = False
        """The budget was spent before the search was over: there is more to do."""
        self._damage_to = damage_to
        """No record starts before this byte."""
        self.zeros_to = 0
        """From ``position`` to this byte there are only zero bytes."""
        self._search_from = 0
        """No whole record starts between ``position`` and this byte, but perhaps at these two."""
        self._incomplete_at = -1
        """The first place after ``position`` where a record may become whole; -1: none is."""
        self._ended_at = -1
        """Where the file ended when the search came there."""

    @property
    def known_to(self) -> int:
        """No record starts from ``position`` on before this byte."""
        return max(self._damage_to, self.zeros_to)

    def next_piece(self, *, final: bool) -> Piece | None:
        """Search for the next record; return what lies before it, or the first part of that.

        Args:
            final: Nobody writes any more: what is no whole record is damage.

        Returns:
            None: more must come, or the budget is spent.

        Raises:
            SpoolFailedError: The file cannot be read.
        """
        piece = self._find_piece(final)
        if piece is not None:
            self._budget.spend(_PIECE_UNITS + len(piece.data))
        return piece

    def _find_piece(self, final: bool) -> Piece | None:
        window = self._window
        if self._budget.is_spent:
            self.is_busy = True
            return None
        if self._begins_with_zeros():
            return self._pass_zeros(final)
        if self._damage_to > window.position:
            window.load_to(min(self._damage_to, window.position + DAMAGE_BYTES_MAX))
            return self._cut_damage(min(self._damage_to, window.loaded_to))
        self._search_from = max(self._search_from, window.position + 1)
        while (found := self._search()) is None:
            if self._budget.is_spent:
                self.is_busy = True
                return None
            incomplete = self._incomplete_at
            certain = self._search_from if incomplete < 0 else incomplete
            if certain - window.position >= min(DAMAGE_BYTES_MAX, RECORD_BYTES_MAX):
                return self._cut_damage(certain)
            if self._ended_at == self._search_from == window.loaded_to:
                if not final:
                    return None
                found = window.loaded_to
                break
        self._damage_to = found
        self._incomplete_at = self._ended_at = -1
        return self._cut_damage(found)

    def _search(self) -> int | None:
        """Search a part of the file; return where a record is, None: not in this part.

        Each place is looked at once: when the record that it claims to be is in memory, or the file
        ends in it. If that grows later, the search begins again at the first of these places.
        """
        window, search = self._window, self._search_from
        if self._ended_at >= 0 and (window.loaded_to > self._ended_at or window.load()):
            self._ended_at = -1
            search = search if self._incomplete_at < 0 else self._incomplete_at
            self._incomplete_at = -1
        if search >= window.loaded_to and (self._ended_at >= 0 or not window.load()):
            self._search_from = self._ended_at = window.loaded_to
            return None
        base, has_ended = window.base, self._ended_at >= 0
        to = min(search + _SEARCH_BYTES, window.loaded_to)
        part = search_record(
            window.data,
            search - base,
            to - base,
            window.is_right,
            candidates_max=_CANDIDATES_MAX,
            passes_incomplete=has_ended,
        )
        self._search_from = base + part.searched_to
        self._budget.spend(self._search_from - search + part.candidates * _CANDIDATE_UNITS)
        if part.found >= 0:
            return base + part.found
        if part.incomplete >= 0 and has_ended:
            if self._incomplete_at < 0:
                self._incomplete_at = base + part.incomplete
        elif part.incomplete >= 0 and not window.load(base + part.incomplete):
            self._ended_at = window.loaded_to
        return None

    def _cut_damage(self, to: int) -> Piece:
        """Pass the damage up to a byte, or its first part: up to a bound, or a run of zeros."""
        window = self._window
        start = window.position
        end = min(to, start + min(DAMAGE_BYTES_MAX, RECORD_BYTES_MAX))
        raw = window.data[start - window.base : end - window.base]
        zeros = raw.find(_ZEROS)
        if zeros > 0:
            raw = raw[:zeros]
        window.position = start + len(raw)
        return Piece(PieceKind.DAMAGE, start, window.position, raw)

    def _begins_with_zeros(self) -> bool:
        """Whether a long run of zero bytes is at ``position``."""
        window = self._window
        if self.zeros_to > window.position:
            return True
        if window.position == window.loaded_to:
            window.load()
        at = window.position - window.base
        if window.data[at : at + 1] != b"\0":
            return False
        window.load_to(window.position + ZERO_RUN_BYTES)
        if not window.data.startswith(_ZEROS, window.position - window.base):
            return False
        self.zeros_to = window.position + ZERO_RUN_BYTES
        return True

    def _pass_zeros(self, final: bool) -> Piece | None:
        """Return the run of zero bytes at ``position``; None: it may go on, or there is more to do.

        No record starts in it.
        """
        window = self._window
        while True:
            if self._budget.is_spent:
                self.is_busy = True
                return None
            if window.base <= self.zeros_to < window.loaded_to:
                at = self.zeros_to - window.base
                some = window.data[at : at + CHUNK_BYTES]
            else:
                self.zeros_to = window.behind_hole(self.zeros_to)
                some = window.read_at(self.zeros_to, CHUNK_BYTES)
            zeros = len(some) - len(some.lstrip(b"\0"))
            self.zeros_to += zeros
            self._budget.spend(1 + zeros // LOADED_BYTES_PER_UNIT)
            if not some and not final:
                return None
            if not some or zeros < len(some):
                break
        start, window.position = window.position, self.zeros_to
        if window.position >= window.loaded_to:
            window.restart_behind_zeros()
        return Piece(PieceKind.DAMAGE, start, window.position, b"")
