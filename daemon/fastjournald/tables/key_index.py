"""Key index: an ordered secondary index of all keys, and sorted runs of keys to be merged.

The index is merged in slices and can be read at any time. It is a chunked sorted list. It is not
``sortedcontainers.SortedList``, which cannot merge a run of keys into one of its lists.

Once the index exists, the key table notes each added or removed key in a delta buffer, and a write
does nothing more: an added key is noted in ``fresh``, a removed one in ``gone``, unless it is
fresh. A fresh key that is older than some thousand others and still in the table is moved to a
sorted run, like the keys of a log at the start. So a key that is removed soon costs nothing more.
Runs and removed keys are merged into the list later: a merge makes the list say whether the key is
in the table. So a key may be noted any number of times, in any order.

A reader reads the list and all keys that are not merged yet, in order. It waits for no merge: it
finds every key of the table, and some keys that were removed.

The keys are in blocks of some hundred, and a list has the first key of each block. n is the number
of keys; merging a key is O(log n). Keys that are merged together into one block are merged in one
pass through the block.

Keys that are added in bulk are sorted in runs, as in a log-structured merge tree. A sort takes a
third of the work of inserting each key into the index. Then they can be read in order: a reader
merges all runs from its start key on. The index takes the lowest keys of all runs, a few at a time,
until none is left. r is the number of runs: one for 65,536 keys of a bulk load, one for about
16,384 other keys.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from heapq import merge
from itertools import chain, islice
from operator import eq, le, lt

KEY_BYTES = sys.getsizeof(b"") + 8
"""Memory of a key without its bytes: its object, and its item in a list."""

RUN_KEYS_MAX = 16_384
"""A larger run is not merged with another: merging two takes up to two milliseconds."""

_TAKEN_KEYS_MIN = 1024
"""Keys taken from a run are freed when they are so many, and half of the run."""


def bytes_of(keys: Collection[bytes]) -> int:
    """Return the memory of keys that no other object has. O(n)."""
    return sum(map(len, keys)) + KEY_BYTES * len(keys)


class KeyRuns:
    """Sorted runs. A key may be in several of them."""

    __slots__ = ("_begins", "_each", "_runs", "bytes", "keys")

    def __init__(self) -> None:
        self._runs: list[list[bytes]] = []
        self._begins: list[int] = []
        """Number of keys taken from each run, the lowest ones."""
        self._each = RUN_KEYS_MAX
        """Keys taken from one run by the last ``take``."""
        self.keys = 0
        """Keys of all runs."""
        self.bytes = 0
        """Memory of these keys, also of those whose object an entry shares."""

    def add(self, keys: list[bytes]) -> None:
        """Add keys as a run, merged with the last runs if these are not longer. O(n log n).

        Args:
            keys: The keys, in any order; the runs own the list from now on.
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
            # a key may be added and removed many times; all its copies are taken together
            different = list(dict.fromkeys(keys))
            self.keys -= len(keys) - len(different)
            self.bytes -= bytes_of(keys) - bytes_of(different)
            keys = different
        runs.append(keys)
        begins.append(0)

    def take(self, keys_max: int) -> list[bytes]:
        """Remove and return the lowest keys of all runs, in order. O(r log n).

        Args:
            keys_max: Most keys, if there are not more runs than that.
        """
        runs, begins = self._runs, self._begins
        # from all runs with keys everywhere to one run with all the next keys
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
        """Return the ends of the next keys of each run, at most ``each``, and their number."""
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
            # only runs that contain the bound itself have more keys that are as low
            ends = [
                bisect_right(run, bound, begin) for run, begin in zip(runs, begins, strict=True)
            ]
        return ends, sum(ends) - sum(begins)

    def _free(self) -> None:
        """Free the memory of taken keys."""
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
            start: Lower bound, included.
            stop: Upper bound, excluded; None: no bound.
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


BLOCK_KEYS_MAX = 1024
"""A larger block is split. Inserting a key moves the others of its block: 8 KiB at most."""

BLOCK_KEYS_MIN = 128
"""A smaller block is joined with the next one."""

PART_KEYS_MIN = 64
"""From so many keys for one block on, a pass through the whole block costs less."""


class KeyIndex:
    """Ordered index of the keys of all entries.

    Args:
        standing: Returns those of the given keys that are in the key table.
    """

    __slots__ = (
        *("_blocks", "_dead_run_bytes", "_firsts", "_gone_bytes", "_gone_counted", "_merges"),
        *("_runs", "_standing", "fresh", "gone", "pending"),
    )

    def __init__(self, standing: Callable[[list[bytes]], list[bytes]]) -> None:
        self._blocks: list[list[bytes]] = [[]]
        self._firsts = [b""]
        """Lower bound of each block, greater than all keys of the block before."""
        self._runs = KeyRuns()
        """Keys that were pending earlier."""
        self._standing = standing
        self.fresh: dict[bytes, bool] = {}
        """Added keys, the oldest first, and whether they are still in the table; the key table
        updates it. Each is in no block, unless it is also in ``gone`` or ``pending``."""
        self.gone: list[bytes] = []
        """Removed keys that were not fresh; the key table appends to it."""
        self.pending: list[bytes] = []
        """Keys added in bulk, or removed; the key table appends to it."""
        self._merges = 0
        self._gone_bytes = self._gone_counted = 0
        """Memory of the first ``_gone_counted`` removed keys."""
        self._dead_run_bytes = 0
        """Memory of removed keys that were deleted from the blocks, but may be in a run."""

    @property
    def run_keys(self) -> int:
        """Number of keys in sorted runs. O(1)."""
        return self._runs.keys

    @property
    def run_bytes(self) -> int:
        """Memory of these keys, also of those whose object an entry shares. O(1)."""
        return self._runs.bytes

    def gone_bytes(self) -> int:
        """Return the memory of removed keys. O(keys removed since the last call)."""
        gone = self.gone
        # counted here, so that a DELETE counts nothing
        self._gone_bytes += bytes_of(gone[self._gone_counted :])
        self._gone_counted = len(gone)
        return self._gone_bytes

    def dead_bytes(self) -> int:
        """Return the memory of keys that no entry has. O(number of fresh keys).

        The share of keys in runs is an estimate, and at most the memory of all keys in runs.
        """
        fresh = sum(len(key) + KEY_BYTES for key, stands in self.fresh.items() if not stands)
        return fresh + self.gone_bytes() + min(self._dead_run_bytes, self._runs.bytes)

    @property
    def version(self) -> tuple[int, int, int]:
        """Version of the keys to read: it changes when a key is added, removed or merged. O(1)."""
        return self._merges, len(self.pending), len(self.fresh)

    @property
    def unsorted(self) -> int:
        """Number of keys that a reader sorts, or skips because they are not in its range. O(1)."""
        return len(self.pending) + len(self.fresh)

    def idle(self) -> bool:
        """Whether there is nothing to merge. O(1)."""
        return not (self.fresh or self.gone or self.pending or self._runs.keys)

    def sort_pending(self, keys_max: int) -> int:
        """Sort at most ``keys_max`` keys into a run; return how many were examined.

        Pending keys come first, then the oldest fresh keys that are still in the table.
        """
        self._merges += 1
        if self.pending:
            keys = _last_of(self.pending, keys_max)
            number = len(keys)
        else:
            fresh = self._oldest_fresh(keys_max)
            number = len(fresh)
            keys = _by_kind([key for key, stands in fresh if stands])
        if keys:
            self._runs.add(keys)
        return number

    def merge(self, keys_max: int) -> int:
        """Merge at most ``keys_max`` keys and return how many; 0: nothing to merge."""
        self._merges += 1
        if self._runs.keys:
            keys = self._runs.take(keys_max)
            dead = self._merge(list(dict.fromkeys(keys)))
            left = self._dead_run_bytes - bytes_of(dead)
            self._dead_run_bytes = max(left, 0) if self._runs.keys else 0
            return len(keys)
        if self.pending or self.fresh:
            keys = _last_of(self.pending, keys_max)
            keys = keys or [key for key, _ in self._oldest_fresh(keys_max)]
            keys = sorted(_by_kind(keys))
        else:
            return self.merge_gone(keys_max)
        if keys:
            self._merge(list(dict.fromkeys(keys)))
        return len(keys)

    def merge_gone(self, keys_max: int) -> int:
        """Delete at most ``keys_max`` removed keys from the blocks; return how many."""
        self._merges += 1
        before = self.gone_bytes()
        keys = _last_of(self.gone, keys_max)
        if keys:
            self._gone_counted, gone = len(self.gone), bytes_of(keys)
            self._gone_bytes = before - gone
            if self._runs.keys:
                self._dead_run_bytes += gone
            self._merge(list(dict.fromkeys(sorted(_by_kind(keys)))))
        return len(keys)

    def _oldest_fresh(self, keys_max: int) -> list[tuple[bytes, bool]]:
        """Remove and return the oldest fresh keys, at most ``keys_max``."""
        fresh = self.fresh
        if len(fresh) <= keys_max:
            self.fresh = {}
            return list(fresh.items())
        items = list(islice(fresh.items(), keys_max))
        for key, _ in items:
            del fresh[key]
        return items

    def _merge(self, keys: list[bytes]) -> set[bytes]:
        """Merge distinct keys in byte order, block by block.

        Returns:
            The keys that are not in the table.
        """
        firsts, fresh = self._firsts, self.fresh
        standing = self._standing(keys)
        if fresh:
            # they get into a block, so their removal must be noted
            for key in fresh.keys() & standing:
                del fresh[key]
        # if none was removed, as in a stream of SETs, no key is checked again
        gone = set(keys).difference(standing) if len(standing) < len(keys) else set()
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
            # a split or join moves only the blocks after this one
            self._resize(place)
        return gone

    def _resize(self, place: int) -> None:
        """Split a block that is too large, or join one that is too small with the next."""
        size = len(self._blocks[place])
        if size > BLOCK_KEYS_MAX:
            self._split(place)
        elif size < BLOCK_KEYS_MIN:
            self._join(place)

    def _split(self, place: int) -> None:
        """Split a block into parts of half the maximum size, or slightly more."""
        block = self._blocks[place]
        size = len(block) // (2 * len(block) // BLOCK_KEYS_MAX) + 1
        cuts = range(size, len(block), size)
        # new lists: the large one would keep its memory for as many keys as it had
        self._blocks[place : place + 1] = [block[at : at + size] for at in (0, *cuts)]
        self._firsts[place + 1 : place + 1] = [block[at] for at in cuts]

    def _join(self, place: int) -> None:
        """Join a small block with the next one, if both together are at most half a block."""
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

        Some may no longer be in the key table.
        """
        fresh = chain(self.pending, self.fresh)
        noted = [key for key in fresh if start <= key and (stop is None or key < stop)]
        if not (noted or self._runs.keys):
            return self._merged_between(start, stop)
        noted.sort()
        return self._with_noted(start, stop, self._runs.between(start, stop, noted))

    def _with_noted(
        self, start: bytes, stop: bytes | None, noted: Iterator[bytes]
    ) -> Iterator[bytes]:
        """Yield the merged keys of a range, and the noted ones, each once."""
        merged = next(self._merged_between(start, None), None)
        for key in noted:
            if key < start:
                continue
            # the smallest key after it: repeated notes are skipped
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

    def unmerged(self) -> set[bytes]:
        """Return all keys for which the blocks may be wrong. O(n), for tests."""
        return {*self.pending, *self.fresh, *self.gone, *chain.from_iterable(self._runs.lists())}

    def check(self, standing: Set[bytes]) -> None:
        """Assert the order of blocks and runs, and that merging gives the key table. For tests.

        It does not read all pending keys: that would take most of the time of a property test.
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
        assert self._runs.bytes == sum(map(bytes_of, runs))
        assert self.gone_bytes() == bytes_of(self.gone)
        assert standing ^ set(merged) <= self.unmerged()
        # otherwise a merged key that is fresh could be removed without a note
        assert self.fresh.keys() & merged <= {*self.gone, *self.pending}
        assert all((key in standing) is stands for key, stands in self.fresh.items())

    def __iter__(self) -> Iterator[bytes]:
        return self.between(b"", None)


def _last_of(keys: list[bytes], number: int) -> list[bytes]:
    """Remove and return the last keys, at most ``number``."""
    first = max(len(keys) - number, 0)
    taken = keys[first:]
    del keys[first:]
    return taken


def _by_kind(keys: list[bytes]) -> list[bytes]:
    """Return the keys of jobs, then their URIs; the two mostly alternate.

    Each kind is in order, or nearly: a sort then needs few comparisons.
    """
    return keys[::2] + keys[1::2]


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
    # two sorted parts, which the sort merges in one pass
    block.sort()
