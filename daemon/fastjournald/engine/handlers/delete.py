"""DELETE: by any key, or with a lease token as the completion of a job."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from fastjournal.cmdlog.format.endings import COMPLETED, DELETED
from fastjournal.cmdlog.format.packed_entry import timestamp_of
from fastjournal.protocol import ErrorCode, Request
from fastjournald.engine.authorization import Grant
from fastjournald.engine.context import (
    CLOCK_SKEW,
    LOCKED,
    OVERWRITE,
    PERSIST,
    READ_ONLY,
    WORKED_ON,
    Context,
    token_of,
)
from fastjournald.tables.key_table import COMPLETION_BYTES, TOMBSTONE_RECORD_BYTES

_TOKEN_OR_ALL_TRACE = WORKED_ON | OVERWRITE


def delete(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Delete by any key; with the lease token this is how a worker completes a job."""
    key = request.key
    token = token_of(request)
    if isinstance(token, str):
        return token
    store = context.store
    entry = store.find(key)
    timestamp = request.timestamp
    skewed = timestamp > now + context.settings.clock_skew_us_max
    if entry is None:
        if token is None and not skewed:
            return _mark_deleted(context, request, now)
        return ErrorCode.NOT_FOUND.value
    if skewed and token is None:
        return CLOCK_SKEW
    if store.locked and store.locks.locked_to(entry.key, session, now):
        return LOCKED
    if token is not None:
        extra = entry.extra
        if extra.token != token or extra.leased_until <= now:
            return ErrorCode.LEASE_LOST.value
        # A tombstone from a clock far ahead would refuse new work until that time has come.
        timestamp = max(now if skewed else timestamp, timestamp_of(entry.facts)[0])
    elif timestamp < entry.timestamp:
        return ErrorCode.STALE.value
    store.remove(entry, now)
    how = DELETED if token is None else COMPLETED
    if request.flags & OVERWRITE:
        context.journal.deleted(entry, now, how)
        return ""
    persist = bool(request.flags & PERSIST)
    if token is not None and entry.run is not None:
        # as ``put_for`` of what is leased, without a call (tests.bench.bench_instructions)
        store.tombstones.put(entry.key, timestamp, now, COMPLETION_BYTES)
    else:
        store.tombstones.put_for(entry, timestamp, now, persist=persist)
    context.journal.completed(entry, timestamp, now, how, persist=persist)
    return ""


def complete(context: Context, requests: Iterable[Request], now: int, grant: Grant | None) -> int:
    """Carry out DELETEs of jobs whose leases go on, from the first on; return how many.

    It ends before one that does more, or that has to be refused: ``delete`` carries that out.
    """
    store = context.store
    if store.locked:
        return 0
    find, remove = store.find, store.remove
    latest = now + context.settings.clock_skew_us_max
    completed, tombstones = [], []
    for request in requests:
        token, timestamp = request.timeout, request.timestamp
        entry = find(request.key)
        if (
            entry is None
            or token is None
            or (extra := entry.extra).token != token
            or extra.leased_until <= now
            or request.flags & _TOKEN_OR_ALL_TRACE != WORKED_ON
            or timestamp > latest
            # the record of its tombstone would come between others
            or (entry.run is None and request.flags & PERSIST)
            or not (grant is None or grant.covers(entry))
        ):
            break
        (standing,) = timestamp_of(entry.facts)
        timestamp = max(timestamp, standing)
        remove(entry, now)
        completed.append((entry, timestamp))
        tombstones.append((entry.key, timestamp, 0 if entry.run is None else COMPLETION_BYTES))
    if completed:
        store.tombstones.put_all(tombstones, now)
        context.journal.completed_all(completed, now)
    return len(completed)


def _mark_deleted(context: Context, request: Request, now: int) -> str:
    """Leave a tombstone for a key without an entry, or with OVERWRITE remove one."""
    tombstones = context.store.tombstones
    if request.flags & OVERWRITE:
        if tombstones.discard(request.key):
            context.journal.log.tombstone_erased(request.key, now)
        return ErrorCode.NOT_FOUND.value
    if context.read_only and request.flags & PERSIST:
        # its record frees nothing, and a client may name any number of keys
        return READ_ONLY
    persist = request.flags & PERSIST
    record_bytes = TOMBSTONE_RECORD_BYTES if persist else 0
    tombstones.put(request.key, request.timestamp, now, record_bytes)
    if persist:
        context.journal.log.tombstone(request.key, request.timestamp, now)
    return ErrorCode.NOT_FOUND.value
