"""What is sent when, and what a reply means: the forwarder without files, sockets and clocks.

Records come in by ``offer``, oldest first. ``take`` gives the bytes to send now, each frame with an
identifier of this connection in place of its own. ``receive`` says what a reply means; ``lost``
puts everything that had no reply back in its order. All times are instants in microseconds and
arguments; the randomness is the caller's.

Pauses: where the daemon takes nothing (or cannot be reached) everything waits, and after the pause
one record goes ahead; each success doubles how many may be in flight. Where only one record is
refused for now it alone waits. Pauses double up to 30 s and are jittered to between a half and all
of that, so that many forwarders do not come back at once.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fastjournal.limits import IDENTIFIER_MAX, RETRY_PAUSE_US_MAX
from fastjournal.protocol import Flag, Reply
from fj_forwarder.verdicts import SKEW_PATIENCE_US, Verdict, verdict

if TYPE_CHECKING:
    from fj_forwarder.slotfile import SlotFile

PAUSE_US_MIN: Final = 100_000
"""The first pause."""

IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Frames in memory that are queued or wait for a reply; one larger goes alone."""

DELAYED_MAX: Final = 16 * 1024
"""Records that wait for their own next try. Beyond it nothing more is read from the spool."""

DELAYED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of their frames."""

_LISTEN: Final = int(Flag.LISTEN)


class Outgoing(msgspec.Struct, gc=False):
    """One record on its way. ``slot`` and ``offset`` say where the caller finds it."""

    slot: SlotFile
    offset: int
    frame: bytes
    function: int
    flags: int
    timestamp: int
    """Of the request: when it was written, by the writer's clock."""
    serial: int = 0
    epoch: int = 0
    """How many pauses of all there had been when it was sent."""
    tries: int = 0
    """How often it alone was put off."""
    skewed_us: int = 0
    """When it was first refused as clock-skew; 0: never."""


class Outcome(NamedTuple):
    """What to do with a record that was answered."""

    record: Outgoing
    verdict: Verdict
    error: str
    """The reply's error; empty for success."""


class Engine:
    """Decides; see the module.

    Args:
        in_flight_max: Requests sent and not answered, at most.
        random: Gives the jitter.
    """

    def __init__(self, *, in_flight_max: int, random: Random) -> None:
        if not 1 <= in_flight_max <= IDENTIFIER_MAX // 2:
            raise ValueError(f"in_flight_max is 1 to {IDENTIFIER_MAX // 2}")
        self._in_flight_max = in_flight_max
        self._random = random
        self._queue: deque[Outgoing] = deque()
        self._returned: list[Outgoing] = []
        """Answered "not now" or lost; sorted into the front of the queue before the next send."""
        self._in_flight: dict[int, Outgoing] = {}
        self._delayed: list[tuple[int, int, Outgoing]] = []
        """Heap of (when to try again, serial, record)."""
        self._bytes = 0
        self._delayed_bytes = 0
        self._serial = 0
        self._identifier = 0
        self._epoch = 0
        self._failures = 0
        self._window = in_flight_max
        self.paused_until = 0
        """Nothing is sent before this instant, and no connection is tried."""

    @property
    def in_flight(self) -> int:
        """Requests without a reply."""
        return len(self._in_flight)

    @property
    def delayed(self) -> int:
        """Records that wait for their own next try."""
        return len(self._delayed)

    @property
    def waiting(self) -> int:
        """Records that were offered and are not in flight nor delayed."""
        return len(self._queue) + len(self._returned)

    def room(self) -> tuple[int, int]:
        """Return how many records more to offer, and how many bytes of frames."""
        if len(self._delayed) >= DELAYED_MAX or self._delayed_bytes >= DELAYED_BYTES_MAX:
            return 0, 0
        count = self._in_flight_max - self.waiting - len(self._in_flight)
        return max(0, count), max(0, IN_FLIGHT_BYTES_MAX - self._bytes)

    def offer(self, records: Iterable[Outgoing]) -> None:
        """Take records that are to be sent, in this order."""
        for record in records:
            self._serial += 1
            record.serial = self._serial
            self._bytes += len(record.frame)
            self._queue.append(record)

    def take(self, now_us: int) -> bytes:
        """Return the frames to send now, in one piece; empty: none."""
        if now_us < self.paused_until:
            return b""
        self._sort_in(now_us)
        queue, in_flight = self._queue, self._in_flight
        count = min(len(queue), self._window - len(in_flight))
        parts: list[bytes] = []
        for _ in range(count):
            record = queue.popleft()
            record.epoch = self._epoch
            identifier = self._next_identifier()
            in_flight[identifier] = record
            frame = record.frame
            parts += (frame[:6], identifier.to_bytes(2), frame[8:])
        return b"".join(parts)

    def receive(self, reply: Reply, now_us: int) -> Outcome | None:
        """Return what a reply means.

        Returns:
            DONE or DEAD: the caller erases the record. LATER, SKEWED or HOLD: it is kept here, and
            will be sent again. None: nobody waits for this reply.
        """
        if reply.flags & _LISTEN:
            return None
        record = self._in_flight.pop(reply.identifier, None)
        if record is None:
            return None
        if not reply.error:
            result = Verdict.DONE
        else:
            result = self._judge(reply.code, record, now_us)
        if result is Verdict.HOLD:
            self._returned.append(record)
            self._hold(record.epoch, now_us)
            return Outcome(record, result, reply.error)
        if record.epoch == self._epoch:
            self._failures = 0
            self._window = min(self._window * 2, self._in_flight_max)
        self._bytes -= len(record.frame)
        if result in (Verdict.LATER, Verdict.SKEWED):
            due = now_us + self._pause(record.tries)
            record.tries += 1
            self._delayed_bytes += len(record.frame)
            heapq.heappush(self._delayed, (due, record.serial, record))
        return Outcome(record, result, reply.error)

    def lost(self, now_us: int) -> None:
        """The connection is gone, or there was none to be had: all without a reply goes again."""
        self._returned += self._in_flight.values()
        self._in_flight.clear()
        self._hold(self._epoch, now_us)

    def next_due(self, now_us: int) -> int | None:
        """Return when ``take`` may give more though nothing happens; None: never.

        ``now_us`` says: at once; no instant before it is returned.
        """
        if len(self._in_flight) >= self._window:
            return None
        if self.waiting:
            return max(self.paused_until, now_us)
        if self._delayed:
            return max(self.paused_until, self._delayed[0][0], now_us)
        return None

    def _sort_in(self, now_us: int) -> None:
        """Put what comes again before what is new, the oldest first."""
        again = self._returned
        while self._delayed and self._delayed[0][0] <= now_us:
            record = heapq.heappop(self._delayed)[2]
            self._delayed_bytes -= len(record.frame)
            self._bytes += len(record.frame)
            again.append(record)
        if again:
            again.sort(key=_serial, reverse=True)
            self._queue.extendleft(again)
            again.clear()

    def _judge(self, code: str, record: Outgoing, now_us: int) -> Verdict:
        result = verdict(code, record.function, record.flags)
        if result is Verdict.SKEWED:
            record.skewed_us = record.skewed_us or now_us
            if now_us - min(record.skewed_us, record.timestamp) > SKEW_PATIENCE_US:
                return Verdict.DEAD
        return result

    def _hold(self, epoch: int, now_us: int) -> None:
        """Let all wait, once for all refusals of what was sent before this pause."""
        if epoch != self._epoch:
            return
        self.paused_until = now_us + self._pause(self._failures)
        self._failures += 1
        self._epoch += 1
        self._window = 1

    def _pause(self, tries: int) -> int:
        longest = min(PAUSE_US_MIN << min(tries, 20), RETRY_PAUSE_US_MAX)
        return int(longest * (0.5 + 0.5 * self._random.random()))

    def _next_identifier(self) -> int:
        """Return one that no request in flight has; never 0, which a daemon uses for "unknown"."""
        while True:
            self._identifier = self._identifier % IDENTIFIER_MAX + 1
            if self._identifier not in self._in_flight:
                return self._identifier


def _serial(record: Outgoing) -> int:
    return record.serial
