"""Domain totals: figures of metrics over all domains, computed in time slices."""

from __future__ import annotations

from heapq import heappush, heappushpop

import msgspec

from fastjournal.limits import METRICS_DOMAINS_MAX, PAGE_DOMAINS_MAX
from fastjournald.engine.engine import Engine
from fastjournald.engine.handlers.stats import oldest_due
from fastjournald.observability.time_slices import TimeSlices
from fastjournald.tables.domain import Domain


class Top(msgspec.Struct):
    """The domains with the largest figures of one kind, in a heap."""

    number_max: int = PAGE_DOMAINS_MAX
    heap: list[tuple[int, bytes]] = msgspec.field(default_factory=list)

    def add(self, figure: int, name: bytes) -> None:
        """Add a domain; one whose figure is 0 is none. O(log number_max)."""
        if figure > 0:
            push = heappush if len(self.heap) < self.number_max else heappushpop
            push(self.heap, (figure, name))

    def names(self) -> list[bytes]:
        """Return the domains, the largest figure first."""
        return [name for _, name in sorted(self.heap, reverse=True)]


class Totals(msgspec.Struct):
    """Figures over all domains."""

    oldest_due_us: int | None = None
    """Instant since which the oldest entry is due; None: none is."""
    largest: Top = msgspec.field(default_factory=lambda: Top(METRICS_DOMAINS_MAX))
    """Those with most entries."""

    def add(self, domain: Domain, oldest: int | None) -> None:
        """Add one domain, and since when its oldest entry is due."""
        if oldest is not None and (self.oldest_due_us is None or oldest < self.oldest_due_us):
            self.oldest_due_us = oldest
        self.largest.add(domain.entries, domain.name)


async def total(engine: Engine, slices: TimeSlices) -> Totals:
    """Return the figures over all domains; it gives way to others every few milliseconds."""
    totals = Totals()
    for domain in list(engine.store.scheduler.domains.values()):
        totals.add(domain, oldest_due(domain))
        await slices.give_way()
    return totals
