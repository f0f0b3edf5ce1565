"""BURY and KICK: make entries dead letters, and make dead letters ready again."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice

from fastjournal.limits import (
    ENTRY_WORK,
    KEY_BYTES_MAX,
    KICK_BYTES_MAX,
    KICK_ENTRIES_MAX,
    KICK_LOOKS_A_UNIT,
    KICK_LOOKS_MAX,
    REASON_BYTES_MAX,
    WRITTEN_BYTES_A_UNIT,
)
from fastjournal.protocol import ErrorCode, Reply, Request
from fastjournald.engine.context import (
    BAD_KEY,
    NOT_A_DOMAIN,
    READ_ONLY,
    Context,
    entry_to_change,
    is_domain,
    token_of,
)
from fastjournald.tables.entry import Cold, Entry, EntryState
from fastjournald.tables.value_cache import ALL_READABLE, Missing, Unreadable

_REASON_TOO_LARGE = f"{ErrorCode.TOO_LARGE} a reason has at most {REASON_BYTES_MAX} bytes"
_NO_DOMAIN = f"{ErrorCode.BAD_REQUEST} KICK needs a key, or a domain as second key"


def bury(
    context: Context,
    session: Hashable,
    request: Request,
    now: int,
    unreadable: Unreadable = ALL_READABLE,
) -> str | Missing:
    """Set an entry aside with a reason; with a token only if it is that of its lease."""
    key = request.key
    token = token_of(request)
    if isinstance(token, str):
        return token
    if len(request.value) > REASON_BYTES_MAX:
        return _REASON_TOO_LARGE
    store = context.store
    entry = entry_to_change(context, session, key, now, token)
    if isinstance(entry, str):
        return entry
    if token is None and 0 < entry.leased_until <= now:
        # its end was not applied yet, and counts as an attempt
        context.jobs.run_out(entry, now)
        left = store.find(key)
        if left is None:
            return ErrorCode.NOT_FOUND.value
        entry = left
    is_again = entry.state == EntryState.BURIED and request.value != entry.reason
    if is_again and context.read_only:
        return READ_ONLY
    if is_again and isinstance(entry.value, Cold):
        # another reason takes another record of the whole entry
        why_not = unreadable.get(entry.job_id)
        return f"{ErrorCode.NOT_READABLE} {why_not}" if why_not else Missing([entry])
    if is_again:
        store.work += entry.full_bytes() // WRITTEN_BYTES_A_UNIT
    context.jobs.bury(entry, request.value, now)
    return ""


def kick(
    context: Context,
    session: Hashable,
    request: Request,
    now: int,
    unreadable: Unreadable = ALL_READABLE,
) -> str | Reply | Missing:
    """Make buried entries ready again: that of a key, or the first ones of a domain."""
    key = request.key
    if len(key) > KEY_BYTES_MAX:
        return BAD_KEY
    store = context.store
    if key:
        entry = entry_to_change(context, session, key, now)
        if isinstance(entry, str):
            return entry
        entries = [entry] if entry.state == EntryState.BURIED else []
    else:
        name = request.second_key
        if name is None:
            return _NO_DOMAIN
        if not is_domain(name):
            return NOT_A_DOMAIN
        count = 1 if request.count is None else request.count
        entries = _first_buried(context, session, name, count, now)
    if entries:
        if context.read_only:
            return READ_ONLY
        # a kicked entry is logged again as a whole
        cold = [entry for entry in entries if isinstance(entry.value, Cold)]
        missing = [entry for entry in cold if entry.job_id not in unreadable]
        if missing:
            return Missing(missing)
        if cold and key:
            return f"{ErrorCode.NOT_READABLE} {unreadable[cold[0].job_id]}"
        if cold:
            entries = [entry for entry in entries if entry.job_id not in unreadable]
        written = sum(entry.full_bytes() for entry in entries)
        store.work += ENTRY_WORK * len(entries) + written // WRITTEN_BYTES_A_UNIT
        context.jobs.kick(entries, now)
    return Reply(ttl=len(entries))


def _first_buried(
    context: Context, session: Hashable, name: bytes, count: int, now: int
) -> list[Entry]:
    """Return so many buried entries of a domain, in the order of work, within the bounds.

    Those that another connection has locked are left out.
    """
    store = context.store
    domain = store.scheduler.domains.get(name)
    entries: list[Entry] = []
    if domain is None:
        return entries
    count = min(count, KICK_ENTRIES_MAX)
    room = KICK_BYTES_MAX
    looks = 0
    for entry in islice(domain.buried_order, KICK_LOOKS_MAX):
        looks += 1
        if store.locks.locked_to(entry.key, session, now):
            continue
        room -= entry.full_bytes()
        if len(entries) >= count or (room < 0 and entries):
            break
        entries.append(entry)
    store.work += looks // KICK_LOOKS_A_UNIT
    return entries
