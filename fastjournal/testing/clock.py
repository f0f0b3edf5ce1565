"""Manual clock: a clock that advances only when a test sets it."""

from __future__ import annotations


class ManualClock:
    """A ``fastjournal.clock.Clock`` that a test sets, forward and back.

    Args:
        now_us: The first instant, in microseconds since the Unix epoch.
    """

    def __init__(self, now_us: int) -> None:
        self.now = now_us
        """The present instant, in microseconds: assign it to move the clock."""

    def now_us(self) -> int:
        """Return the instant that was set last."""
        return self.now
