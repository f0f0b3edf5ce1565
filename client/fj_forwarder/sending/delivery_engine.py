"""Delivery engine of the forwarder, sans-IO: the next frames to send, and the effect of replies.

``offer`` queues records. ``take`` returns the bytes to send now, each frame with an identifier of
this connection in place of its own. ``receive`` returns the effect of a reply, ``lost`` that of the
end of a connection. A delayed record leaves the engine: the caller keeps it on disk and offers it
again when it is due. Instants are arguments, in microseconds; the caller gives the randomness.

If the daemon refuses everything, or cannot be reached, the whole delivery pauses. After the pause
one record is sent first; each success doubles how many may be in flight. If only one record
is refused for now, it alone is delayed. Pauses double up to 30 s and are jittered to between a half
and all of that, so that many forwarders do not come back at the same time.

A record at which the daemon ends the connection (poison message) must delay no other. After a loss
a connection begins with a NOP: if the daemon answers it, the daemon is healthy and a record is to
blame. Records without a reply at the end of two connections are sent alone. A record at which the
connection ends then is a *suspect* and is delayed; the next one is sent at once. If suspects follow
each other, records are skipped untried, to find the good ones after them (``PoisonSearch``).

A value over the daemon's max-value ends the connection. The NOP asks for that limit (META);
it is also sent before the first value of a connection over ``LARGE_VALUE_BYTES``. A record over the
limit is not sent: it is a dead letter. If the daemon takes only smaller values still, the first
record over its limit costs a connection.

Progress is a whole record that was answered: bytes, a NOP or a refusal of everything are none. A
daemon without progress for 30 s is left (``leave``). Silence blames no record: those in flight are
delayed for a moment and others are sent before them, so a record that never gets a reply delays no
other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Final

import msgspec

from fastjournal.client.core.retry_policy import jittered_pause
from fastjournal.limits import (
    IDENTIFIER_MAX,
    NO_PROGRESS_US_MAX,
    REQUEST_BYTES_PER_SECOND,
    RETRY_PAUSE_US_MAX,
    SKIP_AFTER,
    SKIP_MAX,
    SUSPECT_LOSSES,
)
from fastjournal.protocol import ErrorCode, Flag, Function, Reply, Request, encode_request
from fj_forwarder.sending.dispositions import (
    CLOSING,
    SKEW_PATIENCE_US,
    Disposition,
    Loss,
    RecordOutcome,
    disposition_of,
    value_limit,
)
from fj_forwarder.storage.slot_file import SpoolRecord

PAUSE_US_MIN: Final = 100_000
"""The first pause."""

IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of frames that are queued or in flight; a larger frame is sent alone."""

HOLDS_MAX: Final = 2
"""A record that met so many refusals of everything is delayed: perhaps it alone is refused."""

LARGE_VALUE_BYTES: Final = 1_024
"""Before a larger value is sent, the limit of the daemon is asked for."""

PASSED_TRIES: Final = 3
"""Bound on the tries of a skipped record, for its pause: at most 0.8 s."""

_LISTEN: Final = int(Flag.LISTEN)
_META: Final = int(Flag.META)


class _Connection(msgspec.Struct):
    """State of the present connection."""

    probe: int = 0
    """Identifier of the NOP in flight; 0: none is."""
    in_doubt: bool = False
    """It has to answer a NOP before any record is sent: the one before was lost."""
    value_bytes_max: int | None = None
    """Limit of the daemon; None: it is not known."""
    asked_limit: bool = False
    """The daemon has answered a NOP."""
    is_limit_new: bool = False
    """The queued records were not compared with the limit so far."""
    proven: bool = False
    """It has answered something."""
    last_code: str = ""
    """Error code of the last reply."""
    alone: bool = False
    """The record in flight is sent alone."""


class DeliveryEngine:
    """Delivery engine of one forwarder; see the module.

    Args:
        in_flight_max: Requests sent and not answered, at most.
        random: Gives the jitter.
    """

    def __init__(self, *, in_flight_max: int, random: Random) -> None:
        if not 1 <= in_flight_max <= IDENTIFIER_MAX // 2:
            raise ValueError(f"in_flight_max is 1 to {IDENTIFIER_MAX // 2}")
        self._in_flight_max = in_flight_max
        self._random = random
        self._queue: deque[SpoolRecord] = deque()
        self._returned: list[SpoolRecord] = []
        """Refused for now or lost; sorted into the front of the queue before the next send."""
        self._in_flight: dict[int, SpoolRecord] = {}
        self._bytes = self._serial = self._identifier = 0
        self._connection = _Connection()
        self._epoch = 0
        """Number of pauses of the whole delivery."""
        self._failures = 0
        """Number of these pauses without a success between them."""
        self._window = in_flight_max
        """Number of records that may be in flight now."""
        self._takes = False
        """A record was taken, or refused for itself, since the last pause of the whole delivery."""
        self._search = PoisonSearch(random)
        self._owed_since = 0
        """Instant since which a reply is owed: the last reply, or the first request in flight."""
        self._fruitless_since = 0
        """Instant since which the daemon has taken no record; 0: nothing is sent."""
        self.paused_until = 0
        """Nothing is sent before this instant, and no connection is tried."""

    @property
    def in_flight(self) -> int:
        """Requests without a reply."""
        return len(self._in_flight) + bool(self._connection.probe)

    @property
    def waiting(self) -> int:
        """Records that were offered and are not in flight."""
        return len(self._queue) + len(self._returned)

    def room(self) -> tuple[int, int]:
        """Return how many records more to offer, and how many bytes of frames."""
        count = self._in_flight_max - self.waiting - len(self._in_flight)
        return max(0, count), max(0, IN_FLIGHT_BYTES_MAX - self._bytes)

    def offer(self, records: Iterable[SpoolRecord]) -> None:
        """Take records that are to be sent, in this order."""
        for record in records:
            self._serial += 1
            record.serial = self._serial
            record.was_suspect = record.losses >= SUSPECT_LOSSES
            self._bytes += len(record.frame)
            self._queue.append(record)

    def take(self, now_us: int) -> bytes:
        """Return the frames to send now, in one piece; empty: none."""
        connection, queue, in_flight = self._connection, self._queue, self._in_flight
        if now_us < self.paused_until or not self.waiting or connection.probe:
            return b""
        self._sort_in()
        if not in_flight:
            self._owed_since = now_us
        self._fruitless_since = self._fruitless_since or now_us
        has_room = len(in_flight) < self._window and not connection.alone
        if connection.in_doubt or (has_room and self._needs_limit()):
            connection.probe = self._next_identifier()
            return encode_request(Request(Function.NOP, connection.probe, _META, timestamp=now_us))
        parts: list[bytes] = []
        while queue and len(in_flight) < self._window and not connection.alone:
            if self._needs_limit():
                break
            if queue[0].losses >= SUSPECT_LOSSES:
                if in_flight:
                    break
                connection.alone = True
            record = queue.popleft()
            record.epoch = self._epoch
            identifier = self._next_identifier()
            in_flight[identifier] = record
            frame = record.frame
            parts += (frame[:6], identifier.to_bytes(2), frame[8:])
        return b"".join(parts)

    def _needs_limit(self) -> bool:
        """Whether the next record is too large to be sent to a daemon whose limit is not known."""
        return not self._connection.asked_limit and self._queue[0].value_bytes > LARGE_VALUE_BYTES

    def refusal_of(self, record: SpoolRecord) -> str:
        """Return the error that the daemon would end the connection with; empty: none is known."""
        limit = self._connection.value_bytes_max
        if limit is None or record.value_bytes <= limit:
            return ""
        return f"{ErrorCode.TOO_LARGE} value has {record.value_bytes} bytes, over {limit}"

    def skip(self, now_us: int) -> list[RecordOutcome]:
        """Return records that are skipped untried: they leave the engine.

        Those in search of a good one are delayed. Those that are too large for the daemon, whose
        limit was not known when they were offered, are due at once.
        """
        self._sort_in()
        skipped: list[RecordOutcome] = []
        if self._connection.is_limit_new:
            self._connection.is_limit_new = False
            for record in list(filter(self.refusal_of, self._queue)):
                self._queue.remove(record)
                self._bytes -= len(record.frame)
                skipped.append(RecordOutcome(record, Disposition.PASSED, "", now_us))
        while self._queue and self._search.skip():
            skipped.append(self._delay(self._queue.popleft(), Disposition.PASSED, "", now_us))
        return skipped

    def stop_skipping(self) -> None:
        """There is nothing after the records that were skipped."""
        self._search.stop()

    def receive(self, reply: Reply, now_us: int) -> RecordOutcome | None:
        """Return the effect of a reply.

        Returns:
            DONE or DEAD: the caller erases the record. Anything else with ``due_us``: it leaves the
            engine until then. HOLD without it: it is kept here. None: no record waits for this
            reply.
        """
        if reply.flags & _LISTEN:
            return None
        connection = self._connection
        if connection.probe and reply.identifier == connection.probe:
            self._owed_since = now_us
            self._receive_probe(reply, now_us)
            return None
        record = self._in_flight.pop(reply.identifier, None)
        if record is None:
            return None
        connection.proven, connection.alone, connection.last_code = True, False, reply.code
        self._owed_since = now_us
        record.losses = 0
        result = self._judge(reply.code, record, now_us) if reply.error else Disposition.DONE
        if result is Disposition.HOLD:
            return self._refused_all(record, reply.error, now_us)
        self._search.reset()
        self._fruitless_since = now_us if self._in_flight else 0
        if record.epoch == self._epoch:
            self._failures = 0
            self._takes = True
            self._window = min(self._window * 2, self._in_flight_max)
        if result in (Disposition.DONE, Disposition.DEAD):
            self._bytes -= len(record.frame)
            return RecordOutcome(record, result, reply.error)
        return self._delay(record, result, reply.error, now_us)

    def lost(self, now_us: int) -> Loss:
        """The connection has ended, or none could be made."""
        proven, code = self._connection.proven, self._connection.last_code
        unanswered = self._end_connection()
        if code in CLOSING:  # the daemon said why: no fault of those sent after it
            self._returned += unanswered
            self._begin_epoch()
            stay = disposition_of(code, Function.SET, 0) is Disposition.DEAD
            self._fruitless_since = self._fruitless_since if stay else 0
            return Loss([], stay)
        for record in unanswered:
            record.losses += 1
        if not proven or not unanswered:
            self._returned += unanswered
            self._fruitless_since = 0  # another daemon is tried next
            self._hold(self._epoch, now_us)
            return Loss([], stay=False)
        self._begin_epoch()
        if len(unanswered) > 1 or unanswered[0].losses < SUSPECT_LOSSES:
            self._returned += unanswered
            return Loss([], stay=True)
        if not unanswered[0].was_suspect:
            self._search.found_suspect()
        suspect = self._delay(unanswered[0], Disposition.SUSPECT, "", now_us)
        if not self.waiting and not self._search.is_on:
            self._fruitless_since = 0  # a few suspects alone are no fault of the daemon
        return Loss([suspect], stay=True)

    def overdue_us(self, now_us: int, *, has_others: bool) -> int:
        """Return the instant at which ``leave`` is to be called, unless there is progress before.

        ``now_us`` and more if nothing is owed so far.

        Args:
            now_us: The instant.
            has_others: There are other daemons: this one is also left if it refuses everything, or
                ends all connections.
        """
        since = [now_us]
        if self.in_flight:
            since.append(self._owed_since)
        if has_others and self._fruitless_since:
            since.append(self._fruitless_since)
        largest = max((len(record.frame) for record in self._in_flight.values()), default=0)
        return min(since) + NO_PROGRESS_US_MAX + largest // REQUEST_BYTES_PER_SECOND * 1_000_000

    def leave(self, now_us: int) -> list[RecordOutcome]:
        """The caller ends the connection, to try the next daemon, or this one again.

        Returns:
            The records in flight: they leave the engine. None of them is to blame; one that was a
            suspect before stays one.
        """
        unanswered = self._end_connection()
        self._begin_epoch()
        if unanswered:
            self._window = self._in_flight_max  # others go beside one that gets no reply
        self.paused_until = self._fruitless_since = self._failures = 0
        self._search.reset()
        return [self._delay(record, Disposition.HOLD, "", now_us) for record in unanswered]

    def next_due(self, now_us: int) -> int | None:
        """Return when ``take`` may give more though nothing happens; None: never.

        ``now_us`` says: at once; no instant before it is returned.
        """
        connection = self._connection
        if not self.waiting or connection.probe or connection.alone:
            return None
        if len(self._in_flight) >= self._window:
            return None
        if self._in_flight and not self._returned and self._queue[0].losses >= SUSPECT_LOSSES:
            return None
        return max(self.paused_until, now_us)

    def _sort_in(self) -> None:
        """Put records that were returned before new ones, the oldest first."""
        if self._returned:
            self._returned.sort(key=_serial, reverse=True)
            self._queue.extendleft(self._returned)
            self._returned.clear()

    def _judge(self, code: str, record: SpoolRecord, now_us: int) -> Disposition:
        result = disposition_of(code, record.function, record.flags)
        if result is Disposition.SKEWED:
            record.skewed_us = record.skewed_us or now_us
            if now_us - min(record.skewed_us, record.timestamp) > SKEW_PATIENCE_US:
                return Disposition.DEAD
        return result

    def _receive_probe(self, reply: Reply, now_us: int) -> None:
        code = reply.code
        connection = self._connection
        connection.probe, connection.last_code = 0, code
        if code and disposition_of(code, Function.NOP, 0) is Disposition.HOLD:
            self._hold(self._epoch, now_us)
            return
        connection.proven, connection.in_doubt, connection.asked_limit = True, False, True
        connection.value_bytes_max = value_limit(reply)
        connection.is_limit_new = connection.value_bytes_max is not None

    def _refused_all(self, record: SpoolRecord, error: str, now_us: int) -> RecordOutcome:
        """The daemon refuses everything, or perhaps this record only: then it waits alone."""
        record.holds += 1
        if not record.tries or not self._takes:
            self._hold(record.epoch, now_us)
        if record.tries or record.holds >= HOLDS_MAX:
            return self._delay(record, Disposition.HOLD, error, now_us)
        self._returned.append(record)
        return RecordOutcome(record, Disposition.HOLD, error)

    def _hold(self, epoch: int, now_us: int) -> None:
        """Pause the whole delivery, once for all refusals of what was sent before this pause."""
        if epoch != self._epoch:
            return
        self.paused_until = now_us + self._pause(self._failures)
        leave_us = self._fruitless_since + NO_PROGRESS_US_MAX
        if now_us < leave_us < self.paused_until:
            self.paused_until = leave_us
        self._failures += 1
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self._window = 1
        self._takes = False

    def _end_connection(self) -> list[SpoolRecord]:
        """Forget the connection; return the records that have no reply."""
        unanswered = list(self._in_flight.values())
        self._in_flight.clear()
        self._connection = _Connection(in_doubt=True)
        return unanswered

    def _delay(
        self, record: SpoolRecord, result: Disposition, error: str, now_us: int
    ) -> RecordOutcome:
        """Remove a record from the engine until it is due."""
        self._bytes -= len(record.frame)
        if result is not Disposition.SUSPECT and not record.was_suspect:
            record.losses = min(record.losses, SUSPECT_LOSSES - 1)  # it was never sent alone
        tries = record.tries
        due_us = now_us + self._pause(
            min(tries, PASSED_TRIES) if result is Disposition.PASSED else tries
        )
        record.tries += 1
        return RecordOutcome(record, result, error, due_us)

    def _pause(self, tries: int) -> int:
        return int(
            jittered_pause(PAUSE_US_MIN, RETRY_PAUSE_US_MAX, tries, self._random, least_share=0.5)
        )

    def _next_identifier(self) -> int:
        """Return one that no request in flight has; never 0, which a daemon uses for "unknown"."""
        while True:
            self._identifier = self._identifier % IDENTIFIER_MAX + 1
            if self._identifier not in self._in_flight:
                return self._identifier


def _serial(record: SpoolRecord) -> int:
    return record.serial


class PoisonSearch:
    """Search for good records among poison messages: how many records are skipped untried.

    The number is random: from none to twice its mean, which doubles with each suspect. Skipped
    records are read again in the same order, after the same suspects if these are not known any
    more; with a fixed number the same record would be skipped each time.

    Args:
        random: Source of the numbers.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._in_a_row = 0
        self._to_skip = 0

    def found_suspect(self) -> None:
        """Note that a record became a suspect."""
        self._in_a_row += 1
        if self.is_on:
            longest = min(2 << (self._in_a_row - SKIP_AFTER), SKIP_MAX)
            self._to_skip = self._random.randrange(longest + 1)

    @property
    def is_on(self) -> bool:
        """Whether so many suspects followed each other that the daemon itself may be the fault."""
        return self._in_a_row >= SKIP_AFTER

    def reset(self) -> None:
        """End the search: a record was answered, or another daemon is tried."""
        self._in_a_row = self._to_skip = 0

    def skip(self) -> bool:
        """Return whether the next record is skipped, and count it."""
        if not self._to_skip:
            return False
        self._to_skip -= 1
        return True

    def stop(self) -> None:
        """End the skipping: no record is left, so the next ones are tried, in small steps."""
        if self._to_skip:
            self.reset()
