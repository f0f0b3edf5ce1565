"""Filling an empty store with many entries at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter, itemgetter

from fastjournald.entry import Entry, Place
from fastjournald.indexes import delay_key
from fastjournald.store import Store

_FACTS = attrgetter("facts")
_FIRST = itemgetter(0)


def load_store(
    store: Store, entries: Iterable[Entry], taken: Mapping[bytes, bytes], now: int
) -> None:
    """Take over what recovery found; each index is built once, in order. O(n log n).

    Args:
        store: Empty.
        entries: With ``place`` LEASED or BURIED where they are; all others are queued.
        taken: Further keys that a newer entry took from one that is worked on, to the primary key
            of that one.
        now: The present.
    """
    ready: dict[bytes, list[Entry]] = {}
    delayed: dict[bytes, list[tuple[bytes, Entry]]] = {}
    waiting: list[Entry] = []
    expiry: list[tuple[int, bytes]] = []
    shards = store.shards
    values = store.values
    for entry in entries:
        key = entry.key
        uri = entry.uri
        if entry.superseded or entry.links:
            for key in entry.all_keys():
                if not entry.superseded or taken.get(key) != entry.key:
                    shards[hash(key) & 255][key] = entry
        else:
            shards[hash(key) & 255][key] = entry
            if uri is not None:
                shards[hash(uri) & 255][uri] = entry
        if values is not None:
            values.add(entry)
        store.entries += 1
        entry.domain.entries += 1
        if entry.place == Place.LEASED:
            store.worked_on += 1
            store.plain_worked_on += not entry.journal
            store.lease_home(entry).leases.add(entry.token, entry)
            if uri is not None:
                store.running[uri] = entry
            continue
        if entry.expires:
            expiry.append((entry.expires, entry.key))
        if entry.place == Place.BURIED:
            store.set_aside(entry, entry.reason or b"")
        elif entry.journal:
            waiting.append(entry)
    for key, primary in taken.items():
        worked_on = store.find(primary)
        assert worked_on is not None
        store.running[key] = worked_on
    running = store.running
    for entry in waiting:
        not_before = entry.not_before
        other = running.get(entry.uri) if running and entry.uri is not None else None
        instant = not_before if other is None else max(not_before, other.token)
        if instant <= now:
            entry.place = Place.READY
            ready.setdefault(entry.domain.name, []).append(entry)
        else:
            entry.place = Place.DELAYED
            if instant != not_before:
                entry.own().waits_until = instant
            delayed.setdefault(entry.domain.name, []).append(
                (delay_key(instant, entry.arrival), entry)
            )
    for name, entries_ready in ready.items():
        entries_ready.sort(key=_FACTS)
        store.domains[name].ready.load(list(map(_FACTS, entries_ready)), entries_ready)
        if name not in store.pauses:
            store.turns.add(store.domains[name])
    for name, items in delayed.items():
        items.sort(key=_FIRST)
        store.domains[name].delayed.load([key for key, _ in items], [entry for _, entry in items])
        store.delayed += len(items)
    store.expiry.extend(expiry)
    for domain in store.domains.values():
        if domain.paused_until:
            store.pauses.take_in(domain)
        else:
            store.wakes.refresh(domain)
