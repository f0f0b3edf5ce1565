"""Slot store of a spool: reads slots oldest first, suspends read ones and deletes finished ones."""

from __future__ import annotations

import logging
import os
import resource
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import (
    FIRST_RECORDS_MAX,
    OPEN_SLOTS_MAX,
    OTHER_FILES_MAX,
    RESCAN_US,
    UNERASED_MAX,
)
from fastjournal.spool.format import FILE_HEADER_BYTES, RECORD_OVERHEAD
from fastjournal.spool.reading.slot_window import OPENING_UNITS, WorkBudget
from fastjournal.spool.slots import SlotName
from fj_forwarder.storage.backlog import Backlog, measure_backlog
from fj_forwarder.storage.retry_queue import RetryQueue
from fj_forwarder.storage.slot_file import (
    PutAside,
    Retry,
    SlotFile,
    SlotOverwrittenError,
    SpoolRecord,
    Verdict,
)
from fj_forwarder.storage.slot_listing import LeftOutSlots, SlotListing, TemporaryFiles

if TYPE_CHECKING:
    from collections.abc import KeysView

    from fastjournal.spool.reading.slot_window import Piece

log = logging.getLogger("fj_forwarder")

_ALL: Final = 1 << 62

RESUMED_MAX: Final = 4
"""Suspended slots that are opened in one part of a check: a turn buries the torn tails of more
slots, so that they are not closed before they were read."""

_LOOKS_MAX: Final = 1024
"""Suspended slots checked in one part: a system call for each."""

_start = attrgetter("start_s")


class Batch:
    """Records read in one batch, and the room for more.

    Args:
        count: Most records.
        size: Bytes after which the batch is full.
    """

    def __init__(self, count: int, size: int) -> None:
        self.records: list[SpoolRecord] = []
        self.count = count
        self.size = size

    @property
    def has_room(self) -> bool:
        """Whether more records may be read."""
        return self.count > 0 and self.size > 0

    def add(self, file: SlotFile, pieces: list[Piece], retry: Retry | None = None) -> None:
        """Add records of a slot, with the fields of their retry entry."""
        self.count -= len(pieces)
        for piece in pieces:
            self.size -= len(piece.data)
            record = SpoolRecord(file, piece.offset, piece.data)
            if retry is not None:
                record.tries, record.losses = retry.tries, retry.losses
                record.skewed_us, record.verdict = retry.skewed_us, retry.verdict
            self.records.append(record)


class SlotStore:
    """Slot store of one spool.

    Args:
        directory: The spool.
        slot_seconds: Time after its start when a slot is over, unless a newer one ends it earlier.
        put_aside: Receives damaged pieces.
        budget: Bounds the work on damage in one turn; None: no bound.
        listing: Lists the directory; None: the usual listing.
    """

    def __init__(
        self,
        directory: str,
        *,
        slot_seconds: int,
        put_aside: PutAside,
        budget: WorkBudget | None = None,
        listing: SlotListing | None = None,
    ) -> None:
        self._slot_seconds = slot_seconds
        self._put_aside = put_aside
        self._budget = budget or WorkBudget()
        self.retries = RetryQueue()
        self._open_max = open_slots_max(OPEN_SLOTS_MAX)
        self._open: list[SlotFile] = []
        """Slots that are open, oldest first."""
        self.suspended = SuspendedSlots()
        self.listing = listing or SlotListing(directory)
        self.temporary_files = TemporaryFiles(directory)
        self.left_out = LeftOutSlots()
        self._newest_s = 0
        self._new_first = True

    @property
    def can_begin(self) -> bool:
        """Whether there is a slot that was not opened so far."""
        return bool(self.listing.unread)

    def backlog(self) -> Backlog:
        """Return the pending slots, records and bytes."""
        return measure_backlog(self._open, list(self.suspended), self.listing.unread)

    def refresh(self, now_us: int) -> None:
        """List the slots, unless that was done just now or enough slots are open.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        if self.listing.refresh(now_us, self._prune):
            of_open = (file.start_s for file in self._open if not file.is_drop_in)
            self._newest_s = max(self.listing.newest_s, max(of_open, default=0))

    def _prune(self, listed: set[str]) -> set[str]:
        """Drop the state of deleted slots; return the names of those not to open."""
        for file in list(self._open):
            with self._guarding(file):
                file.check_name()
        begun = {file.name for file in self._open} | self.suspended.names()
        self.left_out.prune(listed, begun)
        return begun | self.left_out.unopened

    def take(self, count_max: int, bytes_max: int, now_us: int) -> list[SpoolRecord]:
        """Return the next pending records: delayed ones that are due, and new ones, half and half.

        Raises:
            SpoolFailedError: A system call failed.
        """
        self._finish_drop_ins()
        sources = [self._take_new, self._take_due]
        if not self._new_first:
            sources.reverse()
        half = Batch(count_max - count_max // 2, bytes_max - bytes_max // 2)
        sources[0](half, now_us)
        rest = Batch(half.count + count_max // 2, half.size + bytes_max // 2)
        sources[1](rest, now_us)
        sources[0](rest, now_us)
        self.left_out.log.summarize()
        return half.records + rest.records

    def change_turns(self) -> None:
        """Begin the next ``take`` with the other kind, after the records of the last one were sent.

        Otherwise the same kind may always get the last place.
        """
        self._new_first = not self._new_first

    def take_suspect(self, bytes_max: int, now_us: int) -> list[SpoolRecord]:
        """Return one suspect that is due, if there is one."""
        batch = Batch(1, bytes_max)
        while batch.has_room and (retry := self.retries.first_suspect(now_us)):
            if not self._take_retry(retry, batch, now_us):
                break
        return batch.records

    def take_one(self, retry: Retry, now_us: int) -> list[SpoolRecord]:
        """Return the records of one retry entry, due or not."""
        batch = Batch(_ALL, _ALL)
        while retry.alive and self._take_retry(retry, batch, now_us):
            pass
        return batch.records

    def delay(
        self,
        record: SpoolRecord,
        due_us: int,
        *,
        awaited: bool = False,
        verdict: Verdict | None = None,
        code: str = "",
    ) -> None:
        """Drop a record from memory, and read it again when it is due.

        Args:
            record: The record.
            due_us: The instant.
            awaited: Whether ``--once`` waits for it.
            verdict: Verdict to apply then, instead of sending the record.
            code: Error code that caused the delay.
        """
        slot = record.slot
        slot.evict(record.offset)
        if slot.is_overwritten:
            return  # it was logged: a record that is not in memory cannot be read any more
        self.retries.add(
            Retry(
                slot,
                record.offset,
                record.offset + len(record.frame) + RECORD_OVERHEAD,
                due_us,
                record.tries,
                record.losses,
                record.skewed_us,
                awaited,
                verdict,
                code=code,
            )
        )

    def start_over(self, file: SlotFile, error: SlotOverwrittenError) -> None:
        """Read a slot from its start, after another program deleted or overwrote it.

        Records of its former content that are in memory are sent and not erased; delayed ones are
        lost.
        """
        if file.is_overwritten:
            return
        file.is_overwritten = True
        lost = len(file.delayed)
        what = f"; what waited in it to be tried again is lost ({lost} positions)" if lost else ""
        log.error("%s; it is read again from its start, if it is there%s", error, what)
        if file in self._open:
            self._open.remove(file)
        self.suspended.remove(file)
        for retry in list(file.delayed):
            self.retries.remove(retry)
        file.close()
        if os.path.lexists(file.path):
            self.listing.add_rewritten(SlotName(file.start_s, file.name, file.path))

    def take_behind_torn(self, count_max: int, bytes_max: int, now_us: int) -> list[SpoolRecord]:
        """Read on after records that stay incomplete: a write may have been torn."""
        batch = Batch(count_max, bytes_max)
        for file in list(self._open):
            may_be_torn = file.is_incomplete and not file.is_barred
            if batch.has_room and may_be_torn and now_us >= file.retry_us:
                with self._guarding(file, now_us):
                    file.check_content()
                    file.note_growth(now_us)
                    file.wait_for_writes()
                    batch.add(file, file.take(batch.count, batch.size, settled=True))
        return batch.records

    def finish_old(
        self, wall_us: int, count_max: int, bytes_max: int, *, at_rest: bool = False
    ) -> list[SpoolRecord]:
        """Delete the slots that are over and finished; return records appended to them last.

        Args:
            wall_us: Present instant of the clock that names slots.
            count_max: Most records.
            bytes_max: Bytes after which reading stops.
            at_rest: Skip slots that have unread bytes.
        """
        batch = Batch(count_max, bytes_max)
        for file in list(self._open):
            if batch.has_room and self._is_over(file, wall_us):
                with self._guarding(file):
                    if not at_rest or file.is_at_rest:
                        self._finish(file, batch)
        return batch.records

    def resume_suspended(self, now_us: int) -> None:
        """Delete suspended slots that a writer held, and open those that have grown.

        This is done in parts: ``take`` reads the slots opened by one part before the next part.
        """
        self.suspended.go_on(now_us)
        for _ in range(RESUMED_MAX):
            file = self.suspended.next_changed(now_us)
            if file is None:
                return
            if not self._close_one():
                self.suspended.end_look()
                return
            self._budget.spend(OPENING_UNITS)
            if self._resume(file):
                self._finish(file)
                with self._guarding(file):
                    if file in self._open and file.is_at_rest:
                        self._suspend(file)

    def close(self) -> None:
        """Close all files."""
        for file in self._open:
            file.close()
        self._open.clear()

    def _take_new(self, batch: Batch, now_us: int) -> None:
        """Read on in the open slots, then open others, the oldest first."""
        for file in list(self._open):
            if not batch.has_room:
                return
            is_left_out = file.is_barred or now_us < file.retry_us
            if not is_left_out and not (file.is_over and file.records):
                with self._guarding(file, now_us):
                    count = file.room(batch.count, self._first_max)
                    if count > 0 and file.has_more():
                        batch.add(file, file.take(count, batch.size))
        listing, budget, is_over = self.listing, self._budget, False
        while listing.unread and batch.has_room and not is_over and self._close_one():
            slot = listing.pop_oldest()
            try:
                is_written = listing.is_rewritten(slot.name)
                file = SlotFile(slot, self._put_aside, is_written=is_written, budget=budget)
            except SpoolFailedError as error:
                self.left_out.unopened.add(slot.name)
                self.left_out.add(slot.name, error)
            else:
                listing.note_begun(slot.name)
                insort(self._open, file, key=_start)
                with self._guarding(file, now_us):
                    count = file.room(batch.count, self._first_max)
                    batch.add(file, file.take(count, batch.size))
                if file.records:
                    continue
            budget.spend(OPENING_UNITS)
            is_over = budget.is_spent

    @property
    def _first_max(self) -> int:
        """Return how many records of a slot may be in memory before one was erased there."""
        return FIRST_RECORDS_MAX if self.retries.unerased <= UNERASED_MAX else 1

    def _take_due(self, batch: Batch, now_us: int) -> None:
        """Read delayed records that are due."""
        while batch.has_room and (retry := self.retries.ordinary.first(now_us)):
            if not self._take_retry(retry, batch, now_us) or self._budget.is_spent:
                return

    def _take_retry(self, retry: Retry, batch: Batch, now_us: int) -> bool:
        """Read on in a retry entry; False: no further slot may be open now."""
        file, start = retry.slot, retry.start
        if file.is_barred and retry.verdict is None:
            self.retries.postpone(retry, now_us + RESCAN_US)
            return True
        if file in self.suspended:
            if not self._close_one():
                return False
            self._resume(file)
        if retry.alive and file not in self.suspended:
            with self._guarding(file, now_us):
                batch.add(file, file.take_again(retry, batch.count, batch.size), retry)
                if retry.start >= retry.end:
                    self.retries.remove(retry)
        if retry.alive and retry.start == start:
            self.retries.postpone(retry, now_us + RESCAN_US)
            self._budget.spend(OPENING_UNITS)
        return True

    @contextmanager
    def _guarding(self, file: SlotFile, now_us: int | None = None) -> Iterator[None]:
        """Skip a slot in which the block fails; start over if the slot was overwritten.

        Args:
            file: The slot.
            now_us: Present instant if the block reads records of the slot; else None.
        """
        try:
            yield
        except SlotOverwrittenError as error:
            self.start_over(file, error)
        except SpoolFailedError as error:
            if now_us is None:
                self.left_out.log.error(file.name, f"this slot is left out for now: {error}")
            else:
                file.retry_us = now_us + RESCAN_US
                self.left_out.add(file.name, error, "for now")
            return
        if now_us is not None:
            self.left_out.note_read(file)

    def _close_one(self) -> bool:
        """Close slots if the limit of open slots is reached; return whether one more may be open.

        Finished slots are deleted, slots that were read are suspended. This includes slots whose
        writer has not finished the last record: otherwise such slots use up the limit.
        """
        if len(self._open) < self._open_max:
            return True
        for file in list(self._open):
            if file.is_drop_in and not file.records:
                self._suspend(file)
            elif file.start_s < self._newest_s and not file.is_drop_in:
                with self._guarding(file):
                    may_be_suspended = file.is_at_rest or (file.is_barred and not file.records)
                    if may_be_suspended and not self._finish(file):
                        self._suspend(file)
        return len(self._open) < self._open_max

    def _finish_drop_ins(self) -> None:
        """Delete the finished drop-ins at once: there may be thousands of them."""
        for file in [f for f in self._open if f.is_drop_in and not f.records and f.is_over]:
            self._finish(file)

    def _is_over(self, file: SlotFile, wall_us: int) -> bool:
        if file.is_drop_in:
            return file.is_over
        end_us = (file.start_s + self._slot_seconds) * 1_000_000
        return file.start_s < self._newest_s or end_us <= wall_us

    def _finish(self, file: SlotFile, batch: Batch | None = None) -> bool:
        """Delete a slot that is over and finished; return whether it is closed."""
        batch = batch or Batch(0, 0)
        deleted = False
        with self._guarding(file):
            deleted, pieces = file.finish(batch.count, batch.size)
            batch.add(file, pieces)
        if deleted:
            if file.is_drop_in and file.position in (0, FILE_HEADER_BYTES):
                log.warning("%s: a drop-in without a record, deleted", file.path)
            # there may be a thousand drop-ins a second
            level = logging.DEBUG if file.is_drop_in else logging.INFO
            log.log(level, "%s: all is sent, deleted", file.path)
            file.close()
            self._open.remove(file)
        return deleted or file.is_overwritten

    def _suspend(self, file: SlotFile) -> None:
        self.suspended.add(file)
        self._open.remove(file)

    def _resume(self, file: SlotFile) -> bool:
        """Open a suspended slot; False: it cannot be opened."""
        try:
            file.resume()
        except SlotOverwrittenError as error:
            self.start_over(file, error)
            return False
        except SpoolFailedError as error:
            self.left_out.add(file.name, error)
            return False
        self.suspended.remove(file)
        insort(self._open, file, key=_start)
        return True


def open_slots_max(most: int) -> int:
    """Return how many slots may be open at a time: ``most``, or fewer if the limit is low.

    Half of the limit of the process (``ulimit -n``, LimitNOFILE) without the other files of a
    forwarder, but at least one.
    """
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, (files_max - OTHER_FILES_MAX) // 2))


class SuspendedSlots:
    """Slots that were read and closed, by name: they wait for retries or for their writers.

    There may be a hundred thousand drop-ins, each with a record that is delayed or torn. So they
    are checked in parts.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, SlotFile] = {}
        self._to_look_at: list[SlotFile] = []
        """Slots that the current check has not reached, the next one last."""
        self._look_from_us = 0
        """Earliest instant of the next check."""

    def __iter__(self) -> Iterator[SlotFile]:
        return iter(self._by_name.values())

    def __contains__(self, file: SlotFile) -> bool:
        return self._by_name.get(file.name) is file

    def names(self) -> KeysView[str]:
        """Return all names."""
        return self._by_name.keys()

    def add(self, file: SlotFile) -> None:
        """Suspend a slot."""
        file.suspend()
        self._by_name[file.name] = file

    def remove(self, file: SlotFile) -> None:
        """Remove a slot that is open again, or deleted."""
        if file in self:
            del self._by_name[file.name]

    @property
    def is_looked_at(self) -> bool:
        """Whether a check is in progress."""
        return bool(self._to_look_at)

    def go_on(self, now_us: int) -> None:
        """Continue a check of all slots, or begin one ``RESCAN_US`` after the last one."""
        if not self._to_look_at:
            if now_us < self._look_from_us:
                return
            self._to_look_at = list(reversed(self._by_name.values()))
        self._look_from_us = now_us + RESCAN_US

    def end_look(self) -> None:
        """Leave the rest to the next check: no further slot may be open now."""
        self._to_look_at.clear()

    def next_changed(self, now_us: int) -> SlotFile | None:
        """Return the next slot that may need work; None: this part of the check is done."""
        for _ in range(min(len(self._to_look_at), _LOOKS_MAX)):
            file = self._to_look_at.pop()
            if file not in self:
                continue
            try:
                size = os.stat(file.path, follow_symlinks=False).st_size
            except FileNotFoundError:
                if not file.delayed:
                    self.remove(file)
                continue
            except OSError:
                continue
            if _has_changed(file, size, now_us):
                return file
        return None


def _has_changed(file: SlotFile, size: int, now_us: int) -> bool:
    """Whether a suspended slot of ``size`` bytes may need work.

    A drop-in that may grow is checked, and opened when it has grown or grows no more.
    """
    if file.delayed and (file.is_barred or size == file.position):
        return False
    file.note_growth(now_us, size)
    return not file.is_drop_in or file.is_over or size != file.growth.read_bytes
