"""PEEK: read the entries that NEXT would lease now, without a lease or any other change."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.limits import ENTRY_WORK, NEXT_ENTRIES_MAX
from fastjournal.protocol import ErrorCode, Reply, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import DATA, SCARCE, TWO_KEYS
from fastjournald.engine.handlers.next import (
    ANY_DOMAIN,
    ends_batch,
    is_any_domain,
    nothing_due,
    upcoming,
)
from fastjournald.tables.entry import Entry
from fastjournald.tables.value_cache import ALL_READABLE, Missing, Unreadable


def peek(
    context: Context,
    _session: Hashable,
    request: Request,
    now: int,
    unreadable: Unreadable = ALL_READABLE,
) -> str | Reply | Missing:
    """Return the pairs that NEXT would; where it would give none, say when it will."""
    if not is_any_domain(request.key):
        return ANY_DOMAIN
    store, flags = context.store, request.flags
    count = 1 if request.count is None else min(request.count, NEXT_ENTRIES_MAX)
    entries: list[Entry] = []
    for entry in upcoming(context, request, count):
        if entries and ends_batch(context, request, entries[0].domain, entry.domain):
            break
        entries.append(entry)
    store.work += ENTRY_WORK * len(entries)
    if not entries:
        return nothing_due(context, request)
    if flags & DATA and len(entries[0].value) > context.value_bytes_ration:
        return SCARCE
    missing = [entry for entry in entries if entry.is_missing(flags & DATA, leases=False)]
    for entry in missing:
        why_not = unreadable.get(entry.job_id)
        if why_not:
            return f"{ErrorCode.NOT_READABLE} {why_not}"
    if missing:
        return Missing(missing)
    return Reply(flags=TWO_KEYS, pairs=store.pairs(entries, flags, now))
