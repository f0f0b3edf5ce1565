"""The orders in which entries are found: per domain what is ready, delayed and leased; and when.

What they are sorted by is bytes, which compare in C:

    ready    the facts of the entry: priority, not before, arrival; the buried have the same
    delayed  instant u64, arrival u64
    expiry   instant u64, primary key, by which the key index leads to the entry

n is the number of items; every operation is O(log n) unless it says otherwise. An entry refers to
its domain, and the domain to it for as long as it stands in there: what is taken out of its queue
or lease is free of reference cycles, so the garbage collector can stay off.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from fastjournal.limits import TOMBSTONE_BYTES, TOMBSTONES_BYTES_MAX
from fastjournald.tables.sorted_entries import Order

if TYPE_CHECKING:
    from fastjournald.tables.entry import Entry

_INSTANT = Struct(">Q")
EXPIRY_KEY_AT = _INSTANT.size

TOMBSTONES_DROPPED = 4
"""Whose time is over, for each one that is laid: so they go faster than new ones come."""

NEVER = 2**64
"""Later than every instant."""

_pack_instant = _INSTANT.pack


def delay_key(instant: int, arrival: int) -> bytes:
    """Return the key of an entry that is delayed until that instant. O(1)."""
    return _pack_instant(instant) + _pack_instant(arrival)


def instant_of(key: bytes) -> int:
    """Return the instant that the key of what is delayed or expires begins with. O(1)."""
    return int.from_bytes(key[:EXPIRY_KEY_AT], "big")


class Leases:
    """Entries worked on, grouped by token, which is the instant at which the lease ends."""

    __slots__ = ("_groups", "_tokens")

    def __init__(self) -> None:
        self._groups: dict[int, dict[bytes, Entry]] = {}
        self._tokens: SortedList = SortedList()

    def add(self, token: int, entry: Entry) -> None:
        """Add an entry; O(1) for all but the first of a token."""
        group = self._groups.get(token)
        if group is None:
            self._groups[token] = {entry.key: entry}
            self._tokens.add(token)
        else:
            group[entry.key] = entry

    def discard(self, token: int, entry: Entry) -> bool:
        """Take an entry out; whether it was the last of its token. O(1) for all others."""
        group = self._groups[token]
        del group[entry.key]
        if group:
            return False
        del self._groups[token]
        self._tokens.remove(token)
        return True

    def rename(self, token: int, old: bytes, entry: Entry) -> None:
        """The entry's primary key was ``old``; it keeps its place. O(entries of the token)."""
        group = self._groups[token]
        self._groups[token] = {
            entry.key if key == old else key: leased for key, leased in group.items()
        }

    def first(self) -> int:
        """Return the earliest token, ``NEVER`` where there is none. O(1)."""
        return self._tokens[0] if self._tokens else NEVER

    def first_of(self, token: int, number_max: int) -> list[Entry]:
        """Return the entries of one token in the order of leasing, at most so many."""
        return list(islice(self._groups[token].values(), number_max))

    def number_of(self, token: int) -> int:
        """Return how many entries have this token. O(1)."""
        return len(self._groups.get(token, ()))

    def __iter__(self) -> Iterator[Entry]:
        for group in self._groups.values():
            yield from group.values()


class Domain:
    """One queue: the journal entries of a domain by what may happen to them next."""

    __slots__ = (
        *("buried", "buried_order", "delayed", "entries", "leases", "name", "paused_until"),
        *("ready", "wake"),
    )

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ready = Order()
        self.delayed = Order()
        self.leases = Leases()
        self.entries = 0
        self.buried = 0
        self.buried_order: Order | None = None
        """Its buried journal entries in the order of work; made when the first one is buried."""
        self.wake = NEVER
        """The instant under which this domain stands in the wake index."""
        self.paused_until = 0
        """Instant; 0: it is not paused."""

    @property
    def worked_on(self) -> int:
        """How many entries are leased: those that are nowhere else. O(1)."""
        return self.entries - len(self.ready) - len(self.delayed) - self.buried

    def next_instant(self) -> int:
        """Return when a delay or a lease ends next, ``NEVER`` where none does. O(1)."""
        lease = self.leases.first()
        if self.delayed:
            return min(lease, instant_of(self.delayed.first_key()))
        return lease


class WakeIndex:
    """Which domain has to be looked at next: its next delay or lease that ends."""

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
    """The domains that NEXT asks, in this order: those with something ready, but the paused."""

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


class Expiry:
    """When entries expire; those that are worked on stand here only after their lease."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: SortedList = SortedList()

    def add(self, expires: int, key: bytes) -> None:
        """Add the entry under ``key``."""
        self._items.add(_pack_instant(expires) + key)

    def extend(self, pairs: list[tuple[int, bytes]]) -> None:
        """Add many at once. O(n log n)."""
        self._items.update([_pack_instant(expires) + key for expires, key in pairs])

    def remove(self, expires: int, key: bytes) -> None:
        """Take the entry under ``key`` out."""
        self._items.remove(_pack_instant(expires) + key)

    def first(self) -> int:
        """Return the earliest expiry, ``NEVER`` where there is none. O(1)."""
        return instant_of(self._items[0]) if self._items else NEVER

    def pop_key(self) -> bytes:
        """Take the earliest out and return its key."""
        item: bytes = self._items.pop(0)
        return item[EXPIRY_KEY_AT:]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for item in self._items:
            yield instant_of(item), item[EXPIRY_KEY_AT:]


class Tombstones:
    """What was deleted, so that a late repeat of its SET is recognised; the oldest go first.

    They hold the timestamp of the deletion and the instant at which it was learnt; bounded in time,
    number and bytes.
    """

    __slots__ = ("_items", "bytes", "bytes_max", "number_max", "ttl_us")

    def __init__(self, ttl_us: int, number_max: int, bytes_max: int = TOMBSTONES_BYTES_MAX) -> None:
        self.ttl_us = ttl_us
        self.number_max = number_max
        self.bytes_max = bytes_max
        self.bytes = 0
        """What they take in memory."""
        self._items: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[tuple[bytes, int]]:
        """Return keys and timestamps, oldest first, and also those whose time is over. O(n)."""
        return [(key, timestamp) for key, (timestamp, _) in self._items.items()]

    def get(self, key: bytes, now: int) -> int | None:
        """Return the timestamp that stands under a key, None where none does any more. O(1)."""
        found = self._items.get(key)
        if found is None or found[1] + self.ttl_us <= now:
            return None
        return found[0]

    def find(self, key: bytes, now: int) -> tuple[int, int] | None:
        """Return timestamp and the instant at which it was learnt; None as ``get``. O(1)."""
        found = self._items.get(key)
        return None if found is None or found[1] + self.ttl_us <= now else found

    def lasts_until(self, learnt: int, now: int) -> int:
        """Return until when about a tombstone stands that was learnt at that instant. O(1)."""
        items = self._items
        if 2 * len(items) < self.number_max and 2 * self.bytes < self.bytes_max:
            return learnt + self.ttl_us
        # others will take its place: the oldest one has stood for as long as any will
        oldest = next(iter(items.values()))[1]
        return learnt + min(self.ttl_us, max(now - oldest, 0))

    def put(self, key: bytes, timestamp: int, now: int) -> None:
        """Leave a tombstone; a later one that stands there already stays. O(1)."""
        items = self._items
        found = items.get(key)
        if found is not None:
            if found[1] + self.ttl_us > now:
                timestamp = max(timestamp, found[0])
            items.move_to_end(key)
        else:
            self.bytes += TOMBSTONE_BYTES + len(key)
        items[key] = (timestamp, now)
        # for the longest key some ten of short keys go
        while len(items) > self.number_max or self.bytes > self.bytes_max:
            self._drop_oldest()
        # not all at once: after a quiet hour a million are over
        for _ in range(TOMBSTONES_DROPPED):
            if not items or next(iter(items.values()))[1] + self.ttl_us > now:
                break
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, _ = self._items.popitem(last=False)
        self.bytes -= TOMBSTONE_BYTES + len(key)

    def discard(self, key: bytes) -> bool:
        """Remove what stands under a key; whether something did. O(1)."""
        if self._items.pop(key, None) is None:
            return False
        self.bytes -= TOMBSTONE_BYTES + len(key)
        return True
