"""Reads one slot from front to back: records, erased ones, damage, and the place where to wait.

Plain blocking code without a lock: whoever reads while others append and the forwarder erases gets
each record once, as it stands when it is read. Only the holder of the exclusive lock of a slot may
say ``final``.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import Self

import msgspec

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.format import (
    CRC_BYTES,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    INCOMPLETE,
    MAGIC,
    PENDING,
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD,
    find_record,
    record_end,
)
from fastjournal.spool.slots import open_slot, spool_failed

CHUNK_BYTES = 1024 * 1024
"""One read of the file: some thousand usual records."""

_NO_END = 1 << 62


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
    """The frame of a pending record, the raw bytes of damage; empty for an erased record."""


class SlotReader:
    """Reads one slot and keeps its position in it.

    Args:
        path: The file.
        descriptor: An open descriptor to read from, which stays the caller's.
        start: Where a record starts, to begin there instead of at the front.
        end: Where a record ended, to read nothing from there on.

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
        self._search_from = 0
        """No whole record starts between the damage at ``position`` and this byte."""
        self._passed = b""
        """Last bytes before ``_base``, as far as they were read here."""

    @property
    def last_bytes(self) -> bytes:
        """The last bytes before ``position``, at most 4, as they were read: CRC of a record."""
        at = self.position - self._base
        before = self._data[max(at - CRC_BYTES, 0) : at]
        return before if len(before) == CRC_BYTES else (self._passed + before)[-CRC_BYTES:]

    @property
    def waiting_bytes(self) -> int:
        """Bytes behind ``position`` that were seen and are no whole record yet."""
        return self._base + len(self._data) - self.position

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
        while len(pieces) < count_max and bytes_max > 0:
            start = self.position
            at = start - self._base
            data = self._data
            end = record_end(data, at)
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
                if self._load():
                    continue
                if at == len(data) or not (final or start == settled_at):
                    break
            elif retried != start:
                # Bytes that look damaged can be a blank whose next record was not loaded yet.
                retried = start
                if self._load():
                    continue
            damage = self._pass_damage(final)
            if damage is None:
                break
            bytes_max -= len(damage.data)
            pieces.append(damage)
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

    def _load(self) -> bool:
        """Read on behind the data in memory; False: the file has no more."""
        at = self.position - self._base
        head = self._data[at : at + HEAD_BYTES]
        wanted = CHUNK_BYTES
        if len(head) == HEAD_BYTES:
            record_bytes = int.from_bytes(head[1:]) + RECORD_OVERHEAD
            wanted = max(wanted, min(record_bytes, RECORD_BYTES_MAX) - len(self._data) + at)
        read_to = self._base + len(self._data)
        try:
            more = os.pread(self._descriptor, min(wanted, self._end - read_to), read_to)
        except OSError as error:
            raise spool_failed("read", self.path, error) from error
        if more:
            self._pass(more)
        return bool(more)

    def _pass(self, more: bytes = b"") -> None:
        """Drop what is before ``position``, and add what was read behind the rest."""
        self._passed = self.last_bytes
        self._data = self._data[self.position - self._base :] + more
        self._base = self.position

    def _pass_damage(self, final: bool) -> Piece | None:
        """Search for the next record; return what lies before it, None where more must come."""
        search = max(self._search_from, self.position + 1)
        while True:
            found, resume = find_record(self._data, search - self._base)
            self._search_from = search = self._base + resume
            end = self._base + (found if found >= 0 else len(self._data))
            if found < 0 and search - self.position < RECORD_BYTES_MAX:
                if self._load():
                    continue
                if not final:
                    return None
            end = min(end, self.position + RECORD_BYTES_MAX)
            start, self.position = self.position, end
            raw = self._data[start - self._base : end - self._base]
            return Piece(Kind.DAMAGE, start, end, raw)
