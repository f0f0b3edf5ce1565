"""Reply pairs: keys, value and metadata of an entry in a reply, and the expiry that reading moves.

A value that is needed and on disk only is ``Missing``: the request is asked again once it was read,
and told then which values could not be read, and why (``unreadable``).
"""

from __future__ import annotations

from fastjournal.cmdlog.format import workq
from fastjournal.cmdlog.format.packed_entry import VALUE_TYPE_AT
from fastjournal.limits import INSTANT_MAX
from fastjournal.protocol import Pair, Reply, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import DATA, META, TWO_KEYS, UPDATE_TIMEOUT
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Cold, Entry

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
        entry.facts[VALUE_TYPE_AT],
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
