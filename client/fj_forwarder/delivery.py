"""Delivery of a spool: reads records for the engine; erases, buries or delays them by its replies.

No sockets and no clock. There is one way to delay a record, for each cause: the engine delays it,
``dead/`` cannot be written, or the record cannot be erased. The record is dropped from memory, and
the store reads it again when it is due. No record ends the forwarder, and none blocks another.

Dead letters are records and damage for ``dead/``, which may not be writable.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from fastjournal.errors import SpoolFailedError
from fastjournal.limits import (
    FIRST_RECORDS_MAX,
    RESCAN_US,
    RETRY_PAUSE_US_MAX,
    SUSPECT_GAP_US,
    SUSPECT_LOSSES,
)
from fastjournal.numeric import exponential_backoff
from fastjournal.printable import safe_text
from fastjournal.protocol import Function, Reply
from fastjournal.spool.dead import DeadDirectory, DeadReason
from fastjournal.spool.reading.slot_window import Piece, WorkBudget
from fj_forwarder.sending.delivery_engine import DeliveryEngine
from fj_forwarder.sending.dispositions import Disposition, RecordOutcome, parse_record
from fj_forwarder.storage.slot_file import (
    Retry,
    SlotFile,
    SlotOverwrittenError,
    SpoolRecord,
    Verdict,
)
from fj_forwarder.storage.slot_listing import OnceLog
from fj_forwarder.storage.slot_store import SlotStore

LETTER_UNITS: Final = 128 * 1024
"""Work of a dead letter: two files and a directory are synced."""

log = logging.getLogger("fj_forwarder")


class DeadLetters:
    """``dead/`` of a spool. Where it takes nothing it is left alone for a while.

    Where it takes others, and only not a certain piece (the disk has no room for a large one, a
    directory has its name), the others go there.

    Args:
        spool: The directory.
        budget: Bounds the work of one turn: each letter is synced by itself.
    """

    def __init__(self, spool: str, budget: WorkBudget) -> None:
        self._budget = budget
        self._directory = DeadDirectory(spool)
        self._from_us = 0
        """Before this instant it is not tried again: it took nothing."""
        self._is_shut = False
        """It took nothing at the last try."""
        self._log = OnceLog("pieces are not taken by dead/, which takes others")
        self.error: SpoolFailedError | None = None
        """Why the piece of the last try is not there; None: it is."""
        self.count = 0
        """Records and pieces of damage that it took."""

    def tidy(self) -> None:
        """Remove what a forwarder that was killed left half written."""
        try:
            self._directory.tidy()
        except SpoolFailedError as error:
            log.warning("%s", error)

    def put(self, raw: bytes, reason: DeadReason, now_us: int) -> bool:
        """Keep bytes durably; False: that cannot be done now."""
        if now_us < self._from_us:
            return False
        self._budget.spend(LETTER_UNITS)
        try:
            name = self._directory.put(raw, reason)
        except SpoolFailedError as error:
            self._note(error, now_us)
            return False
        self._is_shut = False
        self.error = None
        self.count += 1
        log.warning("dead/%s: %d bytes: %s %s", name, reason.bytes, reason.code, reason.reason)
        return True

    def retry_now(self) -> None:
        """Have the next ``put`` tried, however short ago the last one failed."""
        self._from_us = 0

    def _note(self, error: SpoolFailedError, now_us: int) -> None:
        """Note that a piece was not taken, and whether another one would be."""
        self.error = error
        try:
            self._directory.probe()
        except SpoolFailedError:
            if not self._is_shut:
                log.error("%s; it stays in the spool, and is tried again", error)
            self._is_shut = True
            self._from_us = now_us + RESCAN_US
        else:
            self._is_shut = False
            self._log.error(
                error.path or "", f"{error}; it alone stays in the spool, and is tried again"
            )


TURN_UNITS: Final = 2 * 1024 * 1024
"""Work on damage and dead letters in one ``fill``; then it yields to other tasks."""

_FILLS_MAX: Final = 64
"""Rounds of one ``fill`` that skips records; then it yields to other tasks."""

_NAMES_SHOWN: Final = 5
"""Slots that the last sentence of ``--once`` names after the first one; the log names all."""

_SUSPECT_TRIES_AWAITED: Final = 3
"""Tries of a suspect with ``--once``: its connections may have ended by chance."""

_STALL_US: Final = 10_000
"""Pause after a scan that found nothing, unless a wake-up comes: a slot that is due may have to
wait until another one is closed."""

_CODES_MAX: Final = 32
"""Error codes of delayed records that the log names; a daemon may invent any number."""

_CODE_CHARS_MAX: Final = 64


class Delivery:
    """Delivery of one spool.

    Args:
        spool: The directory. The caller holds its forwarder.lock.
        slot_seconds: Length of the writers' slots.
        engine: Decides which records are sent, and the effect of a reply.
        now_us: Present instant of a monotonic clock. The other methods get it too, so that one turn
            has one instant; ``wall_us`` is the instant of the clock that names slots.

    Every method raises SpoolFailedError if the directory cannot be read any more.
    """

    def __init__(
        self, spool: str, *, slot_seconds: int, engine: DeliveryEngine, now_us: int
    ) -> None:
        self._engine = engine
        self._budget = WorkBudget(TURN_UNITS)
        self.dead_letters = DeadLetters(spool, self._budget)
        """Records and damaged pieces for ``dead/``."""
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
        """No scan before this instant, even if something is due."""
        self._round_max = FIRST_RECORDS_MAX
        """Records that one round reads: few while many of them go to dead/."""
        self._suspect: SpoolRecord | None = None
        """The one suspect in memory."""
        self._logged_pause_us = 0
        """End of the last pause of the whole delivery that was logged."""
        self._logged_codes: set[str] = set()
        """Error codes of delayed records that were logged."""
        self.exhausted = False
        """The last scan of the spool found nothing, though the engine had room."""
        self.done = 0
        """Records that were answered and erased."""
        self.replaced = 0
        """Entries that these replaced: waiting ones of their URI, or of their key."""
        self.replaced_elsewhere = 0
        """Those of them that were jobs of another queue."""

    @property
    def suspects(self) -> int:
        """Number of suspects, or ranges of them, with the one in flight."""
        waiting = sum(1 for _ in self.store.retries.suspects)
        return waiting + (self._suspect is not None)

    def next_due(self, now_us: int) -> int:
        """Return when ``fill`` may find records without any other event; never before ``now_us``.

        A suspect counts while none is in memory.
        """
        if not all(self._engine.room()):
            return now_us + RESCAN_US  # a reply makes room, and wakes
        store = self.store
        instants = (
            self._next_rescan_us,
            store.listing.next_us(),
            store.retries.next_due_us(suspects=self._suspect is None),
        )
        due_us = min(instant for instant in instants if instant is not None)
        if self._budget.is_spent or store.suspended.is_looked_at:
            due_us = now_us  # the last turn had more to do
        return max(due_us, self._stalled_until_us, now_us)

    def fill(self, now_us: int, wall_us: int) -> None:
        """Read records for the engine, as many as it has room for."""
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
            if records := list(filter(self._is_sent, taken)):
                self._engine.offer(records)
                self.store.change_turns()
            many = self.dead_letters.count - dead >= FIRST_RECORDS_MAX
            self._round_max = FIRST_RECORDS_MAX if many else 2 * self._round_max
            if self._budget.is_spent:
                self.exhausted = False
                return

    def handle(self, reply: Reply, now_us: int) -> bool:
        """Apply the effect of a reply.

        Returns:
            Whether dead letters have used up the work of this turn: the caller yields to other
            tasks, and calls ``begin_turn`` before it goes on.
        """
        self._now_us = now_us
        outcome = self._engine.receive(reply, now_us)
        if outcome is None:
            return False
        record, result, error = outcome.record, outcome.disposition, outcome.error
        if record is self._suspect and (result is not Disposition.HOLD or outcome.due_us):
            self._suspect = None
            self.store.retries.suspects_from_us = now_us  # the next one may fare as well
        if result is Disposition.DONE:
            if reply.ttl and record.function == Function.SET:
                self._count_replaced(record, reply)
            self._erase(record)
            return False
        if result is Disposition.DEAD:
            self._bury(record, _verdict(error))
            return self._budget.is_spent
        if result is not Disposition.HOLD:
            self._log_delay(record, error)
        elif self._logged_pause_us != self._engine.paused_until:
            self._logged_pause_us = self._engine.paused_until
            log.info("the daemon takes nothing, all wait: %s", error)
        if outcome.due_us:
            self._carry_out([outcome])
        return False

    def _count_replaced(self, record: SpoolRecord, reply: Reply) -> None:
        """Count the entries that a SET replaced; name the first one of another queue."""
        self.replaced += reply.ttl or 0
        for pair in reply.pairs or ():
            self.replaced_elsewhere += 1
            if self.replaced_elsewhere == 1:
                log.warning(
                    "%s: the record at offset %d took its URI from %s, a job of another queue: of a"
                    " URI one job waits, over all queues; unique in place of uri is for one in each"
                    " queue",
                    record.slot.path,
                    record.offset,
                    safe_text(pair.key.decode(errors="backslashreplace")),
                )

    def begin_turn(self) -> None:
        """Reset the budget of work on damage and dead letters for a new turn."""
        self._budget.refill()

    def lost(self, now_us: int) -> bool:
        """Handle the end of a connection, or a failed attempt to connect.

        Returns:
            Whether the daemon is healthy, so that the caller reconnects to it.
        """
        self._now_us = now_us
        loss = self._engine.lost(now_us)
        self._carry_out(loss.put_off)
        return loss.stay

    def leave(self, now_us: int) -> None:
        """Count a connection that was closed because the daemon made no progress."""
        self._now_us = now_us
        self._carry_out(self._engine.leave(now_us))

    def finish(self, *, is_stopped: bool = False) -> None:
        """Try a last time to bury records that ``dead/`` refused, and to erase delivered ones.

        Args:
            is_stopped: Only the dead letters of one turn: each is synced, and the one who sent the
                signal waits. The others are pending at the next start.

        Raises:
            SpoolFailedError: ``dead/`` still refuses some; the error names the first. They are
                pending at the next start.
        """
        self.begin_turn()
        self.dead_letters.retry_now()
        failed: SpoolFailedError | None = None
        for retry in list(self.store.retries):
            if is_stopped and self._budget.is_spent and not retry.is_erasure:
                continue
            if retry.verdict is not None and retry.alive:
                for record in self.store.take_one(retry, self._now_us):
                    self._is_sent(record)
                failed = failed or self.dead_letters.error
        if failed is not None:
            raise failed

    def check_all_was_read(self) -> None:
        """Check that no slot was skipped.

        Raises:
            SpoolFailedError: It names the first skipped slot, and some others.
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

    def _look(self, count: int, size: int) -> list[SpoolRecord]:
        """Return the next records: new ones, delayed ones that are due, sometimes a suspect."""
        store, now_us = self.store, self._now_us
        taken: list[SpoolRecord] = []
        if now_us >= self._next_rescan_us:
            self._next_rescan_us = now_us + RESCAN_US
            # a backlog may last for hours, in which each scan finds records
            taken = store.finish_old(self._wall_us, count, size, at_rest=True)
            taken += store.take_behind_torn(count - len(taken), size, now_us)
            store.left_out.unopened.clear()
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

    def _is_sent(self, record: SpoolRecord) -> bool:
        """Whether a record that was read is sent; if not, bury or erase it."""
        verdict = record.verdict or parse_record(record)
        if verdict is None and (refusal := self._engine.refusal_of(record)):
            verdict = _verdict(refusal)
        if verdict is None:
            if record.losses >= SUSPECT_LOSSES:
                self._suspect = record
            return True
        if verdict.code:
            self._bury(record, verdict)
        else:
            self._erase(record, is_buried=verdict.is_buried)
        return False

    # --- outcomes of records --------------------------------------------------------------------

    def _carry_out(self, outcomes: list[RecordOutcome]) -> None:
        """Delay the records that the engine gave back."""
        for record, result, error, due_us in outcomes:
            if result is Disposition.SUSPECT:
                self.store.retries.suspects_from_us = self._now_us + SUSPECT_GAP_US
                if not record.was_suspect:
                    log.warning(
                        "%s: the daemon ends the connection at the record at offset %d; it waits "
                        "behind the others",
                        record.slot.path,
                        record.offset,
                    )
            if record is self._suspect:
                self._suspect = None
            is_chance = result in (Disposition.HOLD, Disposition.PASSED)
            is_young = result is Disposition.SUSPECT and record.tries < _SUSPECT_TRIES_AWAITED
            self.store.delay(
                record, due_us, awaited=is_chance or is_young, code=printable_code(error)
            )

    def _log_delay(self, record: SpoolRecord, error: str) -> None:
        """Log a delayed record, once for each error code; status.json has the others."""
        code = printable_code(error)
        if code in self._logged_codes or len(self._logged_codes) >= _CODES_MAX:
            log.debug("a record is kept, to be sent again: %s", error)
            return
        self._logged_codes.add(code)
        log.warning(
            "%s: the daemon answers %s to the record at offset %d; it is kept and tried again, as "
            "are others with this answer: see delayed_records in status.json",
            record.slot.path,
            safe_text(error),
            record.offset,
        )

    def _delay_verdict(self, record: SpoolRecord, verdict: Verdict) -> None:
        """Delay a record whose verdict could not be carried out."""
        due_us = self._now_us + exponential_backoff(RESCAN_US, RETRY_PAUSE_US_MAX, record.tries)
        record.tries += 1
        record.losses = 0
        self.store.delay(record, due_us, verdict=verdict, code=verdict.code)

    def _erase(self, record: SpoolRecord, *, is_buried: bool = False) -> None:
        """Erase a record; if that fails, it is not sent again, and its slot is skipped.

        Args:
            record: Record that is delivered, or is in ``dead/``.
            is_buried: It is in ``dead/``.
        """
        slot = record.slot
        try:
            slot.erase(record.offset, self._now_us)
        except SlotOverwrittenError as error:
            # The record is delivered, and its offset now has another record.
            self.store.start_over(slot, error)
        except SpoolFailedError as error:
            self._delay_verdict(record, Verdict("", "", is_buried))
            slot.refuse_erasure()
            self.store.left_out.add(slot.name, error, "until what is delivered can be erased")
            return
        self.done += not is_buried

    def _bury(self, record: SpoolRecord, verdict: Verdict) -> None:
        """Put a record into ``dead/``, then erase it; a kill in between repeats this."""
        code, sentence, _ = verdict
        name, offset, size = record.slot.name, record.offset, len(record.frame)
        reason = DeadReason(name, offset, size, "frame", code, sentence, self._wall_us)
        if self.dead_letters.put(record.frame, reason, self._now_us):
            self._erase(record, is_buried=True)
        else:
            self._delay_verdict(record, verdict)

    def _put_damage_aside(self, slot: SlotFile, piece: Piece, code: str, sentence: str) -> bool:
        start, end = piece.offset, piece.end
        reason = DeadReason(slot.name, start, end - start, "damage", code, sentence, self._wall_us)
        if self.dead_letters.put(piece.data, reason, self._now_us):
            return True
        due_us, verdict = self._now_us + RESCAN_US, Verdict(code, sentence)
        retry = Retry(slot, start, end, due_us, verdict=verdict, is_damage=True)
        self.store.retries.add(retry)
        return False


def _verdict(error: str) -> Verdict:
    """Return the verdict on a record that the daemon refuses permanently."""
    code, _, sentence = error.partition(" ")
    return Verdict(code, sentence)


def printable_code(error: str) -> str:
    """Return the code of an error of a daemon, at most 64 characters, escaped where necessary."""
    return safe_text(error.partition(" ")[0])[:_CODE_CHARS_MAX]
