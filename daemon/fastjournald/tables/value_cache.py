"""LRU cache of values: eviction of values that are in the log, and cache fill. Pure.

The memory of all entries is estimated: a fixed size per entry and its index items, its keys, and
its value. Above the limit, the least recently used values are evicted. An evicted value leaves its
size, and the position and size of its record. Only durable values are evicted; values of entries
that are not persistent stay in memory.

Small values stay too, because the position of one takes as much memory as the value. Numbers and
booleans stay, because ADD and NOT change them without a new record of the whole entry.

n is the number of values in memory; every operation is O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from fastjournal.protocol.constants import ValueType
from fastjournald.tables.entry import Cold, Entry

ENTRY_BYTES = 384
"""Memory of an entry and its index items, without its keys and its value."""

VALUE_BYTES = 160
"""Memory of an evictable value without its bytes: the object, and its item in the LRU list."""

TEXT_BYTES = 40
"""Memory of a reason or an error without its bytes."""

COLD_BYTES = 64
"""Memory of an evicted value."""

NUMBER_BYTES_MAX = 8
"""Longest value that ADD and NOT accept as a number or a boolean."""

NUMBER_TYPES = (int(ValueType.INTEGER), int(ValueType.FLOAT), int(ValueType.BOOLEAN))

KEPT_SHARE = 1 / 16
"""Minimum resident set, as a share of the limit: the most recently used values of this size are
never evicted, even if keys and indexes exceed the limit. Otherwise a value loaded for one request
is evicted before the request uses it, and workers that wait for the same job all load it again."""


class Missing(msgspec.Struct, gc=False):
    """Cache miss: entries whose values must be read from disk before the request runs."""

    entries: list[Entry]


Unreadable: TypeAlias = Mapping[bytes, str]
"""Failed reads: job id of the record, and the reason. Valid only for the request that caused the
reads: the disk may work again later."""

ALL_READABLE: Final[Unreadable] = {}
"""No read failed."""


class Values:
    """LRU cache of values: estimated memory of entries, and the order of eviction.

    Args:
        bytes_max: Values are evicted above this estimate.
        cold_bytes_min: Smaller values are never evicted.
    """

    def __init__(self, bytes_max: int, cold_bytes_min: int) -> None:
        self.bytes_max = bytes_max
        self.cold_bytes_min = cold_bytes_min
        self.kept_bytes = int(bytes_max * KEPT_SHARE)
        """Bytes of the most recently used values, which are never evicted."""
        self.bytes = 0
        """Estimated memory of all entries."""
        self.warm_bytes = 0
        """Bytes of the evictable values in memory."""
        self.cold = 0
        """Number of evicted values."""
        self.evicted = 0
        """Values evicted so far."""
        self._recent: OrderedDict[bytes, Entry] = OrderedDict()
        """Evictable values by primary key, the least recently used first."""

    @property
    def can_evict(self) -> bool:
        """Whether values exceed the minimum resident set. O(1)."""
        return self.warm_bytes > self.kept_bytes

    # --- entries --------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Add a new entry, or one that replaces another under its key."""
        self.bytes += _entry_bytes(entry)
        self._count_in(entry)

    def discard(self, entry: Entry) -> None:
        """Remove an entry."""
        self.bytes -= _entry_bytes(entry)
        self._count_out(entry)

    def rename(self, entry: Entry, old: bytes) -> None:
        """Move an entry from its former primary key ``old``."""
        self.bytes += len(entry.key) - len(old)
        if self._recent.get(old) is entry:
            del self._recent[old]
            self._recent[entry.key] = entry

    def link(self, key: bytes) -> None:
        """Count one more key of an entry."""
        self.bytes += _link_bytes(key)

    def retext(self, entry: Entry, before: int) -> None:
        """Count a new reason or error of an entry; ``text_bytes`` was ``before``."""
        self.bytes += text_bytes(entry) - before

    # --- values ---------------------------------------------------------------------------------

    def touch(self, entry: Entry) -> None:
        """Mark a value as most recently used."""
        if entry.key in self._recent:
            self._recent.move_to_end(entry.key)

    def put(self, entry: Entry, value: bytes | Cold) -> None:
        """Set the value of an entry, as most recently used."""
        self._count_out(entry)
        entry.value = value
        self._count_in(entry)

    def warm_up(self, entry: Entry, value: bytes, *, evict_first: bool = False) -> None:
        """Fill the cache with a value that was read from disk.

        Args:
            entry: Entry of the value; it may have changed since the read began.
            value: The value in the record of the entry.
            evict_first: Insert it at the cold end of the LRU list: no client used it.
        """
        self.put(entry, value)
        if evict_first and entry.key in self._recent:
            self._recent.move_to_end(entry.key, last=False)

    def evict(self, durable_at: int, number_max: int, besides: int) -> int:
        """Evict values while the estimate exceeds the limit.

        Args:
            durable_at: Position in the log up to which it is durable.
            number_max: Most values per call.
            besides: Bytes of memory in use for other purposes.

        Returns:
            Number of evicted values.
        """
        recent = self._recent
        number = 0
        bytes_max = self.bytes_max - besides
        while self.bytes > bytes_max and self.can_evict and number < number_max:
            entry = next(iter(recent.values()))
            if entry.position >= durable_at:
                # not durable yet; all values after it are newer or were used since
                break
            self.put(entry, Cold(len(entry.value)))
            number += 1
        self.evicted += number
        return number

    def check(self, entries: list[Entry]) -> None:
        """Assert that all counts are right. O(n), for tests."""
        fresh = Values(self.bytes_max, self.cold_bytes_min)
        for entry in entries:
            fresh.add(entry)
        assert (self.bytes, self.cold) == (fresh.bytes, fresh.cold)
        assert self.warm_bytes == fresh.warm_bytes
        assert dict(self._recent) == dict(fresh._recent)

    # --- counts of a value ----------------------------------------------------------------------

    def _count_in(self, entry: Entry) -> None:
        value = entry.value
        if isinstance(value, Cold):
            self.cold += 1
            self.bytes += COLD_BYTES
            return
        size = len(value)
        self.bytes += size
        if size >= self.cold_bytes_min and _is_evictable(entry, size):
            self.bytes += VALUE_BYTES
            self.warm_bytes += size
            self._recent[entry.key] = entry
            self._recent.move_to_end(entry.key)

    def _count_out(self, entry: Entry) -> None:
        value = entry.value
        if isinstance(value, Cold):
            self.cold -= 1
            self.bytes -= COLD_BYTES
            return
        size = len(value)
        self.bytes -= size
        if size >= self.cold_bytes_min and _is_evictable(entry, size):
            self.bytes -= VALUE_BYTES
            self.warm_bytes -= size
            if self._recent.get(entry.key) is entry:
                del self._recent[entry.key]


def _is_evictable(entry: Entry, size: int) -> bool:
    """Whether the log has the value, and ADD and NOT cannot have changed it."""
    return entry.record_bytes > 0 and (
        size > NUMBER_BYTES_MAX or entry.value_type not in NUMBER_TYPES
    )


def _entry_bytes(entry: Entry) -> int:
    size = ENTRY_BYTES + len(entry.key)
    if entry.uri is not None:
        size += len(entry.uri)
    if entry.links:
        size += sum(map(_link_bytes, entry.links))
    return size + text_bytes(entry)


def text_bytes(entry: Entry) -> int:
    """Return the estimated memory of the reason and the last error of an entry. O(1)."""
    extra = entry.extra
    if extra.error is None and extra.reason is None:
        return 0
    return sum(TEXT_BYTES + len(text) for text in (extra.error, extra.reason) if text is not None)


def _link_bytes(link: bytes) -> int:
    return len(link) + 120
