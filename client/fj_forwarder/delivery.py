"""Between the spool and the engine: records in, verdicts carried out. Blocking, no sockets."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final, NamedTuple

from fastjournal.errors import ProtocolError, SpoolFailedError
from fastjournal.limits import UNBURIED_BYTES_MAX, UNBURIED_MAX
from fastjournal.protocol import Reply, decode_request
from fastjournal.spool.dead import DeadDirectory, Reason
from fastjournal.spool.reader import Piece
from fastjournal.spool.writer import WRITES
from fj_forwarder.engine import Engine, Outgoing
from fj_forwarder.slotfile import SlotFile
from fj_forwarder.store import SlotStore, Taken
from fj_forwarder.verdicts import Verdict

log = logging.getLogger("fj_forwarder")

RESCAN_SECONDS: Final = 5.0
"""The longest time between two looks at the spool, whatever wakes and whatever does not."""


class _Refused(NamedTuple):
    """A record that goes to dead/, and why."""

    slot: SlotFile
    offset: int
    frame: bytes
    code: str
    sentence: str


class Delivery:
    """Feeds an engine from a spool, and erases or puts aside what it judged.

    Args:
        spool: The directory. The caller holds its forwarder.lock.
        slot_seconds: Length of the writers' slots.
        engine: Decides what is sent and what a reply means.

    Every method raises SpoolFailedError where a call of the operating system on the spool fails.
    """

    def __init__(self, spool: str, *, slot_seconds: int, engine: Engine) -> None:
        self._engine = engine
        self._dead = DeadDirectory(spool)
        self._store = SlotStore(spool, slot_seconds=slot_seconds, put_aside=self._put_damage_aside)
        self._next_rescan = 0.0
        self._unburied: deque[_Refused] = deque()
        """What dead/ did not take, on a full disk for instance; it is pending all the while."""
        self._unburied_bytes = 0
        self._next_burial = 0.0
        self._pause_told = 0
        self.exhausted = False
        """The last look at the spool found nothing, though there was room."""
        self.done = 0
        """Records that were answered and erased."""
        self.dead = 0
        """Records and pieces of damage that went to dead/."""

    def tidy(self) -> None:
        """Remove what killed writers left behind."""
        self._store.remove_temporary_files(time.time())

    def fill(self) -> None:
        """Give the engine what it has room for."""
        if self._unburied and time.monotonic() >= self._next_burial:
            self._bury_again()
        count, size = self._engine.room()
        if not count or not size:
            self.exhausted = False
            return
        self._store.refresh()
        taken = self._store.take(count, size)
        while not taken:
            taken = self._store.finish_old(time.time(), count, size)
            if taken or not self._store.can_begin:
                break
            taken = self._store.take(count, size)
        if not taken and time.monotonic() >= self._next_rescan:
            self._next_rescan = time.monotonic() + RESCAN_SECONDS
            taken = self._store.take_behind_torn(count, size)
            self._store.retry_refused()
        self.exhausted = not taken
        self._engine.offer(filter(None, map(self._outgoing, taken)))

    def handle(self, reply: Reply, now_us: int) -> None:
        """Do what a reply asks for."""
        outcome = self._engine.receive(reply, now_us)
        if outcome is None:
            return
        record, result, error = outcome
        if result is Verdict.DONE:
            record.slot.erase(record.offset, len(record.frame))
            self.done += 1
        elif result is Verdict.DEAD:
            code, _, sentence = error.partition(" ")
            self._bury(_Refused(record.slot, record.offset, record.frame, code, sentence))
        elif result is not Verdict.HOLD:
            log.debug("a record is kept, to be sent again: %s", error)
        elif self._pause_told != self._engine.paused_until:
            self._pause_told = self._engine.paused_until
            log.info("the daemon takes nothing, all wait: %s", error)

    def finish(self) -> None:
        """Try a last time to put aside what dead/ has not taken so far.

        Raises:
            SpoolFailedError: It still does not; the records are pending, for the next start.
        """
        while self._unburied:
            self._put_frame_aside(self._unburied[0])
            self._unburied.popleft()

    def close(self) -> None:
        """Close the slots."""
        self._store.close()

    def _outgoing(self, taken: Taken) -> Outgoing | None:
        """Return the record to send; None: it is no request that may be sent, and was put aside."""
        slot, piece = taken
        try:
            request = decode_request(piece.data)
        except ProtocolError as error:
            self._bury(_Refused(slot, piece.offset, piece.data, error.code, error.message))
            return None
        if request.function not in WRITES:
            sentence = f"function {request.function} is no write"
            self._bury(_Refused(slot, piece.offset, piece.data, "bad-request", sentence))
            return None
        return Outgoing(
            slot, piece.offset, piece.data, request.function, request.flags, request.timestamp
        )

    def _bury(self, refused: _Refused) -> None:
        """Put a record aside; where that fails, keep it for later, and let the others go on."""
        try:
            self._put_frame_aside(refused)
        except SpoolFailedError as error:
            size = self._unburied_bytes + len(refused.frame)
            if len(self._unburied) >= UNBURIED_MAX or size > UNBURIED_BYTES_MAX:
                raise
            if not self._unburied:
                log.error("%s; it stays in the spool, and is tried again", error)
                self._next_burial = time.monotonic() + RESCAN_SECONDS
            self._unburied.append(refused)
            self._unburied_bytes = size

    def _bury_again(self) -> None:
        self._next_burial = time.monotonic() + RESCAN_SECONDS
        while self._unburied:
            refused = self._unburied[0]
            try:
                self._put_frame_aside(refused)
            except SpoolFailedError:
                return  # told of already
            self._unburied.popleft()
            self._unburied_bytes -= len(refused.frame)

    def _put_frame_aside(self, refused: _Refused) -> None:
        """Put a frame aside, then erase it: killed in between, it is put aside again."""
        slot, offset, frame, code, sentence = refused
        reason = Reason(slot.name, offset, len(frame), "frame", code, sentence, _now_us())
        self._put_aside(frame, reason)
        slot.erase(offset, len(frame))

    def _put_damage_aside(self, slot: str, piece: Piece, code: str, sentence: str) -> None:
        size = len(piece.data)
        reason = Reason(slot, piece.offset, size, "damage", code, sentence, _now_us())
        self._put_aside(piece.data, reason)

    def _put_aside(self, raw: bytes, reason: Reason) -> None:
        name = self._dead.put(raw, reason)
        self.dead += 1
        log.warning("dead/%s: %d bytes: %s %s", name, len(raw), reason.code, reason.reason)


def _now_us() -> int:
    return time.time_ns() // 1000
