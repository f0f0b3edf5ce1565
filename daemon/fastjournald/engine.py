"""The state machine: what a request does, as a pure function of state, request and clock.

    session -> Engine.handle -> handler (by function) -> store + indexes -> journal

Nothing here awaits, reads a clock or touches a file: the order of application is the order of the
log, and the same requests at the same instants give the same state, replies and records.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush

import msgspec

from fastjournal import limits
from fastjournal.protocol import (
    ErrorCode,
    Function,
    Reply,
    Request,
    encode_error,
    encode_reply,
    encode_success,
)
from fastjournald.entry import Entry
from fastjournald.handlers import HANDLERS, next_work, nothing_due
from fastjournald.indexes import NEVER, Domain, Tombstones
from fastjournald.invariants import check_store
from fastjournald.journal import Append, Journal
from fastjournald.store import Store
from fastjournald.waiters import Waiter, Waiters

UNKNOWN = -1
"""Counts as the function of requests whose function has no name."""

_FUNCTIONS = frozenset(map(int, Function))


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """Bounds and defaults of the engine; sizes in bytes, times in microseconds."""

    value_bytes_max: int = limits.VALUE_BYTES_MAX
    reply_bytes_max: int = limits.REPLY_BYTES_MAX
    lease_us_default: int = limits.LEASE_US_DEFAULT
    attempts_max: int = 0
    """Lost leases after which an entry is buried; 0: no limit."""
    tombstone_ttl_us: int = limits.TOMBSTONE_TTL_US
    tombstones_max: int = limits.TOMBSTONES_MAX
    clock_skew_us_max: int = limits.CLOCK_SKEW_US_MAX


def _discard(data: bytes, records: int, now: int) -> int:
    """Keep nothing: the journal of an engine without a log."""
    return 0


def new_journal(settings: Settings, append: Append, seed: bytes) -> Journal:
    """Return a journal that fits these settings."""
    return Journal(append, seed=seed, lease_us=settings.lease_us_default)


class Engine:
    """Entries, who waits for work, and the clock up to which all is settled.

    Args:
        settings: Bounds and defaults.
        journal: Where changes of persistent entries go; None: nowhere.
    """

    def __init__(self, settings: Settings | None = None, journal: Journal | None = None) -> None:
        self.settings = settings or Settings()
        self.journal = journal or new_journal(self.settings, _discard, bytes(8))
        self.store = Store(
            self.journal,
            Tombstones(self.settings.tombstone_ttl_us, self.settings.tombstones_max),
            self.settings.attempts_max,
        )
        self.waiters = Waiters()
        self.lease_counter = 0
        """Lease operations so far: the last three digits of the next token."""
        self.read_only = False
        """Nothing new is taken and nothing is handed out: the disk is nearly full."""
        self.gauges: Callable[[int], dict[str, int]] = lambda _now: {}
        """What the daemon adds to its STATS: connections, log bytes, uptime."""
        self.requests = dict.fromkeys((*_FUNCTIONS, UNKNOWN), 0)
        """Function to the number of its requests so far."""
        self.errors: dict[tuple[int, str], int] = {}
        """Function and error code to the number of such replies so far."""
        self._now = 0

    # --- requests -------------------------------------------------------------------------------

    def handle(self, session: Hashable, request: Request, now: int) -> bytes | None:
        """Carry out one request.

        Args:
            session: Whoever asked: stands for the connection.
            request: As decoded.
            now: The daemon's clock; earlier than the last one counts as the last one.

        Returns:
            The encoded reply (for QUIT also those of its waiting requests); None: the request
            waits for work, and ``serve_waiters`` will answer it.
        """
        if now < self._now:
            now = self._now
        else:
            self._now = now
        store = self.store
        if now >= store.wake:
            store.advance(now)
        function = request.function
        handler = HANDLERS.get(function)
        if handler is None:
            return self._unknown(request, now)
        self.requests[function] += 1
        outcome = handler(self, session, request, now)
        if isinstance(outcome, str):
            if outcome:
                self.count_error(function, outcome)
                return encode_error(request.identifier, now, outcome)
            return encode_success(request.identifier, now)
        if isinstance(outcome, Reply):
            return self.encode(outcome, request, now)
        return outcome

    def _unknown(self, request: Request, now: int) -> bytes:
        function = request.function if request.function in _FUNCTIONS else UNKNOWN
        self.requests[function] += 1
        self.count_error(function, ErrorCode.UNKNOWN_FUNCTION)
        return encode_error(request.identifier, now, ErrorCode.UNKNOWN_FUNCTION)

    def count_error(self, function: int, error: str) -> None:
        """Count an error: its code and what follows it."""
        about = function, error.partition(" ")[0]
        self.errors[about] = self.errors.get(about, 0) + 1

    @staticmethod
    def encode(reply: Reply, request: Request, now: int) -> bytes:
        """Return the bytes of the reply to a request."""
        reply.identifier = request.identifier
        reply.timestamp = now
        return encode_reply(reply)

    def lease_deadline(self, timeout: int | None, now: int) -> int:
        """Return when a lease of that length ends; None or 0: of the default length."""
        return now + (timeout or self.settings.lease_us_default)

    def lease_token(self, entries: list[Entry], deadline: int) -> int:
        """Return the token, and so the end, of a lease operation on these entries.

        It is the deadline in whole milliseconds; the microseconds below are a counter, so that it
        differs from the token that an entry had before.
        """
        base = min(deadline, limits.INSTANT_MAX - 1000) // 1000
        while True:
            token = base * 1000 + self.lease_counter % 1000
            self.lease_counter += 1
            for entry in entries:
                if token in (entry.token_before, entry.token):
                    break
            else:
                return token

    # --- time and waiting -----------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Apply what time has brought up to ``now``."""
        self._now = max(now, self._now)
        self.store.advance(self._now)

    def next_wake(self) -> int | None:
        """Return the instant at which to advance and serve again; None: only after a request."""
        instant = min(self.store.wake, self.waiters.first_deadline())
        return None if instant == NEVER else instant

    def serve_waiters(self, now: int) -> list[tuple[Hashable, bytes]]:
        """Hand out what is ready to those who wait for it, and answer those who waited enough."""
        waiters = self.waiters
        answers: list[tuple[Hashable, bytes]] = []
        if not waiters:
            return answers
        store = self.store
        now = max(now, self._now)
        if now >= store.wake:
            self.advance(now)
        if store.newly_ready:
            if not self.read_only:
                self._serve_ready(store.newly_ready, now, answers)
            store.newly_ready.clear()
        for waiter in waiters.overdue(now):
            answers.append(self._answer(waiter, nothing_due(self, waiter.request), now))
        self._stop_watching()
        return answers

    def _serve_ready(
        self, domains: list[Domain], now: int, answers: list[tuple[Hashable, bytes]]
    ) -> None:
        """Answer who asked first, as long as one of the domains has something for somebody."""
        asked = [
            (waiter.serial, name)
            for name in {domain.name for domain in domains if domain.ready}
            if (waiter := self.waiters.first_for(name)) is not None
        ]
        heapify(asked)
        while asked:
            serial, name = heappop(asked)
            domain = self.store.domains.get(name)
            waiter = self.waiters.first_for(name)
            if domain is None or not domain.ready or waiter is None:
                continue
            if waiter.serial == serial:
                reply = next_work(self, waiter.request, now)
                answers.append(self._answer(waiter, reply, now))
                waiter = self.waiters.first_for(name)
            if waiter is not None:
                heappush(asked, (waiter.serial, name))

    def _stop_watching(self) -> None:
        """Where nobody waits, nobody has to be told what becomes ready."""
        if not self.waiters:
            self.store.newly_ready = None

    def resume(self, now: int) -> list[tuple[Hashable, bytes]]:
        """Hand out again what stood still while the engine was read-only."""
        self.read_only = False
        if self.waiters:
            self.store.newly_ready = list(self.store.turns)
        return self.serve_waiters(now)

    def wait(self, session: Hashable, request: Request, now: int) -> None:
        """Let a NEXT wait until something is ready, or its ttl is over."""
        deadline = NEVER if request.ttl is None else now + request.ttl
        self.waiters.add(session, request, deadline)
        if self.store.newly_ready is None:
            self.store.newly_ready = []

    def end_waits(self, session: Hashable, now: int) -> bytes:
        """Answer the waiting requests of a session with nothing, because it quits."""
        answers = [
            self._answer(waiter, nothing_due(self, waiter.request), now)[1]
            for waiter in self.waiters.of_session(session)
        ]
        self._stop_watching()
        return b"".join(answers)

    def forget(self, session: Hashable) -> None:
        """The connection is gone, and nobody waits on it any more."""
        for waiter in self.waiters.of_session(session):
            self.waiters.remove(waiter)
        self._stop_watching()

    def shut_down(self, now: int) -> list[tuple[Hashable, bytes]]:
        """Tell all who wait that the daemon stops."""
        answers = [
            self._answer(waiter, Reply(error=ErrorCode.SHUTTING_DOWN), now)
            for waiter in self.waiters.all()
        ]
        self._stop_watching()
        return answers

    def _answer(self, waiter: Waiter, reply: Reply, now: int) -> tuple[Hashable, bytes]:
        self.waiters.remove(waiter)
        if reply.error:
            self.count_error(waiter.request.function, reply.error)
        return waiter.session, self.encode(reply, waiter.request, now)

    def check(self) -> None:
        """Assert every invariant. O(n log n), for tests."""
        check_store(self.store)
        assert self.store.wake <= self.store.next_instant()
        assert bool(self.waiters) == (self.store.newly_ready is not None)
