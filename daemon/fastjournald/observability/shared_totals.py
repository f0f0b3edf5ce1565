"""Shared totals: requests of many browsers and scrapes cost one walk over all domains.

The walk takes time in proportion to the number of domains. It is repeated no sooner than so many
times its own duration, so its part of the event loop has a bound, whatever the number of domains
and of requests is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from fastjournald.observability.time_slices import TimeSlices

T = TypeVar("T")

PART_MAX = 0.05
"""Part of the event loop's time that walks over all domains take at most."""

CHEAP_SECONDS = 0.02
"""A shorter walk is made for each request: nobody waits for it, and it is of this moment."""


class SharedTotals(Generic[T]):
    """Totals of the last walk over all domains, for as long as they are shared.

    Args:
        walk: Computes the totals, in slices.
    """

    def __init__(self, walk: Callable[[TimeSlices], Awaitable[T]]) -> None:
        self._walk = walk
        self._totals: T | None = None
        self._until = 0.0
        self.shared_seconds = 0.0
        """Time for which the last totals are shared, from the end of their walk on."""

    async def get(self) -> T:
        """Return the last totals, or those of another walk where their time is over."""
        if self._totals is None or trio.current_time() >= self._until:
            slices = TimeSlices()
            self._totals = await self._walk(slices)
            cost = slices.seconds
            self.shared_seconds = cost / PART_MAX if cost > CHEAP_SECONDS else 0.0
            self._until = trio.current_time() + self.shared_seconds
        return self._totals
