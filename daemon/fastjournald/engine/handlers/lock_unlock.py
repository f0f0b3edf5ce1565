"""LOCK and UNLOCK: keep the writes of others from an entry for a while."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.limits import INSTANT_MAX, LOCK_US_DEFAULT, LOCKS_MAX, LOCKS_PER_CONNECTION_MAX
from fastjournal.protocol import ErrorCode, Request
from fastjournald.engine.context import BAD_KEY, LOCKED, UPDATE_TIMEOUT, Context, is_key
from fastjournald.tables.entry import Entry
from fastjournald.tables.locks import Lock

_TOO_MANY = f"{ErrorCode.BUSY} this connection has locked {LOCKS_PER_CONNECTION_MAX} entries"
_TOO_MANY_IN_ALL = f"{ErrorCode.BUSY} all connections have locked {LOCKS_MAX} entries"
_NOT_LOCKED = f"{ErrorCode.NOT_FOUND} the entry is not locked"
_NOT_HELD = f"{ErrorCode.NOT_OWNER} this connection holds the lock no more"
_NOT_OWNER = f"{ErrorCode.NOT_OWNER} another connection has locked the entry"


def _entry_and_lock(context: Context, key: bytes, now: int) -> tuple[Entry, Lock | None] | str:
    """Return the entry under a key, and the lock that it has now; or the error."""
    if not is_key(key):
        return BAD_KEY
    entry = context.store.find(key)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    return entry, context.store.locks.held(entry.key, now)


def lock(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Lock an entry for this connection, or make its lock end at another instant.

    UPDATE_TIMEOUT: only that (renewal), so that a lock that others may have had is lost.
    """
    found = _entry_and_lock(context, request.key, now)
    if isinstance(found, str):
        return found
    store, (entry, held) = context.store, found
    if request.flags & UPDATE_TIMEOUT and (held is None or held.owner != session):
        return _NOT_HELD
    if held is not None and held.owner != session:
        return LOCKED
    length = LOCK_US_DEFAULT if request.timeout is None else request.timeout
    if length:
        if held is None and store.locks.count_of(session) >= LOCKS_PER_CONNECTION_MAX:
            return _TOO_MANY
        if held is None and len(store.locks) >= LOCKS_MAX:
            return _TOO_MANY_IN_ALL
        store.lock(entry, session, min(now + length, INSTANT_MAX), now)
    elif held is not None:
        context.store.unlock(entry, now)
    return ""


def unlock(context: Context, session: Hashable, request: Request, now: int) -> str:
    """End the lock that this connection has on an entry."""
    found = _entry_and_lock(context, request.key, now)
    if isinstance(found, str):
        return found
    entry, held = found
    if held is None:
        return _NOT_LOCKED
    if held.owner != session:
        return _NOT_OWNER
    context.store.unlock(entry, now)
    return ""
