"""Delivery between spool and engine: records in, dispositions carried out. No sockets or clocks.

The store delays a record that the engine puts off: it leaves memory, and is read again when it is
due. The same is done with a record whose disposition fails: a dead one while ``dead/`` takes
nothing, one that cannot be erased. No record ends the forwarder, and none holds up another.
"""

from __future__ import annotations

import logging
import os
from typing import Final, NamedTuple

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import (
    FIRST_RECORDS_MAX,
    RESCAN_US,
    RETRY_PAUSE_US_MAX,
    SUSPECT_GAP_US,
)
from fastjournal.protocol import Reply
from fastjournal.spool.dead import DeadReason
from fastjournal.spool.format import RECORD_OVERHEAD
from fastjournal.spool.reading.slot_window import Piece, WorkBudget
from fj_forwarder.dead_letters import DeadLetters
from fj_forwarder.once_log import DelayLog, printable_code
from fj_forwarder.sending.delivery_engine import DeliveryEngine
from fj_forwarder.sending.dispositions import Disposition
from fj_forwarder.sending.outgoing import Outgoing, RecordOutcome, outgoing_of
from fj_forwarder.storage.slot_content import SlotOverwrittenError
from fj_forwarder.storage.slot_file import SlotFile
from fj_forwarder.storage.slot_store import SlotStore
from fj_forwarder.storage.stretches import Settled, Stretch
from fj_forwarder.storage.taken import TakenRecord

log = logging.getLogger("fj_forwarder")

TURN_UNITS: Final = 2 * 1024 * 1024
"""Work on damage and dead letters in one ``fill``: then others have a turn."""

_FILLS_MAX: Final = 64
"""Rounds of one ``fill`` that passes records over: then others have a turn."""


_NAMES_SHOWN: Final = 5
"""Slots that the last sentence of ``--once`` names beside the first one; the log names all."""

_SUSPECT_TRIES_AWAITED: Final = 3
"""So often ``--once`` tries a suspect: its connections may have ended by chance."""

_STALL_US: Final = 10_000
"""So long after a look that found nothing, nothing is looked for but on
waking: a slot that is due may have to wait until another one is closed."""


class _PlacedRecord(NamedTuple):
    """Record that is not sent: its place and its frame."""

    slot: SlotFile
    offset: int
    frame: bytes
    tries: int = 0


class Delivery:
    """Delivery from a spool: feeds an engine, and erases or puts aside the records that it judged.

    Args:
        spool: The directory. The caller holds its forwarder.lock.
        slot_seconds: Length of the writers' slots.
        engine: Decides what is sent and what a reply means.
        now_us: The time, by a clock that does not jump. All other methods get it, so that one
            turn has one instant; ``wall_us`` is the time by the clock that names slots.

    Every method raises SpoolFailedError where the directory cannot be read any more.
    """

    def __init__(
        self, spool: str, *, slot_seconds: int, engine: DeliveryEngine, now_us: int
    ) -> None:
        self._engine = engine
        self._budget = WorkBudget(TURN_UNITS)
        self.dead_letters = DeadLetters(spool, self._budget)
        """Records and pieces of damage that go to dead/."""
        self.dead_letters.tidy()
        self.store = SlotStore(
            spool,
            slot_seconds=slot_seconds,
            put_aside=self._put_damage_aside,
            budget=self._budget,
        )
        """Slots of the spool."""
        self.store.temporary_files.try_link()
        self._now_us = self._wall_us = now_us
        self._next_rescan_us = now_us
        self._stalled_until_us = 0
        """Nothing was found before this instant, whatever is due."""
        self._round_max = FIRST_RECORDS_MAX
        """Records that one round reads: few while many of them go to dead/."""
        self._suspect: Outgoing | None = None
        """The one suspect that is in memory."""
        self._logged_pause_us = 0
        """Instant of the end of the last pause of all that is in the log."""
        self._delay_log = DelayLog()
        self.exhausted = False
        """The last look at the spool found nothing, though there was room."""
        self.done = 0
        """Records that were answered and erased."""

    @property
    def suspects(self) -> int:
        """Stretches of suspects, and the one that is being tried."""
        return self.store.delays.suspects + (self._suspect is not None)

    def next_due(self, now_us: int) -> int:
        """Return when ``fill`` may find something though nothing happens; never before ``now_us``.

        A suspect counts while there is none in memory.
        """
        if not all(self._engine.room()):
            return now_us + RESCAN_US  # a reply makes room, and wakes
        store = self.store
        instants = (
            self._next_rescan_us,
            store.listing.next_us(),
            store.delays.next_due_us(suspects=self._suspect is None),
        )
        due_us = min(instant for instant in instants if instant is not None)
        if self._budget.is_spent or store.suspended.is_looked_at:
            due_us = now_us  # the last turn had more to do
        return max(due_us, self._stalled_until_us, now_us)

    def fill(self, now_us: int, wall_us: int) -> None:
        """Give the engine what it has room for."""
        self._now_us, self._wall_us = now_us, wall_us
        self.store.temporary_files.tidy(now_us, wall_us)
        self.begin_turn()
        for _ in range(_FILLS_MAX):
            self._carry_out(self._engine.skip(now_us))
            count, size = self._engine.room()
            if not count or not size:
                self.exhausted = False
                return
            dead = self.dead_letters.count
            taken = self._look(min(count, self._round_max), size)
            if not taken:
                self._engine.stop_skipping()
                has_more = self.store.can_begin or self.store.suspended.is_looked_at
                self.exhausted = not has_more and not self._budget.is_spent
                self._stalled_until_us = now_us + _STALL_US
                return
            if outgoing := list(filter(None, map(self._outgoing, taken))):
                self._engine.offer(outgoing)
                self.store.change_turns()
            many = self.dead_letters.count - dead >= FIRST_RECORDS_MAX
            self._round_max = FIRST_RECORDS_MAX if many else 2 * self._round_max
            if self._budget.is_spent:
                self.exhausted = False
                return

    def handle(self, reply: Reply, now_us: int) -> bool:
        """Do what a reply asks for.

        Returns:
            Whether dead letters have used up the work of this turn: the caller lets others have
            one, and calls ``begin_turn`` before it goes on.
        """
        self._now_us = now_us
        outcome = self._engine.receive(reply, now_us)
        if outcome is None:
            return False
        record, result, error = outcome.record, outcome.disposition, outcome.error
        if record is self._suspect and (result is not Disposition.HOLD or outcome.due_us):
            self._suspect = None
            self.store.delays.suspects_from_us = now_us  # the next one may fare as well
        if result is Disposition.DONE:
            self._erase(record)
            return False
        if result is Disposition.DEAD:
            self._bury(record, _settled(error))
            return self._budget.is_spent
        if result is not Disposition.HOLD:
            self._delay_log.log(record.slot.path, record.offset, error)
        elif self._logged_pause_us != self._engine.paused_until:
            self._logged_pause_us = self._engine.paused_until
            log.info("the daemon takes nothing, all wait: %s", error)
        if outcome.due_us:
            self._carry_out([outcome])
        return False

    def begin_turn(self) -> None:
        """Allow the work of one turn again, on damage and dead letters."""
        self._budget.refill()

    def lost(self, now_us: int) -> bool:
        """The connection is gone, or there was none to be had.

        Returns:
            Whether the daemon is well, and is to be connected to again.
        """
        self._now_us = now_us
        loss = self._engine.lost(now_us)
        self._carry_out(loss.put_off)
        return loss.stay

    def leave(self, now_us: int) -> None:
        """The daemon makes no progress: the connection is ended."""
        self._now_us = now_us
        self._carry_out(self._engine.leave(now_us))

    def finish(self) -> None:
        """Try a last time to put aside what dead/ has not taken so far, and to erase what is sent.

        Raises:
            SpoolFailedError: dead/ still does not take one of them, the first of which is named;
                they are pending, for the next start.
        """
        self.dead_letters.retry_now()
        failed: SpoolFailedError | None = None
        for due in list(self.store.delays):
            if due.stretch.settled is not None and due.stretch.alive:
                for taken in self.store.take_one(due, self._now_us):
                    self._outgoing(taken)
                failed = failed or self.dead_letters.error
        if failed is not None:
            raise failed

    def check_all_was_read(self) -> None:
        """Refuse to call a spool sent while a slot of it could not be opened or read.

        Raises:
            SpoolFailedError: It names the first of these slots, and the names of some others.
        """
        errors = self.store.left_out.failures()
        if not errors:
            return
        first, *others = errors
        names = [os.path.basename(error.path or "") for error in others[:_NAMES_SHOWN]]
        if len(others) > len(names):
            names.append(f"{len(others) - len(names)} more")
        also = f"; nor were read: {', '.join(names)}" if names else ""
        raise SpoolFailedError(
            f"{first.message}{also}", path=first.path, offset=first.offset, hint=first.hint
        ) from first

    def close(self) -> None:
        """Close the slots."""
        self.store.close()

    # --- reading --------------------------------------------------------------------------------

    def _look(self, count: int, size: int) -> list[TakenRecord]:
        """Return the next records: new ones, delayed ones that are due, at times a suspect."""
        store, now_us = self.store, self._now_us
        taken: list[TakenRecord] = []
        if now_us >= self._next_rescan_us:
            self._next_rescan_us = now_us + RESCAN_US
            # a backlog may last for hours, in which each look finds something
            taken = store.finish_old(self._wall_us, count, size, at_rest=True)
            taken += store.take_behind_torn(count - len(taken), size, now_us)
            store.left_out.retry_unopened()
        store.resume_suspended(now_us)
        store.refresh(now_us)
        taken += store.take(count - len(taken), size, now_us)
        if not taken:
            taken = store.finish_old(self._wall_us, count, size)
        if not taken and store.can_begin:
            taken = store.take(count, size, now_us)
        if self._suspect is None and len(taken) < count:
            taken += store.take_suspect(size, now_us)
        return taken

    def _outgoing(self, taken: TakenRecord) -> Outgoing | None:
        """Return the record to send; None: it may not or need not be sent, and that is seen to."""
        slot, piece, stretch = taken
        settled = None if stretch is None else stretch.settled
        if settled is None:
            outgoing = outgoing_of(slot, piece.offset, piece.data)
            if isinstance(outgoing, Settled):
                settled = outgoing
            elif refusal := self._engine.refusal_of(outgoing):
                settled = _settled(refusal)
            else:
                if stretch is not None:
                    outgoing.tries, outgoing.losses = stretch.tries, stretch.losses
                    outgoing.skewed_us = stretch.skewed_us
                    if stretch.is_suspect:
                        self._suspect = outgoing
                return outgoing
        tries = 0 if stretch is None else stretch.tries
        record = _PlacedRecord(slot, piece.offset, piece.data, tries)
        if settled.code:
            self._bury(record, settled)
        else:
            self._erase(record, is_counted=settled.is_counted)
        return None

    # --- what becomes of a record ---------------------------------------------------------------

    def _carry_out(self, outcomes: list[RecordOutcome]) -> None:
        """Delay what was put off."""
        for record, result, error, due_us in outcomes:
            stretch = Stretch(
                record.offset,
                record.offset + len(record.frame) + RECORD_OVERHEAD,
                due_us,
                record.tries,
                record.losses,
                record.skewed_us,
                awaited=result in (Disposition.HOLD, Disposition.PASSED)
                or (result is Disposition.SUSPECT and record.tries < _SUSPECT_TRIES_AWAITED),
                code=printable_code(error),
            )
            if result is Disposition.SUSPECT:
                self.store.delays.suspects_from_us = self._now_us + SUSPECT_GAP_US
                if not record.was_suspect:
                    log.warning(
                        "%s: the daemon ends the connection at the record at offset %d; it waits "
                        "behind the others",
                        record.slot.path,
                        record.offset,
                    )
            if record is self._suspect:
                self._suspect = None
            self.store.delay(record.slot, stretch)

    def _delay_settled(self, record: _PlacedRecord | Outgoing, settled: Settled) -> None:
        """Keep in mind what is known of a record, until it can be carried out."""
        end = record.offset + len(record.frame) + RECORD_OVERHEAD
        due_us = self._now_us + min(RESCAN_US << min(record.tries, 8), RETRY_PAUSE_US_MAX)
        tries = record.tries + 1
        stretch = Stretch(record.offset, end, due_us, tries, settled=settled, code=settled.code)
        self.store.delay(record.slot, stretch)

    def _erase(self, record: _PlacedRecord | Outgoing, *, is_counted: bool = False) -> None:
        """Erase a record, or keep in mind that it is not sent again, and leave its slot out.

        Args:
            record: Record that is delivered, or is in dead/.
            is_counted: It is in dead/, and counted there.
        """
        slot = record.slot
        try:
            if slot.content.turn != self._now_us:
                slot.content.begin_turn(self._now_us)
            slot.erase(record.offset, len(record.frame))
        except SlotOverwrittenError as error:
            # The record is delivered, and what is at its offset now is another one.
            self.store.reread(slot, error)
            self.done += not is_counted
        except SpoolFailedError as error:
            self._delay_settled(record, Settled("", "", is_counted))
            self.store.note_unerased(slot, error)
        else:
            self.done += not is_counted

    def _bury(self, record: _PlacedRecord | Outgoing, settled: Settled) -> None:
        """Put a record aside, then erase it: killed in between, it is put aside again."""
        slot, offset, frame = record.slot, record.offset, record.frame
        reason = DeadReason(
            slot.name, offset, len(frame), "frame", settled.code, settled.sentence, self._wall_us
        )
        if not self.dead_letters.put(frame, reason, self._now_us):
            self._delay_settled(record, settled)
            return
        self._erase(record, is_counted=True)

    def _put_damage_aside(self, slot: SlotFile, piece: Piece, code: str, sentence: str) -> bool:
        size = piece.end - piece.offset
        reason = DeadReason(slot.name, piece.offset, size, "damage", code, sentence, self._wall_us)
        if self.dead_letters.put(piece.data, reason, self._now_us):
            return True
        due_us = self._now_us + RESCAN_US
        self.store.delays.add(
            slot,
            Stretch(
                piece.offset, piece.end, due_us, settled=Settled(code, sentence, is_damage=True)
            ),
        )
        return False


def _settled(error: str) -> Settled:
    """Return what is known of a record that the daemon refuses for good."""
    code, _, sentence = error.partition(" ")
    return Settled(code, sentence)
