"""Expiry index: when entries expire."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from sortedcontainers import SortedList

from fastjournald.tables.domain import NEVER

_INSTANT = Struct(">Q")
_KEY_AT = _INSTANT.size

_pack_instant = _INSTANT.pack


class ExpiryQueue:
    """Primary keys by expiry: u64 and key. Leased entries stand here only after their lease.

    n is the number of items; every operation is O(log n) unless it says otherwise.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: SortedList = SortedList()

    def add(self, expires: int, key: bytes) -> None:
        """Add the entry under ``key``."""
        self._items.add(_pack_instant(expires) + key)

    def extend(self, pairs: list[tuple[int, bytes]]) -> None:
        """Add many at once. O(n log n)."""
        self._items.update([_pack_instant(expires) + key for expires, key in pairs])

    def remove(self, expires: int, key: bytes) -> None:
        """Take the entry under ``key`` out."""
        self._items.remove(_pack_instant(expires) + key)

    def first(self) -> int:
        """Return the earliest expiry, ``NEVER`` where there is none. O(1)."""
        return _instant_of(self._items[0]) if self._items else NEVER

    def pop_key(self) -> bytes:
        """Take the earliest out and return its key."""
        item: bytes = self._items.pop(0)
        return item[_KEY_AT:]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for item in self._items:
            yield _instant_of(item), item[_KEY_AT:]


def _instant_of(item: bytes) -> int:
    return int.from_bytes(item[:_KEY_AT], "big")
