"""LRU cache of values: eviction to the log, where they stand anyway, and cache fill. Pure.

All that is in memory for entries is estimated: a fixed size for each with its places in the
indexes, its keys, and its value. While that is more than the limit, the values least recently
accessed leave: what stays of one is its size, and position and size of the record that carries it.
Only what is durable may go, and what the log has: a value that is not persistent stays.

Small values stay too: to say where one is takes as much memory as the value. So do numbers and
booleans, which ADD and NOT change without writing all of the entry anew.

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
"""Memory of an entry with its places in the indexes, but for its keys and its value."""

VALUE_BYTES = 160
"""Memory of an evictable value besides its bytes: the object, and its place in the LRU order."""

TEXT_BYTES = 40
"""Memory of a reason or an error besides its bytes."""

COLD_BYTES = 64
"""Memory that stays of an evicted value."""

NUMBER_BYTES_MAX = 8
"""Longest value that ADD and NOT take for a number or a boolean."""

NUMBER_TYPES = (int(ValueType.INTEGER), int(ValueType.FLOAT), int(ValueType.BOOLEAN))

KEPT_SHARE = 1 / 16
"""Minimum resident set, as a share of the limit: the values accessed last stay in memory up to
it, also where keys and indexes take all of the limit. Else a value read for one request would be
evicted before the next one that needs it, and workers who want the same job would all read in
vain."""


class Missing(msgspec.Struct, gc=False):
    """Cache miss: the entries whose values are on disk only, and which the request needs first."""

    entries: list[Entry]


Unreadable: TypeAlias = Mapping[bytes, str]
"""Reads of values that failed just now: job id of the record, and why. For the request that had
them read, and no later one, for the disk may be well again by then."""

ALL_READABLE: Final[Unreadable] = {}
"""Nothing was read, or all of it could be."""


class Values:
    """LRU cache of values: memory of entries, and the order in which their values leave it.

    Args:
        bytes_max: More than so many, and values leave.
        cold_bytes_min: Smaller values stay.
    """

    def __init__(self, bytes_max: int, cold_bytes_min: int) -> None:
        self.bytes_max = bytes_max
        self.cold_bytes_min = cold_bytes_min
        self.kept_bytes = int(bytes_max * KEPT_SHARE)
        """Bytes of the values accessed last that are never evicted."""
        self.bytes = 0
        """Estimated memory of all entries."""
        self.warm_bytes = 0
        """Estimated memory of the values that can be evicted."""
        self.cold = 0
        """Number of values that are on disk only."""
        self.evicted = 0
        """Values that left memory so far."""
        self._recent: OrderedDict[bytes, Entry] = OrderedDict()
        """By primary key, the least recently accessed first: values that are in memory and may
        leave it."""

    @property
    def may_leave(self) -> bool:
        """Whether there are more values in memory than stay there always. O(1)."""
        return self.warm_bytes > self.kept_bytes

    # --- entries --------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """An entry is new, or takes the place of another under its key."""
        self.bytes += _entry_bytes(entry)
        self._take_in(entry)

    def discard(self, entry: Entry) -> None:
        """An entry is gone."""
        self.bytes -= _entry_bytes(entry)
        self._leave_out(entry)

    def rename(self, entry: Entry, old: bytes) -> None:
        """The primary key of an entry was ``old``."""
        self.bytes += len(entry.key) - len(old)
        if self._recent.get(old) is entry:
            del self._recent[old]
            self._recent[entry.key] = entry

    def link(self, key: bytes) -> None:
        """An entry has one more key."""
        self.bytes += _link_bytes(key)

    def retext(self, entry: Entry, before: int) -> None:
        """The reason or the error of an entry is another one; ``text_bytes`` was ``before``."""
        self.bytes += text_bytes(entry) - before

    # --- values ---------------------------------------------------------------------------------

    def touch(self, entry: Entry) -> None:
        """A value is accessed."""
        if entry.key in self._recent:
            self._recent.move_to_end(entry.key)

    def put(self, entry: Entry, value: bytes | Cold) -> None:
        """Let an entry have this value, just accessed."""
        self._leave_out(entry)
        entry.value = value
        self._take_in(entry)

    def warm_up(self, entry: Entry, value: bytes, *, first_to_leave: bool = False) -> None:
        """A value was read from the disk.

        Args:
            entry: Entry of the value; it may have changed meanwhile.
            value: As it stands in the record of the entry.
            first_to_leave: Nobody accessed it: it was needed for another reason.
        """
        self.put(entry, value)
        if first_to_leave and entry.key in self._recent:
            self._recent.move_to_end(entry.key, last=False)

    def evict(self, durable_at: int, number_max: int, besides: int) -> int:
        """Let values leave memory while there are too many bytes.

        Args:
            durable_at: The position in the log up to which it is durable.
            number_max: Most values in one go.
            besides: Bytes that something else takes.

        Returns:
            How many left.
        """
        recent = self._recent
        number = 0
        bytes_max = self.bytes_max - besides
        while self.bytes > bytes_max and self.may_leave and number < number_max:
            entry = next(iter(recent.values()))
            if entry.position >= durable_at:
                # it will be durable soon, and all that is behind it is younger, or was used since
                break
            self.put(entry, Cold(len(entry.value)))
            number += 1
        self.evicted += number
        return number

    def check(self, entries: list[Entry]) -> None:
        """Assert that the account is right. O(n), for tests."""
        fresh = Values(self.bytes_max, self.cold_bytes_min)
        for entry in entries:
            fresh.add(entry)
        assert (self.bytes, self.cold) == (fresh.bytes, fresh.cold)
        assert self.warm_bytes == fresh.warm_bytes
        assert dict(self._recent) == dict(fresh._recent)

    # --- inside ---------------------------------------------------------------------------------

    def _take_in(self, entry: Entry) -> None:
        value = entry.value
        if isinstance(value, Cold):
            self.cold += 1
            self.bytes += COLD_BYTES
            return
        size = len(value)
        self.bytes += size
        if size >= self.cold_bytes_min and _may_leave(entry, size):
            self.bytes += VALUE_BYTES
            self.warm_bytes += size
            self._recent[entry.key] = entry
            self._recent.move_to_end(entry.key)

    def _leave_out(self, entry: Entry) -> None:
        value = entry.value
        if isinstance(value, Cold):
            self.cold -= 1
            self.bytes -= COLD_BYTES
            return
        size = len(value)
        self.bytes -= size
        if size >= self.cold_bytes_min and _may_leave(entry, size):
            self.bytes -= VALUE_BYTES
            self.warm_bytes -= size
            if self._recent.get(entry.key) is entry:
                del self._recent[entry.key]


def _may_leave(entry: Entry, size: int) -> bool:
    """Whether the record of an entry tells its value: not one that ADD or NOT may have changed."""
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
    """Return what the reason and the last error of an entry take of memory, as estimated. O(1)."""
    extra = entry.extra
    if extra.error is None and extra.reason is None:
        return 0
    return sum(TEXT_BYTES + len(text) for text in (extra.error, extra.reason) if text is not None)


def _link_bytes(link: bytes) -> int:
    return len(link) + 120
