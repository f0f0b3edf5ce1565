"""RELEASE and TOUCH: end of a lease, back-off of a failed attempt, lease renewal (heartbeat)."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.keys import parse_journal_key
from fastjournal.limits import (
    ENTRY_WORK,
    INSTANT_MAX,
    REASON_BYTES_MAX,
    WRITTEN_BYTES_A_UNIT,
)
from fastjournal.numeric import exponential_backoff
from fastjournal.protocol import ErrorCode, Reply, Request, ValueType
from fastjournald.engine.context import (
    HALF_TOKEN,
    READ_ONLY,
    Context,
    entry_to_change,
    token_of,
)
from fastjournald.tables.entry import Entry

_NO_STRING = f"{ErrorCode.BAD_VALUE} the error of a failed attempt is a string"
_TOO_LARGE = f"{ErrorCode.TOO_LARGE} an error has at most {REASON_BYTES_MAX} bytes"
_NO_TTL = f"{ErrorCode.BAD_REQUEST} TOUCH needs TTL"


def release(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Release a lease; TTL: a new delay. A value: the attempt failed with that error.

    COUNT with a value: the failed attempts, this one included, after which the entry is buried.
    """
    token = token_of(request)
    if token is None:
        return HALF_TOKEN
    if isinstance(token, str):
        return token
    error = None
    if request.value_type is not None:
        error = request.value
        if request.value_type != ValueType.STRING:
            return _NO_STRING
        if len(error) > REASON_BYTES_MAX:
            return _TOO_LARGE
    entry = entry_to_change(context, session, request.key, now, token)
    if isinstance(entry, str):
        return entry
    delay = request.ttl
    is_last = False
    if error is not None:
        is_last = context.jobs.is_last_attempt(entry, request.count or 0)
        if is_last:
            delay = None
        elif delay is None:
            settings = context.settings
            delay = exponential_backoff(
                settings.retry_delay_us, settings.retry_delay_us_max, entry.extra.attempts
            )
    parts = None if delay is None else parse_journal_key(entry.key)
    if delay is not None and parts is not None:
        # below its timestamp where max-postpone has brought it forward: that holds on
        earliest = min(parts.not_before_us, entry.not_before)
        context.store.before_change(entry)
        entry.not_before = max(earliest, min(now + delay, INSTANT_MAX))
    if error is None:
        context.jobs.release(entry, now, delayed=parts is not None)
    else:
        context.store.work += ENTRY_WORK + len(error) // WRITTEN_BYTES_A_UNIT
        context.jobs.fail(entry, error, now, delayed=parts is not None, is_last=is_last)
    return ""


def touch(context: Context, session: Hashable, request: Request, now: int) -> str | Reply:
    """Make a lease (with its token) or a life (without) last until now + ttl."""
    token = token_of(request)
    if isinstance(token, str):
        return token
    if request.ttl is None:
        return _NO_TTL
    entry = entry_to_change(context, session, request.key, now, token)
    if isinstance(entry, str):
        if entry == ErrorCode.LEASE_LOST and token is not None:
            return _repeated(context, session, request, token, now)
        return entry
    if token is None:
        if context.read_only:
            return READ_ONLY
        context.store.set_expiry(entry, min(now + request.ttl, INSTANT_MAX))
        context.journal.touched(entry, now)
        return ""
    return _renew(context, session, entry, token, now + request.ttl, now)


def _renew(
    context: Context, session: Hashable, entry: Entry, shown: int, deadline: int, now: int
) -> Reply:
    """Renew a lease until the deadline; ``shown``: the token that proves it."""
    token = context.tokens.issue([entry], deadline)
    context.jobs.extend(entry, token, session, now, shown=shown)
    context.journal.leases.extended(entry, now)
    return Reply(timeout=entry.token)


def _repeated(
    context: Context, session: Hashable, request: Request, token: int, now: int
) -> str | Reply:
    """TOUCH is idempotent: answer a retry with the token before, after a lost reply.

    The lease is renewed if it would end too early: success means that the lease lasts at least as
    long as requested. If the client closed this connection, and got the answer on another one, it
    has the current token: so a late copy of the request makes no new token.
    """
    entry = context.store.find(request.key)
    leases = context.store.leases
    if entry is None or entry.leased_until <= now or not leases.is_renewed_from(entry, token):
        return ErrorCode.LEASE_LOST.value
    assert request.ttl is not None, "checked before"
    deadline = now + request.ttl
    # the worker reads the end of its lease in the token: a token before a clock step would be wrong
    lasts = deadline <= entry.token == entry.leased_until
    if lasts or context.has_hung_up(session):
        return Reply(timeout=entry.token)
    return _renew(context, session, entry, token, deadline, now)
