"""Shared overview: requests of many browsers cost one look at all domains.

The look takes some 40 ms for 10,000 domains and a hundred times that for a million. It is repeated
no sooner than so many times its own duration, so its part of the event loop has a bound, whatever
the number of domains and of browsers is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from fastjournald.engine.context import Context
from fastjournald.observability import page_figures
from fastjournald.observability.page_figures import Overview
from fastjournald.observability.slices import Slices

PART_MAX = 0.05
"""Part of the event loop's time that looks at all domains take at most."""

CHEAP_SECONDS = 0.02
"""A shorter look is made for each request: nobody waits for it, and the page is of this moment."""


class SharedOverview:
    """The last overview, for as long as it is shared.

    Args:
        look: Looks at all domains.
    """

    def __init__(
        self, look: Callable[[Context, int, Slices], Awaitable[Overview]] = page_figures.overview
    ) -> None:
        self._look = look
        self._found: Overview | None = None
        self._until = 0.0
        self.shared_seconds = 0.0
        """Time for which the last one is shared, from its end on."""

    async def get(self, context: Context, now: int) -> Overview:
        """Return the last overview, or another one where its time is over."""
        if self._found is None or trio.current_time() >= self._until:
            slices = Slices()
            self._found = await self._look(context, now, slices)
            cost = slices.seconds
            self.shared_seconds = cost / PART_MAX if cost > CHEAP_SECONDS else 0.0
            self._until = trio.current_time() + self.shared_seconds
        return self._found
