"""Key index: an ordered secondary index of all keys, merged in slices and readable at any time.

It is a chunked sorted list of its own and not ``sortedcontainers.SortedList``, which has no way to
merge a run of keys into one of its lists (tests/bench/bench_waiting.py compares the two).

From the moment that it is there, the key table notes each key that comes or goes in a delta buffer,
which is all that the path of a write does: one that comes in ``fresh``, one that goes in ``gone``,
unless it is fresh. When a fresh key is older than some thousand others, and still stands, it gets
into a sorted run (below), as keys of a log do at the start. So a key that goes soon after it
came costs nothing more. Runs and gone keys are merged into the list later: to merge a key is to
make the list say whether the key stands; so it may be noted any number of times, in any order.

A reader goes through the list and all keys that are not merged yet, in order. So it waits for no
merge: every key that stands is among those that it finds, and some that do not stand any more.

The keys stand in blocks of some hundred, each with its place in a list of first keys. n is the
number of keys; merging a key is O(log n). Keys that are merged together and belong into one block
are merged as a part: one pass through the block for all of them.

Sorted runs of keys that wait for the key index, as in a log-structured merge tree.

Keys that come in bulk are sorted a run at a time, which takes a third of the work of putting each
into its place in the index. From then on they can be read in order: a reader merges all runs from
where it begins. The index takes the lowest keys of all runs, a few at a time, until none is left.

n is the number of keys, r that of runs: one for 65,536 keys of a bulk load, some for 16,384 others.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from heapq import merge
from itertools import chain, islice
from operator import eq, le, lt

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

    __slots__ = (
        *("_blocks", "_dead_run_bytes", "_firsts", "_gone_bytes", "_gone_counted", "_merges"),
        *("_runs", "_standing", "fresh", "gone", "pending"),
    )

    def __init__(self, standing: Callable[[list[bytes]], list[bytes]]) -> None:
        self._blocks: list[list[bytes]] = [[]]
        self._firsts = [b""]
        """For each block a key that is not behind its first one, but behind the block before."""
        self._runs = KeyRuns()
        """Keys that were pending before those that are pending now."""
        self._standing = standing
        self.fresh: dict[bytes, bool] = {}
        """Keys that came, the oldest first, and whether they still stand: the key table keeps it.
        Each is in no block, or it is gone or pending too."""
        self.gone: list[bytes] = []
        """Keys that went and were not fresh: the key table adds to it."""
        self.pending: list[bytes] = []
        """Keys that came in bulk, or went: the key table adds to it."""
        self._merges = 0
        self._gone_bytes = self._gone_counted = 0
        """Memory of the first so many keys that went."""
        self._dead_run_bytes = 0
        """Memory of keys that went and were taken out of the blocks, but may be in a run."""

    @property
    def run_keys(self) -> int:
        """Keys that are in sorted runs. O(1)."""
        return self._runs.keys

    @property
    def run_bytes(self) -> int:
        """Memory of these, also where an entry has the same key object. O(1)."""
        return self._runs.bytes

    def gone_bytes(self) -> int:
        """Return the memory of keys that went. O(number that went since the last call)."""
        gone = self.gone
        # here, so that the path of a DELETE counts nothing
        self._gone_bytes += bytes_of(gone[self._gone_counted :])
        self._gone_counted = len(gone)
        return self._gone_bytes

    def dead_bytes(self) -> int:
        """Return the memory of keys that no entry has. O(number of fresh keys).

        The part of keys in runs is an estimate, and at most that of all of these.
        """
        fresh = sum(len(key) + KEY_BYTES for key, stands in self.fresh.items() if not stands)
        return fresh + self.gone_bytes() + min(self._dead_run_bytes, self._runs.bytes)

    @property
    def version(self) -> tuple[int, int, int]:
        """Version of the keys to read: it changes when any comes or is merged. O(1)."""
        return self._merges, len(self.pending), len(self.fresh)

    @property
    def unsorted(self) -> int:
        """Keys that a reader sorts, or leaves out because they are not of its range. O(1)."""
        return len(self.pending) + len(self.fresh)

    def idle(self) -> bool:
        """Whether there is nothing to merge. O(1)."""
        return not (self.fresh or self.gone or self.pending or self._runs.keys)

    def sort_pending(self, keys_max: int) -> int:
        """Let at most so many keys become a run; return how many were looked at.

        They are those that are pending, and then the oldest that are fresh and still stand.
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
        """Merge some keys, at most so many, and return how many; 0: there was nothing to do."""
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
        """Take some keys that have gone out of the blocks, at most so many; return how many."""
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
        """Take the keys out that came first, at most so many."""
        fresh = self.fresh
        if len(fresh) <= keys_max:
            self.fresh = {}
            return list(fresh.items())
        items = list(islice(fresh.items(), keys_max))
        for key, _ in items:
            del fresh[key]
        return items

    def _merge(self, keys: list[bytes]) -> set[bytes]:
        """Merge different keys in byte order, those of one block after the other.

        Returns:
            Those that do not stand.
        """
        firsts, fresh = self._firsts, self.fresh
        standing = self._standing(keys)
        if fresh:
            # they will be in a block: so it has to be noted when they go
            for key in fresh.keys() & standing:
                del fresh[key]
        # where none has gone, as in a stream of SETs, no key is looked at once more
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
            # a block that is split or joined changes places from this one on only
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
        fresh = chain(self.pending, self.fresh)
        noted = [key for key in fresh if start <= key and (stop is None or key < stop)]
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

    def unmerged(self) -> set[bytes]:
        """Return all keys that the list of blocks may be wrong about. O(n), for tests."""
        return {*self.pending, *self.fresh, *self.gone, *chain.from_iterable(self._runs.lists())}

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
        assert self._runs.bytes == sum(map(bytes_of, runs))
        assert self.gone_bytes() == bytes_of(self.gone)
        assert standing ^ set(merged) <= self.unmerged()
        # else a merged key that is fresh would go without a note
        assert self.fresh.keys() & merged <= {*self.gone, *self.pending}
        assert all((key in standing) is stands for key, stands in self.fresh.items())

    def __iter__(self) -> Iterator[bytes]:
        return self.between(b"", None)


def _last_of(keys: list[bytes], number: int) -> list[bytes]:
    """Take the last keys out, at most so many."""
    first = max(len(keys) - number, 0)
    taken = keys[first:]
    del keys[first:]
    return taken


def _by_kind(keys: list[bytes]) -> list[bytes]:
    """Return the keys of jobs, then their URIs, which mostly alternate.

    Either kind is in order, or nearly so: a sort then takes few comparisons.
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
    # two parts in order, which the sort merges in one pass
    block.sort()
