"""Who works on what: leases, the rule of one at a time for a URI, and lives that end.

Pure, and without a journal, as the queues are that this is built on.
"""

from __future__ import annotations

from fastjournal.limits import ENTRY_WORK
from fastjournald.tables.domain import Domain, Leases
from fastjournald.tables.entry import Entry, Place
from fastjournald.tables.scheduler import Queues


class Leasing(Queues):
    """The queues, and what is in none of them because somebody works on it."""

    # --- leases ---------------------------------------------------------------------------------

    def lease_home(self, entry: Entry) -> Domain:
        """Return the domain whose leases an entry stands among."""
        return self.plain if entry.superseded else entry.domain

    def lease(self, entry: Entry, token: int) -> None:
        """The entry, which is in no queue, is worked on until ``token``."""
        entry.place = Place.LEASED
        entry.own().token = token
        self.worked_on += 1
        domain = entry.domain
        if domain is self.plain:
            self.plain_worked_on += 1
        domain.leases.add(token, entry)
        if token < domain.wake or domain.held:
            self.refresh(domain)
            self.signals.wake_at(token)
        if entry.uri is not None:
            self.running[entry.uri] = entry
        if entry.extra.expires:
            self.expiry.remove(entry.extra.expires, entry.key)

    def take(self, entry: Entry) -> None:
        """Take an entry out of its queue, if it is in one, to be leased by its key."""
        if entry.place in (Place.READY, Place.DELAYED):
            self.unqueue(entry)

    def extend(self, entry: Entry, token: int, now: int) -> None:
        """The lease of the entry ends at ``token`` instead."""
        home = self.lease_home(entry)
        extra = entry.own()
        home.leases.discard(extra.token, entry)
        if extra.superseded:
            self._discard_superseded(entry)
        extra.token_before = extra.token
        extra.token = token
        home.leases.add(token, entry)
        if extra.superseded:
            self.note_superseded(entry)
        self.refresh(home)
        self.signals.wake_at(token)
        keys = self._keys_worked_on(entry)
        self.work += ENTRY_WORK * len(keys)
        for key in keys:
            self._requeue_successor(key, entry, now)

    def end_work(self, entry: Entry, now: int) -> None:
        """Nobody works on the entry any more; what comes of it is the caller's matter."""
        extra = entry.extra
        domain = entry.domain
        home = self.plain if extra.superseded else domain
        token = extra.token
        if home.leases.discard(token, entry) and token == home.wake:
            self.refresh(home)
        self.worked_on -= 1
        if domain is self.plain:
            self.plain_worked_on -= 1
        if extra.superseded:
            self._discard_superseded(entry)
        extra.token_before = token
        extra.token = 0
        entry.place = Place.PLAIN
        if extra.superseded:
            keys = self._keys_worked_on(entry)
            self.work += ENTRY_WORK * len(keys)
            for key in keys:
                del self.running[key]
                self._requeue_successor(key, entry, now)
        elif entry.uri is not None:
            # the same for what nearly every entry is, at half the price
            del self.running[entry.uri]
            self._requeue_successor(entry.uri, entry, now)

    def note_superseded(self, entry: Entry) -> None:
        """Let a superseded entry, which stands among the plain leases, count for its domain."""
        domain = entry.domain
        if domain is not self.plain:
            if domain.superseded is None:
                domain.superseded = Leases()
            domain.superseded.add(entry.token, entry)
            if domain.held:
                self.held.refresh(domain)

    def _discard_superseded(self, entry: Entry) -> None:
        superseded = entry.domain.superseded
        if superseded is not None:
            superseded.discard(entry.token, entry)

    def _keys_worked_on(self, entry: Entry) -> list[bytes]:
        """Return the URI, and the links that newer entries have as theirs, if they wait for it."""
        keys = [] if entry.uri is None else [entry.uri]
        if entry.superseded and entry.links:
            keys += entry.links
        return [key for key in keys if self.running.get(key) is entry]

    def _requeue_successor(self, key: bytes, entry: Entry, now: int) -> None:
        successor = self.find(key)
        if successor is not None and successor is not entry and successor.place == Place.DELAYED:
            self.queue_again(successor, now)

    # --- expiry ---------------------------------------------------------------------------------

    def watch_expiry(self, entry: Entry) -> None:
        """Let an entry that nobody works on go when its life is over."""
        self.expiry.add(entry.expires, entry.key)
        self.signals.wake_at(entry.expires)

    def set_expiry(self, entry: Entry, expires: int) -> None:
        """Change when an entry expires; 0: never."""
        leased = entry.place == Place.LEASED
        if entry.expires and not leased:
            self.expiry.remove(entry.expires, entry.key)
        if expires or entry.expires:
            entry.own().expires = expires
        if expires and not leased:
            self.watch_expiry(entry)
