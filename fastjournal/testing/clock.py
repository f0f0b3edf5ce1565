"""Manual clock: a clock that advances only when a test sets it."""

from __future__ import annotations


class ManualClock:
    """A ``fastjournal.clock.Clock`` that a test sets, forward and back.

    Args:
        now_us: The first instant, in microseconds since the Unix epoch.
    """

    # a name that is mistyped sets no clock: an error
    __slots__ = ("instant_us", "stepped_us")

    def __init__(self, now_us: int) -> None:
        self.instant_us = now_us
        """The present instant, in microseconds since the epoch: assign it to move the clock."""
        self.stepped_us = 0
        """By how much ``step`` has set it in all."""

    def now_us(self) -> int:
        """Return the instant that was set last."""
        return self.instant_us

    def monotonic_us(self) -> int:
        """Return the instant without the steps so far, in microseconds."""
        return self.instant_us - self.stepped_us

    def step(self, by_us: int) -> None:
        """Set the clock: no time passes; ``by_us``: microseconds, negative: back."""
        self.instant_us += by_us
        self.stepped_us += by_us
