"""Prefetch (read-ahead): evicted values that requests will need soon, read together. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.limits import NOTIFICATIONS_AHEAD, NOTIFICATIONS_TURN_BYTES
from fastjournal.protocol import Function, Request
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.arguments import DATA
from fastjournald.tables.entry import Cold, Entry
from fastjournald.tables.value_cache import ALL_READABLE, Missing, Unreadable


def missing_soon(context: Context, missing: Missing, ahead: list[Request]) -> Missing:
    """Return the missing values of a request, and of the GETs of a key that follow it.

    The GETs add at most as much as one reply may hold.
    """
    # one entry may have several keys
    entries = {entry.key: entry for entry in missing.entries}
    room = context.reply_bytes_max - sum(len(entry.value) for entry in missing.entries)
    for request in ahead:
        if request.function == Function.GET and request.flags & DATA and not request.query:
            entry = context.store.find(request.key)
            if entry is not None and isinstance(entry.value, Cold):
                room -= len(entry.value)
                if room < 0:
                    break
                entries[entry.key] = entry
    return Missing(list(entries.values()))


def missing_notifications(
    context: Context,
    session: Hashable,
    unreadable: Unreadable = ALL_READABLE,
    number_max: int = NOTIFICATIONS_AHEAD,
) -> Missing | None:
    """Return the values that the next notifications of a session need; None: none.

    Those in memory are left out, and those whose read has failed.
    """
    if context.store.values is None:
        return None
    entries: dict[bytes, Entry] = {}
    room = NOTIFICATIONS_TURN_BYTES
    for key in context.subscriptions.upcoming(session, number_max):
        entry = context.store.find(key)
        if (
            entry is not None
            and isinstance(entry.value, Cold)
            and entry.job_id not in unreadable
            and context.may_see(session, entry)
        ):
            entries[entry.key] = entry
            room -= len(entry.value)
            if room < 0:
                break
    return Missing(list(entries.values())) if entries else None
