"""LINK and RENAME: one more key for an entry, and another primary key."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.cmdlog.format.endings import is_stale
from fastjournal.limits import LINK_BYTES_MAX, LINKS_PER_ENTRY_MAX
from fastjournal.protocol import ErrorCode, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import (
    BAD_KEY,
    CLOCK_SKEW,
    LOCKED,
    OVERWRITE,
    PERSIST,
    READ_ONLY,
    entry_to_change,
    is_key,
)
from fastjournald.engine.rename import rename_entry
from fastjournald.tables.entry_states import EntryState
from fastjournald.tables.tombstones import TOMBSTONE_RECORD_BYTES

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
    """Let an entry stand under the second key too."""
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
    """Give an entry another primary key; with OVERWRITE in the place of what stands there."""
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
