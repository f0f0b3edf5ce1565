"""Sorted runs of keys that wait for the key index, as in a log-structured merge tree.

Keys that come in bulk are sorted a run at a time, which takes a third of the work of putting each
into its place in the index. From then on they can be read in order: a reader merges all runs from
where it begins. The index takes the lowest keys of all runs, a few at a time, until none is left.

n is the number of keys, r that of runs: one for 65,536 keys of a bulk load, some for 16,384 others.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import eq

KEY_BYTES = sys.getsizeof(b"") + 8
"""Memory of a key beside its bytes: its object, and its place in a list."""

RUN_KEYS_MAX = 16_384
"""A run with more is merged with no other: merging two takes up to two milliseconds."""

_TAKEN_KEYS_MIN = 1024
"""Keys that were taken from a run stay in memory until they are so many, and half of it."""


def bytes_of(keys: Collection[bytes]) -> int:
    """Return the memory that some keys take where nothing else has them. O(n)."""
    return sum(map(len, keys)) + KEY_BYTES * len(keys)


class KeyRuns:
    """Sorted runs. A key may be in any number of them."""

    __slots__ = ("_begins", "_each", "_runs", "bytes", "keys")

    def __init__(self) -> None:
        self._runs: list[list[bytes]] = []
        self._begins: list[int] = []
        """For each run how many of its keys, the lowest ones, were taken."""
        self._each = RUN_KEYS_MAX
        """Keys that were taken of one run last."""
        self.keys = 0
        """Keys of all runs."""
        self.bytes = 0
        """Memory of these, also where an entry has the same key object."""

    def add(self, keys: list[bytes]) -> None:
        """Make a run of some keys, and of the last ones where they are no longer. O(n log n).

        Args:
            keys: The keys, in any order; they belong to the runs from now on.
        """
        self.keys += len(keys)
        self.bytes += bytes_of(keys)
        runs, begins = self._runs, self._begins
        while runs:
            left = len(runs[-1]) - begins[-1]
            if left > len(keys) or left + len(keys) > RUN_KEYS_MAX:
                break
            keys += runs.pop()[begins.pop() :]
        keys.sort()
        if len(keys) <= RUN_KEYS_MAX and any(map(eq, keys, islice(keys, 1, None))):
            # one key may come and go any number of times, and all of them are taken at once
            different = list(dict.fromkeys(keys))
            self.keys -= len(keys) - len(different)
            self.bytes -= bytes_of(keys) - bytes_of(different)
            keys = different
        runs.append(keys)
        begins.append(0)

    def take(self, keys_max: int) -> list[bytes]:
        """Take the lowest keys of all runs, in order; each is in no run any more. O(r log n).

        Args:
            keys_max: Most keys, if they are no fewer than runs.
        """
        runs, begins = self._runs, self._begins
        # all runs have keys everywhere, or one has all that are next, or something in between
        each = min(2 * self._each, keys_max)
        ends, number = self._ends(each)
        while number > keys_max and each > 1:
            each = max(1, each // 2)
            ends, number = self._ends(each)
        self._each = each
        self.keys -= number
        taken: list[bytes] = []
        for run, begin, end in zip(runs, begins, ends, strict=True):
            taken += run[begin:end]
        self.bytes -= bytes_of(taken)
        taken.sort()
        self._begins = ends
        self._free()
        return taken

    def _ends(self, each: int) -> tuple[list[int], int]:
        """Return where the next keys of each run end, at most so many, and how many they are."""
        runs, begins = self._runs, self._begins
        last = each - 1
        bound = min(
            [
                run[begin + last]
                for run, begin in zip(runs, begins, strict=True)
                if begin + last < len(run)
            ],
            default=None,
        )
        if bound is None:
            ends = [len(run) for run in runs]
        else:
            # no run but those that have the bound itself has more that are as low
            ends = [
                bisect_right(run, bound, begin) for run, begin in zip(runs, begins, strict=True)
            ]
        return ends, sum(ends) - sum(begins)

    def _free(self) -> None:
        """Free memory of keys that were taken."""
        runs, begins = self._runs, self._begins
        for at, (run, begin) in enumerate(zip(runs, begins, strict=True)):
            if begin >= _TAKEN_KEYS_MIN and begin > len(run) // 2:
                del run[:begin]
                begins[at] = 0
        left = [at for at, run in enumerate(runs) if begins[at] < len(run)]
        self._runs = [runs[at] for at in left]
        self._begins = [begins[at] for at in left]

    def between(self, start: bytes, stop: bytes | None, more: list[bytes]) -> Iterator[bytes]:
        """Return the keys from ``start`` up to but not ``stop``, in order, some repeatedly.

        Args:
            start: The first key, if it is there.
            stop: The first key that does not count; None: all count.
            more: Other keys of this range, in order.
        """
        sources: list[Iterable[bytes]] = [more] if more else []
        for run, begin in zip(self._runs, self._begins, strict=True):
            at = bisect_left(run, start, begin)
            if at < len(run) and (stop is None or run[at] < stop):
                end = len(run) if stop is None else bisect_left(run, stop, at)
                sources.append(map(run.__getitem__, range(at, end)))
        return merge(*sources)

    def lists(self) -> list[list[bytes]]:
        """Return the keys of each run that were not taken. O(n), for tests."""
        return [run[begin:] for run, begin in zip(self._runs, self._begins, strict=True)]

    def __iter__(self) -> Iterator[bytes]:
        return self.between(b"", None, [])

    def __len__(self) -> int:
        return len(self._runs)
