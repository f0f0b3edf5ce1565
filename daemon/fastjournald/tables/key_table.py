"""Key table: a hash table from every key to its entry, and from there the ordered key index.

A dict that grows is rehashed at once, 25 ms at a million keys. So the table is sharded: a rehash of
one of 256 shards takes 0.1 ms. No other module knows of shards.

n is the number of keys; every operation is O(1) for a key unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from fastjournal.limits import FRESH_KEYS_MAX, GONE_KEYS_MAX
from fastjournald.tables.entry import Entry
from fastjournald.tables.key_index import KeyIndex
from fastjournald.tables.signals import KEYS, Signals

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
