"""Subscription of one LISTEN request, and the index of all subscriptions by key. Pure.

Single keys are in a dictionary, ranges in an interval index. The interval index also has the
searches for the expressions of a session, by the range of their keys. Ranges without subscriptions
are removed later, a few at a time: a closed connection may have had a thousand.

n is the number of ranges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

from fastjournald.engine.key_filter import KeyFilter
from fastjournald.engine.pubsub.regex_sets import SetSearch, memory_of
from fastjournald.tables.interval_index import Bounds, Intervals

SUBSCRIPTION_BYTES = 410
"""Memory of a subscription without its keys and its expression."""

RANGE_BYTES = 260
"""Memory of a range in the index without its bounds."""

SEARCH_BYTES = 2000
"""Memory of the expressions of a session for one range, without the compiled programs."""


class FilterText(NamedTuple):
    """A key filter that is not compiled."""

    start: bytes
    stop: bytes | None
    expression: bytes | None
    instructions: int


About: TypeAlias = bytes | KeyFilter | FilterText
"""One key, or a filter of keys."""


class Subscription:
    """One subscription; it is ignored when it is not ``live``."""

    __slots__ = ("identifier", "key", "keys", "live", "session", "since")

    def __init__(self, session: Hashable, identifier: int, about: About, since: int) -> None:
        self.session = session
        self.identifier = identifier
        """Identifier of the LISTEN request, which its notifications have."""
        self.key = about if isinstance(about, bytes) else None
        self.keys: FilterText | None = None
        """The filter; None: a single key."""
        if not isinstance(about, bytes):
            self.keys = FilterText(about.start, about.stop, about.expression, about.instructions)
        self.since = since
        """Number of the last change before it began."""
        self.live = True

    @property
    def about(self) -> bytes | FilterText:
        """Its key or filter."""
        if self.key is not None:
            return self.key
        assert self.keys is not None
        return self.keys


ExpressionSearch: TypeAlias = SetSearch[Subscription]


def own_bytes(about: About) -> int:
    """Return the memory of a subscription, without parts that others may share."""
    if isinstance(about, bytes):
        return SUBSCRIPTION_BYTES + len(about)
    size = SUBSCRIPTION_BYTES + RANGE_BYTES + len(about.start) + len(about.stop or b"")
    return size if about.expression is None else size + SEARCH_BYTES + len(about.expression)


def full_bytes(about: About) -> int:
    """Return the memory of a subscription, with a compiled expression of its own."""
    if isinstance(about, bytes) or about.expression is None:
        return own_bytes(about)
    return own_bytes(about) + memory_of(about.instructions)


RANGES_AT_A_TIME = 100
"""Ranges that one query of the interval index returns."""

Hit: TypeAlias = Subscription | ExpressionSearch
"""A subscription that a key matches, or a search that finds such subscriptions."""


class SubscriptionIndex:
    """Subscriptions by their keys and ranges."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, dict[Subscription, None]] = {}
        self._ranges: Intervals[Hit] = Intervals()
        self.retired: deque[tuple[bytes, bytes | None, Hit]] = deque()
        """Ranges in the index that have no subscription any more."""
        self.bytes = 0
        """Memory of the subscriptions and their index items, without compiled expressions."""

    def add(self, one: Subscription) -> None:
        """Add a subscription; its expression is added to its search. O(log n)."""
        self.bytes += own_bytes(one.about)
        if one.key is not None:
            self._by_key.setdefault(one.key, {})[one] = None
        elif one.keys is not None and one.keys.expression is None:
            self._ranges.add(one.keys.start, one.keys.stop, one)

    def retire(self, one: Subscription) -> None:
        """Remove a subscription from lookups; its range is removed later. O(1)."""
        one.live = False
        if one.keys is not None and one.keys.expression is None:
            self.retired.append((one.keys.start, one.keys.stop, one))
            return
        self.bytes -= own_bytes(one.about)
        if one.key is not None:
            of_key = self._by_key[one.key]
            del of_key[one]
            if not of_key:
                del self._by_key[one.key]

    def add_search(self, start: bytes, stop: bytes | None, search: ExpressionSearch) -> None:
        """Add a search for the keys of a range. O(log n)."""
        self._ranges.add(start, stop, search)

    def retire_search(self, start: bytes, stop: bytes | None, search: ExpressionSearch) -> None:
        """Remove a search from lookups; its range is removed later. O(1)."""
        search.live = False
        self.retired.append((start, stop, search))

    def sweep(self, number_max: int) -> None:
        """Remove retired ranges, at most ``number_max``. O(log n) each."""
        for _ in range(min(number_max, len(self.retired))):
            start, stop, hit = self.retired.popleft()
            self._ranges.remove(start, stop, hit)
            if isinstance(hit, Subscription):
                self.bytes -= own_bytes(hit.about)
            else:
                hit.clear()

    def clear(self) -> None:
        """Remove all retired ranges: no subscription is left. O(n)."""
        for _, _, hit in self.retired:
            if not isinstance(hit, Subscription):
                hit.clear()
        self.retired.clear()
        self._ranges = Intervals()
        self.bytes = 0

    @property
    def only(self) -> dict[bytes, dict[Subscription, None]] | None:
        """The single keys, which may change later; None: there are ranges too. O(1)."""
        return None if self._ranges else self._by_key

    # --- looking up -----------------------------------------------------------------------------

    def of_key(self, key: bytes) -> tuple[Subscription, ...]:
        """Return the subscriptions to exactly this key. O(their number)."""
        return tuple(self._by_key.get(key, ()))

    def next_ranges(self, key: bytes, behind: Bounds) -> tuple[Iterator[Hit], Bounds | None, int]:
        """Return the items of the next ranges that contain a key. O(log n + ranges).

        Args:
            key: The key.
            behind: Bounds of the last range found for it, or ``FIRST``.

        Returns:
            Their items; the bounds of the last of them, None: there are no more; and the number of
            steps.
        """
        before = self._ranges.looks
        ranges = self._ranges.stab(key, behind, RANGES_AT_A_TIME)
        # each range in its turn: a hundred thousand may subscribe to one
        hits = chain.from_iterable(map(tuple, (items for _, items in ranges)))
        last = None if len(ranges) < RANGES_AT_A_TIME else ranges[-1][0]
        return hits, last, self._ranges.looks - before

    def check(
        self, live: list[Subscription], searches: set[tuple[bytes, bytes | None, Hit]]
    ) -> None:
        """Assert that it has these subscriptions and searches, and the retired ones. O(n)."""
        wide = searches | {
            (one.keys.start, one.keys.stop, one)
            for one in live
            if one.keys is not None and one.keys.expression is None
        }
        self._ranges.check()
        assert set(self._ranges) == {
            hit for start, stop, hit in wide | set(self.retired) if stop is None or start < stop
        }
        assert {one for of_key in self._by_key.values() for one in of_key} == {
            one for one in live if one.key is not None
        }
        retired = [hit for _, _, hit in self.retired if isinstance(hit, Subscription)]
        assert not any(one.live for one in retired)
        assert self.bytes == sum(own_bytes(one.about) for one in live + retired)
