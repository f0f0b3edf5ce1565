"""Key table: hash table from every key to its entry or tombstone; ordered index of all keys.

A growing dict is rehashed in one step, 25 ms at a million keys. So the table is sharded: a rehash
of one of 256 shards takes 0.1 ms. No other module depends on the shards.

A tombstone is a deleted key with the time of its deletion. Tombstones are bounded in time, number
and bytes. ``TakenUris`` knows of the latest ones which job of another domain has the URI now.

n is the number of keys; every operation is O(1) for a key unless it says otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from fastjournal import _native
from fastjournal.limits import (
    FRESH_KEYS_MAX,
    GONE_KEYS_MAX,
    TAKEN_URI_BYTES,
    TAKEN_URIS_BYTES_MAX,
    TOMBSTONE_BYTES,
    TOMBSTONES_BYTES_MAX,
)
from fastjournald.tables.entry import Entry
from fastjournald.tables.key_index import KeyIndex
from fastjournald.tables.signals import KEYS, Signals

COMPLETION_BYTES = 77
"""Bytes of the log record of a deletion with a tombstone (complete), without the key."""

TOMBSTONE_RECORD_BYTES = 105
"""Bytes of a log record with only a tombstone, without its key: two more if the default lease is
long."""

TOMBSTONES_DROPPED = 4
"""Expired tombstones dropped for each new one: so they are dropped faster than new ones are
added."""


class Tombstones:
    """Tombstones by key, to detect a late repeat of a SET; the oldest are dropped first.

    Each has the timestamp of the deletion, the instant at which it was added, and the bytes of its
    log record without the key.
    """

    __slots__ = ("_items", "bytes", "bytes_max", "number_max", "record_bytes", "ttl_us")

    def __init__(self, ttl_us: int, number_max: int, bytes_max: int = TOMBSTONES_BYTES_MAX) -> None:
        self.ttl_us = ttl_us
        self.number_max = number_max
        self.bytes_max = bytes_max
        self.bytes = 0
        """Memory of the tombstones."""
        self.record_bytes = 0
        """Live bytes of their log records; tombstones only in memory have none."""
        self._items: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[tuple[bytes, int]]:
        """Return keys and timestamps, oldest first, with expired ones. O(n)."""
        return [(key, timestamp) for key, (timestamp, *_) in self._items.items()]

    def get(self, key: bytes, now: int) -> int | None:
        """Return the timestamp of the tombstone of a key; None: none, or expired. O(1)."""
        found = self._items.get(key)
        if found is None or found[1] + self.ttl_us <= now:
            return None
        return found[0]

    def find(self, key: bytes, now: int) -> tuple[int, int] | None:
        """Return the timestamp and the instant at which it was added; None as ``get``. O(1)."""
        found = self._items.get(key)
        return None if found is None or found[1] + self.ttl_us <= now else found[:2]

    def lasts_until(self, deleted_us: int, now: int) -> int:
        """Return the approximate end of a tombstone that was added at that instant. O(1)."""
        items = self._items
        if 2 * len(items) < self.number_max and 2 * self.bytes < self.bytes_max:
            return deleted_us + self.ttl_us
        # newer ones replace it: no tombstone lasts longer than the oldest one has lasted
        oldest = next(iter(items.values()))[1]
        return deleted_us + min(self.ttl_us, max(now - oldest, 0))

    def begin_anew(self, now: int) -> None:
        """Set the begin of tombstones from the future (the clock was ahead) to now. O(n)."""
        for key, (timestamp, noted, record_bytes) in self._items.items():
            if noted > now:
                self._items[key] = timestamp, now, record_bytes

    def put(self, key: bytes, timestamp: int, now: int, record_bytes: int = 0) -> None:
        """Add a tombstone; a later one of the key is kept instead. O(1).

        Args:
            key: Its key.
            timestamp: Timestamp of the deletion.
            now: Present instant.
            record_bytes: Bytes of its log record without the key; 0: there is none.
        """
        self.put_all(((key, timestamp, record_bytes),), now)

    def put_all(self, laid: Sequence[tuple[bytes, int, int]], now: int) -> None:
        """Add tombstones, as ``put`` does: key, timestamp and bytes of the record of each."""
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
        # the longest key replaces some ten short ones
        while len(items) > self.number_max or self.bytes > self.bytes_max:
            self._drop_oldest()
        if items and next(iter(items.values()))[1] + self.ttl_us <= now:
            self.drop_expired(now, TOMBSTONES_DROPPED * len(laid))

    def put_for(self, entry: Entry, timestamp: int, now: int, *, persist: bool = False) -> None:
        """Add the tombstone of a removed entry. O(1).

        Args:
            entry: The entry.
            timestamp: Timestamp of the tombstone.
            now: Present instant.
            persist: The tombstone is persistent, even if the entry is not.
        """
        if entry.run is None:
            record_bytes = TOMBSTONE_RECORD_BYTES if persist else 0
        else:
            # a dead letter has one record of its deletion and one of the tombstone
            buried = entry.extra.reason is not None
            record_bytes = TOMBSTONE_RECORD_BYTES if buried else COMPLETION_BYTES
        self.put(entry.key, timestamp, now, record_bytes)

    def recorded_again(self, key: bytes) -> None:
        """Note that compaction wrote the tombstone of a key again. O(1)."""
        timestamp, deleted_us, before = self._items[key]
        self._count_record(key, -before)
        self._count_record(key, TOMBSTONE_RECORD_BYTES)
        self._items[key] = timestamp, deleted_us, TOMBSTONE_RECORD_BYTES

    def drop_expired(self, now: int, number_max: int) -> None:
        """Drop the oldest expired ones, at most ``number_max``. O(their number)."""
        # not all at once: after a quiet hour a million are expired
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
        """Remove the tombstone of a key; return whether there was one. O(1)."""
        found = self._items.pop(key, None)
        if found is None:
            return False
        self.bytes -= TOMBSTONE_BYTES + len(key)
        self._count_record(key, -found[2])
        return True

    def check(self) -> None:
        """Assert that the byte counts are right. O(n), for tests."""
        items = self._items.items()
        assert self.bytes == sum(TOMBSTONE_BYTES + len(key) for key, _ in items)
        assert self.record_bytes == sum(size + len(key) for key, (_, _, size) in items if size)


PARTS = 256
"""Parts of the table for a walk over all entries."""


class TakenUri(NamedTuple):
    """URI of a waiting job that a job of another domain took."""

    uri: bytes
    key: bytes
    """Key of the job that took it."""
    taken_us: int


class TakenUris:
    """The latest jobs that gave way, by their URI, to a job of another domain; in memory only.

    They explain where a job is, and are bounded in bytes; the oldest are dropped first.
    """

    __slots__ = ("_by_key", "_last", "bytes")

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, TakenUri] = OrderedDict()
        self._last: dict[bytes, bytes] = {}
        """URI to the key of the job that lost it last."""
        self.bytes = 0

    def add(self, key: bytes, uri: bytes, by: bytes, now: int) -> None:
        """Note that a job lost its URI to another one. O(1)."""
        if key in self._by_key:
            self._discard(key)
        self._by_key[key] = TakenUri(uri, by, now)
        self._last[uri] = key
        self.bytes += TAKEN_URI_BYTES + len(key) + len(uri) + len(by)
        while self.bytes > TAKEN_URIS_BYTES_MAX:
            self._discard(next(iter(self._by_key)))

    def _discard(self, key: bytes) -> None:
        uri, by, _ = self._by_key.pop(key)
        self.bytes -= TAKEN_URI_BYTES + len(key) + len(uri) + len(by)
        if self._last.get(uri) == key:
            del self._last[uri]

    def of(self, key: bytes) -> TakenUri | None:
        """Return which job took the URI of the job that had this key. O(1)."""
        return self._by_key.get(key)

    def last_of(self, uri: bytes) -> tuple[bytes, TakenUri] | None:
        """Return the key of the job that lost a URI last, and which one took it. O(1)."""
        key = self._last.get(uri)
        return None if key is None else (key, self._by_key[key])


class KeyTable:
    """Entries by each of their keys: the primary key, the URI and links.

    Args:
        signals: Set when many keys have to be merged into the index.
    """

    __slots__ = ("_shards", "_signals", "index")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._shards: list[dict[bytes, Entry]] = [{} for _ in range(PARTS)]
        """By the last eight bits of the key's hash."""
        self.index: KeyIndex | None = None
        """All keys in byte order; None: not needed so far."""

    def get(self, key: bytes) -> Entry | None:
        """Return the entry under a key."""
        return self._shards[hash(key) & 255].get(key)

    def add(self, entry: Entry) -> None:
        """Add all keys of an entry."""
        self.put(entry.key, entry)
        if entry.uri is not None:
            self.put(entry.uri, entry)
        for link in entry.extra.links or ():
            self.put(link, entry)

    def add_new(self, entry: Entry, *, uri_stands: bool) -> None:
        """Add the keys of an entry without links, as ``add`` does, for bulk SETs.

        Args:
            entry: The entry; its primary key is not in the table.
            uri_stands: Its URI is in the table, for another entry; else it is not, or is None.
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

    def add_keys(self, keys: list[bytes], entries: list[Entry]) -> None:
        """Add keys and their entries, in parallel lists (bulk insert)."""
        shards = self._shards
        if _native.leaves is not None:
            _native.leaves.put_keys(shards, keys, entries)
        else:
            for key, entry in zip(keys, entries, strict=True):
                shards[hash(key) & 255][key] = entry
        if self.index is not None:
            self.index.pending += keys

    def begin_load(self) -> None:
        """Begin a bulk load: keys are sorted in runs for the index while they are in CPU caches."""
        self.sorted_keys()

    def sort_loaded(self, keys_min: int) -> None:
        """Sort the loaded keys for the index, if there are at least ``keys_min``."""
        index = self.index
        if index is not None and index.unsorted >= keys_min:
            while index.unsorted:
                index.sort_pending(index.unsorted)

    def remove(self, entry: Entry) -> None:
        """Remove the keys of an entry; keys that other entries took stay."""
        shards, key, uri, index = self._shards, entry.key, entry.uri, self.index
        # same as ``pop``, without two calls for each DELETE (tests.bench.bench_instructions)
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
        """Set the entry of a key."""
        shard, index = self._shards[hash(key) & 255], self.index
        if index is not None and key not in shard:
            index.fresh[key] = True
            if len(index.fresh) > FRESH_KEYS_MAX:
                self._signals.bits |= KEYS
        shard[key] = entry

    def pop(self, key: bytes, entry: Entry) -> None:
        """Remove a key, if it is of this entry."""
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
        """Return the index of all keys in byte order; a new one has all keys pending."""
        if self.index is None:
            self.index = KeyIndex(self.standing)
            self.index.pending += chain.from_iterable(self._shards)
        return self.index

    def standing(self, keys: list[bytes]) -> list[bytes]:
        """Return those of these keys that are in the table."""
        shards = self._shards
        return [key for key in keys if key in shards[hash(key) & 255]]

    @staticmethod
    def part_of(key: bytes) -> int:
        """Return the number of the part of a key, from 0 to ``PARTS`` - 1."""
        return hash(key) & 255

    def part(self, number: int) -> tuple[list[bytes], list[Entry]]:
        """Return all keys of a part and their entries."""
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
