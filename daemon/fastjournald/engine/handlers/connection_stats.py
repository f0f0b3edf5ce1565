"""NOP, QUIT, AUTH, CANCEL and STATS: the connection and the daemon itself."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from fastjournal.cmdlog.format.segments import unpack_position
from fastjournal.limits import KEY_BYTES_MAX, OLDEST_DUE_LOOKS_MAX, TOKENS_A_UNIT
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
from fastjournald.engine.backlog_age import oldest_due, oldest_due_anywhere
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import BAD_KEY, DATA, NOT_A_DOMAIN, is_key
from fastjournald.engine.handlers.next import nothing_due
from fastjournald.engine.store import Store
from fastjournald.tables.entry import PLACE_NAMES, Entry

_NO_COUNT = f"{ErrorCode.BAD_REQUEST} CANCEL needs COUNT: the identifier of what is to end"
_NOT_A_DOMAIN = f"{NOT_A_DOMAIN}; add DATA to ask about an entry"


def nop(_context: Context, _session: Hashable, _request: Request, _now: int) -> str:
    """Do nothing, with success."""
    return ""


def auth(context: Context, session: Hashable, request: Request, now: int) -> str | bytes:
    """Let the session do what its token gives; where no token is asked for, any will do."""
    grants = context.grants
    if grants is None:
        return ""
    context.store.work += len(grants) // TOKENS_A_UNIT
    grant = grants.find(request.value)
    ended = b""
    if grant is None or grants.sessions.get(session) != grant:
        # it listens, waits and locks by the rights that it had
        context.subscriptions.forget(session)
        context.store.unlock_all(session, now)
        ended = _end_waits(context, session, AUTH_REQUIRED, now)
    if grant is not None:
        grants.sessions[session] = grant
        return ended + encode_success(request.identifier, now) if ended else ""
    grants.sessions.pop(session, None)
    context.auth_failures[session] = context.auth_failures.get(session, 0) + 1
    if ended:
        context.count_error(request.function, AUTH_FAILED)
        return ended + encode_error(request.identifier, now, AUTH_FAILED)
    return AUTH_FAILED


def _end_waits(context: Context, session: Hashable, error: str, now: int) -> bytes:
    """Return the replies to what a session waits for."""
    answers = [
        context.answer(waiter, Reply(error=error), now)[1]
        for waiter in context.waiters.of_session(session)
    ]
    context.stop_watching()
    return b"".join(answers)


def quit_(context: Context, session: Hashable, request: Request, now: int) -> bytes:
    """End what waits on this connection, then say goodbye."""
    answers = [
        context.answer(waiter, nothing_due(context, waiter.request), now)[1]
        for waiter in context.waiters.of_session(session)
    ]
    context.stop_watching()
    context.subscriptions.forget(session)
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
    context.stop_watching()
    if not context.subscriptions.end(session, identifier) and not answers:
        return ErrorCode.NOT_FOUND.value
    return b"".join(answers) + encode_success(request.identifier, now)


def stats(context: Context, _session: Hashable, request: Request, now: int) -> str | Reply:
    """Tell about the daemon, a domain, or with DATA an entry: one pair, a JSON object."""
    key = request.key
    facts: dict[str, object]
    if request.flags & DATA:
        if not is_key(key):
            return BAD_KEY
        entry = context.store.find(key)
        if entry is None:
            return ErrorCode.NOT_FOUND.value
        facts = _about_entry(context.store, entry, now)
    elif not key:
        facts = {**_about_daemon(context.store, now), **context.gauges(now)}
        facts["subscriptions"] = len(context.subscriptions)
    elif b":" in key or len(key) > KEY_BYTES_MAX:
        return _NOT_A_DOMAIN
    else:
        facts = _about_domain(context.store, key, now)
    data = msgspec.json.encode(facts)
    return Reply(pairs=[Pair(key, int(ValueType.STRING), data)])


def _about_daemon(store: Store, now: int) -> dict[str, object]:
    oldest = oldest_due_anywhere(store, OLDEST_DUE_LOOKS_MAX)
    return {
        "entries": store.entries,
        "waiting": store.due + store.delayed,
        "due": store.due,
        "delayed": store.delayed,
        "worked_on": store.worked_on,
        "buried": store.buried,
        "oldest_due_us": 0 if oldest is None else now - oldest,
        "domains": len(store.domains),
    }


def _about_domain(store: Store, name: bytes, now: int) -> dict[str, object]:
    domain = store.domains.get(name)
    if domain is None:
        counts = dict.fromkeys(("entries", "waiting", "due", "delayed", "worked_on", "buried"), 0)
        return {**counts, "oldest_due_us": 0, "paused_until": store.pauses.until(name)}
    oldest = oldest_due(domain, store)
    return {
        "entries": domain.entries,
        "waiting": len(domain.ready) + len(domain.delayed),
        "due": len(domain.ready),
        "delayed": len(domain.delayed),
        "worked_on": domain.worked_on,
        "buried": domain.buried,
        "oldest_due_us": 0 if oldest is None else now - oldest,
        "paused_until": domain.paused_until,
    }


def _about_entry(store: Store, entry: Entry, now: int) -> dict[str, object]:
    lock = store.locks.held(entry.key, now)
    segment, offset = unpack_position(entry.position)
    return {
        "keys": [key.decode("utf-8", "backslashreplace") for key in entry.all_keys()],
        "state": PLACE_NAMES[entry.place],
        "persistent": entry.persistent,
        "priority": entry.priority,
        "attempts": entry.extra.attempts,
        "buried_reason": None if entry.reason is None else entry.reason.decode("utf-8", "replace"),
        "superseded": bool(entry.superseded),
        "timestamp": entry.timestamp,
        "created": entry.created,
        "not_before": entry.not_before,
        "first_due": entry.extra.first_due,
        "expires": entry.expires,
        "worked_on_until": entry.token,
        "locked_until": 0 if lock is None else lock.until,
        "value_bytes": len(entry.value),
        "job_id": entry.job_id.hex(),
        "log_segment": segment,
        "log_offset": offset,
    }
