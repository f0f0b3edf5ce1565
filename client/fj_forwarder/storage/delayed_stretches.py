"""Delayed stretches of a slot: what of it waits to be read and tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fj_forwarder.storage.stretches import Stretch


class DelayedStretches:
    """Delayed stretches of one slot; each operation takes constant time."""

    __slots__ = ("_by_id", "_suspects", "unerased")

    def __init__(self) -> None:
        self._by_id: dict[int, Stretch] = {}
        """By the ``id`` of the stretch."""
        self._suspects: set[int] = set()
        """Offsets of the suspects that are kept one by one."""
        self.unerased = 0
        """Delivered records that only have to be erased."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Stretch]:
        return iter(self._by_id.values())

    def add(self, stretch: Stretch) -> None:
        """Let a stretch wait."""
        self._by_id[id(stretch)] = stretch
        self.unerased += stretch.is_erasure
        if stretch.is_exact:
            self._suspects.add(stretch.start)

    def remove(self, stretch: Stretch) -> None:
        """Remove a stretch, unless it was removed before."""
        if self._by_id.pop(id(stretch), None) is None:
            return
        self.unerased -= stretch.is_erasure
        if stretch.is_exact:
            self._suspects.discard(stretch.start)

    def starts(self) -> Iterator[int]:
        """Return the offsets at which they start, in no order."""
        return (stretch.start for stretch in self._by_id.values())

    def has_suspect(self, offset: int) -> bool:
        """Whether the record at ``offset`` waits alone, as a suspect."""
        return offset in self._suspects
