"""NOP, QUIT, AUTH and CANCEL: the connection itself, and what it waits for or listens to."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from fastjournal.limits import CLIENT_NAME_BYTES_MAX, TOKENS_A_UNIT
from fastjournal.protocol import (
    ErrorCode,
    Pair,
    Reply,
    Request,
    ValueType,
    encode_error,
    encode_success,
)
from fastjournald.engine.authorization import AUTH_FAILED, AUTH_REQUIRED
from fastjournald.engine.context import META, Context
from fastjournald.engine.handlers.next import nothing_due

_NO_COUNT = f"{ErrorCode.BAD_REQUEST} CANCEL needs COUNT: the identifier of what is to end"


def nop(context: Context, session: Hashable, request: Request, _now: int) -> str | Reply:
    """Do nothing, with success; with META return the limits, which need no rights."""
    _note_name(context, session, request)
    if not request.flags & META:
        return ""
    settings = context.settings
    limits = {
        "value_bytes_max": settings.value_bytes_max,
        "tombstone_ttl_us": settings.tombstone_ttl_us,
    }
    return Reply(pairs=[Pair(b"", int(ValueType.STRING), msgspec.json.encode(limits))])


def _note_name(context: Context, session: Hashable, request: Request) -> None:
    """Note the name that a client gives itself, which STATS shows beside its address."""
    if request.key:
        name = request.key[:CLIENT_NAME_BYTES_MAX].decode("utf-8", "replace")
        context.client_names[session] = name


def auth(context: Context, session: Hashable, request: Request, now: int) -> str | bytes:
    """Give the session the rights of its token; any token succeeds without authorization."""
    _note_name(context, session, request)
    grants = context.grants
    if grants is None:
        return ""
    context.store.work += len(grants) // TOKENS_A_UNIT
    grant = grants.find(request.value)
    ended = b""
    if grant is None or grants.sessions.get(session) != grant:
        # it listens, waits and locks by the rights that it had
        context.subscriptions.end_all(session)
        context.store.unlock_all(session, now)
        ended = _end_waits(context, session, AUTH_REQUIRED, now)
    if grant is not None:
        grants.sessions[session] = grant
        return ended + encode_success(request.identifier, now) if ended else ""
    grants.sessions.pop(session, None)
    context.auth_failures[session] = context.auth_failures.get(session, 0) + 1
    if ended:
        context.counters.count_error(request.function, AUTH_FAILED)
        return ended + encode_error(request.identifier, now, AUTH_FAILED)
    return AUTH_FAILED


def _end_waits(context: Context, session: Hashable, error: str, now: int) -> bytes:
    """Return the replies to what a session waits for."""
    answers = [
        context.answer(waiter, Reply(error=error), now)[1]
        for waiter in context.waiters.of_session(session)
    ]
    return b"".join(answers)


def quit_(context: Context, session: Hashable, request: Request, now: int) -> bytes:
    """End what waits on this connection, then say goodbye."""
    answers = [
        context.answer(waiter, nothing_due(context, waiter.request), now)[1]
        for waiter in context.waiters.of_session(session)
    ]
    context.subscriptions.end_all(session)
    return b"".join(answers) + encode_success(request.identifier, now)


def cancel(context: Context, session: Hashable, request: Request, now: int) -> str | bytes:
    """Cancel what has the identifier in count: end a subscription, answer NEXTs that wait."""
    identifier = request.count
    if identifier is None:
        return _NO_COUNT
    answers = [
        context.answer(waiter, nothing_due(context, waiter.request), now)[1]
        for waiter in context.waiters.of_session(session)
        if waiter.request.identifier == identifier
    ]
    if not context.subscriptions.end(session, identifier) and not answers:
        return ErrorCode.NOT_FOUND.value
    return b"".join(answers) + encode_success(request.identifier, now)
