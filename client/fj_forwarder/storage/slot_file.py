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
from fastjournal.limits import FIRST_RECORDS_MAX
from fastjournal.spool.format import (
    CRC_BYTES,
    ERASED_BYTE,
    FILE_HEADER_BYTES,
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD,
    blank_ends,
)
from fastjournal.spool.reading.pieces import Piece, PieceKind
from fastjournal.spool.reading.slot_reader import SlotReader
from fastjournal.spool.reading.work_budget import WorkBudget
from fastjournal.spool.slots import (
    Slot,
    SlotName,
    is_drop_in,
    leads_to,
    open_slot,
    spool_failed,
)
from fj_forwarder.storage.slot_content import SlotContent
from fj_forwarder.storage.slot_space import SlotSpace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fj_forwarder.storage.stretches import Stretch

log = logging.getLogger("fj_forwarder")

PutAside = Callable[["SlotFile", Piece, str, str], bool]
"""Takes the slot, a piece of damage, a
code and a sentence, and keeps it durably. False: it cannot be kept now; it stays in the slot, and
was added to ``delayed``."""


_SENTENCES: Final = {
    "torn": "a torn write",
    "damaged": "bytes that are no whole record",
    "zeros": "a run of zero bytes, of which no copy is kept",
}
"""Why damage is in dead/, by its code."""


class SlotFile:
    """An open slot.

    Args:
        slot: Which one.
        put_aside: Where damage goes.
        is_written: A program was seen to write it under its name.
        budget: Bounds the work on damage in one turn; None: it is not bounded.

    Raises:
        SpoolFailedError: It cannot be opened for reading and writing, or is of another version.
    """

    __slots__ = (
        "_budget",
        "_descriptor",
        "_has_grown",
        "_inode",
        "_is_stalled",
        "_may_send",
        "_outstanding",
        "_put_aside",
        "_read_bytes",
        "_reader",
        "_refuses_erasure",
        "_seen_bytes",
        "_space",
        "_suspects",
        "_tail",
        "content",
        "delayed",
        "is_drop_in",
        "is_overwritten",
        "name",
        "path",
        "retry_us",
        "start_s",
        "unerased",
        "was_taken_away",
    )

    def __init__(
        self,
        slot: Slot | SlotName,
        put_aside: PutAside,
        *,
        is_written: bool = False,
        budget: WorkBudget | None = None,
    ) -> None:
        self.name: Final = slot.name
        self.start_s: Final = slot.start_s
        self.path: Final = slot.path
        self.is_drop_in: Final = is_drop_in(slot.name)
        """Nobody appends to it: it is over as soon as it is there."""
        self._put_aside = put_aside
        self._budget = budget or WorkBudget()
        self._descriptor = open_slot(slot.path, os.O_RDWR)
        self._reader = SlotReader(slot.path, self._descriptor, budget=self._budget)
        try:
            self._reader.read(0)
            with self._translating("look at"):
                self._inode = os.fstat(self._descriptor).st_ino
        except SpoolFailedError:
            os.close(self._descriptor)
            raise
        self.content = SlotContent(slot.path)
        self._tail = self._reader.last_bytes
        """Last bytes before ``position``, as they were read; empty where nothing is known."""
        self.is_overwritten = False
        """Another program has overwritten it: only the records in memory are left of it."""
        self._outstanding: dict[int, bytes] = {}
        """Records that were returned, and are neither erased nor delayed since: offset, frame."""
        self._has_grown = is_written
        """A drop-in that was incomplete or became longer: a program writes it under its name."""
        self._read_bytes = 0
        """Length of the file at the last read that came to its end."""
        self._seen_bytes = -1
        self._is_stalled = False
        """A drop-in that did not grow between two looks."""
        self.retry_us = 0
        """Before this instant it is left out: a call of the operating system on it failed."""
        self.delayed: dict[int, Stretch] = {}
        """Pending stretches that wait on the disk, by the ``id`` of the stretch."""
        self._suspects: set[int] = set()
        """Offsets of the suspects that are kept one by one."""
        self._space = SlotSpace(slot.path)
        self.was_taken_away = False
        """The log has that somebody deleted it."""
        self._may_send: int | None = FIRST_RECORDS_MAX
        """Records that may be in memory; None: one was erased here, and any number may."""
        self._refuses_erasure = False
        """The last record that was to be erased could not be."""
        self.unerased = 0
        """Delivered records that are delayed, and only have to be erased."""

    @property
    def is_barred(self) -> bool:
        """Whether a delivered record waits to be erased: no other is sent until that succeeds."""
        return self._refuses_erasure and bool(self.delayed or self._outstanding)

    def allowance(self, count_max: int, *, first_max: int = FIRST_RECORDS_MAX) -> int:
        """Return how many of ``count_max`` records may be taken, to be sent.

        A slot in which nothing can be erased is sent again at each start. So it has to prove that
        it can be before more than ``first_max`` records of it are on their way.
        """
        if self.is_barred:
            return 0
        if self._may_send is None:
            return count_max
        more = self._may_send - FIRST_RECORDS_MAX + first_max - len(self._outstanding)
        return max(0, min(count_max, more))

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

    def first_pending(self, size: int) -> int | None:
        """Return the offset of the first record that is not done, if the file has ``size`` bytes.

        None: there is none.
        """
        offsets = chain(self._outstanding, (stretch.start for stretch in self.delayed.values()))
        first = min(offsets, default=None)
        return self.position if first is None and size > self.position else first

    @property
    def position(self) -> int:
        """Everything before this byte was read."""
        return self._reader.position

    @property
    def waiting_bytes(self) -> int:
        """Bytes at the end that are no whole record yet."""
        return self._reader.waiting_bytes

    @property
    def is_incomplete(self) -> bool:
        """Whether its end may be torn: bytes that are no whole record, or a drop-in that grows."""
        return self.waiting_bytes > 0 or (self.is_drop_in and not self.is_over)

    @property
    def is_over(self) -> bool:
        """Whether this is a drop-in that was read to its end: nothing more comes.

        One without a record, or that a program was seen to write under its name, may grow: it is
        over when it has not grown between two looks.
        """
        is_whole = self.position > FILE_HEADER_BYTES and not self._has_grown
        is_read = self.is_drop_in and not self.waiting_bytes
        return is_read and (is_whole or self._is_stalled)

    def note_growth(self) -> None:
        """Look whether a drop-in has grown since the last look; the caller lets time pass.

        It should be whole when it appears, but a program may copy it there. So an incomplete one
        counts as torn only when it has not grown between two looks.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        if self.is_drop_in and not self.is_over:
            with self._translating("look at"):
                size = os.fstat(self._descriptor).st_size
            self._is_stalled, self._seen_bytes = size == self._seen_bytes, size

    @property
    def is_taken_away(self) -> bool:
        """Whether its path does not lead to it any more: somebody else deleted or moved it.

        Its records can be read and sent still. Another file may have its name by now.
        """
        try:
            return not leads_to(self.path, self._descriptor)
        except OSError:
            return False  # a failure is reported when it is read

    def has_more(self) -> bool:
        """Whether the file is longer than what was read of it.

        Raises:
            SlotOverwrittenError: It has another content by now.
            SpoolFailedError: A call of the operating system failed.
        """
        with self._translating("read"):
            size = os.fstat(self._descriptor).st_size
        if size == self.position and not self.waiting_bytes:
            return False
        self.check_content()
        return size > self.position

    def check_content(self) -> None:
        """Check that the file was neither truncated nor overwritten since it was read.

        Raises:
            SlotOverwrittenError: It was.
            SpoolFailedError: A call of the operating system failed.
        """
        read_to = self.position + self.waiting_bytes
        self.content.check_end(self._descriptor, read_to, self.position, self._tail)

    def take(
        self, count_max: int, bytes_max: int, *, settled: bool = False, final: bool = False
    ) -> list[Piece]:
        """Return the next pending records; damage is put aside on the way.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        found: list[Piece] = []
        final = final or self._is_stalled
        while len(found) < count_max and bytes_max > 0:
            try:
                pieces = self._reader.read(
                    count_max - len(found), bytes_max=bytes_max, settled=settled, final=final
                )
            except SpoolFailedError:
                if found:
                    break  # these are sent; the next call fails
                raise
            if not pieces:
                if not self._reader.is_busy:
                    self._note_end()
                break
            for piece in pieces:
                self._space.add_read(piece)
                if piece.kind is PieceKind.PENDING:
                    self._outstanding[piece.offset] = piece.data
                    bytes_max -= len(piece.data)
                    found.append(piece)
                elif piece.kind is PieceKind.DAMAGE:
                    torn = final or settled or piece.offset == self._reader.torn_at
                    self._bury(piece, torn=torn)
            is_damage = pieces[-1].kind is PieceKind.DAMAGE  # its last bytes may be erased by now
            self._tail = b"" if is_damage else self._reader.last_bytes
        return found

    def _note_end(self) -> None:
        """Note how long the file was when its end was read."""
        size = self.position + self.waiting_bytes
        if self.is_drop_in and (self.waiting_bytes or 0 < self._read_bytes < size):
            self._has_grown = True
        self._read_bytes = size

    def take_again(self, stretch: Stretch, count_max: int, bytes_max: int) -> list[Piece]:
        """Return the next pending records of a stretch, which is then shorter, or done with.

        Records of it that are in memory already are left out, and so are known suspects.

        Raises:
            SlotOverwrittenError: The file has another content by now.
            SpoolFailedError: A call of the operating system failed.
        """
        self.check_content()
        found: list[Piece] = []
        stretch.begun = True
        is_damage = stretch.settled is not None and stretch.settled.is_damage
        reader = SlotReader(
            self.path,
            self._descriptor,
            start=stretch.start,
            end=stretch.end,
            is_damage=is_damage,
        )
        while len(found) < count_max and bytes_max > 0:
            try:
                pieces = reader.read(count_max - len(found), bytes_max=bytes_max, final=True)
            except SpoolFailedError:
                if found:
                    break
                raise
            for piece in pieces:
                if piece.kind is PieceKind.DAMAGE:
                    torn = stretch.settled is not None and stretch.settled.code == "torn"
                    self._bury(piece, torn=torn)
                elif piece.kind is PieceKind.PENDING and not self._is_known(piece.offset, stretch):
                    self._outstanding[piece.offset] = piece.data
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
        self.unerased += stretch.is_erasure
        if stretch.is_exact:
            self._suspects.add(stretch.start)

    def drop(self, stretch: Stretch) -> None:
        """A stretch waits no more; it may have become a part of another one meanwhile."""
        stretch.alive = False
        self._space.unblock()
        if self.delayed.pop(id(stretch), None) is None:
            return
        self.unerased -= stretch.is_erasure
        if stretch.is_exact:
            self._suspects.discard(stretch.start)

    def _is_known(self, offset: int, stretch: Stretch) -> bool:
        """Whether a record inside a stretch is in memory, or waits in a stretch of its own."""
        is_suspect = offset in self._suspects and not stretch.is_exact
        return is_suspect or offset in self._outstanding

    def give_back(self, offset: int) -> None:
        """The record at ``offset`` is in memory no more; the caller delays it."""
        self._outstanding.pop(offset, None)
        if self._may_send is not None:
            self._may_send += 1

    def rest(self) -> None:
        """Close the file of a quiet slot, and keep only the delayed stretches."""
        self._reader = SlotReader(self.path, -1, start=self._reader.position)
        self.close()

    def wake(self) -> None:
        """Open the file again.

        Raises:
            SlotOverwrittenError: The file has another content by now.
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
        start = self._reader.position
        self._reader = SlotReader(self.path, descriptor, start=start, budget=self._budget)
        self.check_content()

    def erase(self, offset: int, frame_bytes: int) -> None:
        """Mark the record at ``offset`` as erased, unless the slot was overwritten.

        Raises:
            SlotOverwrittenError: Another record is there.
            SpoolFailedError: It failed.
        """
        if self.is_overwritten:
            self._outstanding.pop(offset, None)
            return
        frame, content = self._outstanding.pop(offset), self.content
        at = offset - content.base
        try:
            if at < 0 or not content.window.startswith(frame, at):
                content.check_record(self._descriptor, offset, frame)
            os.pwrite(self._descriptor, ERASED_BYTE, offset)
        except OSError as error:
            self._outstanding[offset] = frame
            raise spool_failed("erase a record", self.path, error) from error
        self._may_send, self._refuses_erasure = None, False
        self._space.add_erased(frame_bytes + RECORD_OVERHEAD)
        if self._space.is_due(offset):
            pending = (stretch.start for stretch in self.delayed.values())
            first = min(chain((self._space.last_record,), self._outstanding, pending))
            self._space.release(self._descriptor, first)

    def bar(self) -> None:
        """A record could not be erased, and the caller delays that: see ``is_barred``."""
        self._refuses_erasure = True
        self._may_send = FIRST_RECORDS_MAX

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

        The caller knows that its time is over. So an incomplete record at the end is torn.

        Returns:
            Whether it is gone, and records that came at the last moment.

        Raises:
            SlotOverwrittenError: Another program has overwritten it: what is in it was not read.
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
            self.check_content()
            found = self.take(count_max, bytes_max, final=True)
            if found or self.has_more() or self.delayed:
                return False, found
            if not self._has_grown:  # else its records may have been written a second time
                with self._translating("read"):
                    self.content.check_all_erased(self._descriptor)
            if not self.is_taken_away:
                with self._translating("delete"):
                    os.unlink(self.path)
            return True, []
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        self.content.forget()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _bury(self, piece: Piece, *, torn: bool) -> None:
        """Put damage aside, then erase it.

        Raises:
            SlotOverwrittenError: Another content is there by now.
            SpoolFailedError: It cannot be read.
        """
        size = piece.end - piece.offset
        code = "zeros" if piece.is_zeros else "torn" if torn else "damaged"
        sentence = _SENTENCES[code]
        if not self._put_aside(self, piece, code, sentence):
            return
        log.warning("%s: %d bytes at offset %d are no record", self.path, size, piece.offset)
        if not RECORD_OVERHEAD <= size <= RECORD_BYTES_MAX:
            return  # no record is so long; found again after a restart, and put aside again
        self._space.add_erased(size)
        with self._translating("read"):
            self.content.check_bytes(self._descriptor, piece.offset, piece.data)
        # Zero bytes: with the damage as its frame it would have a CRC that fits, and if the power
        # took back the first byte alone, it would be a pending record, and be sent.
        head, crc = blank_ends(size)
        blank = head if piece.is_zeros else head + bytes(size - RECORD_OVERHEAD) + crc
        try:
            os.pwrite(self._descriptor, blank, piece.offset)
            if piece.is_zeros:
                os.pwrite(self._descriptor, crc, piece.end - CRC_BYTES)
        except OSError as error:
            # Not raised: what was read before it would never be sent. After a restart it is found
            # and put aside under the same name.
            at = piece.offset
            log.warning("%s: damage at offset %d was not erased: %s", self.path, at, error)

    @contextmanager
    def _translating(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise spool_failed(action, self.path, error) from error
