"""Brings changes to those who listen: matches them in slices, and rouses the sessions concerned."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import perf_counter
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from fastjournald.engine import Engine

SLICE_SECONDS = 0.002
"""So long are changes matched before others have their turn."""


class Notifier:
    """Matches what changed with the subscriptions, while others are served.

    Args:
        engine: Where changes are noted.
        rouse: Called with a session that has news.
        overrun: Called with a session that fell behind so far that its connection has to end.
    """

    def __init__(
        self,
        engine: Engine,
        rouse: Callable[[Hashable], None],
        overrun: Callable[[Hashable], None],
    ) -> None:
        self._engine = engine
        self._rouse = rouse
        self._overrun = overrun
        self._some = trio.Event()
        self._room = trio.lowlevel.ParkingLot()

    def look(self) -> None:
        """The engine changed: perhaps somebody is to be told."""
        if self._engine.unmatched:
            self._some.set()

    async def wait_room(self) -> None:
        """Return when no longer so many changes wait that no more should come."""
        while self._engine.behind:
            await self._room.park()

    async def run(self) -> None:
        """Match, again and again."""
        engine = self._engine
        while True:
            if not engine.unmatched:
                self._some = trio.Event()
                await self._some.wait()
            slice_over = perf_counter() + SLICE_SECONDS
            while engine.unmatched:
                roused, overrun = engine.match_changes()
                for session in overrun:
                    self._overrun(session)
                for session in roused:
                    self._rouse(session)
                if perf_counter() > slice_over:
                    break
            if not engine.behind:
                self._room.unpark_all()
            await trio.lowlevel.checkpoint()
