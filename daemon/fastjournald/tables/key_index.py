"""Key index: an ordered secondary index of all keys, built lazily and merged in slices.

It is a chunked sorted list of its own and not ``sortedcontainers.SortedList``, which takes two
searches to find out that a key is missing and to add it: with that, the first scan takes 84 % more
instructions for each key, and a SET with its share of a scan 12 % (tests/bench/bench_waiting.py).

A daemon without scans pays nothing for it. From the first scan on, the key table adds each key that
comes or goes to ``pending`` (a delta buffer), which is all that the path of a write does. To merge
a key is to make the list say whether the key stands; so a key may be pending any number of times,
in any order. The index is first filled in the same way, from the shards of the key table.

What is pending at one moment is a batch; batches are merged one after the other. A scan waits until
the batch is merged that was pending when it came. From then on every key that stood there when it
came, and still stands, is in the list, whatever else comes and goes.

The keys stand in blocks of some hundred, each with its place in a list of first keys. n is the
number of keys; merging a key is O(log n).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence

BLOCK_KEYS_MAX = 1024
"""A block with more is split. Adding a key moves the others of its block: 8 KiB at most."""

BLOCK_KEYS_MIN = 128
"""A block with less joins the next one."""


class KeyIndex:
    """Ordered index of the keys of all entries.

    Args:
        pieces: All keys that stand, in pieces that may be copied in one go.
        stands: Whether a key stands.
    """

    __slots__ = (
        "_blocks",
        "_firsts",
        "_loading",
        "_merging",
        "_pieces",
        "_stands",
        "_unloaded",
        "batch",
        "pending",
    )

    def __init__(
        self, pieces: Sequence[Collection[bytes]], stands: Callable[[bytes], bool]
    ) -> None:
        self._blocks: list[list[bytes]] = [[]]
        self._firsts = [b""]
        """For each block a key that is not behind its first one, but behind the block before."""
        self._pieces = pieces
        self._stands = stands
        self._unloaded = len(pieces)
        """The first so many of the pieces were not looked at yet."""
        self._loading: list[bytes] = []
        self._merging: set[bytes] = set()
        self.batch = 0
        """The batch that is being merged, or merged already if nothing is."""
        self.pending: set[bytes] = set()
        """Keys that came or went and belong to the batch after that; the store adds to it."""

    def idle(self) -> bool:
        """Whether there is nothing to merge. O(1)."""
        return not (self.pending or self._merging or self._loading or self._unloaded)

    def mark(self) -> int:
        """Return the batch that has to be merged until all that stands now is in the list. O(1)."""
        return self.batch + bool(self.pending)

    def merged(self, batch: int) -> bool:
        """Whether a batch, as ``mark`` returned it, is merged. O(1)."""
        return batch < self.batch or (
            batch == self.batch and not (self._merging or self._loading or self._unloaded)
        )

    def merge(self, keys_max: int) -> int:
        """Merge at most so many keys; return how many it were, 0 where there was nothing to do."""
        left = keys_max
        while left > 0:
            if self._loading:
                source: list[bytes] | set[bytes] = self._loading
            elif self._unloaded:
                self._unloaded -= 1
                self._loading = list(self._pieces[self._unloaded])
                left -= 1
                continue
            elif self._merging:
                source = self._merging
            elif self.pending:
                self._merging, self.pending = self.pending, set()
                self.batch += 1
                continue
            else:
                break
            number = min(left, len(source))
            self._merge(source, number)
            left -= number
        return keys_max - left

    def relieve(self, keys_max: int) -> None:
        """Merge at most so many pending keys out of their turn, which is never wrong."""
        self._merge(self.pending, min(keys_max, len(self.pending)))

    def _merge(self, source: list[bytes] | set[bytes], number: int) -> None:
        firsts, blocks, stands = self._firsts, self._blocks, self._stands
        for _ in range(number):
            key = source.pop()
            place = bisect_right(firsts, key) - 1
            block = blocks[place]
            at = bisect_left(block, key)
            found = at < len(block) and block[at] == key
            if stands(key):
                if not found:
                    block.insert(at, key)
                    if len(block) > BLOCK_KEYS_MAX:
                        self._split(place)
            elif found:
                del block[at]
                if len(block) < BLOCK_KEYS_MIN:
                    self._join(place)

    def _split(self, place: int) -> None:
        block = self._blocks[place]
        half = len(block) // 2
        self._blocks.insert(place + 1, block[half:])
        self._firsts.insert(place + 1, block[half])
        del block[half:]

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
        unloaded = {key for piece in self._pieces[: self._unloaded] for key in piece}
        return self.pending | self._merging | set(self._loading) | unloaded

    def __iter__(self) -> Iterator[bytes]:
        return self.between(b"", None)
