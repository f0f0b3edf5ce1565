"""Where the time comes from: an argument everywhere, and the one source of write timestamps.

Which of two writes wins is decided by their timestamps, and two writes of one process that carry
the same one would be taken for a repeat. So whoever stamps requests takes the stamp here.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol


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
    """Gives instants of which no two are equal and each is later than the one before.

    Where the clock stands still or jumps back, the last timestamp plus one is given instead.
    Threads may share a source.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_us = 0
        self._lock = threading.Lock()

    def next_us(self) -> int:
        """Return an instant in microseconds since the Unix epoch that was not given before."""
        with self._lock:
            self._last_us = max(self._clock.now_us(), self._last_us + 1)
            return self._last_us

    def forget_lock(self) -> None:
        """Replace the lock, which another thread may have held when the process forked."""
        self._lock = threading.Lock()


_source = TimestampSource(SystemClock())
os.register_at_fork(after_in_child=_source.forget_lock)


def unique_timestamp() -> int:
    """Return the machine's time in microseconds; never the same one twice in a process."""
    return _source.next_us()
