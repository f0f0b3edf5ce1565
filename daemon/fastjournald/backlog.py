"""How old the oldest work is that is due and that nobody has taken. Pure.

An entry is due since the instant in its key or the end of its delay; one that names no instant (0)
since it was created.
"""

from __future__ import annotations

from itertools import chain, islice

from fastjournald.indexes import READY_KEY_AT, Domain
from fastjournald.store import Store


def oldest_due(store: Store, domain: Domain) -> int | None:
    """Return since when the oldest ready entry of a domain is due; None: nothing is ready.

    At most 512 binary searches.
    """
    return min((_due_since(store, item) for item in domain.oldest_due()), default=None)


def oldest_due_anywhere(store: Store, looks_max: int) -> int | None:
    """Return since when the oldest ready entry is due; None: nothing is ready.

    Args:
        store: Of which.
        looks_max: Of more domains, and priorities in them, only so many are looked at: those first
            whose turn is next.
    """
    domains = chain(store.turns, store.pauses.ready.values())
    items = chain.from_iterable(domain.oldest_due() for domain in domains)
    return min((_due_since(store, item) for item in islice(items, looks_max)), default=None)


def _due_since(store: Store, item: bytes) -> int:
    instant = int.from_bytes(item[1:9], "big")
    if not instant:
        entry = store.find(item[READY_KEY_AT:])
        assert entry is not None
        instant = entry.created
    return instant
