"""Tombstones: deleted keys with the time of their deletion."""

from __future__ import annotations

from collections import OrderedDict

from fastjournal.limits import TOMBSTONE_BYTES, TOMBSTONES_BYTES_MAX

TOMBSTONES_DROPPED = 4
"""Tombstones whose time is over, dropped for each one that is laid: so they go faster than new ones
come."""


class Tombstones:
    """Tombstones by key, so that a late repeat of a SET is recognised; the oldest go first.

    Each holds the timestamp of the deletion and the instant at which it was noted; they are
    bounded in time, number and bytes.
    """

    __slots__ = ("_items", "bytes", "bytes_max", "number_max", "ttl_us")

    def __init__(self, ttl_us: int, number_max: int, bytes_max: int = TOMBSTONES_BYTES_MAX) -> None:
        self.ttl_us = ttl_us
        self.number_max = number_max
        self.bytes_max = bytes_max
        self.bytes = 0
        """Memory that they take."""
        self._items: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[tuple[bytes, int]]:
        """Return keys and timestamps, oldest first, and also those whose time is over. O(n)."""
        return [(key, timestamp) for key, (timestamp, _) in self._items.items()]

    def get(self, key: bytes, now: int) -> int | None:
        """Return the timestamp that stands under a key, None where none does any more. O(1)."""
        found = self._items.get(key)
        if found is None or found[1] + self.ttl_us <= now:
            return None
        return found[0]

    def find(self, key: bytes, now: int) -> tuple[int, int] | None:
        """Return timestamp and the instant at which it was noted; None as ``get``. O(1)."""
        found = self._items.get(key)
        return None if found is None or found[1] + self.ttl_us <= now else found

    def lasts_until(self, deleted_us: int, now: int) -> int:
        """Return until when about a tombstone stands that was noted at that instant. O(1)."""
        items = self._items
        if 2 * len(items) < self.number_max and 2 * self.bytes < self.bytes_max:
            return deleted_us + self.ttl_us
        # others will take its place: the oldest one has stood for as long as any will
        oldest = next(iter(items.values()))[1]
        return deleted_us + min(self.ttl_us, max(now - oldest, 0))

    def begin_anew(self, now: int) -> None:
        """Let those that were noted later than now, by a clock that was ahead, begin now. O(n)."""
        for key, (timestamp, noted) in self._items.items():
            if noted > now:
                self._items[key] = timestamp, now

    def put(self, key: bytes, timestamp: int, now: int) -> None:
        """Leave a tombstone; a later one that stands there already stays. O(1)."""
        items = self._items
        found = items.get(key)
        if found is not None:
            if found[1] + self.ttl_us > now:
                timestamp = max(timestamp, found[0])
            items.move_to_end(key)
        else:
            self.bytes += TOMBSTONE_BYTES + len(key)
        items[key] = (timestamp, now)
        # for the longest key some ten of short keys go
        while len(items) > self.number_max or self.bytes > self.bytes_max:
            self._drop_oldest()
        if items and next(iter(items.values()))[1] + self.ttl_us <= now:
            self._drop_expired(now)

    def _drop_expired(self, now: int) -> None:
        # not all at once: after a quiet hour a million are over
        items = self._items
        for _ in range(TOMBSTONES_DROPPED):
            if not items or next(iter(items.values()))[1] + self.ttl_us > now:
                break
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, _ = self._items.popitem(last=False)
        self.bytes -= TOMBSTONE_BYTES + len(key)

    def discard(self, key: bytes) -> bool:
        """Remove what stands under a key; whether something did. O(1)."""
        if self._items.pop(key, None) is None:
            return False
        self.bytes -= TOMBSTONE_BYTES + len(key)
        return True
