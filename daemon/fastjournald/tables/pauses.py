"""Which domains are paused, until when, and when each of them has work again. Pure.

A paused domain stands neither among the turns nor in the wake order of the others: so neither NEXT
nor the question when something will be due ever passes over paused domains, however many there are.
Its delays and leases end as ever, so it has a place in a wake order of its own.

n is the number of paused domains; every operation is O(log n) unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedList

from fastjournal.limits import PAUSE_BYTES
from fastjournald.tables.domain import NEVER, Domain, WakeIndex


class Pauses:
    """Pauses by domain, also of domains without entries."""

    __slots__ = ("_due", "_due_at", "_ends", "_until", "bytes", "ready", "wakes")

    def __init__(self) -> None:
        self._until: dict[bytes, int] = {}
        self.bytes = 0
        """What they take in memory."""
        self._ends: SortedList = SortedList()
        self._due: SortedList = SortedList()
        """When paused domains have work again: the end of the pause, or of what comes later."""
        self._due_at: dict[bytes, int] = {}
        """Domain to the instant under which it stands there."""
        self.wakes = WakeIndex()
        """Which paused domain has a delay or a lease that ends next."""
        self.ready: dict[bytes, Domain] = {}
        """Paused domains in which something is ready."""

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, name: bytes) -> bool:
        return name in self._until

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Names and ends, in no particular order."""
        return iter(self._until.items())

    def until(self, name: bytes) -> int:
        """Return when the pause of a domain ends; 0: it is not paused. O(1)."""
        return self._until.get(name, 0)

    def first_end(self) -> tuple[int, bytes] | None:
        """Return which pause ends first, and when. O(1)."""
        return self._ends[0] if self._ends else None

    def first_due(self) -> int:
        """Return when the first of them has work again; ``NEVER`` where none will. O(1)."""
        return self._due[0][0] if self._due else NEVER

    def due_at(self, name: bytes) -> int:
        """Return when a paused domain has work again; ``NEVER`` where it will not. O(1)."""
        return self._due_at.get(name, NEVER)

    def put(self, name: bytes, until: int) -> None:
        """Pause a domain until that instant, instead of any earlier or later one."""
        before = self._until.get(name)
        if before is not None:
            self._ends.remove((before, name))
        else:
            self.bytes += PAUSE_BYTES + len(name)
        self._until[name] = until
        self._ends.add((until, name))

    def load(self, pauses: Iterable[tuple[bytes, int]]) -> None:
        """Take over names and ends into what is empty. O(n log n)."""
        self._until.update(pauses)
        self.bytes = sum(PAUSE_BYTES + len(name) for name in self._until)
        self._ends.update((until, name) for name, until in self._until.items())

    def discard(self, name: bytes) -> None:
        """The pause is over."""
        self.bytes -= PAUSE_BYTES + len(name)
        self._ends.remove((self._until.pop(name), name))

    def refresh(self, domain: Domain) -> None:
        """Bring the places of a paused domain up to date."""
        self.wakes.refresh(domain)
        instant = NEVER
        if domain.ready:
            instant = domain.paused_until
        elif domain.wake != NEVER:
            instant = max(domain.paused_until, domain.wake)
        self._stand(domain.name, instant)

    def take_in(self, domain: Domain) -> None:
        """A domain, with what stands in it, is paused from now on."""
        if domain.ready:
            self.ready[domain.name] = domain
        self.refresh(domain)

    def let_go(self, domain: Domain) -> None:
        """A domain has no place here any more."""
        self.ready.pop(domain.name, None)
        self._stand(domain.name, NEVER)
        self.wakes.remove(domain)

    def _stand(self, name: bytes, instant: int) -> None:
        before = self._due_at.get(name, NEVER)
        if instant == before:
            return
        if before != NEVER:
            self._due.remove((before, name))
            del self._due_at[name]
        if instant != NEVER:
            self._due.add((instant, name))
            self._due_at[name] = instant
