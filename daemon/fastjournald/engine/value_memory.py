"""Memory for values: eviction, cache fill from the log, and prefetch (read-ahead). Pure."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.limits import NOTIFICATIONS_AHEAD, NOTIFICATIONS_TURN_BYTES
from fastjournal.protocol import Function, Request
from fastjournald.engine.context import DATA, Context
from fastjournald.engine.store import Store
from fastjournald.tables.entry import Cold, Entry
from fastjournald.tables.value_cache import ALL_READABLE, Missing, Unreadable


def memory_bytes(store: Store) -> int:
    """Return what entries and tombstones take of memory, as estimated; 0 without a limit. O(1)."""
    return 0 if store.values is None else store.values.bytes + store.tombstones.bytes


def evict_values(store: Store, durable_at: int, number_max: int) -> bool:
    """Evict values while memory exceeds the limit. O(number).

    Args:
        store: Store of the entries.
        durable_at: Position in the log up to which it is durable.
        number_max: Most values per call.

    Returns:
        Whether there may be more to do.
    """
    values = store.values
    if values is None:
        return False
    return values.evict(durable_at, number_max, store.tombstones.bytes) == number_max


def fill_value(
    store: Store, entry: Entry, job_id: bytes, value: bytes, *, evict_first: bool = False
) -> None:
    """Fill the cache with a value read from disk, unless the entry has changed. O(1).

    Args:
        store: Store of the entries.
        entry: Entry of the value when the read began.
        job_id: Job id of the record that was read.
        value: The value in the record.
        evict_first: Insert it at the cold end of the LRU list: no client used it.
    """
    values = store.values
    if (
        values is None
        or not isinstance(entry.value, Cold)
        or entry.job_id != job_id
        or store.find(entry.key) is not entry
    ):
        return
    size = len(entry.value)
    kept = store.journal.records.trimmed.get(entry.job_id)
    if kept is not None:
        value = value[:kept].ljust(size, b"\0")
    assert len(value) == size
    values.warm_up(entry, value, evict_first=evict_first)


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
