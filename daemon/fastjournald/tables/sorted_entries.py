"""Entries in the order of keys made of bytes, such as who is next in a domain. Pure.

A key is compared in C, and is an object that the entry has anyway where that is possible: so an
entry takes two places in lists and nothing else. Chunks of keys and of entries stand side by side,
and the last key of each chunk leads to it.

An entry is found by what its key begins with, enough to tell it from all but a few others: of the
rest of it the entry may know another version by now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastjournald.tables.entry import Entry

CHUNK_MAX = 1024
"""Places in a chunk: one more or less moves half a chunk, 4 KiB."""
_CHUNK_MIN = CHUNK_MAX // 8
"""A smaller one joins its neighbour where that has room for it."""


class Order:
    """Entries by key. n is their number; every operation is O(log n) unless it says otherwise."""

    __slots__ = ("_entries", "_keys", "_last", "_number")

    def __init__(self) -> None:
        self._keys: list[list[bytes]] = []
        self._entries: list[list[Entry]] = []
        self._last: list[bytes] = []
        """The last key of each chunk."""
        self._number = 0

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Entry]:
        for chunk in self._entries:
            yield from chunk

    def keys(self) -> Iterator[bytes]:
        """Yield the keys of the entries, in their order."""
        for chunk in self._keys:
            yield from chunk

    def load(self, keys: list[bytes], entries: list[Entry]) -> None:
        """Take over entries by their keys, which ascend, into what is empty. O(n)."""
        for at in range(0, len(keys), CHUNK_MAX):
            self._keys.append(keys[at : at + CHUNK_MAX])
            self._entries.append(entries[at : at + CHUNK_MAX])
            self._last.append(self._keys[-1][-1])
        self._number = len(keys)

    def add(self, key: bytes, entry: Entry) -> None:
        """Add an entry."""
        last = self._last
        self._number += 1
        if not last or (key >= last[-1] and len(self._keys[-1]) >= CHUNK_MAX):
            # behind a chunk that is full: what comes in order fills one after the other
            self._keys.append([key])
            self._entries.append([entry])
            last.append(key)
            return
        number = bisect_left(last, key)
        if number == len(last):
            number -= 1
            last[number] = key
            self._keys[number].append(key)
            self._entries[number].append(entry)
            return
        keys = self._keys[number]
        at = bisect_left(keys, key)
        keys.insert(at, key)
        self._entries[number].insert(at, entry)
        if len(keys) > CHUNK_MAX:
            self._split(number)

    def remove(self, start: bytes, entry: Entry) -> None:
        """Take an entry out whose key begins with ``start``. O(log n + others that begin so)."""
        number, at = self._find(start, entry)
        keys = self._keys[number]
        del keys[at], self._entries[number][at]
        self._number -= 1
        if len(keys) < _CHUNK_MIN:
            self._join(number)
        elif at == len(keys):
            self._last[number] = keys[-1]

    def renew(self, start: bytes, key: bytes, entry: Entry) -> None:
        """The entry has another key that begins with ``start``. O(log n + others that do so)."""
        number, at = self._find(start, entry)
        keys = self._keys[number]
        keys[at] = key
        self._last[number] = keys[-1]

    def first(self) -> Entry:
        """Return the first entry. O(1)."""
        return self._entries[0][0]

    def at(self, rank: int) -> Entry:
        """Return an entry by its place in the order. O(1 + rank / chunk)."""
        for entries in self._entries:
            if rank < len(entries):
                return entries[rank]
            rank -= len(entries)
        raise IndexError(rank)

    def first_key(self) -> bytes:
        """Return the key of the first entry. O(1)."""
        return self._keys[0][0]

    def pop(self) -> Entry:
        """Take the first entry out and return it. O(1)."""
        keys = self._keys[0]
        del keys[0]
        entry = self._entries[0].pop(0)
        self._number -= 1
        if len(keys) < _CHUNK_MIN:
            self._join(0)
        return entry

    def first_from(self, key: bytes) -> Entry | None:
        """Return the first entry whose key is not before ``key``; None: there is none."""
        number = bisect_left(self._last, key)
        if number == len(self._last):
            return None
        return self._entries[number][bisect_left(self._keys[number], key)]

    def _find(self, start: bytes, entry: Entry) -> tuple[int, int]:
        number = bisect_left(self._last, start)
        at = bisect_left(self._keys[number], start)
        entries = self._entries[number]
        while True:
            if at == len(entries):
                number, at = number + 1, 0
                entries = self._entries[number]
            if entries[at] is entry:
                return number, at
            at += 1

    def _split(self, number: int) -> None:
        half = CHUNK_MAX // 2
        keys, entries = self._keys[number], self._entries[number]
        self._keys[number : number + 1] = [keys[:half], keys[half:]]
        self._entries[number : number + 1] = [entries[:half], entries[half:]]
        self._last.insert(number, keys[half - 1])

    def _join(self, number: int) -> None:
        """Let a small chunk become part of one beside it, or go if it is empty."""
        keys = self._keys[number]
        other = number + 1 if number + 1 < len(self._keys) else number - 1
        if keys and (other < 0 or len(keys) + len(self._keys[other]) > CHUNK_MAX // 2):
            self._last[number] = keys[-1]
            return
        if keys:
            first = min(number, other)
            self._keys[first] += self._keys[first + 1]
            self._entries[first] += self._entries[first + 1]
            self._last[first] = self._keys[first][-1]
            number = first + 1
        del self._keys[number], self._entries[number], self._last[number]
