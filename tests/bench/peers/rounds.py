"""Rounds of a benchmark that has to end in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


def rounds_until(
    end: float, number: int, *, least: int = 1, clock: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """Yield the numbers of rounds, while one more as long as the longest ends in time.

    Args:
        end: Seconds of the clock.
        number: Rounds at most.
        least: Rounds at least, in time or not.
        clock: Returns the present in seconds.
    """
    longest = 0.0
    for each in range(number):
        began = clock()
        if each >= least and began + longest > end:
            return
        yield each
        longest = max(longest, clock() - began)
