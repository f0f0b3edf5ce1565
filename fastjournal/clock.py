"""Clock: the time, an argument everywhere, and the one source of write timestamps.

The timestamps of two writes decide which one wins, and two writes of one process that carry
the same one would be taken for a repeat. So whoever stamps requests takes the stamp here.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

from fastjournal.limits import (
    TIMESTAMP_AHEAD_US_MAX,
    TIMESTAMP_SLICE_US,
    TIMESTAMP_SLICES_MAX,
)


class Clock(Protocol):
    """Something that knows the time."""

    def now_us(self) -> int:
        """Return the instant: microseconds since the Unix epoch."""


class SystemClock:
    """The clock of the machine; it can jump when somebody sets it."""

    def now_us(self) -> int:
        """Return the instant: microseconds since the Unix epoch."""
        return time.time_ns() // 1000


class TimestampSource:
    """Gives instants of which no two are equal.

    Each is later than the one before: where the clock does not advance or steps back a little,
    the last one plus one is given. Where the clock comes back from a jump of over
    ``TIMESTAMP_AHEAD_US_MAX``, it is followed: daemons refuse what is so far ahead. It may then go
    through instants a second time, so the last timestamp of each ``TIMESTAMP_SLICE_US`` is kept,
    and none up to that is given again. Threads may share a source, and so may signal handlers.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_us = 0
        self._given: dict[int, int] = {}
        """The last timestamp of each slice, by the number of the slice."""
        self._lock = threading.RLock()

    def next_us(self) -> int:
        """Return an instant in microseconds since the Unix epoch that was not given before."""
        given = self._given
        with self._lock:
            while True:
                before = self._last_us
                stamp = self._clock.now_us()
                if stamp <= before <= stamp + TIMESTAMP_AHEAD_US_MAX:
                    stamp = before + 1
                while (last := given.get(stamp // TIMESTAMP_SLICE_US, 0)) >= stamp:
                    stamp = last + 1
                # A signal handler of this thread may have taken one meanwhile. From here to the
                # end of the next statement nothing is called, so none runs.
                if self._last_us == before:
                    given[stamp // TIMESTAMP_SLICE_US] = self._last_us = stamp
                    break
            if len(given) > TIMESTAMP_SLICES_MAX:
                given.pop(next(iter(given)), None)
            return stamp

    def forget_lock(self) -> None:
        """Replace the lock, which another thread may have held when the process forked."""
        self._lock = threading.RLock()


_source = TimestampSource(SystemClock())
os.register_at_fork(after_in_child=_source.forget_lock)


def unique_timestamp() -> int:
    """Return the machine's time in microseconds; never the same one twice in a process."""
    return _source.next_us()
