"""DELETE: by any key, or with a lease token as the completion of a job."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.limits import KEY_BYTES_MAX
from fastjournal.protocol import ErrorCode, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import (
    BAD_KEY,
    CLOCK_SKEW,
    LOCKED,
    OVERWRITE,
    PERSIST,
    token_of,
)
from fastjournald.tables.entry import Entry


def delete(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Delete by any key; with the lease token this is how a worker completes a job."""
    key = request.key
    if not key or len(key) > KEY_BYTES_MAX:
        return BAD_KEY
    token = token_of(request)
    if isinstance(token, str):
        return token
    store = context.store
    entry = store.find(key)
    timestamp = request.timestamp
    skewed = timestamp > now + context.settings.clock_skew_us_max
    if entry is None:
        if token is None and not skewed:
            _mark_deleted(context, request, now)
        return ErrorCode.NOT_FOUND.value
    if skewed and token is None:
        return CLOCK_SKEW
    if store.locked and store.locks.locked_to(entry.key, session, now):
        return LOCKED
    if token is not None:
        if entry.extra.token != token or token <= now:
            return ErrorCode.LEASE_LOST.value
        # A tombstone from a clock far ahead would refuse new work until that time has come.
        timestamp = max(now if skewed else timestamp, entry.timestamp)
    elif timestamp < entry.timestamp:
        return ErrorCode.STALE.value
    delete_entry(context, entry, timestamp, request.flags, now)
    return ""


def delete_entry(context: Context, entry: Entry, timestamp: int, flags: int, now: int) -> None:
    """Delete an entry with all its keys; without OVERWRITE it leaves a tombstone of that time."""
    context.store.remove(entry, now)
    if flags & OVERWRITE:
        context.journal.deleted(entry, now)
        return
    context.store.tombstones.put(entry.key, timestamp, now)
    if entry.run is not None:
        context.journal.completed(entry, timestamp, now)
    elif flags & PERSIST:
        context.journal.tombstone(entry.key, timestamp, now)


def _mark_deleted(context: Context, request: Request, now: int) -> None:
    """Nothing stands under the key: leave a tombstone, or with OVERWRITE remove one."""
    tombstones = context.store.tombstones
    if request.flags & OVERWRITE:
        if tombstones.discard(request.key):
            context.journal.tombstone_erased(request.key, now)
        return
    tombstones.put(request.key, request.timestamp, now)
    if request.flags & PERSIST:
        context.journal.tombstone(request.key, request.timestamp, now)
