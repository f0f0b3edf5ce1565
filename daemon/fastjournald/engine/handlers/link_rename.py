"""LINK and RENAME: one more key for an entry, and another primary key.

``rename_entry`` moves an entry to another primary key in all indexes. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.cmdlog.format.endings import is_stale
from fastjournal.keys import moved_not_before, parse_journal_key
from fastjournal.limits import LEASES_A_UNIT, LINK_BYTES_MAX, LINKS_PER_ENTRY_MAX
from fastjournal.protocol import ErrorCode, Request
from fastjournald.engine.context import (
    BAD_KEY,
    CLOCK_SKEW,
    LOCKED,
    OVERWRITE,
    PERSIST,
    READ_ONLY,
    Context,
    entry_to_change,
    is_key,
)
from fastjournald.engine.store import Store
from fastjournald.tables.entry import RENAME, Entry, EntryState
from fastjournald.tables.key_table import TOMBSTONE_RECORD_BYTES


def rename_entry(store: Store, entry: Entry, key: bytes, timestamp: int, now: int) -> None:
    """Move an entry to another primary key, and to the domain and queue of that key.

    An entry that had that key stays in its queue: the caller removes it afterwards, so that a
    domain that always has due entries keeps its turn. O(log n), and for a leased entry O(entries
    with its token).

    Args:
        store: Store of the entry.
        entry: The entry; only the fields in its key change.
        key: A primary key, or a free key.
        timestamp: By the writer's clock.
        now: Present instant.
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
        scheduler.drop_requeued(entry)
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


_NO_SECOND_KEY = f"{ErrorCode.BAD_REQUEST} a second key is needed"
_SAME_KEY = f"{ErrorCode.BAD_KEY} the second key equals the key"
_NOT_PRIMARY = f"{ErrorCode.BAD_KEY} only a primary key can be renamed, this is a further key"
_FURTHER_KEY = f"{ErrorCode.EXISTS} the second key is a further key of an entry"
_WORKED_ON = f"{ErrorCode.WORKED_ON} the second key is worked on through another entry"
_TOO_MANY_LINKS = (
    f"{ErrorCode.TOO_LARGE} an entry has at most {LINKS_PER_ENTRY_MAX} links "
    f"of {LINK_BYTES_MAX} bytes in all"
)


def link(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Add the second key as a further key of an entry."""
    key = request.second_key
    if not is_key(request.key):
        return BAD_KEY
    if key is None:
        return _NO_SECOND_KEY
    if not is_key(key):
        return BAD_KEY
    store = context.store
    entry = entry_to_change(context, session, request.key, now)
    if isinstance(entry, str):
        return entry
    if store.find(key) is not None:
        return ErrorCode.EXISTS.value
    running = store.leases.by_uri.get(key)
    if running is not None and running is not entry:
        return _WORKED_ON
    links = [] if entry.links is None else entry.links
    # a link that leads here again after it led elsewhere is no new one
    is_new = key != entry.uri and key not in links
    if is_new and (
        len(links) >= LINKS_PER_ENTRY_MAX or sum(map(len, links)) + len(key) > LINK_BYTES_MAX
    ):
        return _TOO_MANY_LINKS
    if context.read_only:
        return READ_ONLY
    store.before_change(entry)
    if is_new:
        entry.own().links = [*links, key]
        if store.values is not None:
            store.values.link(key)
    store.put_key(key, entry)
    context.journal.linked(entry, key, now)
    return ""


def rename(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Give an entry another primary key; OVERWRITE replaces an entry that has it."""
    old, key, timestamp = request.key, request.second_key, request.timestamp
    if not is_key(old):
        return BAD_KEY
    if key is None:
        return _NO_SECOND_KEY
    if not is_key(key):
        return BAD_KEY
    if key == old:
        return _SAME_KEY
    store = context.store
    entry = store.find(old)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    if entry.key != old:
        return _NOT_PRIMARY
    if timestamp > now + context.settings.clock_skew_us_max:
        return CLOCK_SKEW
    target = store.find(key)
    overwrite = request.flags & OVERWRITE
    if store.locks.locked_to(entry.key, session, now):
        return LOCKED
    if target is not None and store.locks.locked_to(target.key, session, now):
        return LOCKED
    deleted = store.tombstones.get(key, now)
    if is_stale(timestamp, entry.timestamp, None, deleted):
        return ErrorCode.STALE.value
    if target is not None:
        if overwrite and is_stale(timestamp, target.timestamp, None):
            return ErrorCode.STALE.value
        if not overwrite:
            return ErrorCode.EXISTS.value
        if target.key != key:
            return _FURTHER_KEY
        if target.state == EntryState.LEASED:
            return ErrorCode.WORKED_ON.value
    elif key == entry.uri or (entry.links and key in entry.links):
        # it led elsewhere, and leads nowhere now: a LINK can give it back
        return _FURTHER_KEY
    if context.read_only:
        return READ_ONLY
    rename_entry(store, entry, key, timestamp, now)
    entry.modified = now
    if target is not None:
        store.remove(target, now)
    store.tombstones.discard(key)
    persist = bool(request.flags & PERSIST)
    record_bytes = TOMBSTONE_RECORD_BYTES if persist or entry.persistent else 0
    store.tombstones.put(old, timestamp, now, record_bytes)
    context.journal.renamed(entry, old, target, now, tombstone=persist)
    return ""
