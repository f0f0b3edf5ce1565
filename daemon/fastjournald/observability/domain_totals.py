"""Domain totals: figures for metrics that take a look at all domains, in slices."""

from __future__ import annotations

from heapq import heappush, heappushpop

import msgspec

from fastjournal.limits import METRICS_DOMAINS_MAX
from fastjournald.engine.backlog_age import oldest_due
from fastjournald.engine.engine import Engine
from fastjournald.observability.slices import Slices
from fastjournald.tables.domain import Domain


class Totals(msgspec.Struct):
    """Figures that take a look at all domains."""

    oldest_due_us: int | None = None
    """Instant since which the oldest entry is due; None: none is."""
    largest: list[tuple[int, bytes]] = msgspec.field(default_factory=list)
    """A heap of those with most entries, with their number."""

    def add(self, domain: Domain, oldest: int | None) -> None:
        """Add one domain, and since when its oldest entry is due."""
        if oldest is not None and (self.oldest_due_us is None or oldest < self.oldest_due_us):
            self.oldest_due_us = oldest
        push = heappush if len(self.largest) < METRICS_DOMAINS_MAX else heappushpop
        push(self.largest, (domain.entries, domain.name))


async def total(engine: Engine) -> Totals:
    """Look at all domains, giving way to others every few milliseconds."""
    totals, slices = Totals(), Slices()
    for domain in list(engine.store.scheduler.domains.values()):
        totals.add(domain, oldest_due(domain))
        await slices.give_way()
    return totals
