"""Histograms: request latency and other values by powers of two, cheap for a commit. Pure.

The latency of requests is measured by turns of the event loop: the clock is not read for a request,
nor for a batch. Requests that were received together and are answered together are counted
together, with one value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

OTHER = -1
"""Function number of all functions without a name."""

_Answered: TypeAlias = tuple[int, float, int, int]
"""Requests that were answered together: bytes of the log that must be settled before the replies
are sent, begin of the turn in which they were received, their function, and their number."""

_BITS_MAX = 64


class Histogram:
    """Counts of the values under each power of two.

    Args:
        exponent_max: Exponent of the last bound, 2**exponent_max; larger numbers are above all.
        exponent_min: Exponent of the first bound; smaller numbers are below all.
    """

    __slots__ = ("_exponent_max", "counts", "exponent_min", "total")

    def __init__(self, exponent_max: int, exponent_min: int = 0) -> None:
        self._exponent_max = exponent_max
        self.exponent_min = exponent_min
        self.counts = [0] * _BITS_MAX
        """At k: values above 2**(k-1) and at most 2**k; at 0: 0 and 1."""
        self.total = 0
        """Sum of all values."""

    def add(self, value: int, number: int = 1) -> None:
        """Count a natural number, so many times. O(1).

        Args:
            value: Less than 2**63: a length in bytes or microseconds.
            number: How often.
        """
        self.total += value * number
        self.counts[(value - 1).bit_length() if value else 0] += number

    def merge(self, others: Sequence[Histogram]) -> None:
        """Add the counts of others."""
        self.total += sum(other.total for other in others)
        columns = zip(self.counts, *(other.counts for other in others), strict=True)
        self.counts = list(map(sum, columns))

    @property
    def number(self) -> int:
        """Number of all values."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return how many values are at most 2**exponent_min ... 2**exponent_max, then of all."""
        counts = list(accumulate(self.counts))
        return [*counts[self.exponent_min : self._exponent_max + 1], counts[-1]]


class Latencies:
    """Histograms of the latency of requests, by function.

    The latency of a request is the time from the begin of the turn in which its bytes were received
    to the end of the turn in which the log is settled up to its reply, when the reply is sent.

    Args:
        functions: Numbers of the functions. All others share one histogram, under ``OTHER``.
    """

    __slots__ = ("answered", "began", "by_function")

    def __init__(self, functions: Iterable[int]) -> None:
        self.by_function = {int(number): Histogram(24, 6) for number in (*functions, OTHER)}
        """Microseconds, from 64 us to 16.8 s."""
        self.began = 0.0
        """Begin of this turn, in seconds of a clock."""
        self.answered: deque[_Answered] = deque()
        """Requests whose replies wait for the log, or for the end of this turn; by their marks."""

    def end_turn(self, now: float, settled: int) -> None:
        """Count the answered requests whose replies can be sent now. O(answers).

        Args:
            now: Present instant, on the clock of ``began``.
            settled: Bytes of the log that are settled.
        """
        answered, by_function = self.answered, self.by_function
        while answered and answered[0][0] <= settled:
            _, arrived, function, number = answered.popleft()
            histogram = by_function.get(function) or by_function[OTHER]
            histogram.add(int((now - arrived) * 1_000_000), number)
