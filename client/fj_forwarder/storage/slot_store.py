"""Slot store of a spool: which slots to read next, which to suspend, which are over and can go."""

from __future__ import annotations

import logging
import os
from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import FIRST_RECORDS_MAX, OPEN_SLOTS_MAX, RESCAN_US, UNERASED_MAX
from fastjournal.spool.format import FILE_HEADER_BYTES
from fastjournal.spool.reading.slot_window import OPENING_UNITS, WorkBudget
from fastjournal.spool.slots import SlotName
from fj_forwarder.storage.backlog import Backlog, measure_backlog
from fj_forwarder.storage.left_out import LeftOutSlots, SlotFailureHandler
from fj_forwarder.storage.retry_queue import Due, RetryQueue
from fj_forwarder.storage.slot_content import SlotOverwrittenError
from fj_forwarder.storage.slot_file import PutAside, SlotFile
from fj_forwarder.storage.slot_handle import open_slots_max
from fj_forwarder.storage.slot_listing import SlotListing
from fj_forwarder.storage.stretches import Stretch
from fj_forwarder.storage.suspended_slots import RESUMED_MAX, SuspendedSlots
from fj_forwarder.storage.taken import TakenRecord, TakenRecords
from fj_forwarder.storage.temporary_files import TemporaryFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("fj_forwarder")

_ALL: Final = 1 << 62

_start = attrgetter("start_s")


class SlotStore:
    """Slot store of one spool; its slots are read oldest first.

    Args:
        directory: The spool.
        slot_seconds: How long after its start a slot is over, if no newer one says so earlier.
        put_aside: Where damage goes.
        budget: Bounds the work on damage in one turn; None: it is not bounded.
        listing: Lists the directory; None: as usual.
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
        self.delays = RetryQueue()
        self._open_max = open_slots_max(OPEN_SLOTS_MAX)
        self._open: list[SlotFile] = []
        """Slots that were begun, oldest first."""
        self.suspended = SuspendedSlots()
        self.listing = listing or SlotListing(directory)
        """Slots that were not begun, and files that are nothing of a spool."""
        self.temporary_files = TemporaryFiles(directory)
        self.left_out = LeftOutSlots()
        """Slots that cannot be opened or read now."""
        self._newest_s = 0
        self._new_first = True
        self._unerased = 0
        """Delivered records that wait to be erased."""

    @property
    def can_begin(self) -> bool:
        """Whether there is a slot that was not begun."""
        return bool(self.listing.unread)

    def backlog(self) -> Backlog:
        """Return what is pending."""
        return measure_backlog(self._open, list(self.suspended), self.listing.unread)

    def refresh(self, now_us: int) -> None:
        """Look which slots there are, unless that was done just now or there is enough to do.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        if self.listing.refresh(now_us, self._prune):
            of_open = (file.start_s for file in self._open if not file.is_drop_in)
            self._newest_s = max(self.listing.newest_s, max(of_open, default=0))

    def _prune(self, listed: set[str]) -> set[str]:
        """Drop what is known of slots that are gone; return the names of those not to begin."""
        self.left_out.prune(listed, {file.name for file in self._open} | self.suspended.names())
        taken_away = self._taken_away(self._open)
        begun = {file.name for file in self._open if file not in taken_away}
        return begun | self.left_out.unopened | self.suspended.names()

    def take(self, count_max: int, bytes_max: int, now_us: int) -> list[TakenRecord]:
        """Return the next pending records: delayed ones that are due, and new ones, half and half.

        Raises:
            SpoolFailedError: A call of the operating system failed.
        """
        self._finish_drop_ins()
        sources = [self._take_new, self._take_due]
        if not self._new_first:
            sources.reverse()
        half = TakenRecords(count_max - count_max // 2, bytes_max - bytes_max // 2)
        sources[0](half, now_us)
        rest = TakenRecords(half.count + count_max // 2, half.size + bytes_max // 2)
        sources[1](rest, now_us)
        sources[0](rest, now_us)
        self.left_out.summarize()
        return half.records + rest.records

    def change_turns(self) -> None:
        """Let ``take`` begin with the other kind: what it gave is to be sent.

        Else it was no turn, or the same kind might have the last place each time.
        """
        self._new_first = not self._new_first

    def take_suspect(self, bytes_max: int, now_us: int) -> list[TakenRecord]:
        """Return one suspect that is due, if there is one."""
        taken = TakenRecords(1, bytes_max)
        while taken.has_room and (due := self.delays.first_suspect(now_us)):
            if not self._take_stretch(due, taken, now_us):
                break
        return taken.records

    def take_one(self, due: Due, now_us: int) -> list[TakenRecord]:
        """Return what is pending in one stretch, due or not."""
        taken = TakenRecords(_ALL, _ALL)
        while due.stretch.alive and self._take_stretch(due, taken, now_us):
            pass
        return taken.records

    def delay(self, slot: SlotFile, stretch: Stretch) -> None:
        """Let a stretch of a slot, of which nothing is in memory any more, wait."""
        slot.window.evict(stretch.start)
        if slot.is_overwritten:
            return  # the log has it: what is not in memory cannot be read any more
        self._unerased += stretch.is_erasure
        self.delays.add(slot, stretch)

    def note_unerased(self, slot: SlotFile, error: SpoolFailedError) -> None:
        """A record could not be erased: its slot is left out until one can be."""
        slot.window.bar()
        self.left_out.add_unerased(slot.name, error)

    def reread(self, file: SlotFile, error: SlotOverwrittenError) -> None:
        """Another program has overwritten a slot: read it from its start.

        Records of its former content that are in memory are sent and not erased; delayed ones are
        gone.
        """
        if file.is_overwritten:
            return
        file.is_overwritten = True
        lost = len(file.delayed)
        what = f"; what waited in it to be tried again is lost ({lost} positions)" if lost else ""
        log.error("%s; it is read again from its start%s", error, what)
        if file in self._open:
            self._open.remove(file)
        if file in self.suspended:
            self.suspended.remove(file)
        if not file.is_taken_away:
            self.listing.add_rewritten(SlotName(file.start_s, file.name, file.path))
        self._discard(file)

    def take_behind_torn(self, count_max: int, bytes_max: int, now_us: int) -> list[TakenRecord]:
        """Look behind what has been incomplete since the last read: a write may have been torn."""
        taken = TakenRecords(count_max, bytes_max)
        for file in list(self._open):
            is_looked_at = file.is_incomplete and not file.is_barred
            if taken.has_room and is_looked_at and now_us >= file.retry_us:
                with self._catching(file, now_us):
                    file.check_content()
                    file.note_growth(now_us)
                    file.wait_for_writes()
                    taken.add(file, file.take(taken.count, taken.size, settled=True))
        return taken.records

    def finish_old(
        self, wall_us: int, count_max: int, bytes_max: int, *, at_rest: bool = False
    ) -> list[TakenRecord]:
        """Delete the slots that are over and done; return what came in them at the last moment.

        Args:
            wall_us: The time, by the clock that names slots.
            count_max: At most so many records.
            bytes_max: Stop after so many bytes.
            at_rest: Leave out those in which there is more to read.
        """
        taken = TakenRecords(count_max, bytes_max)
        for file in list(self._open):
            if taken.has_room and self._is_over(file, wall_us):
                with self._catching(file):
                    if not at_rest or file.is_at_rest:
                        self._finish(file, taken)
        return taken.records

    def resume_suspended(self, now_us: int) -> None:
        """Finish suspended slots that a writer held, and read on where one wrote.

        This is done in parts: ``take`` reads the slots that one opens before the next part.
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
                self._finish(file, TakenRecords(0, 0))
                with self._catching(file):
                    if file in self._open and file.is_at_rest:
                        self._suspend(file)

    def close(self) -> None:
        """Close all files."""
        for file in self._open:
            file.close()
        self._open.clear()

    def _take_new(self, taken: TakenRecords, now_us: int) -> None:
        """Go on with the slots that are open, then begin others, the oldest first."""
        for file in list(self._open):
            if not taken.has_room:
                return
            is_left_out = file.is_barred or now_us < file.retry_us
            if not is_left_out and not (file.is_over and file.outstanding):
                with self._catching(file, now_us):
                    count = file.window.allowance(taken.count, first_max=self._first_max)
                    if count and file.has_more():
                        taken.add(file, file.take(count, taken.size))
        listing, budget, is_over = self.listing, self._budget, False
        while listing.unread and taken.has_room and not is_over and self._close_one():
            slot = listing.pop_oldest()
            try:
                is_written = listing.is_rewritten(slot.name)
                file = SlotFile(slot, self._put_aside, is_written=is_written, budget=budget)
            except SpoolFailedError as error:
                self.left_out.add_unopened(slot.name, error)
            else:
                listing.note_begun(slot.name)
                insort(self._open, file, key=_start)
                with self._catching(file, now_us):
                    count = file.window.allowance(taken.count, first_max=self._first_max)
                    taken.add(file, file.take(count, taken.size))
                if file.outstanding:
                    continue
            budget.spend(OPENING_UNITS)
            is_over = budget.is_spent

    @property
    def _first_max(self) -> int:
        """How many records a slot may have on their way before one was erased there."""
        return FIRST_RECORDS_MAX if self._unerased <= UNERASED_MAX else 1

    def _take_due(self, taken: TakenRecords, now_us: int) -> None:
        """Read what was delayed and is due."""
        while taken.has_room and (due := self.delays.first_due(now_us)):
            if not self._take_stretch(due, taken, now_us) or self._budget.is_spent:
                return

    def _take_stretch(self, due: Due, taken: TakenRecords, now_us: int) -> bool:
        """Read on in a stretch; False: no slot more may be open now."""
        file, stretch = due.slot, due.stretch
        if file.is_barred and not stretch.settled:
            self._postpone(due, now_us)
            return True
        if file in self.suspended:
            if not self._close_one():
                return False
            self._resume(file)
        before = stretch.start
        if stretch.alive and file not in self.suspended:
            with self._catching(file, now_us):
                taken.add(file, file.take_again(stretch, taken.count, taken.size), stretch)
                self._unerased -= stretch.is_erasure and not stretch.alive
        if stretch.alive and stretch.start == before:
            self._postpone(due, now_us)
            self._budget.spend(OPENING_UNITS)
        return True

    def _catching(self, file: SlotFile, now_us: int | None = None) -> SlotFailureHandler:
        """Leave out a slot that fails; begin anew with one that was overwritten."""
        return SlotFailureHandler(self.left_out, self.reread, file, now_us)

    def _taken_away(self, files: Iterable[SlotFile]) -> list[SlotFile]:
        """Return the slots that somebody deleted: they stay open until what is in them is sent."""
        found = [file for file in files if file.is_taken_away]
        for file in found:
            if not file.was_taken_away:
                file.was_taken_away = True
                log.error("%s: somebody deleted this slot; the rest is sent still", file.path)
        return found

    def _close_one(self) -> bool:
        """Close slots where as many are open as may be; return whether one more may be open.

        Those that are done are deleted, those that were read are suspended: also where the writer
        that holds one has not finished its last record, else such slots would leave no room.
        """
        if len(self._open) < self._open_max:
            return True
        for file in self._taken_away([file for file in self._open if not file.is_drop_in]):
            with self._catching(file):
                if file.is_at_rest:
                    self._open.remove(file)
                    self._discard(file)
        for file in list(self._open):
            if file.is_drop_in and not file.outstanding:
                self._suspend(file)
            elif file.start_s < self._newest_s and not file.is_drop_in:
                with self._catching(file):
                    may_be_suspended = file.is_at_rest or (file.is_barred and not file.outstanding)
                    if may_be_suspended and not self._finish(file, TakenRecords(0, 0)):
                        self._suspend(file)
        return len(self._open) < self._open_max

    def _finish_drop_ins(self) -> None:
        """Delete the drop-ins that are sent, at once: there may be thousands in one slot."""
        for file in [f for f in self._open if f.is_drop_in and not f.outstanding and f.is_over]:
            self._finish(file, TakenRecords(0, 0))

    def _is_over(self, file: SlotFile, wall_us: int) -> bool:
        if file.is_drop_in:
            return file.is_over
        end_s = file.start_s + self._slot_seconds
        return file.start_s < self._newest_s or end_s * 10**6 <= wall_us or file.is_taken_away

    def _finish(self, file: SlotFile, taken: TakenRecords) -> bool:
        """Delete a slot that is over if it is done; whether it is open no more."""
        if not file.may_be_finished:
            return False
        deleted = False
        with self._catching(file):
            deleted, pieces = file.finish(taken.count, taken.size)
            taken.add(file, pieces)
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
        if self.suspended.add(file):
            self._open.remove(file)

    def _resume(self, file: SlotFile) -> bool:
        """Open a suspended slot; False: that cannot be done, or it is gone."""
        try:
            file.resume()
        except SlotOverwrittenError as error:
            self.reread(file, error)
            return False
        except SpoolFailedError as error:
            if not os.path.lexists(file.path) or error.__cause__ is None:
                log.error("this slot was taken away, and what was pending in it: %s", error)
                self.suspended.remove(file)
                self._discard(file)
            else:
                self.left_out.add(file.name, error)
            return False
        self.suspended.remove(file)
        insort(self._open, file, key=_start)
        return True

    def _discard(self, file: SlotFile) -> None:
        """Drop the delayed records of a slot that was taken away, and close it."""
        for stretch in list(file.delayed):
            self._unerased -= stretch.is_erasure
            file.drop(stretch)
        file.close()

    def _postpone(self, due: Due, now_us: int) -> None:
        stretch = msgspec.structs.replace(due.stretch, due_us=now_us + RESCAN_US)
        due.slot.drop(due.stretch)
        self.delays.add(due.slot, stretch)
