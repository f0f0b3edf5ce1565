"""Tombstones: deleted keys with the time of their deletion."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from fastjournal.limits import TOMBSTONE_BYTES, TOMBSTONES_BYTES_MAX
from fastjournald.tables.entry import Entry

COMPLETION_BYTES = 77
"""Bytes of the log record of a deletion with a tombstone, besides the key: a complete."""

TOMBSTONE_RECORD_BYTES = 105
"""Bytes of the log record that is only a tombstone, besides its key: two more where the default
lease is long."""

TOMBSTONES_DROPPED = 4
"""Tombstones whose time is over, dropped for each one that is laid: so they go faster than new ones
come."""


class Tombstones:
    """Tombstones by key, so that a late repeat of a SET is recognised; the oldest go first.

    Each holds the timestamp of the deletion, the instant at which it was noted, and the bytes of
    its log record besides the key; they are bounded in time, number and bytes.
    """

    __slots__ = ("_items", "bytes", "bytes_max", "number_max", "record_bytes", "ttl_us")

    def __init__(self, ttl_us: int, number_max: int, bytes_max: int = TOMBSTONES_BYTES_MAX) -> None:
        self.ttl_us = ttl_us
        self.number_max = number_max
        self.bytes_max = bytes_max
        self.bytes = 0
        """Memory that they take."""
        self.record_bytes = 0
        """Bytes of their log records: live ones. Those of entries in memory only have none."""
        self._items: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[tuple[bytes, int]]:
        """Return keys and timestamps, oldest first, and also those whose time is over. O(n)."""
        return [(key, timestamp) for key, (timestamp, *_) in self._items.items()]

    def get(self, key: bytes, now: int) -> int | None:
        """Return the timestamp that stands under a key, None where none does any more. O(1)."""
        found = self._items.get(key)
        if found is None or found[1] + self.ttl_us <= now:
            return None
        return found[0]

    def find(self, key: bytes, now: int) -> tuple[int, int] | None:
        """Return timestamp and the instant at which it was noted; None as ``get``. O(1)."""
        found = self._items.get(key)
        return None if found is None or found[1] + self.ttl_us <= now else found[:2]

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
        for key, (timestamp, noted, record_bytes) in self._items.items():
            if noted > now:
                self._items[key] = timestamp, now, record_bytes

    def put(self, key: bytes, timestamp: int, now: int, record_bytes: int = 0) -> None:
        """Leave a tombstone; a later one that stands there already stays. O(1).

        Args:
            key: Its key.
            timestamp: Timestamp of the deletion.
            now: The present.
            record_bytes: Bytes of its log record besides the key; 0: there is none.
        """
        self.put_all(((key, timestamp, record_bytes),), now)

    def put_all(self, laid: Sequence[tuple[bytes, int, int]], now: int) -> None:
        """Leave tombstones, as ``put`` does: key, timestamp and bytes of the record of each."""
        items, put_bytes, record_bytes_put = self._items, 0, 0
        for key, timestamp, record_bytes in laid:
            found = items.get(key)
            if found is None:
                put_bytes += TOMBSTONE_BYTES + len(key)
                items[key] = timestamp, now, record_bytes
            else:
                standing = found[0] if found[1] + self.ttl_us > now else 0
                items.move_to_end(key)
                self._count_record(key, -found[2])
                items[key] = max(timestamp, standing), now, record_bytes
            if record_bytes:
                record_bytes_put += record_bytes + len(key)
        self.bytes += put_bytes
        self.record_bytes += record_bytes_put
        # for the longest key some ten of short keys go
        while len(items) > self.number_max or self.bytes > self.bytes_max:
            self._drop_oldest()
        if items and next(iter(items.values()))[1] + self.ttl_us <= now:
            self.drop_expired(now, TOMBSTONES_DROPPED * len(laid))

    def put_for(self, entry: Entry, timestamp: int, now: int, *, persist: bool = False) -> None:
        """Leave the tombstone of an entry that is removed. O(1).

        Args:
            entry: Which.
            timestamp: Timestamp of the tombstone.
            now: The present.
            persist: Its tombstone is persistent, also if the entry is not.
        """
        if entry.run is None:
            record_bytes = TOMBSTONE_RECORD_BYTES if persist else 0
        else:
            # a dead letter has a record for its deletion, and one for the tombstone
            buried = entry.extra.reason is not None
            record_bytes = TOMBSTONE_RECORD_BYTES if buried else COMPLETION_BYTES
        self.put(entry.key, timestamp, now, record_bytes)

    def recorded_again(self, key: bytes) -> None:
        """Compaction has written the tombstone under a key anew, which stands there. O(1)."""
        timestamp, deleted_us, before = self._items[key]
        self._count_record(key, -before)
        self._count_record(key, TOMBSTONE_RECORD_BYTES)
        self._items[key] = timestamp, deleted_us, TOMBSTONE_RECORD_BYTES

    def drop_expired(self, now: int, number_max: int) -> None:
        """Drop the oldest ones whose time is over, at most so many. O(their number)."""
        # not all at once: after a quiet hour a million are over
        items = self._items
        for _ in range(number_max):
            if not items or next(iter(items.values()))[1] + self.ttl_us > now:
                break
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, (_, _, record_bytes) = self._items.popitem(last=False)
        self.bytes -= TOMBSTONE_BYTES + len(key)
        self._count_record(key, -record_bytes)

    def _count_record(self, key: bytes, record_bytes: int) -> None:
        if record_bytes:
            self.record_bytes += record_bytes + (len(key) if record_bytes > 0 else -len(key))

    def discard(self, key: bytes) -> bool:
        """Remove what stands under a key; whether something did. O(1)."""
        found = self._items.pop(key, None)
        if found is None:
            return False
        self.bytes -= TOMBSTONE_BYTES + len(key)
        self._count_record(key, -found[2])
        return True

    def check(self) -> None:
        """Assert that the bytes are right. O(n), for tests."""
        items = self._items.items()
        assert self.bytes == sum(TOMBSTONE_BYTES + len(key) for key, _ in items)
        assert self.record_bytes == sum(size + len(key) for key, (_, _, size) in items if size)
