"""Where each entry stands: under its keys, and in which queue of its domain.

Pure, and without a journal: what has to reach the disk is the store's matter, which is built on
this.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastjournald.entry import Entry, Place
from fastjournald.indexes import (
    READY_KEY_AT,
    Domain,
    Expiry,
    Turns,
    WakeIndex,
    delayed_item,
    ready_item,
)
from fastjournald.keyindex import KeyIndex

SHARDS = 256
"""A dict that grows is rehashed at once: 25 ms at a million keys, 0.1 ms at a 256th of them."""


class Queues:
    """Entries by key, the indexes over them, and their numbers."""

    def __init__(self) -> None:
        self.shards: list[dict[bytes, Entry]] = [{} for _ in range(SHARDS)]
        self.key_index: KeyIndex | None = None
        """All keys in byte order; None: no scan has asked for that yet."""
        self.domains: dict[bytes, Domain] = {}
        self.plain = Domain(b"")
        """Home of plain entries, and of the leases after which nothing comes back to a queue."""
        self.turns = Turns()
        self.wakes = WakeIndex()
        self.expiry = Expiry()
        self.running: dict[bytes, Entry] = {}
        """URI to the entry that is worked on for it."""
        self.newly_ready: list[Domain] | None = None
        """Domains in which something became ready, while somebody waits for that; else None."""
        self.wake = 0
        """Nothing happens by time before this instant; ``Store.advance`` brings it up to date."""
        self.entries = 0
        self.delayed = 0
        self.buried = 0
        self.worked_on = 0
        self.plain_worked_on = 0
        """Of ``worked_on`` those that are plain entries."""

    @property
    def due(self) -> int:
        """How many entries are ready: the journal entries that are nowhere else. O(1)."""
        elsewhere = self.delayed + self.buried + self.worked_on - self.plain_worked_on
        return self.entries - self.plain.entries - elsewhere

    # --- keys -----------------------------------------------------------------------------------

    def find(self, key: bytes) -> Entry | None:
        """Return the entry under any of its keys. O(1)."""
        return self.shards[hash(key) & 255].get(key)

    def index_keys(self) -> KeyIndex:
        """Return the index of all keys in byte order, empty yet where there was none. O(1)."""
        if self.key_index is None:
            self.key_index = KeyIndex(self.shards)
        return self.key_index

    def __iter__(self) -> Iterator[Entry]:
        """Every entry once, in no particular order."""
        for shard in self.shards:
            for key, entry in shard.items():
                if key == entry.key:
                    yield entry

    def domain_of(self, name: bytes) -> Domain:
        """Return the domain of that name, made where there is none. O(1)."""
        domain = self.domains.get(name)
        if domain is None:
            domain = self.domains[name] = Domain(name)
        return domain

    # --- queues ---------------------------------------------------------------------------------

    def queue(self, entry: Entry, now: int) -> None:
        """Put a journal entry where it belongs while nobody works on it: ready or delayed."""
        domain = entry.domain
        instant = entry.not_before
        if self.running and entry.uri is not None:
            other = self.running.get(entry.uri)
            if other is not None and other.token > instant:
                instant = other.token
        if instant <= now:
            entry.place = Place.READY
            item = entry.item = ready_item(
                entry.priority, entry.not_before, entry.arrival, entry.key
            )
            ready = domain.ready
            if not ready:
                self.turns.add(domain)
                if self.newly_ready is not None:
                    self.newly_ready.append(domain)
            ready.add(item)
        else:
            entry.place = Place.DELAYED
            entry.item = delayed_item(instant, entry.arrival, entry.key)
            domain.delayed.add(entry.item)
            self.delayed += 1
            if instant < domain.wake:
                self.refresh(domain)
                self.wake = min(self.wake, instant)

    def unqueue(self, entry: Entry) -> None:
        """Take an entry out of the ready or delayed list that it stands in. O(log n)."""
        domain = entry.domain
        if entry.place == Place.READY:
            domain.ready.remove(entry.item)
            if not domain.ready:
                self.turns.remove(domain)
        else:
            domain.delayed.remove(entry.item)
            self.delayed -= 1
            self.refresh(domain)
        entry.item = b""

    def pop_ready(self, domain: Domain, entry: Entry) -> None:
        """Take the first ready entry of a domain out of its queue, to be leased or removed."""
        ready = domain.ready
        ready.pop(0)
        if not ready:
            self.turns.remove(domain)
        entry.item = b""
        entry.place = Place.PLAIN

    def first_ready(self, domain: Domain) -> Entry:
        """Return the first ready entry of a domain."""
        item: bytes = domain.ready[0]
        entry = self.find(item[READY_KEY_AT:])
        assert entry is not None
        return entry

    def count_buried(self, domain: Domain, change: int) -> None:
        """So many more, or fewer, of a domain are buried. O(1)."""
        domain.buried += change
        self.buried += change

    def refresh(self, domain: Domain) -> None:
        """The next delay or lease of a domain may be another one. O(log n)."""
        if domain is not self.plain:
            self.wakes.refresh(domain)

    # --- leases ---------------------------------------------------------------------------------

    def lease_home(self, entry: Entry) -> Domain:
        """Return the domain whose leases an entry stands among."""
        return self.plain if entry.superseded else entry.domain

    def lease(self, entry: Entry, token: int) -> None:
        """The entry, which is in no queue, is worked on until ``token``."""
        entry.place = Place.LEASED
        entry.token = token
        self.worked_on += 1
        if not entry.journal:
            self.plain_worked_on += 1
        domain = entry.domain
        domain.leases.add(token, entry)
        if token < domain.wake:
            self.refresh(domain)
            self.wake = min(self.wake, token)
        if entry.uri is not None:
            self.running[entry.uri] = entry
        if entry.expires:
            self.expiry.remove(entry.expires, entry.key)

    def take(self, entry: Entry) -> None:
        """Take an entry out of its queue, if it is in one, to be leased by its key."""
        if entry.place in (Place.READY, Place.DELAYED):
            self.unqueue(entry)

    def extend(self, entry: Entry, token: int, now: int) -> None:
        """The lease of the entry ends at ``token`` instead."""
        home = self.lease_home(entry)
        home.leases.discard(entry.token, entry)
        entry.token_before = entry.token
        entry.token = token
        home.leases.add(token, entry)
        self.refresh(home)
        self.wake = min(self.wake, token)
        if entry.uri is not None:
            self._requeue_successor(entry, now)

    def end_work(self, entry: Entry, now: int) -> None:
        """Nobody works on the entry any more; what comes of it is the caller's matter."""
        home = self.lease_home(entry)
        token = entry.token
        if home.leases.discard(token, entry) and token == home.wake:
            self.refresh(home)
        self.worked_on -= 1
        if not entry.journal:
            self.plain_worked_on -= 1
        entry.token_before = token
        entry.token = 0
        entry.place = Place.PLAIN
        uri = entry.uri
        if uri is not None and self.running.get(uri) is entry:
            del self.running[uri]
            self._requeue_successor(entry, now)

    def _requeue_successor(self, entry: Entry, now: int) -> None:
        assert entry.uri is not None
        successor = self.find(entry.uri)
        if successor is not None and successor is not entry and successor.place == Place.DELAYED:
            self.unqueue(successor)
            self.queue(successor, now)

    # --- expiry ---------------------------------------------------------------------------------

    def watch_expiry(self, entry: Entry) -> None:
        """Let an entry that nobody works on go when its life is over."""
        self.expiry.add(entry.expires, entry.key)
        self.wake = min(self.wake, entry.expires)

    def set_expiry(self, entry: Entry, expires: int) -> None:
        """Change when an entry expires; 0: never."""
        leased = entry.place == Place.LEASED
        if entry.expires and not leased:
            self.expiry.remove(entry.expires, entry.key)
        entry.expires = expires
        if expires and not leased:
            self.watch_expiry(entry)
