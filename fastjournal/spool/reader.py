"""Reads one slot from front to back: records, erased ones, damage, and the place where to wait.

The work on damage is linear in its length, whatever its bytes look like. A caller that has other
things to do bounds it by a ``WorkBudget``. A long run of zero bytes, as a crash or ``truncate``
leaves it, is one piece, of any length and without its bytes; holes of the file are not read.

Plain blocking code without a lock: whoever reads while others append and the forwarder erases gets
each record once, as it stands when it is read. Only the holder of the exclusive lock of a slot may
say ``final``.
"""

from __future__ import annotations

import errno
import os
from enum import Enum
from typing import Self

import msgspec

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
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD,
    record_end,
    search_record,
)
from fastjournal.spool.range_checksums import RangeChecksums
from fastjournal.spool.slots import open_slot, spool_failed
from fastjournal.spool.work import WorkBudget

CHUNK_BYTES = 1024 * 1024
"""One read of the file: some thousand usual records."""

DAMAGE_BYTES_MAX = 8 * 1024 * 1024
"""A piece of damage has at most so many bytes: it is copied and synced in one go."""
ZERO_RUN_BYTES = 64 * 1024
"""Damage of so many zero bytes in a row, or more, is a piece of its own."""

_NO_END = 1 << 62
_ZEROS = bytes(ZERO_RUN_BYTES)
_SEARCH_BYTES = 16 * 1024
_CANDIDATES_MAX = 256
"""The budget is asked after so many bytes, or places that look like a record."""
_CANDIDATE_UNITS = 1500
"""A place that looks like a record costs as much as so many bytes of the search."""
_PIECE_UNITS = 256 * 1024
"""Each piece of damage is put aside by itself, with several syncs."""
_LOADED_BYTES_PER_UNIT = 16
"""So many bytes are read, or compared with zero, for one unit."""


class Kind(Enum):
    """Kind of a piece of a slot."""

    PENDING = "pending"
    ERASED = "erased"
    DAMAGE = "damage"


class Piece(msgspec.Struct, gc=False, frozen=True):
    """The bytes ``offset`` to ``end`` of a slot."""

    kind: Kind
    offset: int
    end: int
    data: bytes
    """The frame of a pending record, the raw bytes of damage; empty for an erased record, and for
    a run of zero bytes."""

    @property
    def is_zeros(self) -> bool:
        """Whether this is damage of nothing but zero bytes, and without a copy of them."""
        return self.kind is Kind.DAMAGE and not self.data


class SlotReader:
    """Reads one slot and keeps its position in it.

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
        self._end = end
        self.position = start
        """Everything before this byte was returned."""
        self._owned = descriptor is None
        if descriptor is None:
            descriptor = open_slot(path, os.O_RDONLY)
        self._descriptor = descriptor
        self._data = b""
        self._base = start
        """Where ``_data`` starts in the file."""
        self._budget = budget or WorkBudget()
        self.is_busy = False
        """The last read stopped because the budget was spent: there is more to do."""
        self.torn_at = -1
        """Where a record begins that will never be whole."""
        self._damage_to = end if is_damage else 0
        """No record starts before this byte."""
        self._zeros_to = 0
        """From ``position`` to this byte there are only zero bytes."""
        self._search_from = 0
        """No whole record starts between ``position`` and this byte, but perhaps at these two."""
        self._incomplete_at = -1
        """The first place behind ``position`` where a record may become whole; -1: none is."""
        self._ended_at = -1
        """Where the file ended when the search came there."""
        self._checksums = RangeChecksums()
        self._passed = b""
        """Last bytes before ``_base``, as far as they were read here."""

    @property
    def last_bytes(self) -> bytes:
        """The last bytes before ``position``, at most 4, as they were read: CRC of a record."""
        return self._bytes_before(self.position)

    @property
    def waiting_bytes(self) -> int:
        """Bytes behind ``position`` that were seen and are no whole record yet."""
        return max(self._loaded_to, self._zeros_to) - self.position

    @property
    def _loaded_to(self) -> int:
        return self._base + len(self._data)

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
            count_max: At most so many.
            bytes_max: Stop after so many bytes of pending records and damage.
            settled: Every write that had begun at the last read is over: if the record at
                ``position`` is still incomplete and a whole one is behind it, it is torn.
            final: Nobody writes any more: what is no whole record is damage.

        Raises:
            SpoolFailedError: The file cannot be read, or is of another version.
        """
        pieces: list[Piece] = []
        self.is_busy = False
        if self.position == 0 and not self._pass_header(final):
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
        retried = -1
        settled_at = self.position if settled else -1
        damage_to, is_right = max(self._damage_to, self._zeros_to), self._is_right
        while len(pieces) < count_max and bytes_max > 0:
            start = self.position
            at = start - self._base
            data = self._data
            end = DAMAGED if start < damage_to else record_end(data, at, is_right)
            if end > 0:
                self.position = self._base + end
                if data[at] == PENDING:
                    frame = data[at + HEAD_BYTES : end - 4]
                    bytes_max -= len(frame)
                    pieces.append(Piece(Kind.PENDING, start, self.position, frame))
                else:
                    pieces.append(Piece(Kind.ERASED, start, self.position, b""))
                continue
            if end == INCOMPLETE:
                if self._load(start):
                    continue
                if at == len(data) or not (final or start in (settled_at, self.torn_at)):
                    break
                self.torn_at = start
            elif retried != start and start >= damage_to and data[at] == ERASED:
                # It can be a blank whose next record was not loaded yet.
                retried = start
                size = int.from_bytes(data[at + 1 : at + HEAD_BYTES])
                if self._load(start + size + RECORD_OVERHEAD):
                    continue
            damage = self._pass_damage(final)
            damage_to = max(self._damage_to, self._zeros_to)
            if damage is None:
                break
            bytes_max -= len(damage.data)
            pieces.append(damage)
            self._budget.spend(_PIECE_UNITS + len(damage.data))
        if len(pieces) < count_max and bytes_max > 0:
            self._drop_read_bytes()

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owned and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pass_header(self, final: bool) -> bool:
        """Step over the header; False: it is not there yet."""
        self._load()
        header = self._data[:FILE_HEADER_BYTES]
        if header == FILE_HEADER:
            self.position = FILE_HEADER_BYTES
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

    def _drop_read_bytes(self) -> None:
        """Keep only what is incomplete: a forwarder has hundreds of readers at their ends."""
        self._pass()

    def _load(self, whole_at: int | None = None) -> bool:
        """Read on behind the data in memory; False: the file has no more.

        Args:
            whole_at: Where a record starts that is to be whole then; None: any bytes do.
        """
        at = len(self._data) if whole_at is None else whole_at - self._base
        head = self._data[at : at + HEAD_BYTES]
        wanted = max(CHUNK_BYTES, len(self._data) // 4)  # what is there is copied
        if len(head) == HEAD_BYTES:
            record_bytes = int.from_bytes(head[1:]) + RECORD_OVERHEAD
            wanted = max(wanted, min(record_bytes, RECORD_BYTES_MAX) - len(self._data) + at)
        more = self._pread(wanted, self._loaded_to)
        if more:
            self._pass(more)
        return bool(more)

    def _pread(self, count: int, at: int) -> bytes:
        try:
            more = os.pread(self._descriptor, max(0, min(count, self._end - at)), at)
        except OSError as error:
            raise spool_failed("read", self.path, error) from error
        self._budget.spend(len(more) // _LOADED_BYTES_PER_UNIT)
        return more

    def _pass(self, more: bytes = b"") -> None:
        """Drop what is before ``position``, and add what was read behind the rest."""
        base = max(self._base, self._checksums.floor(self.position))
        self._passed = self._bytes_before(base)
        self._data = self._data[base - self._base :] + more
        self._base = base

    def _bytes_before(self, at: int) -> bytes:
        """Return the last bytes before a place, at most 4, as far as they were read."""
        end = at - self._base
        before = self._data[max(end - CRC_BYTES, 0) : end]
        return before if len(before) == CRC_BYTES else (self._passed + before)[-CRC_BYTES:]

    def _is_right(self, data: bytes, at: int, end: int) -> bool:
        return self._checksums.is_right(data, self._base, at, end)

    # --- damage ---------------------------------------------------------------------------------

    def _pass_damage(self, final: bool) -> Piece | None:
        """Search for the next record; return what lies before it, or the first part of that.

        None: more must come, or the budget is spent.
        """
        if self._budget.is_spent:
            self.is_busy = True
            return None
        if self._begins_with_zeros():
            return self._pass_zeros(final)
        if self._damage_to > self.position:
            wanted = min(self._damage_to, self.position + DAMAGE_BYTES_MAX)
            while self._loaded_to < wanted and self._load():
                pass
            return self._cut_damage(min(self._damage_to, self._loaded_to))
        self._search_from = max(self._search_from, self.position + 1)
        while (found := self._search()) is None:
            if self._budget.is_spent:
                self.is_busy = True
                return None
            incomplete = self._incomplete_at
            certain = self._search_from if incomplete < 0 else incomplete
            if certain - self.position >= min(DAMAGE_BYTES_MAX, RECORD_BYTES_MAX):
                return self._cut_damage(certain)
            if self._ended_at == self._search_from == self._loaded_to:
                if not final:
                    return None
                found = self._loaded_to
                break
        self._damage_to = found
        self._incomplete_at = self._ended_at = -1
        return self._cut_damage(found)

    def _search(self) -> int | None:
        """Search a part of the file; return where a record is, None: not in this part.

        Each place is looked at once: when the record that it claims to be is in memory, or the file
        ends in it. If that grows later, the search begins again at the first of these places.
        """
        search = self._search_from
        if self._ended_at >= 0 and (self._loaded_to > self._ended_at or self._load()):
            self._ended_at = -1
            search = search if self._incomplete_at < 0 else self._incomplete_at
            self._incomplete_at = -1
        if search >= self._loaded_to and (self._ended_at >= 0 or not self._load()):
            self._search_from = self._ended_at = self._loaded_to
            return None
        base, has_ended = self._base, self._ended_at >= 0
        to = min(search + _SEARCH_BYTES, self._loaded_to)
        part = search_record(
            self._data,
            search - base,
            to - base,
            self._is_right,
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
        elif part.incomplete >= 0 and not self._load(base + part.incomplete):
            self._ended_at = self._loaded_to
        return None

    def _cut_damage(self, to: int) -> Piece:
        """Pass the damage up to a byte, or its first part: up to a bound, or a run of zeros."""
        start = self.position
        end = min(to, start + min(DAMAGE_BYTES_MAX, RECORD_BYTES_MAX))
        raw = self._data[start - self._base : end - self._base]
        zeros = raw.find(_ZEROS)
        if zeros > 0:
            raw = raw[:zeros]
        self.position = start + len(raw)
        return Piece(Kind.DAMAGE, start, self.position, raw)

    def _begins_with_zeros(self) -> bool:
        """Whether a long run of zero bytes is at ``position``."""
        if self._zeros_to > self.position:
            return True
        if self.position == self._loaded_to:
            self._load()
        at = self.position - self._base
        if self._data[at : at + 1] != b"\0":
            return False
        while self._loaded_to < self.position + ZERO_RUN_BYTES and self._load():
            pass
        if not self._data.startswith(_ZEROS, self.position - self._base):
            return False
        self._zeros_to = self.position + ZERO_RUN_BYTES
        return True

    def _pass_zeros(self, final: bool) -> Piece | None:
        """Return the run of zero bytes at ``position``; None: it may go on, or there is more to do.

        No record starts in it.
        """
        while True:
            if self._budget.is_spent:
                self.is_busy = True
                return None
            if self._base <= self._zeros_to < self._loaded_to:
                at = self._zeros_to - self._base
                some = self._data[at : at + CHUNK_BYTES]
            else:
                self._zeros_to = self._behind_hole(self._zeros_to)
                some = self._pread(CHUNK_BYTES, self._zeros_to)
            zeros = len(some) - len(some.lstrip(b"\0"))
            self._zeros_to += zeros
            self._budget.spend(1 + zeros // _LOADED_BYTES_PER_UNIT)
            if not some and not final:
                return None
            if not some or zeros < len(some):
                break
        start, self.position = self.position, self._zeros_to
        if self.position >= self._loaded_to:
            self._data, self._base, self._passed = b"", self.position, bytes(CRC_BYTES)
            self._checksums = RangeChecksums()
        return Piece(Kind.DAMAGE, start, self.position, b"")

    def _behind_hole(self, at: int) -> int:
        """Return where the next bytes of the file are that are no hole: at or behind ``at``."""
        try:
            found = os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return at  # the file system does not say
            if error.errno != errno.ENXIO:
                raise spool_failed("read", self.path, error) from error
            found = max(at, os.fstat(self._descriptor).st_size)
        return min(found, self._end)
