"""Group commit of a slot's file: one fdatasync makes the appends of all threads durable.

The first thread that wants a sync makes it; those that come meanwhile wait, and one of them makes
the next one, for all. They are woken at once and not one by the other, which would cost a change of
threads for each.

A signal handler that interrupts a sync of its own thread makes one itself. A handler that raises
may end the waking half way: so nobody waits for others longer than ``PATIENCE_S``, and then makes
a sync itself, which is always right.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Final

from fastjournal.spool.slots import spool_failed

PATIENCE_S: Final = 2.0
"""So long a thread waits for the sync of another one: far longer than one that is well takes."""


class SharedSync:
    """Syncs of one file, shared by the threads that append to it.

    Args:
        path: Path of the file, for errors.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.appends = 0
        """Appends to the file so far."""
        self.writing = 0
        """Appends under way: their bytes may be in the file, and they have no number yet."""
        self._durable = 0
        """So many of the appends are on the disk."""
        self._failed: tuple[int, int] = (0, 0)
        """The appends after the first of these and up to the second: their sync failed."""
        self._lock = threading.RLock()
        """Held by the thread that makes a sync."""
        self._rounds = 0
        """Syncs that are over."""
        self._waiting: list[threading.Lock] = []
        """A lock of each thread that waits; to be released when a sync is over."""

    def sync(self, number: int, descriptor: int) -> None:
        """Make an append durable, and with it all that were done before.

        Args:
            number: The number of the append.
            descriptor: The file.

        Raises:
            SpoolFailedError: The sync failed; the record may be there, and may be sent.
        """
        while not self._is_durable(number):
            rounds = self._rounds
            if not self._lock.acquire(blocking=False):
                if not self._wait(rounds):
                    # success is no proof: the system reports a failure to one of two syncs, and
                    # that may have been the other one
                    self._sync(number, descriptor)
                continue
            try:
                self._sync(number, descriptor)
            finally:
                self._rounds += 1
                self._lock.release()
                self._wake()

    def _is_durable(self, number: int) -> bool:
        if self._failed[0] < number <= self._failed[1]:
            raise spool_failed("sync", self._path, OSError(errno.EIO, os.strerror(errno.EIO)))
        return number <= self._durable

    def _sync(self, number: int, descriptor: int) -> None:
        # The mark is taken before the sync: what is appended while it goes on needs another one.
        durable, appends = self._durable, self.appends
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            # The system may have dropped what it could not write, and calls it written: the
            # success of the next sync must not count for those who wait for this one, nor for
            # what was written until now, also while this one went on.
            first = min(durable, self._failed[0]) if self._failed[1] else durable
            self._failed = (first, max(self.appends + self.writing, number))
            raise spool_failed("sync", self._path, error) from error
        self._durable = max(self._durable, appends)

    def _wait(self, rounds: int) -> bool:
        """Wait until the sync under way is over; False: that takes too long.

        Args:
            rounds: The syncs that were over when one was seen to be under way.
        """
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(turn)
        # The thread that makes the sync counts it first and wakes then: it has not seen this one
        # only where the count has changed.
        return self._rounds != rounds or turn.acquire(timeout=PATIENCE_S)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            turn.release()
