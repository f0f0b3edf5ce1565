"""Scheduler: one budget of work a turn of the event loop, shared fairly by all clients.

A turn is what the event loop does between two looks at the sockets. Work is counted by the engine
(``Store.work``), whoever does it. While a turn has budget left, whoever comes is served at once.
From there on clients wait, and begin in later turns in the order of what they have had so far: each
has a virtual time that runs with the work done for it (start-time fair queueing). A client that
was idle is set a little behind the clients that are always busy, and so comes before them. So a
small request waits for about one turn, however many clients send as much as they can.

While clients wait, virtual time goes on with all work that is done, slowly. So newcomers, each of
them idle so far, do not come before those who wait for ever, however many connect.

One call of the engine may do more than what is left of a turn. That is a debt, which the next turns
pay: in them only clients begin that were idle.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from time import perf_counter

import trio

from fastjournal.limits import CREDIT_WORK, TURN_WORK
from fastjournald.engine.store import Store
from fastjournald.histogram import Histogram

AGING = 1 / 4
"""Of the share that each client that waits should have: so fast does virtual time go on by itself.
Busy clients move it at full speed, so this counts only where newcomers alone have all turns."""


class Share:
    """What one client has had."""

    __slots__ = ("began", "virtual")

    def __init__(self) -> None:
        self.began = 0
        """``Store.work`` when what it does now began."""
        self.virtual = -math.inf
        """Its virtual time."""


class _Waiting:
    """A client that waits to begin."""

    __slots__ = ("expected", "released", "share")

    def __init__(self, share: Share, expected: int) -> None:
        self.share: Share | None = share
        """None: it has gone."""
        self.expected = expected
        self.released = trio.Event()


class Scheduler(trio.abc.Instrument):
    """Says who may begin in a turn, and how long turns are.

    Args:
        store: Counts the work.
    """

    def __init__(self, store: Store) -> None:
        self.turn_us = Histogram(24)
        """How long turns were, up to 16.8 s."""
        self._store = store
        self._over: float = math.inf
        """With so much work done the budget of this turn is used up; without end until ``run``."""
        self._virtual = 0.0
        """The virtual time of the client that began last, of those that were not idle, or later."""
        self._aged = 0
        """``Store.work`` when virtual time went on by itself last."""
        self._queue: list[tuple[float, int, _Waiting]] = []
        """A heap by virtual time."""
        self._serials = count()
        self._some = trio.Event()
        self._woke = perf_counter()

    @property
    def open(self) -> bool:
        """Whether this turn has budget left."""
        return self._store.work < self._over

    # --- clients --------------------------------------------------------------------------------

    def admits(self, share: Share, *, waited: bool = False) -> bool:
        """Return whether a client may begin now; else it has to ``wait``. O(1).

        Args:
            share: Its.
            waited: It did so, and its turn has come: nobody who waits is before it.
        """
        work, virtual = self._store.work, self._virtual
        share.virtual = max(share.virtual, virtual - CREDIT_WORK)
        if share.virtual < virtual:
            # it was idle: it may also use what the next turn has
            if work >= self._over + TURN_WORK:
                return False
        elif work >= self._over or (self._queue and not waited):
            return False
        else:
            self._virtual = share.virtual
        share.began = work
        return True

    def charge(self, share: Share) -> None:
        """Count what was done for a client since it began, or was charged last. O(1)."""
        work = self._store.work
        share.virtual += work - share.began
        share.began = work

    async def wait(self, share: Share, expected: int = TURN_WORK) -> None:
        """Return when a client may begin.

        Args:
            share: Its.
            expected: Work that it will do, as far as that is known.
        """
        while True:
            waiting = _Waiting(share, min(expected, TURN_WORK))
            heappush(self._queue, (share.virtual, next(self._serials), waiting))
            self._some.set()
            try:
                await waiting.released.wait()
            finally:
                waiting.share = None
            if self.admits(share, waited=True):
                return

    async def pass_on(self, share: Share) -> None:
        """Let others have their turn; return when the client may go on."""
        await trio.lowlevel.checkpoint()
        if not self.admits(share):
            await self.wait(share)

    # --- turns ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let clients begin that wait, turn after turn."""
        self._over = self._store.work + TURN_WORK
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                if not self._queue:
                    self._some = trio.Event()
                    await self._some.wait()
                    self._aged = self._store.work
                self._age()
                self._release()
                await trio.lowlevel.checkpoint()
        finally:
            trio.lowlevel.remove_instrument(self)
            self._over = math.inf

    def _age(self) -> None:
        """Let virtual time go on for those who wait."""
        work = self._store.work
        self._virtual += AGING * (work - self._aged) / (len(self._queue) + 1)
        self._aged = work

    def _release(self) -> None:
        """Let those begin in the next turn for whom it has budget: each looks again by itself."""
        room = TURN_WORK + min(0, self._over - self._store.work)
        queue = self._queue
        while queue:
            waiting = queue[0][2]
            if waiting.share is not None:
                if room <= 0 and (room <= -TURN_WORK or waiting.share.virtual >= self._virtual):
                    return
                room -= waiting.expected
                waiting.released.set()
            heappop(queue)

    def after_io_wait(self, timeout: float) -> None:
        """A turn begins: it has its budget, but for what was used of it before."""
        self._woke = perf_counter()
        self._over = min(self._over, self._store.work) + TURN_WORK

    def before_io_wait(self, timeout: float) -> None:
        """A turn is over."""
        self.turn_us.add(round((perf_counter() - self._woke) * 1_000_000))
