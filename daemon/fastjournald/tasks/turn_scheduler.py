"""Turn scheduler: begins the turns of the event loop and wakes the clients that may go on.

Which clients these are is decided by ``admission.turn_budget``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from time import perf_counter
from typing import Protocol

import trio

from fastjournal.limits import TURN_WORK
from fastjournald.admission.turn_budget import QueuedClient, Share, TurnBudget
from fastjournald.histogram import Histogram, Latencies

ALONE_SECONDS = 0.0025
"""Time for which a task may be alone in a turn of the event loop: sockets and calls of threads wait
meanwhile. A sync in line takes time that no count of work has."""


class SettledLog(Protocol):
    """The log, as far as the end of a turn is concerned."""

    @property
    def settled(self) -> int:
        """Bytes that are as safe as the sync policy asks."""


async def pay_back(budget: TurnBudget, work: int) -> None:
    """Wait for turns of clients that pay for the work of a task, which asks for no turn itself.

    It returns after as many turns as that work takes, or sooner if no client waits: so a task with
    much work leaves turns to clients, and clients cannot block it.
    """
    for _ in range(max(1, ceil(work / TURN_WORK))):
        await trio.lowlevel.checkpoint()
        if budget.open and not budget.contended:
            break


class TurnScheduler(trio.abc.Instrument):
    """Runs a turn budget by the turns of trio's event loop.

    Args:
        budget: Budget of work, for each turn.
        turn_us: Gets the length of each turn.
        latencies: Gets begin and end of each turn.
        log: Replies are sent when it is settled up to their position.
    """

    def __init__(
        self, budget: TurnBudget, turn_us: Histogram, latencies: Latencies, log: SettledLog
    ) -> None:
        self._budget = budget
        self._turn_us = turn_us
        self._latencies = latencies
        self._log = log
        self._some = trio.Event()
        self._woke = perf_counter()
        self._scheduled = 0
        """Tasks that can run in this turn, and those that have become able to since it began."""
        self._due = 0.0
        """When a task is alone no longer: the first timeout of another one, as known when this turn
        began, and at the latest ``ALONE_SECONDS`` behind that."""

    # --- clients --------------------------------------------------------------------------------

    async def wait(self, share: Share, expected: int = TURN_WORK) -> None:
        """Return when a client may begin.

        Args:
            share: Its account.
            expected: Work that it will do, as far as that is known.
        """
        budget = self._budget
        while True:
            released = trio.Event()
            waiting = self.queue_up(share, released.set, expected)
            try:
                await released.wait()
            finally:
                waiting.share = None
            if budget.admits(share, expected, waited=True):
                return

    def queue_up(
        self, share: Share, wake: Callable[[], object], expected: int = TURN_WORK
    ) -> QueuedClient:
        """Call ``wake`` when it is worth asking the budget again whether a client may begin."""
        waiting = self._budget.queue_up(share, wake, expected)
        self._some.set()
        return waiting

    async def pass_on(self, share: Share) -> None:
        """Give the turn to other clients; return when the client may continue."""
        await trio.lowlevel.checkpoint()
        if not self._budget.admits(share, TURN_WORK):
            await self.wait(share)

    # --- turns ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Release the clients that wait, turn after turn."""
        budget = self._budget
        budget.start()
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                if not budget.awaited:
                    self._some = trio.Event()
                    await self._some.wait()
                    budget.rest()
                budget.release()
                await trio.lowlevel.checkpoint()
        finally:
            trio.lowlevel.remove_instrument(self)
            budget.stop()

    def next_turn(self) -> None:
        """End the turn and begin the next one, within a turn of the event loop."""
        self._end_turn(now := perf_counter())
        self._woke = self._latencies.began = now
        self._budget.begin_turn()

    def is_alone(self, seconds: float) -> bool:
        """Return whether no task but the calling one runs in this turn or within some seconds.

        It knows this from what the event loop tells an instrument: to ask the loop each time would
        cost a lone request a seventh of its instructions. Sockets and calls of threads
        (``run_sync_soon``) are not seen: so it is false from ``ALONE_SECONDS`` on.

        Args:
            seconds: Time that has to pass before the first timeout of a task.
        """
        return self._scheduled == 1 and perf_counter() + seconds < self._due

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Count a task that can run."""
        self._scheduled += 1

    def after_io_wait(self, timeout: float) -> None:
        """Begin a turn."""
        self._woke = self._latencies.began = now = perf_counter()
        self._due = min(self._due, now + ALONE_SECONDS)
        self._budget.begin_turn()

    def before_io_wait(self, timeout: float) -> None:
        """End a turn.

        Args:
            timeout: Seconds to the first timeout of a task; 0 where a task can run already.
        """
        now = perf_counter()
        self._scheduled = 0
        self._due = now + timeout
        self._end_turn(now)

    def _end_turn(self, now: float) -> None:
        latencies = self._latencies
        self._turn_us.add(int((now - self._woke) * 1_000_000))
        if latencies.answered:
            latencies.end_turn(now, self._log.settled)
