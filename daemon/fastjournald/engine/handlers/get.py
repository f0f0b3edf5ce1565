"""GET: of one key here, probe, data, metadata, touch, lease; of many keys it becomes a scan.

A value that is needed and on disk only is ``Missing``: the request is asked again once it was read,
and told then which values could not be read, and why (``unreadable``).
"""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.cmdlog.format import workq
from fastjournal.limits import INSTANT_MAX, KEY_BYTES_MAX, WRITTEN_BYTES_A_UNIT
from fastjournal.protocol import ErrorCode, Pair, Reply, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import (
    BAD_KEY,
    DATA,
    LIMITED,
    LISTEN,
    LOCKED,
    META,
    READ_ONLY,
    SCARCE,
    TWO_KEYS,
    UPDATE_TIMEOUT,
    WORKED_ON,
)
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Cold, Entry
from fastjournald.tables.entry_states import EntryState
from fastjournald.tables.value_cache import Missing, Unreadable

PAIR_BYTES = 2 + 2 + 4 + 1
"""A pair's sizes and type at their widest."""
META_BYTES = 68
REPLY_BYTES = 64
"""A reply's fields before its pairs, but the cursor."""


def pair_of(store: Store, entry: Entry, key: bytes, flags: int, now: int) -> Pair:
    """Return the pair of an entry under one of its keys, with what the flags ask for."""
    if key != entry.key:
        second_key = entry.key
    else:
        second_key = entry.uri or b""
        if entry.superseded and store.find(second_key) is not entry:
            second_key = b""
    return Pair(
        key,
        entry.value_type,
        entry.warm_value() if flags & DATA else b"",
        second_key,
        entry.meta(locked=store.locks.is_locked(entry.key, now)) if flags & META else None,
    )


def is_missing(entry: Entry, flags: int, *, leases: bool) -> bool:
    """Whether a request needs the value of an entry, and it is on disk only."""
    return isinstance(entry.value, Cold) and (
        # the 256th attempt is of a new job, for workq
        bool(flags & DATA) or (leases and entry.extra.starts >= workq.ATTEMPTS_MAX)
    )


def pair_reply(store: Store, entry: Entry, key: bytes, flags: int, now: int) -> Reply:
    """Return the reply that is one pair."""
    has_two = entry.uri is not None or key != entry.key
    return Reply(flags=TWO_KEYS if has_two else 0, pairs=[pair_of(store, entry, key, flags, now)])


def get_key(
    context: Context, session: Hashable, request: Request, now: int, unreadable: Unreadable
) -> str | Reply | Missing:
    """Return the pair under a key; TIMEOUT leases it, or with UPDATE_TIMEOUT sets its expiry."""
    flags, key = request.flags, request.key
    if not key or len(key) > KEY_BYTES_MAX:
        return BAD_KEY
    store = context.store
    entry = store.find(key)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    writes = request.timeout is not None
    leases = writes and not flags & UPDATE_TIMEOUT
    if leases and entry.state == EntryState.BURIED:
        return f"{ErrorCode.NOT_FOUND} the entry is buried"
    if writes and store.locks.locked_to(entry.key, session, now):
        return LOCKED
    if (leases or flags & WORKED_ON) and entry.state == EntryState.LEASED:
        return ErrorCode.WORKED_ON.value
    if leases and entry.uri is not None and entry.uri in store.leases.by_uri:
        return f"{ErrorCode.WORKED_ON} its second key is worked on through another entry"
    if leases and (entry.domain.waits_until or entry.domain.is_full()):
        return LIMITED
    if flags & LISTEN:
        refused = context.subscriptions.refuses(session, request.identifier, request.key)
        if refused:
            return refused
    if writes and context.read_only:
        return READ_ONLY
    if flags & DATA and len(entry.value) > context.value_bytes_ration:
        return SCARCE
    if is_missing(entry, flags, leases=leases):
        why_not = unreadable.get(entry.job_id)
        return f"{ErrorCode.NOT_READABLE} {why_not}" if why_not else Missing([entry])
    store.access(entry, now)
    moved = move_expiry(context, entry, request, now)
    token = None
    if leases:
        lease_us = request.timeout or context.tokens.lease_us_of(entry.domain)
        token = context.tokens.issue([entry], now + lease_us)
        store.dequeue(entry)
        if entry.extra.starts >= workq.ATTEMPTS_MAX:
            store.work += entry.full_bytes() // WRITTEN_BYTES_A_UNIT
        context.journal.leased([entry], token, now, touched=[entry] if moved else ())
        context.jobs.lease([entry], token)
        store.rules.hand_out(entry.domain, now)
        if context.handouts is not None:
            context.handouts.note(session, token, [entry])
    elif moved:
        keep_expiry(context, entry, request, now)
    reply = pair_reply(store, entry, key, flags, now)
    if leases:
        reply.flags |= WORKED_ON
        reply.timeout = token
    if flags & LISTEN:
        context.subscriptions.begin(session, request.identifier, key)
    return reply


def move_expiry(context: Context, entry: Entry, request: Request, now: int) -> bool:
    """Set the expiry that the request asks for, or reading brings; whether it moves.

    The caller records it in the journal: together with the lease, if there is one.
    """
    expires = entry.expires
    if request.timeout is not None and request.flags & UPDATE_TIMEOUT:
        expires = request.timeout
    elif entry.extra.ttl and expires:
        expires = max(expires, min(now + entry.extra.ttl, INSTANT_MAX))
    if expires == entry.expires:
        return False
    context.store.set_expiry(entry, expires)
    return True


def keep_expiry(context: Context, entry: Entry, request: Request, now: int) -> None:
    """Let the log know of an expiry that moved; of one that reading moved, if there is room."""
    if request.timeout is not None or not context.read_only:
        context.journal.touched(entry, now)
