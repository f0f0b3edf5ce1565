"""Lease renewal (heartbeat) of a blocking job loop: a thread beside the body."""

from __future__ import annotations

import contextlib
import math
import threading
from abc import abstractmethod
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import Any

from fastjournal.client.core.calls import Call
from fastjournal.client.core.held_lease import HeldLease
from fastjournal.client.sync.connection import SyncConnection
from fastjournal.errors import FastjournalError
from fastjournal.limits import LEASE_RENEWAL_PAUSE_S_MIN


class LeaseKeeper:
    """Thread that renews the leases of jobs while they are held.

    It begins when jobs are held for the first time. It refers to neither the loop nor its iterator,
    so that these are gone as soon as the body is left.

    Args:
        held: The jobs or locks; whoever owns them adds and removes some at any time.
    """

    def __init__(self, held: Collection[SyncKeptLease]) -> None:
        self._held = held
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Look after jobs that were added."""
        if self._thread is None or not self._thread.is_alive():  # none lives on in a forked child
            self._orders = SimpleQueue()
            self._thread = threading.Thread(
                target=_keep,
                args=(self._orders, self._held),
                name="fastjournal lease renewal",
                daemon=True,
            )
            self._thread.start()
        else:
            self._orders.put(True)

    def look(self) -> None:
        """Have a look at the jobs now: the lease of one has another end."""
        self._orders.put(True)

    def end(self) -> None:
        """End the thread, soon; for finalizers too: takes no lock, and waits for nothing."""
        self._thread = None
        self._orders.put(False)


class SyncKeptLease(HeldLease):
    """Lease, or lock, that a thread renews beside the body."""

    def _keep_by(self, connection: SyncConnection, keeper: LeaseKeeper | None) -> None:
        """Begin; with no keeper, nobody renews it."""
        self.lost = threading.Event()
        """Set when it is lost: the work is no longer yours, so the body better ends."""
        self._connection = connection
        self._keeper = keeper
        self._mutex = threading.RLock()
        """Held while it is renewed, or ended: an end comes behind the answer of the renewal."""
        self._missed: FastjournalError | None = None
        """Why the last renewal failed; None: it did not."""
        self._plan_renewal()

    @abstractmethod
    def _exchange_renewal(self, renewal: Call[Any]) -> Any:
        """Send a renewal; return its result, until the end of what it renews at the latest."""

    def keep(self) -> float:
        """Renew the lease if it is time; return the seconds until the next look.

        For the thread that does so; it does not wait where the job is ended meanwhile.
        """
        if self.finished or self.loss is not None:
            return self._renewal_s
        if not self._mutex.acquire(blocking=False):
            return LEASE_RENEWAL_PAUSE_S_MIN  # it is being extended, perhaps in vain
        try:
            if self._now_s() >= self._renew_at_s and not self.finished:
                self._renew()
            return max(self._renew_at_s - self._now_s(), 0.0)
        finally:
            self._mutex.release()

    def _renew(self) -> None:
        asked_s = self._now_s()
        self._note_lateness(asked_s)
        renewal = self._renewal_call(self._length_us)
        try:
            answer = self._exchange_renewal(renewal)
        except FastjournalError as error:
            self._missed = error
            if self._is_over_by(error) or self._now_s() >= self._lease_ends_s:
                self._lose(error, self._now_s())
        else:
            self._missed = None
            self._renewed(answer, asked_s=asked_s)
        self._plan_renewal()

    def _plan_renewal(self) -> None:
        if self._keeper is None:
            self._renew_at_s = math.inf  # nobody renews it, so no renewal is late
            return
        now_s, rng = self._now_s(), self._connection.dialer.rng
        self._renew_at_s = now_s + self._renewal_pause_s(self._missed, now_s, rng)

    def _lose(self, error: FastjournalError, now_s: float) -> None:
        super()._lose(error, now_s)
        self.lost.set()

    def _now_s(self) -> float:
        return self._connection.dialer.now_s()


def _keep(orders: SimpleQueue[bool], held: Collection[SyncKeptLease]) -> None:
    """Renew leases when it is time, until the order to end comes."""
    while True:
        pause_s = min([job.keep() for job in tuple(held)], default=None)
        with contextlib.suppress(Empty):
            if not orders.get(timeout=pause_s):
                return
