"""What the daemon knows: entries under their keys, and in which index each of them stands.

Pure: time comes as an argument, and what has to reach the disk goes to the journal. The handlers
decide what a request does; the store keeps keys, indexes and journal in step while they do it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastjournald.entry import Entry, Place
from fastjournald.indexes import (
    DELAYED_KEY_AT,
    READY_KEY_AT,
    Domain,
    Expiry,
    Leases,
    Tombstones,
    Turns,
    WakeIndex,
    delayed_item,
    item_instant,
    ready_item,
)
from fastjournald.journal import Journal

SHARDS = 256
"""A dict that grows is rehashed at once: 25 ms at a million keys, 0.1 ms at a 256th of them."""

BURIED_AT_ATTEMPTS_MAX = b"attempts reached max-attempts"


class Store:
    """Entries, their keys, the indexes over them, and the journal of what happens to them.

    Args:
        journal: Where changes of persistent entries go.
        tombstones: Empty, with its bounds.
        attempts_max: Lost leases after which an entry is buried; 0: no limit.
    """

    def __init__(self, journal: Journal, tombstones: Tombstones, attempts_max: int) -> None:
        self.journal = journal
        self.tombstones = tombstones
        self.attempts_max = attempts_max
        self.shards: list[dict[bytes, Entry]] = [{} for _ in range(SHARDS)]
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
        """Nothing happens by time before this instant; ``advance`` brings it up to date."""
        self.behind_at = -1
        """Where an ``advance`` to this instant left something undone, that instant."""
        self.arrivals = 0
        self.entries = 0
        self.delayed = 0
        self.buried = 0
        self.worked_on = 0
        self.plain_worked_on = 0
        """Of ``worked_on`` those that are plain entries."""
        self.leases_lost = 0
        """Leases that ran out so far."""

    @property
    def due(self) -> int:
        """How many entries are ready: the journal entries that are nowhere else. O(1)."""
        elsewhere = self.delayed + self.buried + self.worked_on - self.plain_worked_on
        return self.entries - self.plain.entries - elsewhere

    # --- keys -----------------------------------------------------------------------------------

    def find(self, key: bytes) -> Entry | None:
        """Return the entry under any of its keys. O(1)."""
        return self.shards[hash(key) & 255].get(key)

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

    # --- coming and going -----------------------------------------------------------------------

    def insert(self, entry: Entry, now: int) -> None:
        """Put a new entry under its keys and into its indexes."""
        shards = self.shards
        shards[hash(entry.key) & 255][entry.key] = entry
        uri = entry.uri
        if uri is not None:
            shards[hash(uri) & 255][uri] = entry
        if entry.links:
            for link in entry.links:
                shards[hash(link) & 255][link] = entry
        self.entries += 1
        entry.domain.entries += 1
        if entry.expires:
            self.watch_expiry(entry)
        if entry.journal:
            self.queue(entry, now)

    def remove(self, entry: Entry, now: int) -> None:
        """Take an entry out of everything; other work on its URI may begin."""
        domain = entry.domain
        for key in entry.all_keys() if entry.links else (entry.key, entry.uri):
            if key is not None:
                shard = self.shards[hash(key) & 255]
                if shard.get(key) is entry:
                    del shard[key]
        place = entry.place
        if place == Place.LEASED:
            self._end_work(entry, now)
        else:
            if place in (Place.READY, Place.DELAYED):
                self._unqueue(entry)
            elif place == Place.BURIED:
                self._count_buried(domain, -1)
            if entry.expires:
                self.expiry.remove(entry.expires, entry.key)
            entry.place = Place.PLAIN
        self.entries -= 1
        domain.entries -= 1
        if not domain.entries and domain is not self.plain:
            del self.domains[domain.name]

    def replace_by_uri(self, entry: Entry, timestamp: int, now: int) -> None:
        """A SET with this timestamp took the URI of a waiting entry: it is gone."""
        self.remove(entry, now)
        self.tombstones.put(entry.key, timestamp, now)
        if entry.persistent:
            self.journal.completed(entry, timestamp, now)

    def supersede(self, entry: Entry, timestamp: int) -> None:
        """A SET with this timestamp took the URI of an entry that is worked on."""
        if not entry.superseded:
            home = self.lease_home(entry)
            home.leases.discard(entry.token, entry)
            self._refresh(home)
            # 0 says that none did
            entry.superseded = max(timestamp, 1)
            self.plain.leases.add(entry.token, entry)

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
                self._refresh(domain)
                self.wake = min(self.wake, instant)

    def _unqueue(self, entry: Entry) -> None:
        domain = entry.domain
        if entry.place == Place.READY:
            domain.ready.remove(entry.item)
            if not domain.ready:
                self.turns.remove(domain)
        else:
            domain.delayed.remove(entry.item)
            self.delayed -= 1
            self._refresh(domain)
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

    def _count_buried(self, domain: Domain, change: int) -> None:
        domain.buried += change
        self.buried += change

    def _refresh(self, domain: Domain) -> None:
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
            self._refresh(domain)
            self.wake = min(self.wake, token)
        if entry.uri is not None:
            self.running[entry.uri] = entry
        if entry.expires:
            self.expiry.remove(entry.expires, entry.key)

    def take(self, entry: Entry) -> None:
        """Take an entry out of its queue, if it is in one, to be leased by its key."""
        if entry.place in (Place.READY, Place.DELAYED):
            self._unqueue(entry)

    def extend(self, entry: Entry, token: int, now: int) -> None:
        """The lease of the entry ends at ``token`` instead."""
        home = self.lease_home(entry)
        home.leases.discard(entry.token, entry)
        entry.token_before = entry.token
        entry.token = token
        home.leases.add(token, entry)
        self._refresh(home)
        self.wake = min(self.wake, token)
        if entry.uri is not None:
            self._requeue_successor(entry, now)

    def _end_work(self, entry: Entry, now: int) -> None:
        """Nobody works on the entry any more; what comes of it is the caller's matter."""
        home = self.lease_home(entry)
        token = entry.token
        if home.leases.discard(token, entry) and token == home.wake:
            self._refresh(home)
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
            self._unqueue(successor)
            self.queue(successor, now)

    def end_lease(self, entry: Entry, now: int, *, ran_out: bool, delayed: bool = False) -> None:
        """A lease ran out or was given back: the entry waits again, is buried, or is dropped.

        ``delayed``: it was given back with a new instant, which stands in the entry already.
        """
        if ran_out:
            self.leases_lost += 1
        if entry.superseded:
            self.remove(entry, now)
            self.tombstones.put(entry.key, entry.superseded, now)
            if entry.persistent:
                self.journal.completed(entry, entry.superseded, now)
            return
        if 0 < entry.expires <= now:
            self.remove(entry, now)
            if entry.persistent:
                self.journal.expired(entry, now)
            return
        self._end_work(entry, now)
        if entry.expires:
            self.watch_expiry(entry)
        if ran_out:
            entry.attempts += 1
            if entry.journal and 0 < self.attempts_max <= entry.attempts:
                entry.place = Place.BURIED
                entry.reason = BURIED_AT_ATTEMPTS_MAX
                self._count_buried(entry.domain, 1)
                if entry.persistent:
                    self.journal.buried(entry, now)
                return
        if entry.persistent:
            if delayed:
                self.journal.released_with_delay(entry, now)
            else:
                self.journal.lease_over(entry, now)
        if entry.journal:
            self.queue(entry, now)

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

    # --- time -----------------------------------------------------------------------------------

    def next_instant(self) -> int:
        """Return when a lease, a delay or a life ends next; ``NEVER`` where none does. O(1)."""
        first = self.wakes.first()
        instant = min(self.plain.leases.first(), self.expiry.first())
        return instant if first is None else min(first[0], instant)

    def advance(self, now: int, changes_max: int) -> None:
        """Apply what time has brought: leases first, then delays, then lives that end.

        Args:
            now: Up to this instant.
            changes_max: About so many entries change; the others wait for the next call.
        """
        left = changes_max
        while left > 0:
            first = self.wakes.first()
            plain = self.plain.leases.first()
            if first is not None and first[0] <= now and first[0] <= plain:
                domain = self.domains[first[1]]
                if domain.leases.first() <= first[0]:
                    left -= self._run_out(domain.leases, first[0], now)
                else:
                    left -= self._become_ready(domain, first[0], now, left)
            elif plain <= now:
                left -= self._run_out(self.plain.leases, plain, now)
            else:
                break
        while left > 0 and self.expiry.first() <= now:
            left -= 1
            entry = self.find(self.expiry.pop_key())
            assert entry is not None
            entry.expires = 0
            self.remove(entry, now)
            if entry.persistent:
                self.journal.expired(entry, now)
        self.wake = self.next_instant()
        self.behind_at = now if self.wake <= now else -1

    def _run_out(self, leases: Leases, token: int, now: int) -> int:
        entries = leases.group(token)
        for entry in entries:
            self.end_lease(entry, now, ran_out=True)
        return len(entries)

    def _become_ready(self, domain: Domain, instant: int, now: int, number_max: int) -> int:
        delayed = domain.delayed
        number = 0
        while number < number_max and delayed and item_instant(delayed[0]) <= instant:
            item: bytes = delayed.pop(0)
            entry = self.find(item[DELAYED_KEY_AT:])
            assert entry is not None
            self.delayed -= 1
            entry.item = b""
            self.queue(entry, now)
            number += 1
        self._refresh(domain)
        return number
