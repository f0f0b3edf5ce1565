"""Sorted list of entries by bytes, in chunks with ranks in arrays. Pure.

It is here instead of ``SortedKeyList`` of sortedcontainers, which compares keys that are anywhere
in memory: with a million waiting entries a whole SET at a random place takes 13.0 us with this list
and 16.3 us with that one. Other requests, and those beside ten thousand entries, take 2 to 8 % less
(``tests.bench.bench_growth --lists``).

The lists of a domain are sorted by:

    ready    the facts of the entry: priority, not before, arrival; the buried have the same
    delayed  its ``delay_key``: instant u64, arrival u64

The key of an entry must not change while the entry is in such a list: ``Scheduler.facts_change``
takes it out and puts it back. n is the number of entries.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from operator import attrgetter, gt
from struct import Struct
from typing import Any, Final, TypeAlias

_Entry: TypeAlias = Any
"""``tables.entry.Entry``, which knows its domain: entries are not imported here."""

_facts = attrgetter("facts")
_delay_key = attrgetter("delay_key")
_order_of_facts = Struct(">BQ").unpack_from
"""Takes facts; returns priority and not before."""
_order_of_delay = Struct(">QB").unpack_from
"""Takes a key of delays; returns its instant, and the first byte of the arrival."""
_LOW_MAX = 2.0**52
"""Microseconds up to the year 2112: later instants have one rank."""
_ABSENT = "the entry is not in this list"


class SortedEntries:
    """Entries by a sort key, in sublists of up to 512 (chunked sorted list).

    A rank is a number that does not descend where keys ascend: for facts, it has a resolution of 64
    us. The ranks of a sublist are in one array, so a binary search reads adjacent memory. The keys
    of entries, which are anywhere in memory, are compared only if ranks are equal. The array is
    created by the first insert between other entries of a sublist: where entries are only appended,
    there is none.

    NEXT takes from the front of the first sublist, which moves the others: so sublists are short
    (tests/bench/bench_growth.py).

    Args:
        key: Returns the key of an entry.
        order: Returns two numbers of a key, of which the rank is made: high and low.
        entries: The first ones, in any order.
    """

    LOAD = 256
    """Entries of a new sublist. One of twice as many is split, one of half as many is joined."""

    __slots__ = ("_key", "_lasts", "_len", "_next_removal", "_order", "_ranks", "_sublists")

    def __init__(
        self,
        key: Callable[[_Entry], bytes] = _facts,
        order: Callable[[bytes], tuple[Any, ...]] = _order_of_facts,
        entries: Iterable[_Entry] = (),
    ) -> None:
        self._key = key
        self._order = order
        self._fill(entries)

    def _fill(self, entries: Iterable[_Entry]) -> None:
        in_order = sorted(entries, key=self._key)
        load = self.LOAD
        starts = range(0, len(in_order), load)
        self._len = len(in_order)
        self._next_removal = 0, 0
        """Position after the last removed entry, as a hint: removals are mostly in order."""
        self._sublists = [in_order[start : start + load] for start in starts]
        self._ranks: list[array[float] | None] = [None] * len(starts)
        """Ranks of each sublist; None: they have not been made."""
        self._lasts = array("d", map(self._rank, map(self._last_key, self._sublists)))
        """The last rank of each sublist."""

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[_Entry]:
        return chain.from_iterable(self._sublists)

    def first(self) -> _Entry:
        """Return the first entry; there is one. O(1)."""
        return self._sublists[0][0]

    def last(self) -> _Entry:
        """Return the last entry; there is one. O(1)."""
        return self._sublists[-1][-1]

    def pop_first(self) -> _Entry:
        """Remove and return the first entry; there must be one. O(1), and the move of a sublist."""
        sublist, ranks = self._sublists[0], self._ranks[0]
        entry = sublist[0]
        del sublist[0]
        if ranks is not None:
            del ranks[0]
        self._len -= 1
        if not sublist:
            del self._sublists[0], self._ranks[0], self._lasts[0]
        return entry

    def first_from(self, key: bytes) -> _Entry | None:
        """Return the first entry whose key is not less than this one; None: there is none."""
        return next(iter(self.part_from(key, 1)), None)

    def part_from(self, key: bytes, number_max: int) -> list[_Entry]:
        """Return entries from the first one on whose key is not less than this one, in order.

        At most so many, and at most those of one sublist; none: there is none.
        """
        rank, lasts = self._rank(key), self._lasts
        place = bisect_left(lasts, rank)
        if place < len(lasts) and lasts[place] == rank:
            place = self._place_among_equals(place, rank, key)
        if place == len(lasts):
            return []
        sublist = self._sublists[place]
        at = bisect_left(sublist, key, key=self._key)
        return sublist[at : at + number_max]

    def key_after(self, entry: _Entry) -> bytes:
        """Return the least key after that of an entry, for ``part_from``."""
        return self._key(entry) + b"\0"

    def index_of(self, entry: _Entry) -> int:
        """Return how many entries are before one that is here. O(number of sublists)."""
        place, at = self._find(entry)
        return at + sum(map(len, self._sublists[:place]))

    def add(self, entry: _Entry) -> None:
        """Add an entry."""
        key = self._key(entry)
        # as in _rank: a SET in any order takes this way
        high, low = self._order(key)
        rank = high * _LOW_MAX + (low if low < _LOW_MAX else _LOW_MAX)
        lasts = self._lasts
        place = bisect_left(lasts, rank)
        if place < len(lasts) and lasts[place] == rank:
            place = self._place_among_equals(place, rank, key)
        if place == len(lasts):
            self._append([entry], rank)
            return
        sublist, ranks = self._sublists[place], self._ranks[place]
        if ranks is None:
            keys = map(self._key, sublist)
            ranks = self._ranks[place] = array("d", map(self._rank, keys))
        at = bisect_right(ranks, rank)
        if at and ranks[at - 1] == rank and self._key(sublist[at - 1]) > key:
            at = bisect_right(sublist, key, 0, at, key=self._key)
        sublist.insert(at, entry)
        ranks.insert(at, rank)
        self._len += 1
        if len(sublist) > 2 * self.LOAD:
            self._split(place)

    def add_all(self, entries: list[_Entry]) -> None:
        """Add entries, at least one. They mostly come last in order, in one step for all."""
        if len(entries) > self.LOAD:
            self.update(entries)
            return
        keys = list(map(self._key, entries))
        if (self._lasts and keys[0] < self._last_key(self._sublists[-1])) or any(
            map(gt, keys, keys[1:])
        ):
            for entry in entries:
                self.add(entry)
            return
        self._append(entries, self._rank(keys[-1]))

    def _append(self, entries: list[_Entry], last: float) -> None:
        """Append entries in order after all others; ``last`` is the last one's rank."""
        self._len += len(entries)
        if not self._lasts or len(self._sublists[-1]) >= self.LOAD:
            self._sublists.append(entries[:])
            self._ranks.append(None)
            self._lasts.append(last)
            return
        self._sublists[-1] += entries
        self._lasts[-1] = last
        ranks = self._ranks[-1]
        if ranks is not None:
            ranks.extend(map(self._rank, map(self._key, entries)))

    def update(self, entries: list[_Entry]) -> None:
        """Add entries in any order; O(n log n) if they are a fourth of those that are there."""
        if 4 * len(entries) >= self._len:
            self._fill(chain(self, entries))
        else:
            for entry in entries:
                self.add(entry)

    def remove(self, entry: _Entry) -> None:
        """Take out an entry, whose key is as it was.

        Raises:
            ValueError: It is not here.
        """
        sublists = self._sublists
        place, at = self._next_removal
        if place >= len(sublists) or at >= len(sublists[place]) or sublists[place][at] is not entry:
            place, at = self._find(entry)
        sublist, ranks = sublists[place], self._ranks[place]
        del sublist[at]
        if ranks is not None:
            del ranks[at]
        self._len -= 1
        is_last = at == len(sublist)
        self._next_removal = (place + 1, 0) if is_last else (place, at)
        if not sublist:
            del sublists[place], self._ranks[place], self._lasts[place]
            self._next_removal = place, 0
            return
        if is_last:
            self._lasts[place] = self._rank(self._last_key(sublist))
        if len(sublist) < self.LOAD // 2:
            self._join(place)

    def check(self) -> None:
        """Assert that all is in the order of the keys as they are now. O(n), for tests."""
        if not self._len:
            # most lists of most domains, after each step of a test
            assert not any((self._sublists, self._ranks, self._lasts))
            return
        keys = list(map(self._key, self))
        assert all(before <= key for before, key in pairwise(keys))
        assert len(keys) == self._len
        assert all(self._sublists)
        assert max(map(len, self._sublists), default=0) <= 2 * self.LOAD
        assert len(self._sublists) == len(self._ranks) == len(self._lasts)
        for sublist, ranks, last in zip(self._sublists, self._ranks, self._lasts, strict=True):
            expected = [self._rank(self._key(entry)) for entry in sublist]
            assert ranks is None or list(ranks) == expected
            assert last == expected[-1]

    def _last_key(self, sublist: list[_Entry]) -> bytes:
        return self._key(sublist[-1])

    def _rank(self, key: bytes) -> float:
        high, low = self._order(key)
        rank: float = high * _LOW_MAX + (low if low < _LOW_MAX else _LOW_MAX)
        return rank

    def _place_among_equals(self, place: int, rank: float, key: bytes) -> int:
        """Return the first sublist from a place on whose last key is not less than this one.

        The last rank of the one at that place is the rank of the key.
        """
        until = bisect_right(self._lasts, rank, place)
        return bisect_left(self._sublists, key, place, until, key=self._last_key)

    def _find(self, entry: _Entry) -> tuple[int, int]:
        """Return the sublist of an entry and its place there."""
        key = self._key(entry)
        rank, lasts = self._rank(key), self._lasts
        place = bisect_left(lasts, rank)
        if place < len(lasts) and lasts[place] == rank:
            place = self._place_among_equals(place, rank, key)
        if place == len(lasts):
            raise ValueError(_ABSENT)
        sublist, ranks = self._sublists[place], self._ranks[place]
        if ranks is None:
            at = bisect_left(sublist, key, key=self._key)
        else:
            at = bisect_left(ranks, rank)
        return (place, at) if sublist[at] is entry else self._find_among_equals(place, key, entry)

    def _find_among_equals(self, place: int, key: bytes, entry: _Entry) -> tuple[int, int]:
        """Return sublist and place in it of an entry, the first with its key in this sublist."""
        for number in range(place, len(self._sublists)):
            sublist = self._sublists[number]
            for at in range(bisect_left(sublist, key, key=self._key), len(sublist)):
                if sublist[at] is entry:
                    return number, at
                if self._key(sublist[at]) != key:
                    raise ValueError(_ABSENT)
        raise ValueError(_ABSENT)

    def _split(self, place: int) -> None:
        """Split a sublist that became too long."""
        sublist, ranks, load = self._sublists[place], self._ranks[place], self.LOAD
        self._sublists.insert(place + 1, sublist[load:])
        self._ranks.insert(place + 1, None if ranks is None else ranks[load:])
        self._lasts.insert(place, self._rank(self._key(sublist[load - 1])))
        del sublist[load:]
        if ranks is not None:
            del ranks[load:]

    def _join(self, place: int) -> None:
        """Join a sublist that became too short with the next one, or with the one before."""
        sublists, ranks = self._sublists, self._ranks
        if len(sublists) == 1:
            return
        if place == len(sublists) - 1:
            place -= 1
        sublists[place] += sublists.pop(place + 1)
        first, second = ranks[place], ranks.pop(place + 1)
        ranks[place] = None if first is None or second is None else first + second
        del self._lasts[place]
        if len(sublists[place]) > 2 * self.LOAD:
            self._split(place)


NO_ENTRIES: Final = SortedEntries()
"""Shared empty list, for the lists that few domains need."""


def by_delay(entries: Iterable[_Entry] = ()) -> SortedEntries:
    """Return entries in the order of the ends of their delays."""
    return SortedEntries(_delay_key, _order_of_delay, entries)
