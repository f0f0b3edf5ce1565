"""Notifier: matches changes with subscriptions in slices, and wakes the sessions concerned.

A hundred thousand sessions may subscribe to one key. So in one round of the event loop only a few
sessions are woken, and only a few send notifications, each a bounded number of bytes: other
requests wait only for these few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import islice

import trio

from fastjournal.limits import MATCH_SLICE_WORK, NOTIFICATION_TURNS_A_ROUND, WOKEN_A_ROUND
from fastjournald.runtime import Runtime
from fastjournald.tasks.turn_scheduler import pay_back


class Notifier:
    """Matches what changed with the subscriptions, while others are served.

    Args:
        runtime: Engine, where changes are noted, and budget of the turns.
        wake: Called with a session that has notifications.
        disconnect: Called with a slow consumer: its notifications take too much memory.
    """

    def __init__(
        self,
        runtime: Runtime,
        wake: Callable[[Hashable], None],
        disconnect: Callable[[Hashable], None],
    ) -> None:
        self._engine = runtime.engine
        self._wake = wake
        self._disconnect = disconnect
        self._turn_budget = runtime.turns
        self._counters = runtime.counters
        self._some = trio.Event()
        self._room = trio.lowlevel.ParkingLot()
        self._to_wake: dict[Hashable, None] = {}
        self._turns = NOTIFICATION_TURNS_A_ROUND
        """Sessions that may still send notifications in this round."""
        self._telling = trio.lowlevel.ParkingLot()
        self._some_long = trio.Event()
        self._busy = trio.Event()
        """Set while there are sessions to wake, or turns were taken."""

    def look(self) -> None:
        """The engine changed: perhaps a listener is to be notified."""
        if self._engine.notifications.unmatched:
            self._some.set()

    async def wait_matched(self) -> None:
        """Return when no longer so many changes wait that no more should come."""
        while self._engine.notifications.behind:
            await self._room.park()

    async def run(self) -> None:
        """Match, again and again."""
        engine = self._engine
        while True:
            if not engine.notifications.unmatched:
                self._some = trio.Event()
                await self._some.wait()
            before = engine.store.work
            while engine.notifications.unmatched:
                woken, slow_consumers = engine.notifications.match(self._counters.idle_us)
                for session in slow_consumers:
                    self._disconnect(session)
                if woken:
                    self._to_wake.update(dict.fromkeys(woken))
                    self._busy.set()
                if engine.store.work > before + MATCH_SLICE_WORK:
                    break
            if not engine.notifications.behind:
                self._room.unpark_all()
            self._some_long.set()
            await pay_back(self._turn_budget, engine.store.work - before)

    async def match_long(self) -> None:
        """Run long matches in a thread, one after the other; RE2 releases the GIL."""
        expressions = self._engine.subscriptions.expressions
        expressions.defers_long = True
        while True:
            match = expressions.next_long()
            if match is None:
                self._some_long = trio.Event()
                await self._some_long.wait()
            else:
                expressions.take_long(match, await trio.to_thread.run_sync(match.run))
                self.look()

    async def wait_notification_turn(self) -> None:
        """Return when the caller may deliver some notifications to a session."""
        self._busy.set()
        if self._turns and not self._telling:
            self._turns -= 1
        else:
            await self._telling.park()

    async def pace(self) -> None:
        """Wake sessions to send notifications, a few in each round of the event loop."""
        while True:
            self._turns = NOTIFICATION_TURNS_A_ROUND - len(
                self._telling.unpark(count=NOTIFICATION_TURNS_A_ROUND)
            )
            for session in list(islice(self._to_wake, WOKEN_A_ROUND)):
                del self._to_wake[session]
                self._wake(session)
            if self._turns == NOTIFICATION_TURNS_A_ROUND and not self._to_wake:
                self._busy = trio.Event()
                await self._busy.wait()
            await trio.lowlevel.checkpoint()
