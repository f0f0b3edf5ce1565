"""RELEASE and TOUCH: give a lease back, or make it longer."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.keys import parse_journal_key
from fastjournal.limits import INSTANT_MAX, KEY_BYTES_MAX
from fastjournal.protocol import ErrorCode, Reply, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import BAD_KEY, HALF_TOKEN, LOCKED, READ_ONLY, token_of

_NO_TTL = f"{ErrorCode.BAD_REQUEST} TOUCH needs TTL"


def release(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Give a leased entry back; TTL: it must not start before now + ttl."""
    if not request.key or len(request.key) > KEY_BYTES_MAX:
        return BAD_KEY
    token = token_of(request)
    if token is None:
        return HALF_TOKEN
    if isinstance(token, str):
        return token
    store = context.store
    entry = store.find(request.key)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    if store.locked_to(entry, session, now):
        return LOCKED
    if entry.token != token or token <= now:
        return ErrorCode.LEASE_LOST.value
    parts = None if request.ttl is None else parse_journal_key(entry.key)
    if request.ttl is not None and parts is not None:
        # below its timestamp where max-postpone has brought it forward: that holds on
        earliest = min(parts.timestamp, entry.not_before)
        entry.not_before = max(earliest, min(now + request.ttl, INSTANT_MAX))
        store.end_lease(entry, now, ran_out=False, delayed=True)
    else:
        store.end_lease(entry, now, ran_out=False)
    return ""


def touch(context: Context, session: Hashable, request: Request, now: int) -> str | Reply:
    """Make a lease (with its token) or a life (without) last until now + ttl."""
    if not request.key or len(request.key) > KEY_BYTES_MAX:
        return BAD_KEY
    token = token_of(request)
    if isinstance(token, str):
        return token
    if request.ttl is None:
        return _NO_TTL
    store = context.store
    entry = store.find(request.key)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    if store.locked_to(entry, session, now):
        return LOCKED
    if token is None:
        if context.read_only:
            return READ_ONLY
        store.set_expiry(entry, min(now + request.ttl, INSTANT_MAX))
        context.journal.touched(entry, now)
        return ""
    if entry.token != token or token <= now:
        return ErrorCode.LEASE_LOST.value
    store.extend(entry, context.tokens.issue([entry], now + request.ttl), now)
    context.journal.extended(entry, now)
    return Reply(timeout=entry.token)
