"""Slot file of a spool: read, erase, release space, delete; damage goes to ``dead/``.

Only the holder of forwarder.lock changes slots like this. Everything survives a kill between any
two calls: what was sent and not erased is sent again, what was put into ``dead/`` and not erased is
put there again under the same name.

The module has over 600 lines, because reading, erasing and deleting work on the same state: the
position in the file, its records in memory and its entries in the retry queue.

Other programs must not change a slot, and do it all the same: they delete it, truncate it
(``: >slot``, copytruncate) or write another file over it (``cp``). There is one rule: if the path
leads to another file, if the file is shorter than what was read, or if other bytes are at the end
of what was read or at the record that is to be erased, then nothing is written
(``SlotOverwrittenError``). The caller logs it and starts over with the slot. docs/spool.md says
what cannot be noticed.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import FIRST_RECORDS_MAX, RESCAN_US, SUSPECT_LOSSES
from fastjournal.spool.format import (
    CRC_BYTES,
    ERASED_BYTE,
    FILE_HEADER_BYTES,
    HEAD_BYTES,
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD,
    blank_ends,
)
from fastjournal.spool.reading.slot_reader import SlotReader
from fastjournal.spool.reading.slot_window import PIECE_UNITS, Piece, PieceKind, WorkBudget
from fastjournal.spool.slots import (
    Slot,
    SlotName,
    is_drop_in,
    open_slot,
    spool_failed,
)
from fj_forwarder.storage.slot_space import SlotSpace

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

log = logging.getLogger("fj_forwarder")

PutAside = Callable[["SlotFile", Piece, str, str], bool]
"""Takes the slot, a piece of damage, a code and a sentence, and keeps it durably. False: it cannot
be kept now; it stays in the slot, and was added to ``delayed``."""

_SENTENCES: Final = {
    "torn": "a torn write",
    "damaged": "bytes that are no whole record",
    "zeros": "a run of zero bytes, of which no copy is kept",
}

_COMPARED_BYTES_MIN: Final = 4096
_COMPARED_BYTES_MAX: Final = 64 * 1024
"""One read serves the records of a turn that lie in it. A longer frame is compared up to here: that
has the timestamp and the key."""


class Verdict(NamedTuple):
    """Verdict on a record that is not sent (again), and could not be carried out so far."""

    code: str
    """The error code, for dead/; empty: the record is delivered, and is to be erased."""
    reason: str
    is_buried: bool = False
    """It is in dead/ already, and is to be erased."""


class SpoolRecord(msgspec.Struct, gc=False, eq=False):
    """Pending record of a slot, in memory until it is erased or delayed."""

    slot: SlotFile
    offset: int
    frame: bytes
    function: int = 0
    flags: int = 0
    timestamp: int = 0
    """Timestamp of the request: when it was written, by the writer's clock."""
    value_bytes: int = 0
    """Length of its value, without the type byte."""
    serial: int = 0
    epoch: int = 0
    """Number of pauses of the whole delivery before it was sent."""
    tries: int = 0
    """How often it was delayed."""
    losses: int = 0
    """Number of connections that ended before it had a reply."""
    was_suspect: bool = False
    """It was a suspect when it was read."""
    holds: int = 0
    """How often it was refused together with all others, since it was read."""
    skewed_us: int = 0
    """When it was first refused as clock-skew; 0: never."""
    verdict: Verdict | None = None
    """It is not sent: it is to be buried or erased."""


class Retry(msgspec.Struct, gc=False, eq=False):
    """Retry entry: what is pending in a range of a slot is read again at ``due_us``."""

    slot: SlotFile
    start: int
    end: int
    due_us: int
    tries: int = 0
    losses: int = 0
    skewed_us: int = 0
    awaited: bool = False
    """Delayed for no reason of its own: ``--once`` waits for it."""
    verdict: Verdict | None = None
    is_damage: bool = False
    """It is no record, but bytes between records."""
    code: str = ""
    """Error code for which it was delayed; empty: none, or several."""
    latest_us: int = 0
    """It is due by then, also if it is merged with others."""
    begun: bool = False
    """A part of it was read again, and the rest is next: it is not merged."""
    merged: bool = False
    """It was made of several: records that are not delayed may be in it."""
    alive: bool = True
    """It is in the queue."""

    @property
    def is_suspect(self) -> bool:
        """Whether its records are tried alone, and rarely."""
        return self.losses >= SUSPECT_LOSSES

    @property
    def is_erasure(self) -> bool:
        """Whether it is one record that only has to be erased."""
        return self.verdict is not None and not self.verdict.code


class SlotOverwrittenError(SpoolFailedError):
    """Another program has deleted, truncated or overwritten a slot: start over with it."""


class SlotFile:
    """Slot file that is open, or suspended (closed).

    Args:
        slot: Name and path.
        put_aside: Where damage goes.
        is_written: A program was seen to write it under its name.
        budget: Bounds the work on damage in one turn; None: it is not bounded.

    Raises:
        SpoolFailedError: It cannot be opened for reading and writing, or is of another version.
    """

    __slots__ = (
        "_at_rest_bytes",
        "_budget",
        "_compared",
        "_compared_at",
        "_compared_bytes",
        "_descriptor",
        "_identity",
        "_put_aside",
        "_reader",
        "_space",
        "_tail",
        "_turn",
        "delayed",
        "growth",
        "is_drop_in",
        "is_overwritten",
        "is_proven",
        "name",
        "path",
        "records",
        "refuses_erasure",
        "retry_us",
        "start_s",
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
        """It has no writer: it is complete as soon as it appears."""
        self._put_aside = put_aside
        self._budget = budget or WorkBudget()
        self._descriptor = open_slot(slot.path, os.O_RDWR)
        """-1: it is suspended."""
        try:
            with self._failing("look at"):
                self._identity = _identity(os.fstat(self._descriptor))
            self._reader = SlotReader(slot.path, self._descriptor, budget=self._budget)
            self._reader.read(0)
        except SpoolFailedError:
            os.close(self._descriptor)
            raise
        self._tail = self._reader.last_bytes
        """Last bytes before ``position``, as they were read; empty where nothing is known."""
        self._at_rest_bytes = -1
        """Length of the file when nothing whole was after the incomplete bytes at its end."""
        self._turn: int | None = None
        self._compared = b""
        """Bytes of the file in this turn: records are compared with them before they are erased."""
        self._compared_at = 0
        self._compared_bytes = _COMPARED_BYTES_MIN
        self.is_overwritten = False
        """Another program has overwritten it: only its records in memory are sent."""
        self.growth = DropInGrowth(is_drop_in=self.is_drop_in, has_grown=is_written)
        self.records: dict[int, bytes] = {}
        """Records in memory, neither erased nor delayed: offset, frame."""
        self.is_proven = False
        """A record was erased. A slot in which nothing can be erased is sent again at each start,
        so few of its records are sent before that."""
        self.refuses_erasure = False
        """The last record that was to be erased could not be."""
        self.delayed: set[Retry] = set()
        """Its entries in the retry queue."""
        self._space = SlotSpace(slot.path)
        self.retry_us = 0
        """It is left out before this instant: a call of the operating system on it failed."""

    @property
    def is_barred(self) -> bool:
        """Whether a delivered record cannot be erased: no other is sent until that succeeds."""
        return self.refuses_erasure and bool(self.delayed or self.records)

    @property
    def may_be_finished(self) -> bool:
        """Whether ``finish`` may have something to do; delayed records keep it but not its end."""
        if self.records or self.is_barred:
            return False
        return not self.delayed or self.waiting_bytes > 0

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
        """Whether this is a drop-in that was read to its end."""
        return self.growth.is_over(self.position, self.waiting_bytes)

    @property
    def is_at_rest(self) -> bool:
        """Whether it was read, and nothing of it is in memory: it can be suspended.

        Bytes at its end that are no record wait for their writer, or for the end of the slot.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        if self.records:
            return False
        if not self.waiting_bytes:
            return not self.has_more()
        return self.position + self.waiting_bytes == self._at_rest_bytes == self._size()

    def room(self, count_max: int, first_max: int = FIRST_RECORDS_MAX) -> int:
        """Return how many of ``count_max`` records may be read; before one is erased, few."""
        return count_max if self.is_proven else min(count_max, first_max - len(self.records))

    def note_growth(self, now_us: int, size: int | None = None) -> None:
        """Look whether a drop-in has grown; ``size`` is its length where it is suspended.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        if self.is_drop_in and not self.is_over:
            self.growth.note_look(self._size() if size is None else size, now_us)

    def has_more(self) -> bool:
        """Whether the file is longer than what was read of it.

        Raises:
            SlotOverwrittenError: It was overwritten.
            SpoolFailedError: A call of the operating system failed.
        """
        size = self._size()
        if size == self.position and not self.waiting_bytes:
            return False
        self.check_content()
        return size > self.position

    def check_content(self) -> None:
        """Check that the path leads to this file, and what was read last is still there.

        Raises:
            SlotOverwrittenError: It is not.
            SpoolFailedError: A call of the operating system failed.
        """
        self.check_name()
        size, read_to, tail = self._size(), self.position + self.waiting_bytes, self._tail
        with self._failing("read"):
            at = self.position - len(tail)
            found = os.pread(self._descriptor, len(tail), at) if tail else b""
        if size < read_to:
            raise self._overwritten(f"it has {size} bytes, and had {read_to}")
        if found != tail:
            raise self._overwritten(f"other bytes are before offset {self.position}")

    def check_name(self) -> None:
        """Check that the path leads to this file; ``SlotOverwrittenError`` where it does not."""
        try:
            found: tuple[int, int] | None = _identity(os.lstat(self.path))
        except FileNotFoundError:
            found = None
        except OSError:
            return  # a failure is reported when it is read
        if found != self._identity:
            raise self._overwritten("its name leads to it no more")

    def take(
        self, count_max: int, bytes_max: int, *, settled: bool = False, final: bool = False
    ) -> list[Piece]:
        """Return the next pending records within the budget; damage is put aside on the way.

        Raises:
            SlotOverwrittenError: It was overwritten.
            SpoolFailedError: A call of the operating system failed.
        """
        final = final or self.growth.is_stalled
        found, is_end = self._read(self._reader, count_max, bytes_max, settled=settled, final=final)
        if is_end:
            size = self.position + self.waiting_bytes
            self.growth.note_read(size, self.waiting_bytes)
            if settled:
                self._at_rest_bytes = size
        return found

    def take_again(self, retry: Retry, count_max: int, bytes_max: int) -> list[Piece]:
        """Return the next pending records of a retry entry, and move its start after them.

        Records that are in memory are left out, and so are known suspects.

        Raises:
            SlotOverwrittenError: It was overwritten.
            SpoolFailedError: A call of the operating system failed.
        """
        self.check_content()
        retry.begun = True
        known: AbstractSet[int] = self.records.keys()
        if retry.merged:
            known = known | {one.start for one in self.delayed if one.is_suspect and not one.merged}
        start, end, is_damage = retry.start, retry.end, retry.is_damage
        reader = SlotReader(self.path, self._descriptor, start=start, end=end, is_damage=is_damage)
        is_torn = retry.verdict is not None and retry.verdict.code == "torn"
        found, _ = self._read(
            reader, count_max, bytes_max, settled=is_torn, final=True, known=known
        )
        retry.start = reader.position
        return found

    def _read(
        self,
        reader: SlotReader,
        count_max: int,
        bytes_max: int,
        *,
        settled: bool,
        final: bool,
        known: AbstractSet[int] = frozenset(),
    ) -> tuple[list[Piece], bool]:
        """Return pending records, and whether the end was reached; put damage aside."""
        found: list[Piece] = []
        is_new = reader is self._reader
        while len(found) < count_max and bytes_max > 0:
            try:
                pieces = reader.read(
                    count_max - len(found), bytes_max=bytes_max, settled=settled, final=final
                )
            except SpoolFailedError:
                if found:
                    break  # these are sent; the next call fails
                raise
            if not pieces:
                return found, not reader.is_busy
            for piece in pieces:
                if is_new:
                    self._space.add_read(piece)
                if piece.kind is PieceKind.DAMAGE:
                    at_torn = piece.offset == reader.torn_at
                    self._bury(piece, is_torn=settled or (is_new and (final or at_torn)))
                elif piece.kind is PieceKind.PENDING and piece.offset not in known:
                    self.records[piece.offset] = piece.data
                    bytes_max -= len(piece.data)
                    found.append(piece)
            if is_new:
                is_damage = pieces[-1].kind is PieceKind.DAMAGE  # its end may be erased by now
                self._tail = b"" if is_damage else reader.last_bytes
            self._budget.spend(PIECE_UNITS * len(pieces))
            if self._budget.is_spent:
                break
        return found, False

    def undelay(self, retry: Retry) -> None:
        """Note that an entry was removed from the retry queue."""
        self._space.unblock()
        self.delayed.discard(retry)

    def suspend(self) -> None:
        """Close the file; its retry entries and its position stay."""
        self._reader = SlotReader(self.path, -1, start=self._reader.position)
        self.close()

    def resume(self) -> None:
        """Open the file again.

        Raises:
            SlotOverwrittenError: It was overwritten.
            SpoolFailedError: It cannot be opened.
        """
        try:
            self._descriptor = open_slot(self.path, os.O_RDWR)
        except SpoolFailedError as error:
            if os.path.lexists(self.path) and error.__cause__ is not None:
                raise
            raise self._overwritten("its name leads to no slot") from error
        start = self._reader.position
        self._reader = SlotReader(self.path, self._descriptor, start=start, budget=self._budget)
        try:
            with self._failing("look at"):
                identity = _identity(os.fstat(self._descriptor))
            if identity != self._identity:
                raise self._overwritten("its name leads to another file")
            self.check_content()
        except SpoolFailedError:
            self.close()
            raise

    def evict(self, offset: int) -> None:
        """Drop a record from memory; the caller delays it."""
        self.records.pop(offset, None)

    def erase(self, offset: int, turn: int | None = None) -> None:
        """Mark the record at ``offset`` as erased, unless the slot was overwritten.

        Args:
            offset: Where it begins.
            turn: Number of the turn: what was read of the file in it serves for other records, too.

        Raises:
            SlotOverwrittenError: Another record is there.
            SpoolFailedError: It failed.
        """
        frame = self.records.pop(offset)
        if self.is_overwritten:
            return
        if turn is None or turn != self._turn:
            self._turn, self._compared, self._compared_bytes = turn, b"", _COMPARED_BYTES_MIN
            self.check_name()
        at = offset + HEAD_BYTES - self._compared_at
        try:
            if at < 0 or not self._compared.startswith(frame, at):
                self._compare(offset, frame)
            os.pwrite(self._descriptor, ERASED_BYTE, offset)
        except OSError as error:
            self.records[offset] = frame
            raise spool_failed("erase a record", self.path, error) from error
        self.is_proven, self.refuses_erasure = True, False
        self._space.add_erased(len(frame) + RECORD_OVERHEAD)
        if self._space.is_due(offset):
            end = min(chain((self._space.last_record,), self.records))
            waiting = sorted((retry.start, retry.end) for retry in self.delayed)
            self._space.release(self._descriptor, end, waiting)

    def refuse_erasure(self) -> None:
        """A record could not be erased: no other one is sent until that succeeds."""
        self.is_proven, self.refuses_erasure = False, True

    def wait_for_writes(self) -> None:
        """Return when every write that had begun is over.

        Writes to one file wait for each other in the system; so once a write of ours, which
        changes nothing, is done, those before it are too.

        Raises:
            SpoolFailedError: It failed.
        """
        with self._failing("write"):
            os.pwrite(self._descriptor, os.pread(self._descriptor, 1, 0), 0)

    def finish(self, count_max: int, bytes_max: int) -> tuple[bool, list[Piece]]:
        """Delete the slot if it has no writer and no record to send.

        The caller knows that its time is over. So an incomplete record at the end is torn, and is
        put into dead/ even if records before it are delayed.

        Returns:
            Whether it is deleted, and records that were appended at the last moment.

        Raises:
            SlotOverwrittenError: It was overwritten.
            SpoolFailedError: A system call failed.
        """
        if not self.may_be_finished:
            return False, []
        with self._failing("lock"):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False, []
        try:
            self.check_content()
            found = self.take(count_max, bytes_max, final=True)
            if found or self.has_more() or self.delayed:
                return False, found
            with self._failing("delete"):
                os.unlink(self.path)
            return True, []
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor, self._compared = self._descriptor, -1, b""
        if descriptor >= 0:
            os.close(descriptor)

    def _size(self) -> int:
        with self._failing("read"):
            return os.fstat(self._descriptor).st_size

    def _compare(self, offset: int, frame: bytes) -> None:
        """Check that a record is where it was read; ``OSError`` as it comes.

        Raises:
            SlotOverwrittenError: Another record is there.
        """
        size = max(min(len(frame) + HEAD_BYTES, _COMPARED_BYTES_MAX), self._compared_bytes)
        found = os.pread(self._descriptor, size, offset)
        if not found.startswith(frame[: _COMPARED_BYTES_MAX - HEAD_BYTES], HEAD_BYTES):
            raise self._overwritten(f"another record is at offset {offset}")
        if self._turn is not None:
            self._compared, self._compared_at = found, offset
            self._compared_bytes = min(2 * self._compared_bytes, _COMPARED_BYTES_MAX)

    def _bury(self, piece: Piece, *, is_torn: bool) -> None:
        """Put damage aside, then make it an erased record, if it is still there.

        If it cannot be erased, it is put aside again under the same name after a restart.
        """
        code = "zeros" if piece.is_zeros else "torn" if is_torn else "damaged"
        if not self._put_aside(self, piece, code, _SENTENCES[code]):
            return
        offset, size = piece.offset, piece.end - piece.offset
        log.warning("%s: %d bytes at offset %d are no record", self.path, size, offset)
        if not RECORD_OVERHEAD <= size <= RECORD_BYTES_MAX:
            return  # no record has this length
        self._space.add_erased(size)
        # Zero bytes: with the damage as its frame it would have a CRC that fits, and if the power
        # took back the first byte alone, it would be a pending record, and be sent.
        head, crc = blank_ends(size)
        blank = head if piece.is_zeros else head + bytes(size - RECORD_OVERHEAD) + crc
        data = piece.data[:_COMPARED_BYTES_MAX]
        try:
            if os.pread(self._descriptor, len(data), offset) != data:
                return  # its writer has erased it, or another program has overwritten the slot
            os.pwrite(self._descriptor, blank, offset)
            if piece.is_zeros:
                os.pwrite(self._descriptor, crc, piece.end - CRC_BYTES)
        except OSError as error:
            # Not raised: what was read with it would never be sent.
            log.warning("%s: damage at offset %d was not erased: %s", self.path, offset, error)

    def _overwritten(self, how: str) -> SlotOverwrittenError:
        return SlotOverwrittenError(
            f"another program has deleted, truncated or overwritten this slot: {how}",
            path=self.path,
            hint="nobody but the forwarder may change a slot",
        )

    @contextmanager
    def _failing(self, action: str) -> Iterator[None]:
        """Turn errors of the operating system into ``SpoolFailedError``."""
        try:
            yield
        except OSError as error:
            raise spool_failed(action, self.path, error) from error


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class DropInGrowth:
    """Growth of a drop-in: whether a program still writes it under its name, or it is over.

    A drop-in should be whole when it appears, but a program may copy it there. So an incomplete one
    counts as torn only when it has not grown for the time between two rescans.

    Args:
        is_drop_in: A slot that is no drop-in is never over by its growth.
        has_grown: A program was seen to write it under its name.
    """

    __slots__ = ("_has_grown", "_is_drop_in", "_seen_bytes", "_seen_us", "is_stalled", "read_bytes")

    def __init__(self, *, is_drop_in: bool, has_grown: bool) -> None:
        self._is_drop_in: Final = is_drop_in
        self._has_grown = has_grown
        self.is_stalled = False
        """It did not grow for the time between two rescans."""
        self.read_bytes = 0
        """Length of the file at the last read that reached its end."""
        self._seen_bytes = -1
        self._seen_us = 0

    def note_read(self, size: int, waiting_bytes: int) -> None:
        """Note the length of the file at a read that came to its end.

        Args:
            size: The length, in bytes.
            waiting_bytes: Bytes at the end that are no whole record yet.
        """
        if self._is_drop_in and (waiting_bytes or 0 < self.read_bytes < size):
            self._has_grown = True
        self.read_bytes = size

    def note_look(self, size: int, now_us: int) -> None:
        """Note the length of the file, in bytes, at an instant."""
        if size != self._seen_bytes:
            self._seen_bytes, self._seen_us, self.is_stalled = size, now_us, False
        elif now_us - self._seen_us >= RESCAN_US:
            self.is_stalled = True

    def is_over(self, position: int, waiting_bytes: int) -> bool:
        """Whether this is a drop-in that was read to its end: nothing more comes.

        Args:
            position: Everything before this byte was read.
            waiting_bytes: Bytes after it that are no whole record yet.
        """
        is_whole = position > FILE_HEADER_BYTES and not self._has_grown
        return self._is_drop_in and not waiting_bytes and (is_whole or self.is_stalled)
