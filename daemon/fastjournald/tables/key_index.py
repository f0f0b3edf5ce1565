"""Key index: an ordered secondary index of all keys, merged in slices and readable at any time.

It is a chunked sorted list of its own and not ``sortedcontainers.SortedList``, which has no way to
merge a run of keys into one of its lists (tests/bench/bench_waiting.py compares the two).

From the moment that it is there, the key table appends each key that comes or goes to ``pending``
(a delta buffer), which is all that the path of a write does. To merge a key is to make the list say
whether the key stands; so a key may be pending any number of times, in any order. Where very many
come, from a log at the start, or meanwhile, they become sorted runs first (``key_runs``).

A reader goes through the list and all keys that are not merged yet, in order. So it waits for no
merge: every key that stands is among those that it finds, and some that do not stand any more.

The keys stand in blocks of some hundred, each with its place in a list of first keys. n is the
number of keys; merging a key is O(log n). Keys that are merged together and belong into one block
are merged as a part: one pass through the block for all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Set
from itertools import chain
from operator import le, lt

from fastjournald.tables.key_runs import KeyRuns

BLOCK_KEYS_MAX = 1024
"""A block with more is split. Adding a key moves the others of its block: 8 KiB at most."""

BLOCK_KEYS_MIN = 128
"""A block with less joins the next one."""

PART_KEYS_MIN = 64
"""From so many keys on that belong into one block, a pass through all of it costs less."""


class KeyIndex:
    """Ordered index of the keys of all entries.

    Args:
        standing: Returns those of some keys that stand.
    """

    __slots__ = ("_blocks", "_firsts", "_merges", "_runs", "_standing", "pending")

    def __init__(self, standing: Callable[[list[bytes]], list[bytes]]) -> None:
        self._blocks: list[list[bytes]] = [[]]
        self._firsts = [b""]
        """For each block a key that is not behind its first one, but behind the block before."""
        self._runs = KeyRuns()
        """Keys that were pending before those that are pending now."""
        self._standing = standing
        self.pending: list[bytes] = []
        """Keys that came or went; the store adds to it."""
        self._merges = 0

    @property
    def has_runs(self) -> bool:
        """Whether there are keys that came in bulk, and are not merged yet."""
        return bool(self._runs.keys)

    @property
    def version(self) -> tuple[int, int]:
        """Version of the keys to read: it changes when any is noted or merged. O(1)."""
        return self._merges, len(self.pending)

    def idle(self) -> bool:
        """Whether there is nothing to merge. O(1)."""
        return not (self.pending or self._runs.keys)

    def sort_pending(self, keys_max: int) -> int:
        """Let at most so many keys that are pending become a run, and return how many they are."""
        number = min(keys_max, len(self.pending))
        if number:
            self._merges += 1
            self._runs.add(self._last_pending(number))
        return number

    def merge(self, keys_max: int) -> int:
        """Merge some keys, at most so many, and return how many; 0: there was nothing to do."""
        self._merges += 1
        if self._runs.keys:
            keys = self._runs.take(keys_max)
        else:
            keys = self._last_pending(min(keys_max, len(self.pending)))
            # mostly of SETs that each add a key and a URI: either kind is in order, or nearly so
            keys = sorted(keys[::2] + keys[1::2])
        if keys:
            self._merge(list(dict.fromkeys(keys)))
        return len(keys)

    def relieve(self, keys_max: int) -> int:
        """Merge keys, because too many are pending, and return how many.

        As long as there are runs, those that are pending become one too.
        """
        if self._runs.keys:
            self.sort_pending(keys_max)
        return self.merge(keys_max)

    def _last_pending(self, number: int) -> list[bytes]:
        first = len(self.pending) - number
        keys = self.pending[first:]
        del self.pending[first:]
        return keys

    def _merge(self, keys: list[bytes]) -> None:
        """Merge different keys in byte order, those of one block after the other."""
        firsts = self._firsts
        standing = self._standing(keys)
        # where none has gone, as in a stream of SETs, no key is looked at once more
        gone = set[bytes]() if len(standing) == len(keys) else set(keys).difference(standing)
        place = at = 0
        while at < len(keys):
            place = bisect_right(firsts, keys[at], place) - 1
            behind = bisect_left(keys, firsts[place + 1], at) if place + 1 < len(firsts) else None
            part, block = keys[at:behind], self._blocks[place]
            if not block or part[0] > block[-1]:
                block += [key for key in part if key not in gone] if gone else part
            elif len(part) < PART_KEYS_MIN:
                _merge_few(block, part, gone)
            else:
                _merge_many(block, part, gone)
            at += len(part)
            # a block that is split or joined changes places from this one on only
            self._resize(place)

    def _resize(self, place: int) -> None:
        """Split a block that is too large, or join one that is too small with the next."""
        size = len(self._blocks[place])
        if size > BLOCK_KEYS_MAX:
            self._split(place)
        elif size < BLOCK_KEYS_MIN:
            self._join(place)

    def _split(self, place: int) -> None:
        """Split a block into parts of half the size of the largest, or somewhat more."""
        block = self._blocks[place]
        size = len(block) // (2 * len(block) // BLOCK_KEYS_MAX) + 1
        cuts = range(size, len(block), size)
        self._blocks[place + 1 : place + 1] = [block[at : at + size] for at in cuts]
        self._firsts[place + 1 : place + 1] = [block[at] for at in cuts]
        del block[size:]

    def _join(self, place: int) -> None:
        """Let a small block take over the next one, where both are no more than half a block."""
        firsts, blocks = self._firsts, self._blocks
        if len(blocks) == 1:
            return
        block = blocks[place]
        if not block:
            del blocks[place], firsts[place]
            firsts[0] = b""
        elif place + 1 < len(blocks):
            other = blocks[place + 1]
            if len(block) + len(other) <= BLOCK_KEYS_MAX // 2:
                block += other
                del blocks[place + 1], firsts[place + 1]

    def between(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Return the keys from ``start`` up to but not ``stop``; valid for this version.

        Some may not stand in the store any more.
        """
        noted = [key for key in self.pending if start <= key and (stop is None or key < stop)]
        if not (noted or self._runs.keys):
            return self._merged_between(start, stop)
        noted.sort()
        return self._with_noted(start, stop, self._runs.between(start, stop, noted))

    def _with_noted(
        self, start: bytes, stop: bytes | None, noted: Iterator[bytes]
    ) -> Iterator[bytes]:
        """Yield the merged keys of a range, and those noted in it, each once."""
        merged = next(self._merged_between(start, None), None)
        for key in noted:
            if key < start:
                continue
            # the least key behind it: what is noted again comes no more
            behind = key + b"\0"
            if merged is not None and merged <= key:
                yield from self._merged_between(start, key)
                merged = next(self._merged_between(behind, None), None)
            yield key
            start = behind
        yield from self._merged_between(start, stop)

    def _merged_between(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        blocks = self._blocks
        place = bisect_right(self._firsts, start) - 1
        at = bisect_left(blocks[place], start)
        for number in range(place, len(blocks)):
            block = blocks[number]
            last = len(block)
            if stop is not None and block and block[-1] >= stop:
                last = bisect_left(block, stop)
            for index in range(at, last):
                yield block[index]
            if last < len(block):
                return
            at = 0

    def block_count(self) -> int:
        """Return the number of blocks. O(1), for tests."""
        return len(self._blocks)

    def unmerged(self) -> set[bytes]:
        """Return all keys that the list of blocks may be wrong about. O(n), for tests."""
        return {*self.pending, *chain.from_iterable(self._runs.lists())}

    def check(self, standing: Set[bytes]) -> None:
        """Assert the order of blocks and runs, and that a merge leaves what stands. For tests.

        A read through all keys that are pending would take most of the time of a property test.
        """
        blocks, firsts = self._blocks, self._firsts
        merged = list(chain.from_iterable(blocks))
        assert all(map(lt, merged, merged[1:]))
        assert firsts[0] == b""
        assert all(blocks) or len(blocks) == 1
        assert all(block[-1] < first for block, first in zip(blocks[:-1], firsts[1:], strict=True))
        assert all(first <= block[0] for first, block in zip(firsts, blocks, strict=True) if block)
        runs = self._runs.lists()
        assert all(all(map(le, run, run[1:])) for run in runs)
        assert self._runs.keys == sum(map(len, runs))
        assert standing ^ set(merged) <= self.unmerged()

    def __iter__(self) -> Iterator[bytes]:
        return self.between(b"", None)


def _merge_few(block: list[bytes], part: list[bytes], gone: set[bytes]) -> None:
    at = 0
    for key in part:
        at = bisect_left(block, key, at)
        found = at < len(block) and block[at] == key
        if key in gone:
            if found:
                del block[at]
        elif not found:
            block.insert(at, key)


def _merge_many(block: list[bytes], part: list[bytes], gone: set[bytes]) -> None:
    noted = set(part)
    block[:] = [key for key in block if key not in noted]
    block += [key for key in part if key not in gone] if gone else part
    # two parts in order, which the sort merges in one pass
    block.sort()
