"""Key index: an ordered secondary index of all keys, built in slices and merged in runs.

It is a chunked sorted list of its own and not ``sortedcontainers.SortedList``, which has no way to
merge a run of keys into one of its lists (tests/bench/bench_waiting.py compares the two).

From the moment that it is there, the key table appends each key that comes or goes to ``pending``
(a delta buffer), which is all that the path of a write does. To merge a key is to make the list say
whether the key stands; so a key may be pending any number of times, in any order. First of all the
index is built from the shards of the key table (``key_index_build``); what comes or goes meanwhile
is merged afterwards.

All keys pending at one moment are a batch; batches are merged one by one. A scan waits until
the batch is merged that was pending when it came. From then on every key that stood there when it
came, and still stands, is in the list, whatever else comes and goes.

The keys stand in blocks of some hundred, each with its place in a list of first keys. n is the
number of keys; merging a key is O(log n). Keys that are merged together and belong into one block
are merged as a run: one pass through the block for all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence

from fastjournald.tables.key_index_build import BLOCK_KEYS_MAX, KeyIndexBuild, split_block

BLOCK_KEYS_MIN = 128
"""A block with less joins the next one."""

RUN_KEYS_MIN = 64
"""From so many keys on that belong into one block, a pass through all of it costs less."""


class KeyIndex:
    """Ordered index of the keys of all entries.

    Args:
        pieces: All keys that stand, in pieces that may be copied in one go.
        stands: Whether a key stands.
    """

    __slots__ = (
        "_blocks",
        "_build",
        "_firsts",
        "_merging",
        "_stands",
        "batch",
        "pending",
    )

    def __init__(
        self, pieces: Sequence[Collection[bytes]], stands: Callable[[bytes], bool]
    ) -> None:
        self._blocks: list[list[bytes]] = [[]]
        self._firsts = [b""]
        """For each block a key that is not behind its first one, but behind the block before."""
        self._build: KeyIndexBuild | None = KeyIndexBuild(pieces)
        """None: it is done."""
        self._stands = stands
        self._merging: list[bytes] = []
        self.batch = 0
        """The batch that is being merged, or merged already if nothing is."""
        self.pending: list[bytes] = []
        """Keys that came or went and belong to the batch after that; the store adds to it."""

    @property
    def building(self) -> bool:
        """Whether there are keys that have been here from the beginning, and are not in it yet."""
        return self._build is not None

    def idle(self) -> bool:
        """Whether there is nothing to merge. O(1)."""
        return not (self.pending or self._merging or self._build)

    def mark(self) -> int:
        """Return the batch that has to be merged until all that stands now is in the list. O(1)."""
        return self.batch + bool(self.pending)

    def merged(self, batch: int) -> bool:
        """Whether a batch, as ``mark`` returned it, is merged. O(1)."""
        return batch < self.batch or (
            batch == self.batch and not self._merging and self._build is None
        )

    def merge(self, keys_max: int) -> int:
        """Merge at most so many keys, or do a step of the build that is as much work.

        Returns:
            Work done, in keys merged; 0: there was nothing to do.
        """
        if keys_max and self._build is not None:
            done = self._build.step(keys_max)
            if done:
                return done
            self._blocks, self._firsts = self._build.blocks, self._build.firsts
            self._build = None
        left = keys_max
        while left > 0:
            if self._merging:
                number = min(left, len(self._merging))
                self._merge(self._merging, number)
                left -= number
            elif self.pending:
                self._merging, self.pending = self.pending, []
                self.batch += 1
            else:
                break
        return keys_max - left

    def relieve(self, keys_max: int) -> None:
        """Merge at most so many pending keys out of their turn, which is never wrong."""
        if self._build is not None:
            # they can be merged the sooner
            self.merge(keys_max)
        else:
            self._merge(self.pending, min(keys_max, len(self.pending)))

    def _merge(self, source: list[bytes], number: int) -> None:
        """Merge that many keys from the end of a list, run after run in byte order."""
        keys = sorted(set(source[len(source) - number :]))
        del source[len(source) - number :]
        firsts = self._firsts
        place = at = 0
        while at < len(keys):
            place = bisect_right(firsts, keys[at], place) - 1
            behind = bisect_left(keys, firsts[place + 1], at) if place + 1 < len(firsts) else None
            run, block = keys[at:behind], self._blocks[place]
            if not block or run[0] > block[-1]:
                block += filter(self._stands, run)
            elif len(run) < RUN_KEYS_MIN:
                self._merge_few(block, run)
            else:
                self._merge_many(block, run)
            at += len(run)
            # a block that is split or joined changes places from this one on only
            self._resize(place)

    def _merge_few(self, block: list[bytes], run: list[bytes]) -> None:
        stands = self._stands
        for key in run:
            at = bisect_left(block, key)
            found = at < len(block) and block[at] == key
            if stands(key):
                if not found:
                    block.insert(at, key)
            elif found:
                del block[at]

    def _merge_many(self, block: list[bytes], run: list[bytes]) -> None:
        noted = set(run)
        block[:] = [key for key in block if key not in noted]
        block += filter(self._stands, run)
        # two runs in order, which the sort merges in one pass
        block.sort()

    def _resize(self, place: int) -> None:
        """Split a block that is too large, or join one that is too small with the next."""
        size = len(self._blocks[place])
        if size > BLOCK_KEYS_MAX:
            split_block(self._blocks, self._firsts, place)
        elif size < BLOCK_KEYS_MIN:
            self._join(place)

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
        """Return the keys from ``start`` up to but not ``stop``; valid until the next merge.

        Some may not stand in the store any more.
        """
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
        """Return all keys about which the list may be wrong. O(n), for tests."""
        unbuilt = set() if self._build is None else self._build.keys()
        return unbuilt.union(self.pending, self._merging)

    def __iter__(self) -> Iterator[bytes]:
        return self.between(b"", None)
