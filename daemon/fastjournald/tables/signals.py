"""Signals from the engine to the tasks of the shell: work besides replies. Pure.

The engine sets bits. The shell takes them after a batch of requests that set some, and wakes the
tasks concerned. So no task has to be polled for work.
"""

from __future__ import annotations

from typing import Final

READY: Final = 1
"""Requests that wait for work may get some."""
TIMER: Final = 2
"""Something happens by time earlier than it did."""
CHANGES: Final = 4
"""Changes have to be matched with subscriptions, or subscriptions that ended to be swept."""
VALUES: Final = 8
"""Requests that wait for work need values that are on disk only."""
KEYS: Final = 16
"""Many keys have to be merged into the ordered index."""


class Signals:
    """Bits that are set, and the next deadline."""

    __slots__ = ("bits", "deadline")

    def __init__(self) -> None:
        self.bits = 0
        self.deadline = 0
        """Nothing happens by time before this instant; ``Deadlines.advance`` renews it."""

    def wake_at(self, instant: int) -> None:
        """Set the timer to this instant, if it is later. O(1)."""
        if instant < self.deadline:
            self.deadline = instant
            self.bits |= TIMER

    def take(self) -> int:
        """Return the bits that are set, and clear them. O(1)."""
        bits, self.bits = self.bits, 0
        return bits
