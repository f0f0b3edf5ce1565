"""Shared look at all domains: requests of many browsers and scrapes cost one.

The look takes some 40 ms for 10,000 domains and a hundred times that for a million. It is repeated
no sooner than so many times its own duration, so its part of the event loop has a bound, whatever
the number of domains and of requests is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from fastjournald.observability.slices import Slices

T = TypeVar("T")

PART_MAX = 0.05
"""Part of the event loop's time that a look at all domains takes at most."""

CHEAP_SECONDS = 0.02
"""A shorter look is made for each request: nobody waits for it, and it is of this moment."""


class SharedLook(Generic[T]):
    """The last result of a look at all domains, for as long as it is shared.

    Args:
        look: Looks at all domains, in slices.
    """

    def __init__(self, look: Callable[[Slices], Awaitable[T]]) -> None:
        self._look = look
        self._found: T | None = None
        self._until = 0.0
        self.shared_seconds = 0.0
        """Time for which the last one is shared, from its end on."""

    async def get(self) -> T:
        """Return the last result, or another one where its time is over."""
        if self._found is None or trio.current_time() >= self._until:
            slices = Slices()
            self._found = await self._look(slices)
            cost = slices.seconds
            self.shared_seconds = cost / PART_MAX if cost > CHEAP_SECONDS else 0.0
            self._until = trio.current_time() + self.shared_seconds
        return self._found
