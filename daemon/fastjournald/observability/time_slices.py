"""Time slices (cooperative yielding): pages and metrics give way to clients every 2 ms."""

from __future__ import annotations

from time import perf_counter

import trio

SLICE_SECONDS = 0.002
"""So long is a slice: then others have their turn."""


class TimeSlices:
    """Time slices of one piece of work; the first begins at once."""

    def __init__(self) -> None:
        self._over = perf_counter() + SLICE_SECONDS
        self.earlier = 0.0
        """Time of the slices before this one."""

    @property
    def seconds(self) -> float:
        """Time that all slices took, without the turns of others."""
        return self.earlier + perf_counter() - (self._over - SLICE_SECONDS)

    async def give_way(self) -> None:
        """Let others have their turn if the slice is over. To be called after each small step."""
        if perf_counter() > self._over:
            self.earlier = self.seconds
            await trio.lowlevel.checkpoint()
            self._over = perf_counter() + SLICE_SECONDS
