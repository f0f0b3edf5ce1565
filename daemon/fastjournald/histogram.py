"""Histogram: counts of values by powers of two, cheap enough for every commit."""

from __future__ import annotations

from itertools import accumulate


class Histogram:
    """Counts of the values under each power of two.

    Args:
        exponent_max: Exponent of the last bound, 2**exponent_max; larger numbers are above all.
    """

    __slots__ = ("_counts", "total")

    def __init__(self, exponent_max: int) -> None:
        self._counts = [0] * (exponent_max + 2)
        self.total = 0
        """Sum of all values."""

    def add(self, value: int) -> None:
        """Count a natural number. O(1)."""
        self.total += value
        counts = self._counts
        counts[min((value - 1).bit_length() if value else 0, len(counts) - 1)] += 1

    def cumulative(self) -> list[int]:
        """Return how many values are at most 1, 2, 4 ... 2**exponent_max, then of all."""
        return list(accumulate(self._counts))
