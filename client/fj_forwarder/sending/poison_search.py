"""Search for good records among poison messages: how many records are passed over untried."""

from __future__ import annotations

from random import Random

from fastjournal.limits import SKIP_AFTER, SKIP_MAX


class PoisonSearch:
    """Poison search: counts suspects in a row, and says how many records are passed over.

    The number is drawn: from none to twice the power of two that it is on average. Records that
    were passed over come again in the same order, behind the same suspects where these are
    not kept any more; with a fixed number one that stands there would be passed over each time.

    Args:
        random: Draws.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._in_a_row = 0
        self._to_skip = 0

    def found_suspect(self) -> None:
        """A record that was none before became a suspect."""
        self._in_a_row += 1
        if self.is_on:
            longest = min(2 << (self._in_a_row - SKIP_AFTER), SKIP_MAX)
            self._to_skip = self._random.randrange(longest + 1)

    @property
    def is_on(self) -> bool:
        """Whether so many suspects followed each other that the daemon itself may be the fault."""
        return self._in_a_row >= SKIP_AFTER

    def reset(self) -> None:
        """A record was answered, or another daemon is tried: there is nothing to search for."""
        self._in_a_row = self._to_skip = 0

    def skip(self) -> bool:
        """Return whether the next record is passed over, and count it."""
        if not self._to_skip:
            return False
        self._to_skip -= 1
        return True

    def stop(self) -> None:
        """Nothing is behind what was passed over: what comes next is tried, in small steps."""
        if self._to_skip:
            self.reset()
