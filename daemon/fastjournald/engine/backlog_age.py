"""Backlog age: time since the oldest unleased entry became due. Pure.

An entry is due since the instant in its key or the end of its delay; one that names no instant (0)
since it was created.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.limits import DUE_LOOK_WORK
from fastjournald.engine.store import Store
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry


def oldest_due(domain: Domain, store: Store | None = None) -> int | None:
    """Return since when the oldest ready entry of a domain is due; None: nothing is ready.

    At most 512 binary searches, which are work of the ``store`` where one is given.
    """
    entries = list(_oldest(domain))
    if store is not None:
        store.work += DUE_LOOK_WORK * len(entries)
    return min(map(_due_since, entries), default=None)


def oldest_due_anywhere(store: Store, looks_max: int) -> int | None:
    """Return since when the oldest ready entry is due; None: nothing is ready.

    Args:
        store: Store of the entries.
        looks_max: Most domains, and priorities in them, that are looked at: those first
            whose turn is next.
    """
    round_robin = store.scheduler.round_robin
    domains = chain(round_robin.turns.values(), round_robin.held.ready.values())
    entries = list(islice(chain.from_iterable(map(_oldest, domains)), looks_max))
    store.work += DUE_LOOK_WORK * len(entries)
    return min(map(_due_since, entries), default=None)


def _oldest(domain: Domain) -> Iterator[Entry]:
    """Yield the entries among which the oldest due one is: some of each priority.

    They are the first that names no instant (0), and the earliest that names one: at most
    512 binary searches, and none where all have one priority and name instants, or none does.
    """
    ready = domain.ready
    if not ready:
        return
    entry, last = ready.first(), ready.last()
    while entry is not None:
        yield entry
        priority = entry.priority
        if priority == last.priority and not (entry.not_before or last.not_before):
            return
        if not entry.not_before:
            entry = ready.first_from(pack_facts(priority, 1, 0, 0, 0, 0))
        elif priority < last.priority:
            entry = ready.first_from(pack_facts(priority + 1, 0, 0, 0, 0, 0))
        else:
            return


def _due_since(entry: Entry) -> int:
    return entry.not_before or entry.created
