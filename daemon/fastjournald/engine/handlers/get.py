"""GET of one key, and PEEK.

GET of one key: probe, data, metadata, touch, lease. A GET of many keys becomes a scan. PEEK reads
the entries that NEXT would lease now, without a lease or any other change.
"""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.cmdlog.format import workq
from fastjournal.limits import ENTRY_WORK, KEY_BYTES_MAX, NEXT_ENTRIES_MAX, WRITTEN_BYTES_A_UNIT
from fastjournal.protocol import QUERY_MASK, ErrorCode, Reply, Request, encode_reply_to
from fastjournald.engine.context import (
    BAD_KEY,
    DATA,
    LIMITED,
    LISTEN,
    LOCKED,
    READ_ONLY,
    SCARCE,
    TWO_KEYS,
    UPDATE_TIMEOUT,
    WORKED_ON,
    Context,
)
from fastjournald.engine.handlers.next import (
    ANY_DOMAIN,
    ends_batch,
    is_any_domain,
    nothing_due,
    upcoming,
)
from fastjournald.engine.handlers.scan.page import plan_of
from fastjournald.engine.handlers.scan.scan import Scan
from fastjournald.engine.next_options import options_of
from fastjournald.engine.undelivered import DeliveringReply
from fastjournald.tables.entry import Entry, EntryState
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
    options = options_of(request)
    if isinstance(options, str):
        return options
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


def get(
    context: Context,
    session: Hashable,
    request: Request,
    now: int,
    unreadable: Unreadable = ALL_READABLE,
) -> str | Reply | DeliveringReply | Missing | Scan:
    """Return the pair under a key; for many keys a scan, which is carried out in steps."""
    listens = request.flags & LISTEN
    if context.store.changes.wanted and not listens:
        context.subscriptions.end(session, request.identifier)
    if not request.flags & QUERY_MASK:
        return _get_key(context, session, request, now, unreadable)
    plan = plan_of(context, request)
    if isinstance(plan, str):
        return plan
    scan = Scan(context, session, request, plan)
    if listens:
        refused = context.subscriptions.refuses(session, request.identifier, plan.keys)
        if refused:
            return refused
    if request.timeout is not None and context.read_only:
        return READ_ONLY
    if listens:
        # from the beginning: changes during the scan are notified after its reply
        context.subscriptions.begin(session, request.identifier, plan.keys)
    return scan


def _get_key(
    context: Context, session: Hashable, request: Request, now: int, unreadable: Unreadable
) -> str | Reply | DeliveringReply | Missing:
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
    if entry.is_missing(flags & DATA, leases=leases):
        why_not = unreadable.get(entry.job_id)
        return f"{ErrorCode.NOT_READABLE} {why_not}" if why_not else Missing([entry])
    store.access(entry, now)
    moved = store.move_expiry(entry, None if leases else request.timeout, now)
    token = 0
    if leases:
        lease_us = request.timeout or context.tokens.lease_us_of(entry.domain)
        token = context.tokens.issue([entry], now + lease_us)
        store.dequeue(entry)
        if entry.extra.starts >= workq.ATTEMPTS_MAX:
            store.work += entry.full_bytes() // WRITTEN_BYTES_A_UNIT
        store.rules.note_delivery(entry.domain, now)
        unproven = context.unproven([entry], leased=True)
        context.journal.leases.leased([entry], token, now, [entry] if moved else (), 0, unproven)
        store.begin_work([entry], token, session, now)
    elif moved and (writes or not context.read_only):
        context.journal.touched(entry, now, is_instant=writes)
    reply = store.pair_reply(entry, key, flags, now)
    if flags & LISTEN:
        context.subscriptions.begin(session, request.identifier, key)
    if not leases:
        return reply
    reply.flags |= WORKED_ON
    reply.timeout = token
    delivery = DeliveringReply(encode_reply_to(request.identifier, reply, now))
    delivery.jobs = token, [entry]
    return delivery
