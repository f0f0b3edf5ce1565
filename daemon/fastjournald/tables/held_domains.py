"""Held domains: domains of which nothing is handed out for now, paused or limited. Pure.

A held domain stands neither among the turns nor in the timer queue of the others: so neither NEXT
nor the question when something will be due ever passes over held domains, however many there are.
Its delays and leases end as ever, so it has a place in a timer queue of its own.

n is the number of held domains; every operation is O(log n) unless it says otherwise.
"""

from __future__ import annotations

from sortedcontainers import SortedList

from fastjournald.tables.domain import NEVER, Domain, WakeIndex


class HeldDomains:
    """Domains that wait for the end of a pause, of an interval, or of a lease."""

    __slots__ = ("_due", "_due_at", "ready", "wakes")

    def __init__(self) -> None:
        self._due: SortedList = SortedList()
        """Instants at which held domains have work again, with their names."""
        self._due_at: dict[bytes, int] = {}
        """Domain to the instant under which it stands there."""
        self.wakes = WakeIndex()
        """Timer queue of their delays and leases."""
        self.ready: dict[bytes, Domain] = {}
        """Held domains in which something is ready."""

    def first_due(self) -> int:
        """Return when the first of them has work again; ``NEVER`` where none will. O(1)."""
        return self._due[0][0] if self._due else NEVER

    def due_at(self, name: bytes) -> int:
        """Return when a held domain has work again; ``NEVER`` where it will not. O(1)."""
        return self._due_at.get(name, NEVER)

    def refresh(self, domain: Domain) -> None:
        """Bring the places of a held domain up to date."""
        self.wakes.refresh(domain)
        instant = NEVER
        if domain.has_ready:
            instant = domain.held_until()
        elif domain.wake != NEVER:
            instant = max(domain.held_until(), domain.wake)
        self._stand(domain.name, instant)

    def take_in(self, domain: Domain) -> None:
        """Hold a domain back, with what stands in it, from now on."""
        if domain.has_ready:
            self.ready[domain.name] = domain
        self.refresh(domain)

    def let_go(self, domain: Domain) -> None:
        """Give a domain no place here any more."""
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
