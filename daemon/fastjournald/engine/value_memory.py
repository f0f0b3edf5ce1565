"""Memory for values: eviction to the log, and cache fill from there. Pure."""

from __future__ import annotations

from fastjournald.engine.store import Store
from fastjournald.tables.entry import Cold, Entry


def memory_bytes(store: Store) -> int:
    """Return what entries and tombstones take of memory, as estimated; 0 without a limit. O(1)."""
    return 0 if store.values is None else store.values.bytes + store.tombstones.bytes


def evict_values(store: Store, durable_at: int, number_max: int) -> bool:
    """Let values leave memory while it holds more than the limit. O(number).

    Args:
        store: Store of the entries.
        durable_at: The position in the log up to which it is durable.
        number_max: Most values in one go.

    Returns:
        Whether there may be more to do.
    """
    values = store.values
    if values is None:
        return False
    return values.evict(durable_at, number_max, store.tombstones.bytes) == number_max


def fill_value(
    store: Store, entry: Entry, job_id: bytes, value: bytes, *, first_to_leave: bool = False
) -> None:
    """Put a value into memory that was on disk only, unless the entry has changed. O(1).

    Args:
        store: Store of the entries.
        entry: The one whose it was when the reading began.
        job_id: Job id of the record that was read.
        value: As it stands in the record.
        first_to_leave: Nobody accessed it: it was needed for another reason.
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
    values.warm_up(entry, value, first_to_leave=first_to_leave)
