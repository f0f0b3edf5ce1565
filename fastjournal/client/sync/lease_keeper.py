"""Lease renewal (heartbeat) of a blocking job loop: a thread beside the body."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import Protocol


class RenewableLease(Protocol):
    """A lease that is renewed from time to time."""

    def keep(self) -> float:
        """Renew the lease if it is time; return the seconds until the next look."""


class LeaseKeeper:
    """Thread that renews the leases of jobs while they are held.

    It begins when jobs are held for the first time. It refers to neither the loop nor its iterator,
    so that these are gone as soon as the body is left.

    Args:
        held: The jobs; whoever owns them adds and removes some at any time.
    """

    def __init__(self, held: Collection[RenewableLease]) -> None:
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


def _keep(orders: SimpleQueue[bool], held: Collection[RenewableLease]) -> None:
    """Renew leases when it is time, until the order to end comes."""
    while True:
        pause_s = min([job.keep() for job in tuple(held)], default=None)
        with contextlib.suppress(Empty):
            if not orders.get(timeout=pause_s):
                return
