"""Domain: its queue, leases and limit; round robin between domains (fair queuing). Pure.

A domain with something ready takes turns, unless it is paused or has reached its limit: then it is
held, which costs the others nothing. The timer queue has the next delay or lease of each domain
that ends.

n is the number of items; every operation is O(log n) unless it says otherwise. An entry refers to
its domain, and the domain to it for as long as it stands in there: what is taken out of its queue
or lease is free of reference cycles, so the garbage collector can stay off.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

from sortedcontainers import SortedList

from fastjournald.tables.domain_limits import DomainLimit
from fastjournald.tables.signals import READY, Signals
from fastjournald.tables.sorted_entries import NO_ENTRIES, SortedEntries, by_delay

NEVER = 2**64
"""Later than every instant."""

_Entry: TypeAlias = Any
"""``tables.entry.Entry``, which knows its domain: entries are not imported here."""


class Leases:
    """Leased entries by the instant at which their lease ends: the token, as it was leased."""

    __slots__ = ("_ends", "_groups")

    def __init__(self) -> None:
        self._groups: dict[int, dict[bytes, _Entry]] = {}
        self._ends: SortedList = SortedList()

    def add(self, until: int, entry: _Entry) -> bool:
        """Add an entry; whether it is the first that ends then. O(1) for all others."""
        group = self._groups.get(until)
        if group is None:
            self._groups[until] = {entry.key: entry}
            self._ends.add(until)
            return True
        group[entry.key] = entry
        return False

    def discard(self, until: int, entry: _Entry) -> bool:
        """Take an entry out; whether it was the last that ends then. O(1) for all others."""
        group = self._groups[until]
        del group[entry.key]
        if group:
            return False
        del self._groups[until]
        self._ends.remove(until)
        return True

    def rename(self, until: int, old: bytes, entry: _Entry) -> None:
        """The entry's primary key was ``old``; it keeps its place. O(entries that end then)."""
        group = self._groups[until]
        self._groups[until] = {
            entry.key if key == old else key: leased for key, leased in group.items()
        }

    def first(self) -> int:
        """Return the earliest end, ``NEVER`` where there is none. O(1)."""
        return self._ends[0] if self._ends else NEVER

    def ends(self) -> Iterator[int]:
        """Ends in ascending order."""
        return iter(self._ends)

    def first_of(self, until: int, number_max: int) -> list[_Entry]:
        """Return the entries whose lease ends then in the order of leasing, at most so many."""
        return list(islice(self._groups[until].values(), number_max))

    def number_of(self, until: int) -> int:
        """Return how many leases end then. O(1)."""
        return len(self._groups.get(until, ()))

    def __iter__(self) -> Iterator[_Entry]:
        for group in self._groups.values():
            yield from group.values()


class Domain:
    """Queue of the journal entries of one domain, by what may happen to them next."""

    __slots__ = (
        *("buried", "buried_order", "delayed", "entries", "delivered_at", "has_ready", "held"),
        *("leases", "limit", "name", "paused_until", "ready", "superseded", "waits_until", "wake"),
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ready = SortedEntries()
        self.has_ready = False
        """Whether something is: a look at the list itself is a call."""
        self.delayed = NO_ENTRIES
        """By delay; made when the first entry is delayed, for few domains have any."""
        self.leases = Leases()
        self.entries = 0
        self.buried = 0
        self.buried_order = NO_ENTRIES
        """Its buried journal entries in the order of work; made in the same way."""
        self.wake = NEVER
        """The instant under which this domain stands in the wake index."""
        self.paused_until = 0
        """Instant; 0: it is not paused."""
        self.limit: DomainLimit | None = None
        """Limits that hold for it; None: none do."""
        self.delivered_at = 0
        """Instant of its last delivery; 0: none is known."""
        self.waits_until = 0
        """End of the interval after that, while it runs; else 0."""
        self.superseded: Leases | None = None
        """Its superseded entries that are worked on, which count for limits; else None."""
        self.held = False
        """It is paused, or has reached its limit: it stands among the held domains."""

    def delay(self, entry: _Entry) -> None:
        """Put an entry among the delayed."""
        if self.delayed is NO_ENTRIES:
            self.delayed = by_delay()
        self.delayed.add(entry)

    def load_delayed(self, entries: list[_Entry]) -> None:
        """Delay entries of a domain that has none delayed. O(n log n)."""
        self.delayed = by_delay(entries)

    def bury(self, entry: _Entry) -> None:
        """Put an entry among the buried."""
        if self.buried_order is NO_ENTRIES:
            self.buried_order = SortedEntries()
        self.buried_order.add(entry)

    def first_delay(self) -> int:
        """Return when the first of the delayed becomes ready, ``NEVER`` where none does. O(1)."""
        if not self.delayed:
            return NEVER
        instant: int = self.delayed.first().delayed_until
        return instant

    @property
    def worked_on(self) -> int:
        """How many entries are leased: those that are nowhere else. O(1)."""
        return self.entries - len(self.ready) - len(self.delayed) - self.buried

    def has_leased(self, until: int) -> bool:
        """Whether an entry of it is leased until this instant. O(1)."""
        superseded = self.superseded
        return self.leases.number_of(until) > 0 or (
            superseded is not None and superseded.number_of(until) > 0
        )

    def is_full(self) -> bool:
        """Whether as many entries are leased as the limit allows. O(1)."""
        return self.limit is not None and 0 < self.limit.jobs <= self.worked_on

    def must_wait(self) -> bool:
        """Whether nothing of it may be delivered for now. O(1)."""
        return bool(self.paused_until or self.waits_until) or self.is_full()

    def held_until(self) -> int:
        """Return when it may be delivered again, where no lease ends before its time. O(1)."""
        instant = max(self.paused_until, self.waits_until)
        if self.is_full():
            first = self.leases.first()
            if self.superseded is not None:
                first = min(first, self.superseded.first())
            instant = max(instant, first)
        return instant

    def allowance(self) -> int:
        """Return how many entries its limit allows to deliver now. O(1)."""
        if self.limit is None:
            return NEVER
        if self.waits_until or self.is_full():
            return 0
        if self.limit.interval_us:
            return 1
        return self.limit.jobs - self.worked_on if self.limit.jobs else NEVER

    def next_instant(self) -> int:
        """Return when a delay or a lease ends next, ``NEVER`` where none does. O(1)."""
        lease = self.leases.first()
        # few domains have any delayed, and none costs no call
        return lease if self.delayed is NO_ENTRIES else min(lease, self.first_delay())


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

    def add(self, domain: Domain) -> None:
        """Hold a domain back, with what stands in it, from now on."""
        if domain.has_ready:
            self.ready[domain.name] = domain
        self.refresh(domain)

    def remove(self, domain: Domain) -> None:
        """Take a domain out: it is held no more."""
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


class NewlyReady:
    """Newly ready domains: those with something ready, noted while requests wait for work.

    A queue from the scheduler to the dispatcher.

    Args:
        signals: Told of each.
    """

    __slots__ = ("_signals", "domains", "wanted")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.domains: deque[Domain] = deque()
        self.wanted = False
        """Whether requests wait, which set this: else nobody has to note a domain."""

    def note(self, *domains: Domain) -> None:
        """Note domains; somebody waits."""
        self.domains.extend(domains)
        self._signals.bits |= READY

    def stop(self) -> None:
        """Note nothing any more."""
        self.wanted = False
        self.domains.clear()


class RoundRobin:
    """Round robin: which domain is next, and when something happens in one by time.

    Args:
        signals: Told of work for requests that wait.
    """

    __slots__ = ("held", "newly_ready", "turns", "wakes")

    def __init__(self, signals: Signals) -> None:
        self.turns: OrderedDict[bytes, Domain] = OrderedDict()
        """By name, domains with something ready, but the held ones: the first is the next."""
        self.wakes = WakeIndex()
        """Timer queue: the next delay or lease of each domain, but of the held ones."""
        self.held = HeldDomains()
        self.newly_ready = NewlyReady(signals)

    def begin_turns(self, domain: Domain) -> None:
        """Let a domain take turns in which something became ready, unless it is held."""
        domain.has_ready = True
        if domain.held:
            self.held.add(domain)
            return
        # last, so at most one round away from its turn
        self.turns[domain.name] = domain
        if self.newly_ready.wanted:
            self.newly_ready.note(domain)

    def end_turns(self, domain: Domain) -> None:
        """Let a domain take no turns in which nothing is ready any more."""
        domain.has_ready = False
        if domain.held:
            del self.held.ready[domain.name]
            self.held.refresh(domain)
        else:
            del self.turns[domain.name]

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
                del self.turns[domain.name]
            self.held.add(domain)
        elif domain.held:
            domain.held = False
            self.held.remove(domain)
            self.wakes.refresh(domain)
            if domain.has_ready:
                self.begin_turns(domain)

    def load(self, domain: Domain) -> None:
        """Give a place to a domain all of which was loaded; it has none but by a hold."""
        if domain.held:
            # while it was loaded, it may have seemed so
            self.held.remove(domain)
        domain.held = domain.must_wait()
        if domain.held:
            self.held.add(domain)
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
