"""Content of a slot file: whether it is still the one that was read.

Nobody but the forwarder may change what is in a slot. Programs do all the same: they truncate it
(``: >slot``, copytruncate) or write another file over it (``cp``). The offsets that the forwarder
knows say nothing of another content: at them it must erase nothing, and it must not delete a file
of which it read the former content only. docs/spool.md says what cannot be noticed.
"""

from __future__ import annotations

import os
from typing import Final

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.format import (
    ERASED,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    PENDING,
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD,
    blank_ends,
    record_end,
)
from fastjournal.spool.slots import spool_failed

_WINDOW_BYTES_MIN: Final = 4096
_WINDOW_BYTES_MAX: Final = 64 * 1024
"""One read serves the records of a turn that lie in it. A longer frame is compared up to here: that
has the timestamp and the key."""

_HEADS_MAX: Final = 4096
"""So many records are looked at before a slot is deleted. Most slots have fewer: what was erased
before is one blank by then."""


class SlotOverwrittenError(SpoolFailedError):
    """Another program has truncated or overwritten a slot; it is to be read from its start."""


class SlotContent:
    """Content of one slot file, compared with what was read of it.

    Args:
        path: Path of the slot.
    """

    __slots__ = ("_path", "_window_bytes", "base", "turn", "window")

    def __init__(self, path: str) -> None:
        self._path = path
        self.window = b""
        """Bytes of the file, as they are in this turn: a frame that is found there is that of the
        record that was read."""
        self.base = 0
        """The offset of a record less this is the place of its frame there."""
        self.turn: int | None = None
        """Number of the turn: the bytes serve until it changes. None: for one record only."""
        self._window_bytes = _WINDOW_BYTES_MIN

    def begin_turn(self, turn: int) -> None:
        """Read the file again before the next record is compared."""
        self.turn, self.window, self._window_bytes = turn, b"", _WINDOW_BYTES_MIN

    def check_end(self, descriptor: int, read_to: int, position: int, tail: bytes) -> None:
        """Check that the file was not truncated, and what was read last is there.

        Args:
            descriptor: The file.
            read_to: Everything before it was read: a slot never becomes shorter.
            position: Where the last piece ends.
            tail: The last bytes before ``position``, as they were read; may be empty.

        Raises:
            SlotOverwrittenError: It is another content.
            SpoolFailedError: A call of the operating system failed.
        """
        try:
            size = os.fstat(descriptor).st_size
            found = os.pread(descriptor, len(tail), position - len(tail)) if tail else b""
        except OSError as error:
            raise spool_failed("read", self._path, error) from error
        if size < read_to:
            raise self._overwritten(f"it has {size} bytes, and had {read_to}")
        if found != tail:
            raise self._overwritten(f"other bytes are before offset {position}")

    def check_record(self, descriptor: int, offset: int, frame: bytes) -> None:
        """Check that the record that was read at ``offset`` is there.

        Args:
            descriptor: The file.
            offset: Where the record begins.
            frame: Its frame, as it was read.

        Raises:
            SlotOverwrittenError: It is another content.
            OSError: It cannot be read.
        """
        size = max(min(len(frame) + HEAD_BYTES, _WINDOW_BYTES_MAX), self._window_bytes)
        window = os.pread(descriptor, size, offset)
        if not window.startswith(frame[: _WINDOW_BYTES_MAX - HEAD_BYTES], HEAD_BYTES):
            raise self._overwritten(f"another record is at offset {offset}")
        if self.turn is not None:
            self.window, self.base = window, offset - HEAD_BYTES
            self._window_bytes = min(2 * self._window_bytes, _WINDOW_BYTES_MAX)

    def check_bytes(self, descriptor: int, offset: int, data: bytes) -> bool:
        """Check that what was read at ``offset`` is there, at least the first part of it.

        Returns:
            False: it is, but for a torn record, which its writer has erased since.

        Raises:
            SlotOverwrittenError: It is another content.
            SpoolFailedError: It cannot be read.
        """
        data = data[:_WINDOW_BYTES_MAX]
        try:
            found = os.pread(descriptor, len(data), offset)
        except OSError as error:
            raise spool_failed("read", self._path, error) from error
        if found == data:
            return True
        if not _was_taken_back(found, data):
            raise self._overwritten(f"other bytes are at offset {offset}")
        return False

    def check_all_erased(self, descriptor: int) -> None:
        """Check that no record is pending: the caller knows of none, and deletes the file.

        The records are followed from the first one on, as far as that is cheap.

        Raises:
            SlotOverwrittenError: One is.
            SpoolFailedError: The file cannot be read.
        """
        try:
            pending_at = _find_pending(descriptor)
        except OSError as error:
            raise spool_failed("read", self._path, error) from error
        if pending_at is not None:
            raise self._overwritten(f"a record at offset {pending_at} was not read")

    def drop_window(self) -> None:
        """Drop the bytes in memory: the file is closed."""
        self.window = b""

    def _overwritten(self, how: str) -> SlotOverwrittenError:
        return SlotOverwrittenError(
            f"another program has truncated or overwritten this slot: {how}",
            path=self._path,
            hint="nobody but the forwarder may change a slot",
        )


def _was_taken_back(found: bytes, data: bytes) -> bool:
    """Whether bytes differ by one torn record that its writer has made an erased one, or zeros.

    A writer does that after a short write: the disk was full.
    """
    differ = [at for at, (new, old) in enumerate(zip(found, data, strict=False)) if new != old]
    if len(found) != len(data) or not differ:
        return False
    start, end = differ[0], differ[-1] + 1
    if not any(found[start:end]) and end - start < RECORD_OVERHEAD:
        return True
    size = int.from_bytes(found[start + 1 : start + HEAD_BYTES]) + RECORD_OVERHEAD
    if size > len(found) - start or end > start + size:
        return False
    head, crc = blank_ends(size)
    return found[start : start + size] == head + bytes(size - RECORD_OVERHEAD) + crc


def _find_pending(descriptor: int) -> int | None:
    """Return where a pending record is, as far as that is cheap; ``OSError`` as it comes."""
    base, data = 0, os.pread(descriptor, _WINDOW_BYTES_MIN, 0)
    at = FILE_HEADER_BYTES if data.startswith(FILE_HEADER) else 0
    for _ in range(_HEADS_MAX):
        if not base <= at <= base + len(data) - HEAD_BYTES:
            base, data = at, os.pread(descriptor, _WINDOW_BYTES_MAX, at)
            if len(data) < HEAD_BYTES:
                return None
        state = data[at - base]
        size = int.from_bytes(data[at - base + 1 : at - base + HEAD_BYTES]) + RECORD_OVERHEAD
        if size > RECORD_BYTES_MAX:
            return None  # damage that could not be erased
        if state == PENDING and record_end(os.pread(descriptor, size, at), 0) > 0:
            return at
        if state != ERASED:
            return None
        at += size
    return None
