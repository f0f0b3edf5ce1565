"""Waiting requests for work, because nothing is due: NEXT with LISTEN."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain, islice
from typing import Final

import msgspec
from sortedcontainers import SortedList

from fastjournal.protocol.messages import Request
from fastjournald.engine.next_options import valid_options
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


_PREFIX = b":"
"""Marks a prefix in the table of domains: no name of a domain has it."""


def _is_prefix(name: bytes) -> bool:
    return name.endswith(_PREFIX)


ALL_NAMES: Final = (b"",)
"""What ``names_of`` returns where a NEXT asks for any domain."""


def names_of(request: Request) -> tuple[bytes, ...]:
    """Return the domains that a NEXT asks for; empty name: any; a prefix with its mark."""
    if request.value_type is None:
        return (request.key,)
    options = valid_options(request)
    if options.prefix:
        return (options.prefix + _PREFIX,)
    return options.domains or (request.key,)


def serves(names: tuple[bytes, ...], domain: bytes) -> bool:
    """Whether who asks for these names, as ``names_of``, takes work of a domain. O(names)."""
    if len(names) == 1 and _is_prefix(names[0]):
        return domain.startswith(names[0][:-1])
    return domain in names or names == ALL_NAMES


class Waiters:
    """Waiting requests, by domain, in the order of their arrival.

    Args:
        newly_ready: Queue of newly ready domains; switched on while requests wait.
        signals: Receives deadlines.
    """

    __slots__ = (
        *("_by_domain", "_by_serial", "_by_session", "_deadlines", "_newly_ready", "_serial"),
        *("_prefixes", "_signals", "bytes"),
    )

    def __init__(self, newly_ready: NewlyReady, signals: Signals) -> None:
        self._signals = signals
        self._newly_ready = newly_ready
        self._serial = 0
        self.bytes = 0
        """Memory of all waiting requests and their domains."""
        self._by_serial: dict[int, Waiter] = {}
        self._by_domain: dict[bytes, SortedList] = {}
        self._prefixes: dict[int, int] = {}
        """Lengths of the prefixes for which requests wait, and how many prefixes have each."""
        self._by_session: dict[Hashable, set[int]] = {}
        self._deadlines: SortedList = SortedList()

    def __len__(self) -> int:
        return len(self._by_serial)

    def bytes_with(self, request: Request) -> int:
        """Return what they would take in memory, if one more request waited. O(1)."""
        new = sum(name not in self._by_domain for name in names_of(request))
        return self.bytes + _bytes_of(request) + DOMAIN_BYTES * new

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
        for name in names_of(request):
            serials = self._by_domain.get(name)
            if serials is None:
                serials = self._by_domain[name] = SortedList()
                if _is_prefix(name):
                    length = len(name) - 1
                    self._prefixes[length] = self._prefixes.get(length, 0) + 1
            serials.add(serial)
        self._by_session.setdefault(session, set()).add(serial)
        if deadline != NEVER:
            self._deadlines.add((deadline, serial))
            self._signals.bits |= TIMER

    def remove(self, waiter: Waiter) -> None:
        """Remove a request that was answered, or whose client has disconnected. O(log n)."""
        serial = waiter.serial
        del self._by_serial[serial]
        self.bytes -= _bytes_of(waiter.request)
        for name in names_of(waiter.request):
            serials = self._by_domain[name]
            serials.remove(serial)
            if not serials:
                self._forget(name)
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
        for length in self._prefixes:
            waiting = self._by_domain.get(domain[:length] + _PREFIX)
            if waiting and len(domain) >= length:
                serials.append(waiting[0])
        return self._by_serial[min(serials)] if serials else None

    def number_serving(self, domain: bytes) -> int:
        """Return how many requests work in this domain serves. O(lengths of prefixes)."""
        prefixes = (domain[:length] + _PREFIX for length in self._prefixes if length <= len(domain))
        return sum(len(self._by_domain.get(name, ())) for name in (domain, b"", *prefixes))

    @property
    def prefix_lengths(self) -> int:
        """How many lengths the prefixes have for which requests wait."""
        return len(self._prefixes)

    def domains_of(self, session: Hashable, number_max: int) -> list[bytes]:
        """Return domains for which a session waits: empty for any, a prefix with ``:``."""
        serials = islice(self._by_session.get(session, ()), number_max)
        names = (names_of(self._by_serial[serial].request) for serial in serials)
        return sorted(set(islice(chain.from_iterable(names), number_max)))

    def _forget(self, name: bytes) -> None:
        """Remove a domain or a prefix for which no request waits."""
        del self._by_domain[name]
        self.bytes -= DOMAIN_BYTES
        if _is_prefix(name):
            length = len(name) - 1
            self._prefixes[length] -= 1
            if not self._prefixes[length]:
                del self._prefixes[length]

    def number_for(self, request: Request) -> int:
        """Return how many wait for work of the domains of a request or of any. O(1)."""
        names = {*names_of(request), b""}
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
