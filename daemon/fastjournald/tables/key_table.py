"""Key table: a hash table from every key to its entry or tombstone, and the ordered key index.

A dict that grows is rehashed at once, 25 ms at a million keys. So the table is sharded: a rehash of
one of 256 shards takes 0.1 ms. No other module knows of shards.

n is the number of keys; every operation is O(1) for a key unless it says otherwise.

A tombstone is a deleted key with the time of its deletion.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain

from fastjournal.limits import FRESH_KEYS_MAX, GONE_KEYS_MAX, TOMBSTONE_BYTES, TOMBSTONES_BYTES_MAX
from fastjournald.tables.entry import Entry
from fastjournald.tables.key_index import KeyIndex
from fastjournald.tables.signals import KEYS, Signals

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


PARTS = 256
"""Parts of the table, in which all entries can be walked over."""


class KeyTable:
    """Entries by each of their keys: the primary key, the URI and links.

    Args:
        signals: Told when many keys have to be merged into the index.
    """

    __slots__ = ("_shards", "_signals", "index")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._shards: list[dict[bytes, Entry]] = [{} for _ in range(PARTS)]
        """By the last eight bits of a key's hash."""
        self.index: KeyIndex | None = None
        """All keys in byte order; None: nothing has asked for that yet."""

    def get(self, key: bytes) -> Entry | None:
        """Return the entry under a key."""
        return self._shards[hash(key) & 255].get(key)

    def add(self, entry: Entry) -> None:
        """Let all keys of an entry lead to it."""
        self.put(entry.key, entry)
        if entry.uri is not None:
            self.put(entry.uri, entry)
        for link in entry.extra.links or ():
            self.put(link, entry)

    def add_new(self, entry: Entry, *, uri_stands: bool) -> None:
        """Let the keys of an entry without links lead to it, as ``add`` does, for bulk SETs.

        Args:
            entry: Which; its primary key does not stand so far.
            uri_stands: Its URI leads to another entry so far; else it does not stand, or is None.
        """
        shards, key, uri = self._shards, entry.key, entry.uri
        shards[hash(key) & 255][key] = entry
        if uri is not None:
            shards[hash(uri) & 255][uri] = entry
        index = self.index
        if index is not None:
            fresh = index.fresh
            fresh[key] = True
            if uri is not None and not uri_stands:
                fresh[uri] = True
            if len(fresh) > FRESH_KEYS_MAX:
                self._signals.bits |= KEYS

    def add_keys(self, keys: Sequence[bytes], entries: Sequence[Entry]) -> None:
        """Let each of some keys lead to the entry at its place (bulk insert)."""
        shards = self._shards
        for key, entry in zip(keys, entries, strict=True):
            shards[hash(key) & 255][key] = entry
        if self.index is not None:
            self.index.pending += keys

    def begin_load(self) -> None:
        """Begin a bulk load: its keys are sorted in runs for the index while they are in caches."""
        self.sorted_keys()

    def sort_loaded(self, keys_min: int) -> None:
        """Sort keys that were loaded for the index, if they are so many."""
        index = self.index
        if index is not None and index.unsorted >= keys_min:
            while index.unsorted:
                index.sort_pending(index.unsorted)

    def remove(self, entry: Entry) -> None:
        """Take those keys of an entry out that lead to it."""
        shards, key, uri, index = self._shards, entry.key, entry.uri, self.index
        # as ``pop``, without two calls for each DELETE (tests.bench.bench_instructions)
        shard = shards[hash(key) & 255]
        if shard.get(key) is entry:
            del shard[key]
            if index is not None:
                if key in index.fresh:
                    index.fresh[key] = False
                else:
                    index.gone.append(key)
        if uri is not None:
            shard = shards[hash(uri) & 255]
            if shard.get(uri) is entry:
                del shard[uri]
                if index is not None:
                    if uri in index.fresh:
                        index.fresh[uri] = False
                    else:
                        index.gone.append(uri)
        if entry.extra.links:
            for link in entry.extra.links:
                self.pop(link, entry)
        if index is not None and len(index.gone) > GONE_KEYS_MAX:
            self._signals.bits |= KEYS

    def put(self, key: bytes, entry: Entry) -> None:
        """Let one key lead to an entry."""
        shard, index = self._shards[hash(key) & 255], self.index
        if index is not None and key not in shard:
            index.fresh[key] = True
            if len(index.fresh) > FRESH_KEYS_MAX:
                self._signals.bits |= KEYS
        shard[key] = entry

    def pop(self, key: bytes, entry: Entry) -> None:
        """Take one key out, if it leads to this entry."""
        shard, index = self._shards[hash(key) & 255], self.index
        if shard.get(key) is entry:
            del shard[key]
            if index is not None:
                if key in index.fresh:
                    index.fresh[key] = False
                else:
                    index.gone.append(key)
                    if len(index.gone) > GONE_KEYS_MAX:
                        self._signals.bits |= KEYS

    def sorted_keys(self) -> KeyIndex:
        """Return the index of all keys in byte order, where all are pending if there was none."""
        if self.index is None:
            self.index = KeyIndex(self.standing)
            self.index.pending += chain.from_iterable(self._shards)
        return self.index

    def standing(self, keys: list[bytes]) -> list[bytes]:
        """Return those of some keys that lead to an entry."""
        shards = self._shards
        return [key for key in keys if key in shards[hash(key) & 255]]

    @staticmethod
    def part_of(key: bytes) -> int:
        """Return the number of the part in which a key is, from 0 to ``PARTS`` - 1."""
        return hash(key) & 255

    def part(self, number: int) -> tuple[list[bytes], list[Entry]]:
        """Return all keys of a part, and the entry under each."""
        shard = self._shards[number]
        return list(shard), list(shard.values())

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Yield all keys and their entries, in no particular order."""
        return chain.from_iterable(map(dict.items, filter(None, self._shards)))

    def __iter__(self) -> Iterator[Entry]:
        """Every entry once, in no particular order."""
        for key, entry in self.items():
            if key == entry.key:
                yield entry
