"""Totals over all domains for pages and metrics, computed in time slices and shared.

A walk over all domains takes time in proportion to their number. It yields to other clients every 2
ms (``TimeSlices``), and requests of many browsers and scrapers share one walk. It is repeated only
after a multiple of its own duration (``SharedTotals``). So its share of the event loop is bounded,
for any number of domains and requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import heappush, heappushpop
from time import perf_counter
from typing import Generic, TypeVar

import msgspec
import trio

from fastjournal.limits import METRICS_DOMAINS_MAX, PAGE_DOMAINS_MAX
from fastjournald.engine.engine import Engine
from fastjournald.engine.handlers.stats import Oldest, oldest_in
from fastjournald.tables.domain import Domain

SLICE_SECONDS = 0.002
"""Length of a slice; after it the work yields to other clients."""


class TimeSlices:
    """Time slices of one piece of work; the first begins at once."""

    def __init__(self) -> None:
        self._over = perf_counter() + SLICE_SECONDS
        self.earlier = 0.0
        """Time of the slices before this one."""

    @property
    def seconds(self) -> float:
        """Time of all slices, without the turns of others."""
        return self.earlier + perf_counter() - (self._over - SLICE_SECONDS)

    async def give_way(self) -> None:
        """Yield to other clients if the slice is over. Called after each small step."""
        if perf_counter() > self._over:
            self.earlier = self.seconds
            await trio.lowlevel.checkpoint()
            self._over = perf_counter() + SLICE_SECONDS


T = TypeVar("T")

PART_MAX = 0.05
"""Largest part of the event loop's time for walks over all domains."""

CHEAP_SECONDS = 0.02
"""A shorter walk is made for each request, so its totals are current."""


class SharedTotals(Generic[T]):
    """Totals of the last walk over all domains, while they are shared.

    Args:
        walk: Computes the totals, in slices.
    """

    def __init__(self, walk: Callable[[TimeSlices], Awaitable[T]]) -> None:
        self._walk = walk
        self._totals: T | None = None
        self._until = 0.0
        self.shared_seconds = 0.0
        """Time for which the last totals are shared, from the end of their walk."""

    async def get(self) -> T:
        """Return the last totals, or those of a new walk if their time is over."""
        if self._totals is None or trio.current_time() >= self._until:
            slices = TimeSlices()
            self._totals = await self._walk(slices)
            cost = slices.seconds
            self.shared_seconds = cost / PART_MAX if cost > CHEAP_SECONDS else 0.0
            self._until = trio.current_time() + self.shared_seconds
        return self._totals


class Top(msgspec.Struct):
    """The domains with the largest figures of one kind, in a heap."""

    number_max: int = PAGE_DOMAINS_MAX
    heap: list[tuple[int, bytes]] = msgspec.field(default_factory=list)

    def add(self, figure: int, name: bytes) -> None:
        """Add a domain, unless its figure is 0. O(log number_max)."""
        if figure > 0:
            push = heappush if len(self.heap) < self.number_max else heappushpop
            push(self.heap, (figure, name))

    def names(self) -> list[bytes]:
        """Return the domains, the largest figure first."""
        return [name for _, name in sorted(self.heap, reverse=True)]


class Totals(msgspec.Struct):
    """Figures over all domains."""

    oldest_due_us: int | None = None
    """Instant at which the oldest due entry became due; None: none is due."""
    oldest_asked_us: int | None = None
    """Instant since which the oldest waiting entry is asked for; None: none waits."""
    largest: Top = msgspec.field(default_factory=lambda: Top(METRICS_DOMAINS_MAX))
    """Domains with most entries."""

    def add(self, domain: Domain, oldest: Oldest) -> None:
        """Add one domain, and the instants of its oldest waiting entries."""
        self.oldest_due_us = _earlier(self.oldest_due_us, oldest.due)
        self.oldest_asked_us = _earlier(self.oldest_asked_us, oldest.asked)
        self.largest.add(domain.entries, domain.name)


def _earlier(instant: int | None, other: int | None) -> int | None:
    if instant is None or other is None:
        return other if instant is None else instant
    return min(instant, other)


async def total(engine: Engine, now: Callable[[], int], slices: TimeSlices) -> Totals:
    """Return the figures over all domains, computed in time slices."""
    totals = Totals()
    for domain in list(engine.store.scheduler.domains.values()):
        totals.add(domain, oldest_in(domain, now()))
        await slices.give_way()
    return totals
