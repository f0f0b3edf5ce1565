"""Slot file of a spool: reading, erasing, releasing its space, deleting it.

Only the holder of forwarder.lock changes slots like this. Everything survives a kill between any
two calls: what was sent and not erased is sent again, what was put aside and not erased is put
aside again under the same name.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.format import (
    ERASED_BYTE,
    HEAD_BYTES,
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD,
    blank_ends,
    erased_ends,
)
from fastjournal.spool.reader import Kind, Piece, SlotReader
from fastjournal.spool.slots import Slot, SlotName, leads_to, open_slot, spool_failed
from fj_forwarder.punch_hole import punch_hole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fj_forwarder.retry_queue import Stretch

log = logging.getLogger("fj_forwarder")

RELEASE_BYTES: Final = 1024 * 1024
"""An erased run at the start is released when it has grown by this much: one call for thousands
of records."""

_NOWHERE: Final = 1 << 62

PutAside = Callable[["SlotFile", Piece, str, str], bool]
"""Takes the slot, a piece of damage, a
code and a sentence, and keeps it durably. False: it cannot be kept now; it stays in the slot, and
was added to ``delayed``."""


class SlotFile:
    """An open slot.

    Args:
        slot: Which one.
        put_aside: Where damage goes.

    Raises:
        SpoolFailedError: It cannot be opened for reading and writing, or is of another version.
    """

    __slots__ = (
        "_blocked_at",
        "_can_release",
        "_descriptor",
        "_inode",
        "_last_record",
        "_outstanding",
        "_put_aside",
        "_reader",
        "_released",
        "_suspects",
        "_unreleased",
        "delayed",
        "name",
        "path",
        "retry_us",
        "start_s",
    )

    def __init__(self, slot: Slot | SlotName, put_aside: PutAside) -> None:
        self.name: Final = slot.name
        self.start_s: Final = slot.start_s
        self.path: Final = slot.path
        self._put_aside = put_aside
        self._descriptor = open_slot(slot.path, os.O_RDWR)
        self._reader = SlotReader(slot.path, self._descriptor)
        try:
            self._reader.read(0)
            with self._translating("look at"):
                self._inode = os.fstat(self._descriptor).st_ino
        except SpoolFailedError:
            os.close(self._descriptor)
            raise
        self._outstanding: set[int] = set()
        """Offsets of the records that were returned, and are neither erased nor given back."""
        self.retry_us = 0
        """Before this instant it is left out: a call of the operating system on it failed."""
        self.delayed: dict[int, Stretch] = {}
        """Pending stretches that wait on the disk, by the ``id`` of the stretch."""
        self._suspects: set[int] = set()
        """Offsets of the suspects that are remembered one by one."""
        self._unreleased = 0
        """Erased bytes that are not released, wherever in the file."""
        self._released = -1
        """Everything from the first record to this byte is released; -1: no record was seen."""
        self._last_record = -1
        """Where the last record that was read starts."""
        self._can_release = True
        self._blocked_at = _NOWHERE
        """The first pending record, where that kept space from being released."""

    @property
    def outstanding(self) -> int:
        """Records that were taken and are not erased."""
        return len(self._outstanding)

    @property
    def is_quiet(self) -> bool:
        """Whether all was read and nothing of it is in memory: it can rest."""
        return (
            not self._outstanding
            and self._reader.position > 0
            and not self._reader.waiting_bytes
            and not self.has_more()
        )

    @property
    def position(self) -> int:
        """Everything before this byte was read."""
        return self._reader.position

    @property
    def waiting_bytes(self) -> int:
        """Bytes at the end that are no whole record yet."""
        return self._reader.waiting_bytes

    @property
    def is_taken_away(self) -> bool:
        """Whether its path does not lead to it any more: somebody else deleted or moved it.

        What was in it can be read and sent still. Another file may have its name by now.
        """
        try:
            return not leads_to(self.path, self._descriptor)
        except OSError:
            return False  # what fails is told when it is read

    def has_more(self) -> bool:
        """Whether the file is longer than what was read of it."""
        with self._translating("read"):
            return os.fstat(self._descriptor).st_size > self._reader.position

    def take(
        self, count_max: int, bytes_max: int, *, settled: bool = False, final: bool = False
    ) -> list[Piece]:
        """Return the next pending records; damage is put aside on the way.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        found: list[Piece] = []
        while len(found) < count_max and bytes_max > 0:
            pieces = self._reader.read(
                count_max - len(found), bytes_max=bytes_max, settled=settled, final=final
            )
            if not pieces:
                break
            if self._released < 0:
                self._released = pieces[0].offset
            for piece in pieces:
                if piece.kind is not Kind.DAMAGE:
                    self._last_record = piece.offset
                if piece.kind is Kind.PENDING:
                    self._outstanding.add(piece.offset)
                    bytes_max -= len(piece.data)
                    found.append(piece)
                elif piece.kind is Kind.ERASED:
                    self._unreleased += piece.end - piece.offset
                else:
                    self._bury(piece, torn=final or settled)
        return found

    def take_again(self, stretch: Stretch, count_max: int, bytes_max: int) -> list[Piece]:
        """Return the next pending records of a stretch, which is then shorter, or done with.

        What is in memory of it already is left out, and suspects of which one knows.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        found: list[Piece] = []
        stretch.begun = True
        reader = SlotReader(self.path, self._descriptor, start=stretch.start, end=stretch.end)
        while len(found) < count_max and bytes_max > 0:
            pieces = reader.read(count_max - len(found), bytes_max=bytes_max, final=True)
            for piece in pieces:
                if piece.kind is Kind.DAMAGE:
                    torn = stretch.settled is not None and stretch.settled.code == "torn"
                    self._bury(piece, torn=torn)
                elif piece.kind is Kind.PENDING and not self._is_known(piece.offset, stretch):
                    self._outstanding.add(piece.offset)
                    bytes_max -= len(piece.data)
                    found.append(piece)
            if not pieces:
                break
        if reader.position >= stretch.end:
            self.drop(stretch)
        stretch.start = reader.position
        return found

    def keep(self, stretch: Stretch) -> None:
        """A stretch waits."""
        self.delayed[id(stretch)] = stretch
        if stretch.is_exact:
            self._suspects.add(stretch.start)

    def drop(self, stretch: Stretch) -> None:
        """A stretch waits no more; it may have become a part of another one meanwhile."""
        stretch.alive = False
        self._blocked_at = _NOWHERE
        if self.delayed.pop(id(stretch), None) is not None and stretch.is_exact:
            self._suspects.discard(stretch.start)

    def _is_known(self, offset: int, stretch: Stretch) -> bool:
        """Whether a record inside a stretch is in memory, or waits in a stretch of its own."""
        is_suspect = offset in self._suspects and not stretch.is_exact
        return is_suspect or offset in self._outstanding

    def give_back(self, offset: int) -> None:
        """The record at ``offset`` is in memory no more; the caller delays it."""
        self._outstanding.discard(offset)

    def rest(self) -> None:
        """Close the file of a quiet slot, and forget all but what is delayed."""
        self._reader = SlotReader(self.path, -1, start=self._reader.position)
        self.close()

    def wake(self) -> None:
        """Open the file again.

        Raises:
            SpoolFailedError: It cannot be opened, or is another one.
        """
        descriptor = open_slot(self.path, os.O_RDWR)
        if os.fstat(descriptor).st_ino != self._inode:
            os.close(descriptor)
            raise SpoolFailedError(
                "this slot was replaced by another file",
                path=self.path,
                hint="nobody but the forwarder may delete a slot",
            )
        self._descriptor = descriptor
        self._reader = SlotReader(self.path, descriptor, start=self._reader.position)

    def erase(self, offset: int, frame_bytes: int) -> None:
        """Mark the record at ``offset`` as erased.

        Raises:
            SpoolFailedError: It failed.
        """
        try:
            os.pwrite(self._descriptor, ERASED_BYTE, offset)
        except OSError as error:
            raise spool_failed("erase a record", self.path, error) from error
        self._outstanding.discard(offset)
        self._unreleased += frame_bytes + RECORD_OVERHEAD
        if self._unreleased >= RELEASE_BYTES and self._can_release and offset <= self._blocked_at:
            pending = (stretch.start for stretch in self.delayed.values())
            first = min(chain((self._last_record,), self._outstanding, pending))
            self._release(first)
            is_blocked = self._unreleased >= RELEASE_BYTES and first != self._last_record
            self._blocked_at = first if is_blocked else _NOWHERE

    def wait_for_writes(self) -> None:
        """Return when every write that had begun is over.

        Writes to one file wait for each other in the system; so once a write of ours, which
        changes nothing, is done, those before it are too.

        Raises:
            SpoolFailedError: It failed.
        """
        with self._translating("write"):
            first = os.pread(self._descriptor, 1, 0)
            os.pwrite(self._descriptor, first, 0)

    def finish(self, count_max: int, bytes_max: int) -> tuple[bool, list[Piece]]:
        """Delete the slot if nobody writes to it and nothing in it is left to send.

        The caller knows that its time is over. What is incomplete at the end is torn then.

        Returns:
            Whether it is gone, and records that came at the last moment.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        if self._outstanding or self.delayed:
            return False, []
        with self._translating("lock"):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False, []
        try:
            found = self.take(count_max, bytes_max, final=True)
            if found or self.has_more() or self.delayed:
                return False, found
            if not self.is_taken_away:
                with self._translating("delete"):
                    os.unlink(self.path)
            return True, []
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _bury(self, piece: Piece, *, torn: bool) -> None:
        size = len(piece.data)
        code = "torn" if torn else "damaged"
        sentence = "a torn write" if torn else "bytes that are no whole record"
        if not self._put_aside(self, piece, code, sentence):
            return
        self._unreleased += size
        log.warning("%s: %d bytes at offset %d are no record", self.path, size, piece.offset)
        if size < RECORD_OVERHEAD:
            return  # too short for a record; found again after a restart, and put aside again
        head, crc = erased_ends(piece.data[HEAD_BYTES:-4])
        with self._translating("erase damage"):
            os.pwrite(self._descriptor, head + piece.data[HEAD_BYTES:-4] + crc, piece.offset)

    def _release(self, end: int) -> None:
        """Make the erased run up to ``end`` one blank, and its frame a hole.

        The run ends where a whole record starts: until its CRC is written a blank counts only
        because it leads to one.
        """
        while end - self._released >= RELEASE_BYTES:
            part_end = self._boundary(end)
            if part_end - self._released < RELEASE_BYTES:
                return
            with self._translating("release space"):
                self._blank(self._released, part_end)
            if not self._can_release:
                return
            self._unreleased -= part_end - self._released
            self._released = part_end

    def _boundary(self, end: int) -> int:
        """Return ``end``, or the last start of a record that one blank can reach."""
        limit = self._released + RECORD_BYTES_MAX
        if end <= limit:
            return end
        reader = SlotReader(self.path, self._descriptor, start=self._released)
        best = self._released
        while pieces := reader.read(4096):
            for piece in pieces:
                if piece.offset > limit:
                    return best
                if piece.kind is not Kind.DAMAGE:
                    best = piece.offset
        return best

    def _blank(self, start: int, end: int) -> None:
        head, crc = blank_ends(end - start)
        before = os.pread(self._descriptor, HEAD_BYTES, start)
        os.pwrite(self._descriptor, head, start)
        hole = start + HEAD_BYTES
        if punch_hole(self._descriptor, hole, end - 4 - hole):
            os.pwrite(self._descriptor, crc, end - 4)
        else:
            os.pwrite(self._descriptor, before, start)
            self._can_release = False

    @contextmanager
    def _translating(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise spool_failed(action, self.path, error) from error
