"""Giving an entry another primary key: every index that holds the old one follows. Pure."""

from __future__ import annotations

from fastjournal.keys import moved_not_before, parse_journal_key
from fastjournal.limits import LEASES_A_UNIT
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Entry, Place


def rename_entry(store: Store, entry: Entry, key: bytes, timestamp: int, now: int) -> None:
    """Put an entry under another primary key, and into the domain and queue that this one says.

    What stood under that key stays in its queue: the caller removes it behind this, so that a
    domain that has something due all along keeps its turn. O(log n), and for an entry worked on
    O(entries under its token).

    Args:
        store: Where it stands.
        entry: Which; it keeps all but what its key says.
        key: A primary key, or one under which nothing stands.
        timestamp: By the writer's clock.
        now: The present.
    """
    old, place, domain = entry.key, entry.place, entry.domain
    parts = parse_journal_key(key)
    was_journal = entry.journal
    watched = entry.expires and place != Place.LEASED
    home = store.lease_home(entry)
    domain.entries -= 1
    if watched:
        store.expiry.remove(entry.expires, old)
    if place == Place.BURIED:
        store.take_back(entry)
    elif place == Place.READY:
        # its domain keeps its turn, for it may be ready there again
        domain.ready.remove(entry)
    elif place == Place.DELAYED:
        store.unqueue(entry)
    store.drop_key(old, entry)
    store.put_key(key, entry)
    store.locks.move(old, key)

    entry.key = key
    priority = 0 if parts is None else parts.priority
    entry.reorder(priority, moved_not_before(old, key, entry.not_before))
    entry.timestamp = timestamp
    entry.domain = store.plain if parts is None else store.domain_of(parts.domain)
    entry.domain.entries += 1

    if store.values is not None:
        store.values.rename(entry, old)
    if watched:
        store.watch_expiry(entry)
    if place == Place.LEASED:
        store.plain_worked_on += was_journal - entry.journal
        store.work += home.leases.number_of(entry.token) // LEASES_A_UNIT
        home.leases.rename(entry.token, old, entry)
        if store.lease_home(entry) is not home:
            home.leases.discard(entry.token, entry)
            store.refresh(home)
            entry.domain.leases.add(entry.token, entry)
            store.refresh(entry.domain)
        if entry.superseded:
            if domain.superseded is not None:
                domain.superseded.rename(entry.token, old, entry)
                domain.superseded.discard(entry.token, entry)
            store.note_superseded(entry)
        if entry.domain.limit is not None:
            store.hold_or_free(entry.domain)
    elif place == Place.BURIED:
        store.set_aside(entry, entry.reason or b"")
    else:
        entry.place = Place.PLAIN
        if entry.journal:
            store.queue(entry, now)
        if place == Place.READY and not domain.ready:
            store.lose_turn(domain)
    domain.entries += 1
    store.leave_domain(domain)
