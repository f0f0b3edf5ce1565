"""Waiting requests for work, because nothing is due: NEXT with LISTEN."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice

import msgspec
from sortedcontainers import SortedList

from fastjournal.protocol.messages import Request
from fastjournald.tables.domain import NEVER, NewlyReady
from fastjournald.tables.signals import TIMER, Signals

WAIT_BYTES = 360
"""Memory of a waiting request, without the name of its domain and its value."""

VALUE_BYTES = 48
"""Memory of the value of a waiting request, without its bytes."""

DOMAIN_BYTES = 620
"""Memory of a domain that requests wait for."""


class Waiter(msgspec.Struct, gc=False):
    """One waiting NEXT."""

    serial: int
    session: Hashable
    request: Request
    deadline: int
    """Instant at which it is answered with nothing; ``NEVER``: it waits without end."""


def _bytes_of(request: Request) -> int:
    options = VALUE_BYTES + len(request.value) if request.value else 0
    return WAIT_BYTES + len(request.key) + options


class Waiters:
    """Waiting requests, by domain, in the order of their arrival.

    Args:
        newly_ready: Queue of newly ready domains; switched on while requests wait.
        signals: Receives deadlines.
    """

    __slots__ = (
        *("_by_domain", "_by_serial", "_by_session", "_deadlines", "_newly_ready", "_serial"),
        *("_signals", "bytes"),
    )

    def __init__(self, newly_ready: NewlyReady, signals: Signals) -> None:
        self._signals = signals
        self._newly_ready = newly_ready
        self._serial = 0
        self.bytes = 0
        """Memory of all waiting requests and their domains."""
        self._by_serial: dict[int, Waiter] = {}
        self._by_domain: dict[bytes, SortedList] = {}
        self._by_session: dict[Hashable, set[int]] = {}
        self._deadlines: SortedList = SortedList()

    def __len__(self) -> int:
        return len(self._by_serial)

    def bytes_with(self, request: Request) -> int:
        """Return what they would take in memory, if one more request waited. O(1)."""
        domain = 0 if request.key in self._by_domain else DOMAIN_BYTES
        return self.bytes + _bytes_of(request) + domain

    def numbers(self) -> Iterator[tuple[Hashable, int]]:
        """Yield sessions that wait, and how many requests each has waiting."""
        for session, serials in self._by_session.items():
            yield session, len(serials)

    def add(self, session: Hashable, request: Request, deadline: int) -> None:
        """Add a waiting request. O(log n)."""
        self.bytes = self.bytes_with(request)
        self._newly_ready.wanted = True
        self._serial += 1
        serial = self._serial
        self._by_serial[serial] = Waiter(serial, session, request, deadline)
        self._by_domain.setdefault(request.key, SortedList()).add(serial)
        self._by_session.setdefault(session, set()).add(serial)
        if deadline != NEVER:
            self._deadlines.add((deadline, serial))
            self._signals.bits |= TIMER

    def remove(self, waiter: Waiter) -> None:
        """Remove a request that was answered, or whose client has disconnected. O(log n)."""
        serial, domain = waiter.serial, waiter.request.key
        del self._by_serial[serial]
        self.bytes -= _bytes_of(waiter.request)
        serials = self._by_domain[domain]
        serials.remove(serial)
        if not serials:
            del self._by_domain[domain]
            self.bytes -= DOMAIN_BYTES
        of_session = self._by_session[waiter.session]
        of_session.remove(serial)
        if not of_session:
            del self._by_session[waiter.session]
        if waiter.deadline != NEVER:
            self._deadlines.remove((waiter.deadline, serial))
        if not self._by_serial:
            self._newly_ready.stop()

    def first_for(self, domain: bytes) -> Waiter | None:
        """Return who asked first among those whom work in this domain serves. O(log n)."""
        serials = [
            waiting[0]
            for waiting in (self._by_domain.get(domain), self._by_domain.get(b""))
            if waiting
        ]
        return self._by_serial[min(serials)] if serials else None

    def number_for(self, domain: bytes) -> int:
        """Return how many wait for work of this domain or of any. O(1)."""
        names = {domain, b""}
        return sum(len(self._by_domain[name]) for name in names if name in self._by_domain)

    def first_deadline(self) -> int:
        """Return when the next wait is over, ``NEVER`` where none ends by time. O(1)."""
        return self._deadlines[0][0] if self._deadlines else NEVER

    def overdue(self, now: int, number_max: int) -> list[Waiter]:
        """Return those whose wait is over, at most so many."""
        overdue = []
        for deadline, serial in islice(self._deadlines, number_max):
            if deadline > now:
                break
            overdue.append(self._by_serial[serial])
        return overdue

    def move_deadlines(self, step_us: int) -> None:
        """Move the ends of all waits by a step of the clock. O(n log n)."""
        deadlines = []
        for waiter in self._by_serial.values():
            if waiter.deadline != NEVER:
                waiter.deadline = min(max(waiter.deadline + step_us, 1), NEVER)
            if waiter.deadline != NEVER:
                deadlines.append((waiter.deadline, waiter.serial))
        self._deadlines = SortedList(deadlines)
        self._signals.bits |= TIMER

    def count_of(self, session: Hashable) -> int:
        """Return how many requests of one connection wait. O(1)."""
        return len(self._by_session.get(session, ()))

    def of_session(self, session: Hashable) -> list[Waiter]:
        """Return the requests of one connection that wait, in the order of asking."""
        return [self._by_serial[serial] for serial in sorted(self._by_session.get(session, ()))]

    def all(self) -> list[Waiter]:
        """Return all that wait, in the order of asking."""
        return list(self._by_serial.values())
