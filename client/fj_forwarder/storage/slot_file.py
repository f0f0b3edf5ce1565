"""Slot file of a spool: reading, erasing, releasing its space, deleting it.

Only the holder of forwarder.lock changes slots like this. Everything survives a kill between any
two calls: what was sent and not erased is sent again, what was put aside and not erased is put
aside again under the same name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Final

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.format import ERASED_BYTE, RECORD_OVERHEAD
from fastjournal.spool.reading.slot_reader import SlotReader
from fastjournal.spool.reading.slot_window import PIECE_UNITS, Piece, PieceKind, WorkBudget
from fastjournal.spool.slots import Slot, SlotName, is_drop_in, spool_failed
from fj_forwarder.storage.delayed_stretches import DelayedStretches
from fj_forwarder.storage.drop_in_growth import DropInGrowth
from fj_forwarder.storage.send_window import SendWindow
from fj_forwarder.storage.slot_content import SlotContent
from fj_forwarder.storage.slot_damage import SENTENCES, blank_damage, can_be_blanked, damage_code
from fj_forwarder.storage.slot_handle import SlotHandle
from fj_forwarder.storage.slot_space import SlotSpace

if TYPE_CHECKING:
    from fj_forwarder.storage.stretches import Stretch

log = logging.getLogger("fj_forwarder")

PutAside = Callable[["SlotFile", Piece, str, str], bool]
"""Takes the slot, a piece of damage, a code and a sentence, and keeps it durably. False: it cannot
be kept now; it stays in the slot, and was added to ``delayed``."""


class SlotFile:
    """Slot file that is open.

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
        "_handle",
        "_put_aside",
        "_reader",
        "_settled_to",
        "_space",
        "_tail",
        "content",
        "delayed",
        "growth",
        "is_drop_in",
        "is_overwritten",
        "name",
        "path",
        "retry_us",
        "start_s",
        "was_taken_away",
        "window",
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
        self._handle = SlotHandle(slot.path)
        self._reader = SlotReader(slot.path, self._handle.descriptor, budget=self._budget)
        try:
            self._reader.read(0)
        except SpoolFailedError:
            self._handle.close()
            raise
        self.content = SlotContent(slot.path)
        self._tail = self._reader.last_bytes
        """Last bytes before ``position``, as they were read; empty where nothing is known."""
        self._settled_to = -1
        """Length of the file when nothing whole was behind the incomplete bytes at its end."""
        self.is_overwritten = False
        """Another program has overwritten it: only the records in memory are left of it."""
        self.growth = DropInGrowth(is_drop_in=self.is_drop_in, has_grown=is_written)
        self.window = SendWindow()
        """Records of it that are in memory."""
        self.delayed = DelayedStretches()
        """Stretches of it that wait on the disk."""
        self._space = SlotSpace(slot.path)
        self.retry_us = 0
        """Before this instant it is left out: a call of the operating system on it failed."""
        self.was_taken_away = False
        """The log has that somebody deleted it."""

    @property
    def is_barred(self) -> bool:
        """Whether a delivered record waits to be erased: no other is sent until that succeeds."""
        return self.window.refuses_erasure and bool(self.delayed or self.window.records)

    @property
    def may_be_finished(self) -> bool:
        """Whether ``finish`` may have something to do; delayed records keep it but not its end."""
        if self.window.records or self.is_barred:
            return False
        return not self.delayed or self.waiting_bytes > 0

    @property
    def outstanding(self) -> int:
        """Records that were taken and are not erased."""
        return len(self.window.records)

    @property
    def is_at_rest(self) -> bool:
        """Whether it was read, and nothing of it is in memory: it can be suspended.

        Bytes at its end that are no record wait for their writer, or for the end of the slot.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        if self.window.records:
            return False
        if not self.waiting_bytes:
            return not self.has_more()
        return self.position + self.waiting_bytes == self._settled_to == self._handle.size()

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
        """Whether this is a drop-in that was read to its end: nothing more comes."""
        return self.growth.is_over(self.position, self.waiting_bytes)

    def note_growth(self, now_us: int, size: int | None = None) -> None:
        """Look whether a drop-in has grown; ``size`` is its length where it is suspended.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        if self.is_drop_in and not self.is_over:
            self.growth.note_look(self._handle.size() if size is None else size, now_us)

    @property
    def is_taken_away(self) -> bool:
        """Whether its path does not lead to it any more: somebody else deleted or moved it.

        Its records can be read and sent still. Another file may have its name by now.
        """
        return not self._handle.has_name()

    def has_more(self) -> bool:
        """Whether the file is longer than what was read of it.

        Raises:
            SlotOverwrittenError: It has another content by now.
            SpoolFailedError: A call of the operating system failed.
        """
        size = self._handle.size()
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
        self.content.check_end(self._handle.descriptor, read_to, self.position, self._tail)

    def take(
        self, count_max: int, bytes_max: int, *, settled: bool = False, final: bool = False
    ) -> list[Piece]:
        """Return the next pending records within the budget; damage is put aside on the way.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        found: list[Piece] = []
        final = final or self.growth.is_stalled
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
                    size = self.position + self.waiting_bytes
                    self.growth.note_read(size, self.waiting_bytes)
                    if settled:
                        self._settled_to = size
                break
            for piece in pieces:
                self._space.add_read(piece)
                if piece.kind is PieceKind.PENDING:
                    self.window.records[piece.offset] = piece.data
                    bytes_max -= len(piece.data)
                    found.append(piece)
                elif piece.kind is PieceKind.DAMAGE:
                    is_torn = final or settled or piece.offset == self._reader.torn_at
                    self._bury(piece, is_torn=is_torn)
            is_damage = pieces[-1].kind is PieceKind.DAMAGE  # its last bytes may be erased by now
            self._tail = b"" if is_damage else self._reader.last_bytes
            self._budget.spend(PIECE_UNITS * len(pieces))
            if self._budget.is_spent:
                break
        return found

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
        descriptor, start, end = self._handle.descriptor, stretch.start, stretch.end
        reader = SlotReader(self.path, descriptor, start=start, end=end, is_damage=is_damage)
        while len(found) < count_max and bytes_max > 0:
            try:
                pieces = reader.read(count_max - len(found), bytes_max=bytes_max, final=True)
            except SpoolFailedError:
                if found:
                    break
                raise
            for piece in pieces:
                if piece.kind is PieceKind.DAMAGE:
                    is_torn = stretch.settled is not None and stretch.settled.code == "torn"
                    self._bury(piece, is_torn=is_torn)
                elif piece.kind is PieceKind.PENDING and not self._is_known(piece.offset, stretch):
                    self.window.records[piece.offset] = piece.data
                    bytes_max -= len(piece.data)
                    found.append(piece)
            self._budget.spend(PIECE_UNITS * len(pieces))
            if not pieces or self._budget.is_spent:
                break
        if reader.position >= stretch.end:
            self.drop(stretch)
        stretch.start = reader.position
        return found

    def drop(self, stretch: Stretch) -> None:
        """A stretch waits no more; it may have become a part of another one meanwhile."""
        stretch.alive = False
        self._space.unblock()
        self.delayed.remove(stretch)

    def _is_known(self, offset: int, stretch: Stretch) -> bool:
        """Whether a record inside a stretch is in memory, or waits in a stretch of its own."""
        is_suspect = not stretch.is_exact and self.delayed.has_suspect(offset)
        return is_suspect or offset in self.window.records

    def suspend(self) -> None:
        """Close the file of a slot at rest, and keep only the delayed stretches."""
        self._reader = SlotReader(self.path, -1, start=self._reader.position)
        self.close()

    def resume(self) -> None:
        """Open the file again.

        Raises:
            SlotOverwrittenError: The file has another content by now.
            SpoolFailedError: It cannot be opened, or is another one.
        """
        self._handle.reopen()
        descriptor, start = self._handle.descriptor, self._reader.position
        self._reader = SlotReader(self.path, descriptor, start=start, budget=self._budget)
        try:
            self.check_content()
        except SpoolFailedError:
            self.close()
            raise

    def erase(self, offset: int, frame_bytes: int) -> None:
        """Mark the record at ``offset`` as erased, unless the slot was overwritten.

        Raises:
            SlotOverwrittenError: Another record is there.
            SpoolFailedError: It failed.
        """
        window, content, records = self.window, self.content, self.window.records
        if self.is_overwritten:
            records.pop(offset, None)
            return
        frame = records.pop(offset)
        at = offset - content.base
        try:
            if at < 0 or not content.window.startswith(frame, at):
                content.check_record(self._handle.descriptor, offset, frame)
            os.pwrite(self._handle.descriptor, ERASED_BYTE, offset)
        except OSError as error:
            records[offset] = frame
            raise spool_failed("erase a record", self.path, error) from error
        if window.may_send is not None:
            window.open()
        self._space.add_erased(frame_bytes + RECORD_OVERHEAD)
        if self._space.is_due(offset):
            end = min(chain((self._space.last_record,), records))
            self._space.release(self._handle.descriptor, end, self.delayed)

    def wait_for_writes(self) -> None:
        """Return when every write that had begun is over.

        Raises:
            SpoolFailedError: It failed.
        """
        self._handle.wait_for_writes()

    def finish(self, count_max: int, bytes_max: int) -> tuple[bool, list[Piece]]:
        """Delete the slot if nobody writes to it and nothing in it is left to send.

        The caller knows that its time is over. So an incomplete record at the end is torn, and goes
        to dead/ though records before it are delayed.

        Returns:
            Whether it is gone, and records that came at the last moment.

        Raises:
            SlotOverwrittenError: Another program has overwritten it: what is in it was not read.
            SpoolFailedError: A call of the operating system failed.
        """
        if not self.may_be_finished or not self._handle.try_lock():
            return False, []
        try:
            self.check_content()
            found = self.take(count_max, bytes_max, final=True)
            if found or self.has_more() or self.delayed:
                return False, found
            if not self.growth.has_grown:  # else its records may have been written a second time
                self.content.check_all_erased(self._handle.descriptor)
            if not self.is_taken_away:
                self._handle.unlink()
            return True, []
        finally:
            self._handle.unlock()

    def close(self) -> None:
        """Close the file."""
        self.content.drop_window()
        self._handle.close()

    def _bury(self, piece: Piece, *, is_torn: bool) -> None:
        """Put damage aside, then erase it.

        Raises:
            SlotOverwrittenError: Another content is there by now.
        """
        code = damage_code(piece, is_torn=is_torn)
        if not self._put_aside(self, piece, code, SENTENCES[code]):
            return
        size = piece.end - piece.offset
        log.warning("%s: %d bytes at offset %d are no record", self.path, size, piece.offset)
        if can_be_blanked(piece):
            self._space.add_erased(size)
            blank_damage(self._handle.descriptor, self.path, piece, self.content)
