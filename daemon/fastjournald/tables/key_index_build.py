"""Bulk build of the key index in slices: distribute all keys into blocks, then sort each block.

A sample of the keys says where blocks begin, so most are sorted once. A block that grows too large
meanwhile is sorted and split at once: no step sorts more, however many keys there are and whatever
the sample is like. Inserting the keys one by one costs three times as much (bench_key_index).

n is the number of keys; distributing a key is O(log n).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence

BLOCK_KEYS_MAX = 1024
"""A block with more is split. Adding a key moves the others of its block: 8 KiB at most."""

_UNSORTED_KEYS_MAX = 2 * BLOCK_KEYS_MAX
"""Keys of a block that are sorted at a time: half a millisecond."""

_FIRSTS_MAX = 1024
"""Blocks to begin with: sorting the sample takes less than a block."""

_SORTED_KEYS_A_MERGE = 16
"""Keys that are sorted in the time in which one is merged."""


class KeyIndexBuild:
    """Blocks of keys that are being filled.

    Args:
        pieces: All keys that stand, in pieces that may be copied in one go. A key that comes or
            goes meanwhile is in the blocks or not.
    """

    __slots__ = ("_loading", "_pieces", "_unloaded", "_unsorted", "blocks", "firsts")

    def __init__(self, pieces: Sequence[Collection[bytes]]) -> None:
        self.blocks: list[list[bytes]] = [[]]
        self.firsts = [b""]
        """For each block a key that is not behind its first one, but behind the block before."""
        self._pieces = pieces
        self._unloaded = len(pieces)
        """The first so many of the pieces were not looked at yet."""
        self._loading: list[bytes] = []
        self._unsorted: int | None = None
        """The first so many of the blocks are not sorted yet; None: not all keys are in them."""

    def step(self, keys_max: int) -> int:
        """Do as much work as merging so many keys is, or sort one block.

        Returns:
            Work done, in keys merged; 0: all is done.
        """
        if self._loading:
            return self._distribute(min(keys_max, len(self._loading)))
        if self._unloaded:
            self._unloaded -= 1
            self._load(list(self._pieces[self._unloaded]))
            return 1
        if self._unsorted is None:
            self._unsorted = len(self.blocks)
        if self._unsorted:
            self._unsorted -= 1
            return self._sort(self._unsorted)
        return 0

    def _load(self, keys: list[bytes]) -> None:
        if len(self.blocks) == 1 and not self.blocks[0]:
            # the keys are in no order: any piece is a sample of all
            usual = BLOCK_KEYS_MAX // 2 // len(self._pieces)
            sample = sorted(keys[:: max(1, usual, len(keys) // _FIRSTS_MAX)])
            self.firsts = [b"", *sample[1:]]
            self.blocks = [[] for _ in self.firsts]
        self._loading = keys

    def _distribute(self, number: int) -> int:
        firsts, blocks, loading = self.firsts, self.blocks, self._loading
        done = sorted_keys = 0
        while done < number and not sorted_keys:
            key = loading.pop()
            place = bisect_right(firsts, key) - 1
            block = blocks[place]
            block.append(key)
            done += 1
            if len(block) == _UNSORTED_KEYS_MAX:
                sorted_keys = self._sort(place)
        return done + sorted_keys

    def _sort(self, place: int) -> int:
        """Sort a block, split it where it is too large, and return of how many keys the work is."""
        block = self.blocks[place]
        size = len(block)
        block.sort()
        if size > BLOCK_KEYS_MAX:
            split_block(self.blocks, self.firsts, place)
        return 1 + size // _SORTED_KEYS_A_MERGE

    def keys(self) -> set[bytes]:
        """Return all keys that it has or will have. O(n), for tests."""
        unloaded = self._pieces[: self._unloaded]
        return set().union(*unloaded, *self.blocks, self._loading)


def split_block(blocks: list[list[bytes]], firsts: list[bytes], place: int) -> None:
    """Split a sorted block into parts of half the size of the largest, or somewhat more."""
    block = blocks[place]
    size = len(block) // (2 * len(block) // BLOCK_KEYS_MAX) + 1
    cuts = range(size, len(block), size)
    blocks[place + 1 : place + 1] = [block[at : at + size] for at in cuts]
    firsts[place + 1 : place + 1] = [block[at] for at in cuts]
    del block[size:]
