"""Pauses: which domains are paused, and until when. Pure.

n is the number of paused domains; every operation is O(log n) unless it says otherwise. Where the
queues of a paused domain stand: ``HeldDomains`` of ``tables.domain``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedList

from fastjournal.limits import PAUSE_BYTES


class Pauses:
    """Pauses by domain, also of domains without entries."""

    __slots__ = ("_ends", "bytes", "ends")

    def __init__(self) -> None:
        self.ends: dict[bytes, int] = {}
        """Domain to the end of its pause. For others to look up only, at the least cost."""
        self.bytes = 0
        """Memory of the pauses."""
        self._ends: SortedList = SortedList()

    def __len__(self) -> int:
        return len(self.ends)

    def __contains__(self, name: bytes) -> bool:
        return name in self.ends

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Names and ends, in no particular order."""
        return iter(self.ends.items())

    def until(self, name: bytes) -> int:
        """Return when the pause of a domain ends; 0: it is not paused. O(1)."""
        return self.ends.get(name, 0)

    def first_end(self) -> tuple[int, bytes] | None:
        """Return which pause ends first, and when. O(1)."""
        return self._ends[0] if self._ends else None

    def put(self, name: bytes, until: int) -> None:
        """Pause a domain until that instant, instead of any earlier or later one."""
        before = self.ends.get(name)
        if before is not None:
            self._ends.remove((before, name))
        else:
            self.bytes += PAUSE_BYTES + len(name)
        self.ends[name] = until
        self._ends.add((until, name))

    def load(self, pauses: Iterable[tuple[bytes, int]]) -> None:
        """Take over names and ends into what is empty. O(n log n)."""
        self.ends.update(pauses)
        self.bytes = sum(PAUSE_BYTES + len(name) for name in self.ends)
        self._ends.update((until, name) for name, until in self.ends.items())

    def discard(self, name: bytes) -> None:
        """End the pause of a domain."""
        self.bytes -= PAUSE_BYTES + len(name)
        self._ends.remove((self.ends.pop(name), name))
