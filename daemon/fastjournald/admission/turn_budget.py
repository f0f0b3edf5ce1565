"""Turn budget: fair queuing of clients by virtual time, for one turn of the event loop. Pure.

A turn is the work of the event loop between two polls of the sockets. The engine counts work
(``Store.work``). While a turn has budget left, each client is served at once. Then clients wait,
and begin in later turns in the order of their virtual time, which advances with the work done for a
client (start-time fair queuing). A client that was idle gets a virtual time slightly before that of
the busy clients, so it is served before them. So a small request waits for about one turn, even if
many clients send as much as they can.

While clients wait, virtual time advances slowly with all work that is done. So many new clients,
each idle so far, cannot starve the waiting ones.

One call of the engine may do more work than is left of a turn. The excess is a debt, which the next
turns pay: in them only clients that were idle begin.

A client does its work in slices, between which others have their turn: short slices beside other
clients, and a whole turn's work after a long time without others.

``tasks.turn_scheduler`` begins the turns and wakes the clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from fastjournal.limits import (
    ALONE_WORK,
    CREDIT_WORK,
    SLICE_WORK,
    TURN_WORK,
)
from fastjournald.engine.store import Store

AGING = 1 / 4
"""Part of its fair share by which virtual time advances by itself, for each client that waits.
Busy clients advance it at full speed, so it counts only where new clients alone have all turns."""


class Share:
    """Account of one client: the work that it has had."""

    __slots__ = ("began", "slice_over", "virtual")

    def __init__(self) -> None:
        self.began = 0
        """``Store.work`` when what it does now began."""
        self.slice_over = 0
        """``Store.work`` from which on it yields to other clients."""
        self.virtual = -math.inf
        """Its virtual time."""


class QueuedClient:
    """Place of a client in the queue."""

    __slots__ = ("expected", "share", "wake")

    def __init__(self, share: Share, expected: int, wake: Callable[[], object]) -> None:
        self.share: Share | None = share
        """Account of the client; None: it no longer waits here, as it disconnected or has asked."""
        self.expected = expected
        self.wake = wake


class TurnBudget:
    """Budget of work for each turn, and the queue of clients that wait for one.

    Args:
        store: Counts the work.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._over: float = math.inf
        """``Store.work`` at which the budget of this turn is used up; infinite until ``start``."""
        self._virtual = 0.0
        """Virtual time of all: that of the last busy client that began, and what ``_age`` adds."""
        self._aged = 0
        """``Store.work`` up to which ``_age`` has advanced virtual time."""
        self._queue: list[tuple[float, int, QueuedClient]] = []
        """A heap by virtual time."""
        self._woken: list[QueuedClient] = []
        """Clients that the last ``release`` woke. Where ``share`` is None, they have asked."""
        self._serials = count()
        self._last: Share | None = None
        """Account of the client that did something last."""
        self.in_row = 0
        """Pieces of work that this client did in a row, without the first one."""
        self._alone_from = ALONE_WORK
        """``Store.work`` from which this client counts as alone."""

    @property
    def slice_work(self) -> int:
        """Work that a client does at a time, until others have their turn."""
        return SLICE_WORK if self._store.work < self._alone_from else TURN_WORK

    @property
    def open(self) -> bool:
        """Whether this turn has budget left."""
        return self._store.work < self._over

    # --- clients --------------------------------------------------------------------------------

    def admits(self, share: Share, expected: int = 0, *, waited: bool = False) -> bool:
        """Return whether a client may begin now; else it has to wait in the queue.

        O(w), w: clients that were woken last and have not asked since.

        Args:
            share: Its account.
            expected: Work that it will do, as far as that is known.
            waited: It did so, and its turn has come: no other client that waits is before it.
        """
        work, virtual = self._store.work, self._virtual
        share.virtual = max(share.virtual, virtual - CREDIT_WORK)
        if share.virtual < virtual and expected <= CREDIT_WORK:
            # it was idle: it may also use what the next turn has
            if work >= self._over + TURN_WORK:
                return False
        elif work >= self._over or (
            (self._queue or self._woken) and not (waited or self._is_next(share))
        ):
            return False
        elif share.virtual > virtual:
            self._virtual = share.virtual
        share.began = work
        share.slice_over = work + (SLICE_WORK if work < self._alone_from else TURN_WORK)
        return True

    def begin_slice(self, share: Share, charged: int = 0) -> None:
        """Begin another slice of a client that goes on in its turn, or after a wait.

        Args:
            share: Its account.
            charged: Work of it for which the client was charged ahead.
        """
        share.began = self._store.work + charged
        share.slice_over = share.began + self.slice_work

    def forgo_credit(self, share: Share) -> None:
        """Queue a client after those that were idle: no user waits for its next work."""
        share.virtual = max(share.virtual, self._virtual)

    def charge(self, share: Share, more: int = 0, *, is_client: bool = True) -> None:
        """Count what was done for a client since it began, or was charged last. O(1).

        Args:
            share: Its account.
            more: Work that is done for it later, beside that for others.
            is_client: Else it is a task, beside which a client is as alone as before.
        """
        work = self._store.work
        share.virtual += work - share.began + more
        share.began = work
        if is_client:
            self.in_row += 1
            if share is not self._last:
                self._last, self.in_row = share, 0
                self._alone_from = work + ALONE_WORK

    def queue_up(
        self, share: Share, wake: Callable[[], object], expected: int = TURN_WORK
    ) -> QueuedClient:
        """Queue a client until it is worth asking ``admits`` again. O(log n).

        Args:
            share: Its account.
            wake: Called then.
            expected: Its next work, as far as it is known.
        """
        waiting = QueuedClient(share, min(expected, TURN_WORK), wake)
        heappush(self._queue, (share.virtual, next(self._serials), waiting))
        return waiting

    # --- turns ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Bound the work of turns from now on."""
        self._over = self._store.work + TURN_WORK

    def stop(self) -> None:
        """Bound the work of turns no more."""
        self._over = math.inf

    def begin_turn(self) -> None:
        """Give a new turn its budget, less what was used of it before."""
        work, over = self._store.work, self._over
        self._over = (over if over < work else work) + TURN_WORK

    @property
    def awaited(self) -> bool:
        """Whether clients wait."""
        return bool(self._queue)

    @property
    def contended(self) -> bool:
        """Whether a client waits for its turn, or has been woken for it. O(clients woken last)."""
        return bool(self._queue) or any(waiting.share is not None for waiting in self._woken)

    def rest(self) -> None:
        """Note that no client has waited: virtual time advances only with work from now on."""
        self._aged = self._store.work

    def release(self) -> None:
        """Wake clients that may begin in the next turn: each asks ``admits`` again by itself."""
        self._age()
        room = min(TURN_WORK, self._over + TURN_WORK - self._store.work)
        queue, self._woken = self._queue, []
        while queue:
            waiting = queue[0][2]
            if waiting.share is not None:
                if room <= 0 and (room <= -TURN_WORK or not self._is_small(waiting, waiting.share)):
                    return
                room -= waiting.expected
                self._woken.append(waiting)
                waiting.wake()
            heappop(queue)

    def _is_next(self, share: Share) -> bool:
        """Whether no client that waits has had less."""
        if self._queue and share.virtual >= self._queue[0][0]:
            return False
        # those that have asked since need no check
        self._woken = woken = [waiting for waiting in self._woken if waiting.share is not None]
        return all(
            waiting.share is None or share.virtual < waiting.share.virtual for waiting in woken
        )

    def _is_small(self, waiting: QueuedClient, share: Share) -> bool:
        """Whether a client was idle, and asks for no more than the credit of such a client."""
        return share.virtual < self._virtual and waiting.expected <= CREDIT_WORK

    def _age(self) -> None:
        """Advance virtual time for clients that wait."""
        work = self._store.work
        self._virtual += AGING * (work - self._aged) / (len(self._queue) + 1)
        self._aged = work
