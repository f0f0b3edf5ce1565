"""Domain: its queue, leases and limit; round robin between domains (fair queuing). Pure.

A domain with ready entries takes turns. A domain that is paused or at its limit is held: it costs
the others nothing. The timer queue has the next end of a delay or lease of each domain.

n is the number of items; every operation is O(log n) unless it says otherwise. An entry refers to
its domain. The domain refers to the entry only while it is queued or leased. Other entries are free
of reference cycles, so the garbage collector can be off.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from sortedcontainers import SortedList

from fastjournald.tables.domain_limits import DomainLimit
from fastjournald.tables.signals import READY, Signals
from fastjournald.tables.sorted_entries import NO_ENTRIES, SortedEntries, by_delay

NEVER = 2**64
"""Later than every instant."""

_Entry: TypeAlias = Any
"""``tables.entry.Entry``; not imported here, because it imports this module."""
_JobCounts: TypeAlias = Any
"""``tables.job_counts.JobCounts`` or None, in the same way."""


_NO_ENDS: Final = SortedList()
_NO_GROUPS: Final[dict[int, dict[bytes, _Entry]]] = {}
"""Shared by all that have no lease, and empty."""


class Leases:
    """Leased entries, grouped by the instant at which their lease ends."""

    __slots__ = ("_ends", "_groups")

    def __init__(self) -> None:
        self._groups = _NO_GROUPS
        self._ends = _NO_ENDS
        """Both its own from the first lease on: many domains have none, and they are large."""

    def add(self, until: int, entry: _Entry) -> bool:
        """Add an entry; return whether it is the first with this end. O(1) for all others."""
        group = self._groups.get(until)
        if group is None:
            if self._ends is _NO_ENDS:
                self._groups, self._ends = {}, SortedList()
            self._groups[until] = {entry.key: entry}
            self._ends.add(until)
            return True
        group[entry.key] = entry
        return False

    def group(self, until: int) -> dict[bytes, _Entry]:
        """Return the entries with this end by their keys, to add more. There must be one. O(1)."""
        return self._groups[until]

    def discard(self, until: int, entry: _Entry) -> bool:
        """Remove an entry; return whether it was the last with this end. O(1) for all others."""
        group = self._groups[until]
        del group[entry.key]
        if group:
            return False
        del self._groups[until]
        self._ends.remove(until)
        return True

    def rename(self, until: int, old: bytes, entry: _Entry) -> None:
        """Change the primary key of an entry, in place. O(entries with the same end)."""
        group = self._groups[until]
        self._groups[until] = {
            entry.key if key == old else key: leased for key, leased in group.items()
        }

    def first(self) -> int:
        """Return the earliest end, or ``NEVER``. O(1)."""
        return self._ends[0] if self._ends else NEVER

    def ends(self) -> Iterator[int]:
        """Ends in ascending order."""
        return iter(self._ends)

    def first_of(self, until: int, number_max: int) -> list[_Entry]:
        """Return at most ``number_max`` entries whose lease ends then, in the order of leasing."""
        return list(islice(self._groups[until].values(), number_max))

    def number_of(self, until: int) -> int:
        """Return how many leases end then. O(1)."""
        return len(self._groups.get(until, ()))

    def __iter__(self) -> Iterator[_Entry]:
        for group in self._groups.values():
            yield from group.values()


class Domain:
    """Queue of the journal entries of one domain, by state."""

    __slots__ = (
        *("buried", "buried_order", "counts", "delayed", "entries", "delivered_at", "has_ready"),
        *("held", "job_header", "leases", "limit", "name", "paused_until", "ready", "requeued"),
        *("superseded", "waits_until", "wake"),
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ready = SortedEntries()
        self.has_ready = False
        """Whether ``ready`` has entries: checking the list costs a call."""
        self.delayed = NO_ENTRIES
        """By due time; created with the first delayed entry, because few domains have any."""
        self.leases = Leases()
        self.entries = 0
        self.buried = 0
        self.buried_order = NO_ENTRIES
        """Buried journal entries in queue order; created with the first one."""
        self.counts: _JobCounts = None
        """What it adds to: its own counts, or those that further domains share; None: to be asked
        for (``job_counts``)."""
        self.requeued: SortedList | None = None
        """Waiting entries that were leased before: instant since which each is asked for, and key.
        Their due time does not tell. None: there are none."""
        self.wake = NEVER
        """Key of this domain in the timer queue."""
        self.paused_until = 0
        """Instant; 0: not paused."""
        self.limit: DomainLimit | None = None
        """Limits of this domain; None: no limit."""
        self.delivered_at = 0
        """Instant of the last delivery; 0: unknown."""
        self.waits_until = 0
        """End of the interval after the last delivery, while it runs; else 0."""
        self.superseded: Leases | None = None
        """Leases of its superseded entries, which count for its limits; None: there are none."""
        self.job_header = b""
        """Start of the header of its jobs in the log; empty before the first one."""
        self.held = False
        """Paused or at its limit, and so in the table of held domains."""

    def delay(self, entry: _Entry) -> None:
        """Add a delayed entry."""
        if self.delayed is NO_ENTRIES:
            self.delayed = by_delay()
        self.delayed.add(entry)

    def load_delayed(self, entries: list[_Entry]) -> None:
        """Bulk load of delayed entries into a domain that has none. O(n log n)."""
        self.delayed = by_delay(entries)

    def bury(self, entry: _Entry) -> None:
        """Add a buried entry."""
        if self.buried_order is NO_ENTRIES:
            self.buried_order = SortedEntries()
        self.buried_order.add(entry)

    def first_delay(self) -> int:
        """Return when the first delayed entry becomes ready, or ``NEVER``. O(1)."""
        if not self.delayed:
            return NEVER
        instant: int = self.delayed.first().delayed_until
        return instant

    @property
    def worked_on(self) -> int:
        """Number of leased entries: those in no queue. O(1)."""
        return self.entries - len(self.ready) - len(self.delayed) - self.buried

    def has_leased(self, until: int) -> bool:
        """Whether one of its entries is leased until this instant. O(1)."""
        superseded = self.superseded
        return self.leases.number_of(until) > 0 or (
            superseded is not None and superseded.number_of(until) > 0
        )

    def is_full(self) -> bool:
        """Whether as many entries are leased as the limit allows. O(1)."""
        return self.limit is not None and 0 < self.limit.jobs <= self.worked_on

    def must_wait(self) -> bool:
        """Whether the domain may deliver nothing now. O(1)."""
        return bool(self.paused_until or self.waits_until) or self.is_full()

    def held_until(self) -> int:
        """Return when it may deliver again, if no lease is released early. O(1)."""
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
        """Return the earliest end of a delay or a lease, or ``NEVER``. O(1)."""
        lease = self.leases.first()
        # few domains have delayed entries: this check saves a call
        return lease if self.delayed is NO_ENTRIES else min(lease, self.first_delay())


class WakeIndex:
    """Timer queue of the domains: the next end of a delay or lease of each."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: SortedList = SortedList()

    def refresh(self, domain: Domain) -> None:
        """Update the position of a domain; O(1) if its next instant did not change."""
        instant = domain.next_instant()
        if instant == domain.wake:
            return
        if domain.wake != NEVER:
            self._items.remove((domain.wake, domain.name))
        if instant != NEVER:
            self._items.add((instant, domain.name))
        domain.wake = instant

    def remove(self, domain: Domain) -> None:
        """Remove a domain. O(log n)."""
        if domain.wake != NEVER:
            self._items.remove((domain.wake, domain.name))
            domain.wake = NEVER

    def first(self) -> tuple[int, bytes] | None:
        """Return the earliest instant and its domain's name. O(1)."""
        return self._items[0] if self._items else None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return iter(self._items)


class HeldDomains:
    """Held domains: those that wait for the end of a pause, an interval or a lease.

    They are in neither the round robin nor its timer queue. NEXT and the search for the next due
    instant never walk over held domains, however many there are. Their delays and leases still end,
    so they have their own timer queue.
    """

    __slots__ = ("_due", "_due_at", "ready", "wakes")

    def __init__(self) -> None:
        self._due: SortedList = SortedList()
        """Instants at which held domains have work again, with their names."""
        self._due_at: dict[bytes, int] = {}
        """Domain to its instant in ``_due``."""
        self.wakes = WakeIndex()
        """Timer queue of their delays and leases."""
        self.ready: dict[bytes, Domain] = {}
        """Held domains with ready entries."""

    def first_due(self) -> int:
        """Return when the first of them has work again, or ``NEVER``. O(1)."""
        return self._due[0][0] if self._due else NEVER

    def due_at(self, name: bytes) -> int:
        """Return when a held domain has work again, or ``NEVER``. O(1)."""
        return self._due_at.get(name, NEVER)

    def refresh(self, domain: Domain) -> None:
        """Update the positions of a held domain."""
        self.wakes.refresh(domain)
        instant = NEVER
        if domain.has_ready:
            instant = domain.held_until()
        elif domain.wake != NEVER:
            instant = max(domain.held_until(), domain.wake)
        self._set_due(domain.name, instant)

    def add(self, domain: Domain) -> None:
        """Add a domain that is held from now on."""
        if domain.has_ready:
            self.ready[domain.name] = domain
        self.refresh(domain)

    def remove(self, domain: Domain) -> None:
        """Remove a domain that is no longer held."""
        self.ready.pop(domain.name, None)
        self._set_due(domain.name, NEVER)
        self.wakes.remove(domain)

    def _set_due(self, name: bytes, instant: int) -> None:
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
    """Queue of newly ready domains, from the scheduler to the dispatcher of waiting requests.

    Args:
        signals: Set for each domain.
    """

    __slots__ = ("_signals", "domains", "wanted")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.domains: deque[Domain] = deque()
        self.wanted = False
        """Whether requests wait; the dispatcher sets it. If False, no domain is added."""

    def note(self, *domains: Domain) -> None:
        """Add domains and wake the dispatcher."""
        self.domains.extend(domains)
        self._signals.bits |= READY

    def stop(self) -> None:
        """Stop adding domains and clear the queue."""
        self.wanted = False
        self.domains.clear()


class Turns(OrderedDict[bytes, Domain]):
    """Domains in their order of turns, by name."""


class SortedTurns(Turns):
    """The same with an index of the names, which costs O(log n) for each change."""

    names: SortedList
    """In their order as bytes."""

    def __setitem__(self, name: bytes, domain: Domain) -> None:
        if name not in self:
            self.names.add(name)
        super().__setitem__(name, domain)

    def __delitem__(self, name: bytes) -> None:
        super().__delitem__(name)
        self.names.remove(name)


class RoundRobin:
    """Round robin: the next domain, and the timer queue of all domains.

    Args:
        signals: Receives ready work for waiting requests.
    """

    __slots__ = ("held", "newly_ready", "turns", "wakes")

    def __init__(self, signals: Signals) -> None:
        self.turns = Turns()
        """Domains with ready entries that are not held, by name; the first is the next."""
        self.wakes = WakeIndex()
        """Timer queue: the next end of a delay or lease of each domain that is not held."""
        self.held = HeldDomains()
        self.newly_ready = NewlyReady(signals)

    def begin_turns(self, domain: Domain) -> None:
        """Add a domain with newly ready entries to the round robin, unless it is held."""
        domain.has_ready = True
        if domain.held:
            self.held.add(domain)
            return
        # at the end: at most one round before its turn
        self.turns[domain.name] = domain
        if self.newly_ready.wanted:
            self.newly_ready.note(domain)

    def end_turns(self, domain: Domain) -> None:
        """Remove a domain without ready entries from the round robin."""
        domain.has_ready = False
        if domain.held:
            del self.held.ready[domain.name]
            self.held.refresh(domain)
        else:
            del self.turns[domain.name]

    def serve_again(self) -> None:
        """Have waiting requests served from all domains: deliveries were stopped. O(turns)."""
        if self.newly_ready.wanted:
            self.newly_ready.domains.clear()
            self.newly_ready.note(*self.turns.values())

    @property
    def ready_names(self) -> SortedList:
        """Names of ``turns`` in order, after ``sort_turns``."""
        turns = self.turns
        assert isinstance(turns, SortedTurns)
        return turns.names

    def sort_turns(self, names: SortedList) -> int:
        """Keep an index of the names of ``turns`` from now on.

        Args:
            names: Names of all domains, in order. To sort those of a million anew takes seconds.

        Returns:
            How many were examined; 0: the index is kept already.
        """
        turns = self.turns
        if isinstance(turns, SortedTurns):
            return 0
        index = SortedList(filter(turns.__contains__, names))
        # in place: a copy of a million entries takes seconds
        turns.__class__ = SortedTurns
        assert isinstance(turns, SortedTurns)
        turns.names = index
        return len(names)

    def refresh(self, domain: Domain) -> None:
        """Update the timer queue after the next delay or lease of a domain changed."""
        if domain.held:
            self.held.refresh(domain)
        elif domain.name:
            self.wakes.refresh(domain)

    def hold_or_free(self, domain: Domain) -> None:
        """Hold a domain if it must wait; else add it to the round robin."""
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
        """Bulk load: add a domain after all its entries were loaded."""
        if domain.held:
            # an earlier check during the load may have held it
            self.held.remove(domain)
        domain.held = domain.must_wait()
        if domain.held:
            self.held.add(domain)
        else:
            self.wakes.refresh(domain)

    def next_at(self, domain: Domain | None) -> int:
        """Return when the next entry of a domain (None: any domain) becomes due, or ``NEVER``.

        Entries that are due now do not count. O(1).
        """
        if domain is not None:
            return self.held.due_at(domain.name) if domain.held else domain.next_instant()
        first = self.wakes.first()
        instant = self.held.first_due()
        return instant if first is None else min(first[0], instant)
