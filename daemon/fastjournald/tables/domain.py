"""Domain queues: what is ready, delayed, leased and buried, and the round robin between domains.

Entries of a domain stand in sorted lists (``sortedcontainers``) by bytes, which compare in C:

    ready    the facts of the entry: priority, not before, arrival; the buried have the same
    delayed  its ``delay_key``: instant u64, arrival u64

The key of an entry must not change while it stands in such a list: ``Scheduler.facts_change`` takes
it out and puts it back. Facts are objects that entries have anyway, so a place in a list costs two
references.

n is the number of items; every operation is O(log n) unless it says otherwise. An entry refers to
its domain, and the domain to it for as long as it stands in there: what is taken out of its queue
or lease is free of reference cycles, so the garbage collector can stay off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter, gt
from typing import Any, Final, TypeAlias

from sortedcontainers import SortedKeyList, SortedList

from fastjournald.tables.domain_limits import DomainLimit

NEVER = 2**64
"""Later than every instant."""

_facts = attrgetter("facts")
_delay_key = attrgetter("delay_key")


class SortedEntries(SortedKeyList):  # type: ignore[misc] # it has no types
    """Entries by a key of theirs, in lists of 128 to 512.

    NEXT takes from the front of the first one, which moves the others: in lists of up to 2,000, as
    they are by default, a job takes 7 to 11 % more instructions (tests/bench/bench_waiting.py).
    """

    DEFAULT_LOAD_FACTOR = 256

    def first(self) -> Any:
        """Return the first entry; there is one. O(1)."""
        return self._lists[0][0]

    def pop_first(self) -> Any:
        """Take out the first entry; there is one."""
        sublist = self._lists[0]
        if len(sublist) <= self.DEFAULT_LOAD_FACTOR // 2:
            # it may have to be merged with the next one
            return self.pop(0)
        entry = sublist[0]
        del sublist[0], self._keys[0][0]
        self._len -= 1
        self._index.clear()
        return entry

    def remove(self, entry: Any) -> None:
        """Take out an entry, which is in it: no other has its key."""
        key = self._key(entry)
        place = bisect_left(self._maxes, key)
        keys = self._keys[place]
        at = bisect_left(keys, key)
        if len(keys) <= self.DEFAULT_LOAD_FACTOR // 2 or at == len(keys) - 1:
            # the list may have to be merged, or has another last key then
            self._delete(place, at)
            return
        assert keys[at] == key
        del keys[at], self._lists[place][at]
        self._len -= 1
        self._index.clear()

    def add_all(self, entries: list[Any]) -> None:
        """Add entries, at least one. They mostly come last, in order: then it is one step for all.

        The sublists of ``SortedKeyList`` are extended as its ``add`` does it for one entry.
        """
        if len(entries) > self.DEFAULT_LOAD_FACTOR or not self._maxes:
            self.update(entries)
            return
        keys = list(map(self._key, entries))
        if keys[0] < self._maxes[-1] or any(map(gt, keys, keys[1:])):
            for entry in entries:
                self.add(entry)
            return
        self._lists[-1] += entries
        self._keys[-1] += keys
        self._maxes[-1] = keys[-1]
        self._len += len(entries)
        # the tree of their lengths is made anew where somebody asks for a place
        self._index.clear()
        self._expand(len(self._lists) - 1)


NO_ENTRIES: Final = SortedEntries()
"""Stands for a list that few domains have, until something is put into that."""

_Entry: TypeAlias = Any
"""``tables.entry.Entry``, which knows its domain: entries are not imported here."""


class Leases:
    """Leased entries by token, which is the instant at which their lease ends."""

    __slots__ = ("_groups", "_tokens")

    def __init__(self) -> None:
        self._groups: dict[int, dict[bytes, _Entry]] = {}
        self._tokens: SortedList = SortedList()

    def add(self, token: int, entry: _Entry) -> None:
        """Add an entry; O(1) for all but the first of a token."""
        group = self._groups.get(token)
        if group is None:
            self._groups[token] = {entry.key: entry}
            self._tokens.add(token)
        else:
            group[entry.key] = entry

    def discard(self, token: int, entry: _Entry) -> bool:
        """Take an entry out; whether it was the last of its token. O(1) for all others."""
        group = self._groups[token]
        del group[entry.key]
        if group:
            return False
        del self._groups[token]
        self._tokens.remove(token)
        return True

    def rename(self, token: int, old: bytes, entry: _Entry) -> None:
        """The entry's primary key was ``old``; it keeps its place. O(entries of the token)."""
        group = self._groups[token]
        self._groups[token] = {
            entry.key if key == old else key: leased for key, leased in group.items()
        }

    def first(self) -> int:
        """Return the earliest token, ``NEVER`` where there is none. O(1)."""
        return self._tokens[0] if self._tokens else NEVER

    def first_of(self, token: int, number_max: int) -> list[_Entry]:
        """Return the entries of one token in the order of leasing, at most so many."""
        return list(islice(self._groups[token].values(), number_max))

    def number_of(self, token: int) -> int:
        """Return how many entries have this token. O(1)."""
        return len(self._groups.get(token, ()))

    def __iter__(self) -> Iterator[_Entry]:
        for group in self._groups.values():
            yield from group.values()


class Domain:
    """Queue of the journal entries of one domain, by what may happen to them next."""

    __slots__ = (
        *("buried", "buried_order", "delayed", "entries", "handed_out", "has_ready", "held"),
        *("leases", "limit", "name", "paused_until", "ready", "superseded", "waits_until", "wake"),
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ready = SortedEntries(key=_facts)
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
        self.handed_out = 0
        """Instant of its last hand-out; 0: none is known."""
        self.waits_until = 0
        """End of the interval after that, while it runs; else 0."""
        self.superseded: Leases | None = None
        """Its superseded entries that are worked on, which count for limits; else None."""
        self.held = False
        """It is paused, or has reached its limit: it stands among the held domains."""

    def delay(self, entry: _Entry) -> None:
        """Put an entry among the delayed."""
        if self.delayed is NO_ENTRIES:
            self.delayed = SortedEntries(key=_delay_key)
        self.delayed.add(entry)

    def load_delayed(self, entries: list[_Entry]) -> None:
        """Delay entries of a domain that has none delayed. O(n log n)."""
        self.delayed = SortedEntries(entries, key=_delay_key)

    def bury(self, entry: _Entry) -> None:
        """Put an entry among the buried."""
        if self.buried_order is NO_ENTRIES:
            self.buried_order = SortedEntries(key=_facts)
        self.buried_order.add(entry)

    def first_delay(self) -> int:
        """Return when the first of the delayed becomes ready, ``NEVER`` where none does. O(1)."""
        if not self.delayed:
            return NEVER
        instant: int = self.delayed[0].delayed_until
        return instant

    @property
    def worked_on(self) -> int:
        """How many entries are leased: those that are nowhere else. O(1)."""
        return self.entries - len(self.ready) - len(self.delayed) - self.buried

    def is_full(self) -> bool:
        """Whether as many entries are leased as the limit allows. O(1)."""
        return self.limit is not None and 0 < self.limit.jobs <= self.worked_on

    def must_wait(self) -> bool:
        """Whether nothing of it may be handed out for now. O(1)."""
        return bool(self.paused_until or self.waits_until) or self.is_full()

    def held_until(self) -> int:
        """Return when it may be handed out again, where no lease ends before its time. O(1)."""
        instant = max(self.paused_until, self.waits_until)
        if self.is_full():
            first = self.leases.first()
            if self.superseded is not None:
                first = min(first, self.superseded.first())
            instant = max(instant, first)
        return instant

    def allowance(self) -> int:
        """Return how many entries its limit allows to hand out now. O(1)."""
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
        return min(lease, self.first_delay()) if self.delayed else lease


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
