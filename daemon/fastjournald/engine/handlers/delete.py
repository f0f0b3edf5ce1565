"""DELETE: by any key, or with a lease token as the completion of a job.

The tombstone of a completion has the entry's own timestamp: a repeat of its SET is stale, a SET
that was issued while a worker had the entry is new work.
"""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal import _native
from fastjournal.cmdlog.format.endings import COMPLETED, DELETED
from fastjournal.cmdlog.format.packed_entry import timestamp_of
from fastjournal.protocol import ErrorCode, Function, Request
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
from fastjournald.tables.entry import Entry
from fastjournald.tables.key_table import COMPLETION_BYTES, TOMBSTONE_RECORD_BYTES
from fastjournald.tables.lease_holders import LeaseOperation

_DELETE = Function.DELETE.value
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
    skewed = token is None and timestamp > now + context.settings.clock_skew_us_max
    if entry is None:
        if token is None and not skewed:
            return _mark_deleted(context, request, now)
        return ErrorCode.NOT_FOUND.value
    if skewed:
        return CLOCK_SKEW
    if store.locked and store.locks.locked_to(entry.key, session, now):
        return LOCKED
    if token is not None:
        extra = entry.extra
        if extra.token != token or extra.leased_until <= now:
            return ErrorCode.LEASE_LOST.value
        # not the request's: it would refuse work that was asked for during this work
        (timestamp,) = timestamp_of(entry.facts)
        store.scheduler.job_counts.complete([entry], entry.extra.lease, now)
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


def complete(
    context: Context,
    requests: list[Request],
    start: int,
    stop: int,
    now: int,
    grant: Grant | None,
) -> int:
    """Carry out DELETEs of jobs whose leases go on, from the first on; return how many.

    It ends before a request that is no DELETE, does more or has to be refused: ``delete`` carries
    that out.
    """
    store = context.store
    if store.locked:
        return 0
    find, remove, leases = store.find, store.remove, store.leases
    scheduler = store.scheduler
    completed: list[tuple[Entry, int]] = []
    runs: list[tuple[LeaseOperation | None, int]] = []
    """Lease operations of consecutive jobs, and the index of the first one of each."""
    leaf = None
    if _native.leaves is not None and store.capture is None and not store.changes.wanted:
        leaf = _native.leaves.complete_leased
    tables = (
        *(store.keys, store.leased_uris, scheduler.plain, grant),
        *(None if store.values is None else store.values.discard, scheduler.leave),
        *(scheduler.round_robin.refresh, leases.leave_operation, completed, runs),
    )
    at = start
    while at < stop:
        if leaf is not None:
            reached = leaf(requests, at, stop, now, tables)
            store.entries -= reached - at
            leases.count -= reached - at
            at = reached
            if at == stop:
                break
        request = requests[at]
        token = request.timeout
        entry = find(request.key)
        if (
            request.function != _DELETE
            or entry is None
            or token is None
            or (extra := entry.extra).token != token
            or extra.leased_until <= now
            or request.flags & _TOKEN_OR_ALL_TRACE != WORKED_ON
            # the record of its tombstone would come between others
            or (entry.run is None and request.flags & PERSIST)
            or not (grant is None or grant.covers(entry))
        ):
            break
        (timestamp,) = timestamp_of(entry.facts)
        if not runs or runs[-1][0] is not extra.lease:
            # jobs of one NEXT ran for the same time
            runs.append((extra.lease, len(completed)))
        remove(entry, now)
        completed.append((entry, timestamp))
        at += 1
    if completed:
        tombstones = [
            (entry.key, timestamp, 0 if entry.run is None else COMPLETION_BYTES)
            for entry, timestamp in completed
        ]
        store.tombstones.put_all(tombstones, now)
        context.journal.completed_all(completed, now)
        entries = [entry for entry, _ in completed]
        job_counts, end = store.scheduler.job_counts, len(entries)
        for of_run, begin in reversed(runs):
            job_counts.complete(entries[begin:end], of_run, now)
            end = begin
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
