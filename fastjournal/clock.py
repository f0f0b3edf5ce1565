"""Clock: the time, an argument everywhere, and the one source of write timestamps.

The timestamps of two writes decide which one wins, and two writes of one process with the same
timestamp would be taken for a repeat. So all code that stamps requests uses this module.

A clock may step: it was set, or the machine was suspended. ``WatchedClock`` compares it with a
monotonic one where the daemon reads the time: so its engine is informed of a step before it gets an
instant after it, by which all leases would have ended.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from fastjournal.limits import (
    CLOCK_STEP_US_MIN,
    TIMESTAMP_AHEAD_US_MAX,
    TIMESTAMP_SLICE_US,
    TIMESTAMP_SLICES_MAX,
)

LOOK_US_MAX = 1000
"""Two looks at CLOCK_MONOTONIC with one at the clock between are compared if they are no farther
apart: else the process was not running meanwhile."""

LOOKS_MAX = 8
"""Comparisons of both clocks after which the last one counts, with any distance."""


_time_ns: Callable[[], int] = time.time_ns


class Clock(Protocol):
    """Something that knows the time."""

    def now_us(self) -> int:
        """Return the instant: microseconds since the Unix epoch."""


class SteadyClock(Clock, Protocol):
    """A clock that also measures elapsed time, independent of steps."""

    def monotonic_us(self) -> int:
        """Return a time in microseconds that never steps; what it counts from means nothing."""


class SystemClock:
    """The clock of the machine; it can step when it is set."""

    def now_us(self) -> int:
        """Return the instant: microseconds since the Unix epoch."""
        return _time_ns() // 1000

    def monotonic_us(self) -> int:
        """Return CLOCK_MONOTONIC in microseconds, which leaves out suspensions of the machine.

        NTP slews it as it slews the clock, so their difference changes by steps only.
        """
        return time.monotonic_ns() // 1000


class WatchedClock:
    """Clock that reports a step before it returns an instant after it.

    Comparing both clocks costs as much as reading one three times. So one comparison is valid for a
    second, in which instants are read without another.

    Args:
        clock: The machine's, or a test's.
    """

    def __init__(self, clock: SteadyClock) -> None:
        self._wall = clock.now_us
        self.monotonic_us = clock.monotonic_us
        """Return a time in microseconds that never steps."""
        self.on_step: Callable[[int, int], object] = lambda _now, _step_us: None
        """Called for each step: the instant after it, and the size of the step ahead; negative:
        back."""
        self._low = self._high = 0
        now, steady = self._both()
        self._ahead_us = now - steady

    def now_us(self) -> int:
        """Return the instant: microseconds since the Unix epoch."""
        now = self._wall()
        return now if self._low <= now < self._high else self.look()

    def look(self) -> int:
        """Compare the clocks, report a step, and return the instant as ``now_us`` does."""
        now, steady = self._both()
        step_us = now - steady - self._ahead_us
        # small steps add up
        if abs(step_us) > CLOCK_STEP_US_MIN:
            self._ahead_us += step_us
            self.on_step(now, step_us)
        self._low, self._high = now, now + CLOCK_STEP_US_MIN
        return now

    def _both(self) -> tuple[int, int]:
        """Return an instant and the steady time of about the same moment."""
        now = steady = 0
        for _ in range(LOOKS_MAX):
            steady = self.monotonic_us()
            now = self._wall()
            if self.monotonic_us() - steady <= LOOK_US_MAX:
                break
        return now, steady


class TimestampSource:
    """Source of instants that are all different.

    Each is later than the one before: if the clock does not advance or steps back a little, it is
    the last one plus one. If the clock returns from a jump of over ``TIMESTAMP_AHEAD_US_MAX``, the
    source follows it: daemons refuse timestamps so far ahead. It may then reach instants a second
    time, so the last timestamp of each ``TIMESTAMP_SLICE_US`` is kept, and none up to that is used
    again. Threads may share a source, and so may signal handlers.
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


_source = _machine_source = TimestampSource(SystemClock())


def _after_fork() -> None:
    _source.forget_lock()


os.register_at_fork(after_in_child=_after_fork)


def unique_timestamp() -> int:
    """Return the machine's time in microseconds; never the same one twice in a process."""
    return _source.next_us()


def replace_clock(time_ns: Callable[[], int] | None) -> None:
    """Have this process take another clock for the machine's, for tests.

    Timestamps begin anew: none of the other clock counts as given.

    Args:
        time_ns: Gives nanoseconds since the Unix epoch; None: the machine's again.
    """
    global _time_ns, _source  # noqa: PLW0603 - the clock is the process's
    _time_ns = time_ns or time.time_ns
    _source = TimestampSource(SystemClock()) if time_ns else _machine_source
