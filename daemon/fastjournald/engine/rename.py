"""RENAME in all indexes: an entry gets another primary key. Pure."""

from __future__ import annotations

from fastjournal.keys import moved_not_before, parse_journal_key
from fastjournal.limits import LEASES_A_UNIT
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Entry
from fastjournald.tables.entry_states import RENAME, EntryState


def rename_entry(store: Store, entry: Entry, key: bytes, timestamp: int, now: int) -> None:
    """Put an entry under another primary key, and into the domain and queue that this one says.

    An entry that stood under that key stays in its queue: the caller removes it after this, so that
    a domain that has something due all along keeps its turn. O(log n), and for a leased entry
    O(entries under its token).

    Args:
        store: Where it stands.
        entry: Which; it keeps all but what its key says.
        key: A primary key, or one under which nothing stands.
        timestamp: By the writer's clock.
        now: The present.
    """
    if store.capture is not None:
        store.capture.take_renamed(entry)
    scheduler = store.scheduler
    old, state, domain = entry.key, entry.state, entry.domain
    due, not_before = entry.due, entry.not_before
    parts = parse_journal_key(key)
    domain.entries -= 1
    watched = entry.expires and state != EntryState.LEASED
    if watched:
        store.expiry.remove(entry.expires, old)
    if state == EntryState.BURIED:
        scheduler.unbury(entry)
    elif state == EntryState.READY:
        # its domain keeps its turn, for it may be ready there again
        domain.ready.remove(entry)
    elif state == EntryState.DELAYED:
        scheduler.dequeue(entry)
    store.drop_key(old, entry)
    store.put_key(key, entry)
    store.locks.move(old, key)

    entry.key = key
    priority = 0 if parts is None else parts.priority
    entry.reorder(priority, moved_not_before(old, key, entry.not_before))
    entry.timestamp = timestamp
    entry.domain = scheduler.plain if parts is None else scheduler.domain_of(parts.domain)
    entry.domain.entries += 1
    if entry.journal or entry.extra.due:
        entry.own().due = due if entry.not_before == not_before else max(entry.not_before, now)

    if store.values is not None:
        store.values.rename(entry, old)
    if watched:
        store.watch_expiry(entry)
    if state == EntryState.LEASED:
        store.work += store.leases.rekey(entry, old, domain) // LEASES_A_UNIT
    elif state == EntryState.BURIED:
        scheduler.bury(entry, entry.reason or b"", RENAME)
    elif entry.journal or state != EntryState.PLAIN:
        store.wait_again(entry, now, RENAME)
    if state == EntryState.READY and not domain.ready:
        scheduler.round_robin.end_turns(domain)
    domain.entries += 1
    scheduler.leave(domain)
