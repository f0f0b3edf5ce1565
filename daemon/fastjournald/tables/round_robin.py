"""Round robin between domains, timer queue of the domains, and those that are held. Pure.

A domain with something ready takes turns, unless it is paused or has reached its limit: then it
is held, which costs the others nothing.

n is the number of domains; every operation is O(log n) unless it says otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from sortedcontainers import SortedList

from fastjournald.tables.domain import NEVER, Domain
from fastjournald.tables.newly_ready import NewlyReady
from fastjournald.tables.signals import Signals


class WakeIndex:
    """Timer queue of the domains: the next delay or lease of each that ends."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: SortedList = SortedList()

    def refresh(self, domain: Domain) -> None:
        """Bring a domain's place up to date; O(1) where its next instant did not change."""
        instant = domain.next_instant()
        if instant == domain.wake:
            return
        if domain.wake != NEVER:
            self._items.remove((domain.wake, domain.name))
        if instant != NEVER:
            self._items.add((instant, domain.name))
        domain.wake = instant

    def remove(self, domain: Domain) -> None:
        """Take a domain out: it stands somewhere else from now on. O(log n)."""
        if domain.wake != NEVER:
            self._items.remove((domain.wake, domain.name))
            domain.wake = NEVER

    def first(self) -> tuple[int, bytes] | None:
        """Return the earliest instant and its domain's name. O(1)."""
        return self._items[0] if self._items else None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return iter(self._items)


class Turns:
    """Round robin of NEXT between domains: those with something ready, but the paused."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: OrderedDict[bytes, Domain] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Domain]:
        return iter(self._queue.values())

    def __contains__(self, name: bytes) -> bool:
        return name in self._queue

    def named(self, name: bytes) -> Domain:
        """Return the domain of that name, which is one of them. O(1)."""
        return self._queue[name]

    def add(self, domain: Domain) -> None:
        """Put a domain last, which is at most one round away from its turn. O(1)."""
        self._queue[domain.name] = domain

    def remove(self, domain: Domain) -> None:
        """Take a domain out that has nothing ready any more. O(1)."""
        del self._queue[domain.name]

    def first(self) -> Domain:
        """Return the domain whose turn it is. O(1)."""
        return next(iter(self._queue.values()))

    def pass_on(self, domain: Domain) -> None:
        """Its turn is over; it comes again after all others. O(1)."""
        self._queue.move_to_end(domain.name)


class HeldDomains:
    """Held domains: those that wait for the end of a pause, of an interval, or of a lease.

    They stand neither among the turns nor in the timer queue of the others: so neither NEXT nor the
    question when something will be due ever passes over held domains, however many there are. Their
    delays and leases end as ever, so they have a timer queue of their own.
    """

    __slots__ = ("_due", "_due_at", "ready", "wakes")

    def __init__(self) -> None:
        self._due: SortedList = SortedList()
        """Instants at which held domains have work again, with their names."""
        self._due_at: dict[bytes, int] = {}
        """Domain to the instant under which it stands there."""
        self.wakes = WakeIndex()
        """Timer queue of their delays and leases."""
        self.ready: dict[bytes, Domain] = {}
        """Held domains in which something is ready."""

    def first_due(self) -> int:
        """Return when the first of them has work again; ``NEVER`` where none will. O(1)."""
        return self._due[0][0] if self._due else NEVER

    def due_at(self, name: bytes) -> int:
        """Return when a held domain has work again; ``NEVER`` where it will not. O(1)."""
        return self._due_at.get(name, NEVER)

    def refresh(self, domain: Domain) -> None:
        """Bring the places of a held domain up to date."""
        self.wakes.refresh(domain)
        instant = NEVER
        if domain.has_ready:
            instant = domain.held_until()
        elif domain.wake != NEVER:
            instant = max(domain.held_until(), domain.wake)
        self._stand(domain.name, instant)

    def take_in(self, domain: Domain) -> None:
        """Hold a domain back, with what stands in it, from now on."""
        if domain.has_ready:
            self.ready[domain.name] = domain
        self.refresh(domain)

    def let_go(self, domain: Domain) -> None:
        """Give a domain no place here any more."""
        self.ready.pop(domain.name, None)
        self._stand(domain.name, NEVER)
        self.wakes.remove(domain)

    def _stand(self, name: bytes, instant: int) -> None:
        before = self._due_at.get(name, NEVER)
        if instant == before:
            return
        if before != NEVER:
            self._due.remove((before, name))
            del self._due_at[name]
        if instant != NEVER:
            self._due.add((instant, name))
            self._due_at[name] = instant


class RoundRobin:
    """Places of the domains among each other.

    Args:
        signals: Told of work for requests that wait.
    """

    __slots__ = ("held", "newly_ready", "turns", "wakes")

    def __init__(self, signals: Signals) -> None:
        self.turns = Turns()
        """Domains with something ready, but the held ones."""
        self.wakes = WakeIndex()
        """Timer queue: the next delay or lease of each domain, but of the held ones."""
        self.held = HeldDomains()
        self.newly_ready = NewlyReady(signals)

    def begin_turns(self, domain: Domain) -> None:
        """Let a domain take turns in which something became ready, unless it is held."""
        domain.has_ready = True
        if domain.held:
            self.held.take_in(domain)
            return
        self.turns.add(domain)
        if self.newly_ready.wanted:
            self.newly_ready.note(domain)

    def end_turns(self, domain: Domain) -> None:
        """Let a domain take no turns in which nothing is ready any more."""
        domain.has_ready = False
        if domain.held:
            del self.held.ready[domain.name]
            self.held.refresh(domain)
        else:
            self.turns.remove(domain)

    def refresh(self, domain: Domain) -> None:
        """Bring the timers up to date: the next delay or lease of a domain may be another one."""
        if domain.held:
            self.held.refresh(domain)
        elif domain.name:
            self.wakes.refresh(domain)

    def hold_or_free(self, domain: Domain) -> None:
        """Hold a domain back if it must wait, else let it take its turns."""
        must_wait = domain.must_wait()
        if must_wait and domain.held:
            self.held.refresh(domain)
        elif must_wait:
            domain.held = True
            self.wakes.remove(domain)
            if domain.has_ready:
                self.turns.remove(domain)
            self.held.take_in(domain)
        elif domain.held:
            domain.held = False
            self.held.let_go(domain)
            self.wakes.refresh(domain)
            if domain.has_ready:
                self.begin_turns(domain)

    def load(self, domain: Domain) -> None:
        """Give a place to a domain all of which was loaded; it has none but by a hold."""
        if domain.held:
            # while it was loaded, it may have seemed so
            self.held.let_go(domain)
        domain.held = domain.must_wait()
        if domain.held:
            self.held.take_in(domain)
        else:
            self.wakes.refresh(domain)

    def next_at(self, domain: Domain | None) -> int:
        """Return when something of a domain (None: of any) will be due, at the earliest.

        ``NEVER`` where nothing will by time. Entries that are due already do not count. O(1).
        """
        if domain is not None:
            return self.held.due_at(domain.name) if domain.held else domain.next_instant()
        first = self.wakes.first()
        instant = self.held.first_due()
        return instant if first is None else min(first[0], instant)
