"""PURGE: delete the entries of a domain that are not leased, some at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain, islice

from fastjournal.limits import (
    ASIDE_WORK_MAX,
    ENTRY_WORK,
    PURGE_ENTRIES_MAX,
    PURGE_LOOKS_A_UNIT,
    PURGE_LOOKS_MAX,
    WRITTEN_BYTES_A_UNIT,
)
from fastjournal.protocol import Reply, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import NOT_A_DOMAIN, OVERWRITE, PERSIST, is_domain
from fastjournald.tables.entry import Entry


def purge(context: Context, session: Hashable, request: Request, now: int) -> str | Reply:
    """Delete the first entries in the order of work; the reply's ttl tells how many."""
    name = request.key
    if not is_domain(name):
        return NOT_A_DOMAIN
    store = context.store
    count = 1 if request.count is None else min(request.count, PURGE_ENTRIES_MAX)
    timestamp = request.timestamp
    if timestamp > now + context.settings.clock_skew_us_max:
        # its tombstones would refuse new work until that time has come
        timestamp = now
    # beside the entries: their links, and the bytes of their keys
    work_over = store.work + ENTRY_WORK * count + ASIDE_WORK_MAX
    leaves_tombstones = not request.flags & OVERWRITE
    persist = bool(request.flags & PERSIST)
    purged: list[tuple[Entry, int]] = []
    for entry in list(islice(_unlocked(context, session, name, now), count)):
        if store.work > work_over:
            break
        store.remove(entry, now)
        purged.append((entry, max(timestamp, entry.timestamp)))
        if leaves_tombstones:
            store.tombstones.put_for(entry, purged[-1][1], now, persist=persist)
        store.work += ENTRY_WORK + len(entry.key) // WRITTEN_BYTES_A_UNIT
    context.journal.purged(purged, now, tombstones=leaves_tombstones, persist=persist)
    return Reply(ttl=len(purged))


def _unlocked(context: Context, session: Hashable, name: bytes, now: int) -> Iterator[Entry]:
    """Yield the entries of a domain that are ready, delayed or buried, within the bounds.

    Those that another connection has locked are left out.
    """
    store = context.store
    domain = store.scheduler.domains.get(name)
    if domain is None:
        return
    standing = chain(domain.ready, domain.delayed, domain.buried_order)
    for looks, entry in enumerate(islice(standing, PURGE_LOOKS_MAX)):
        if looks % PURGE_LOOKS_A_UNIT == 0:
            store.work += 1
        if not store.locks.locked_to(entry.key, session, now):
            yield entry
