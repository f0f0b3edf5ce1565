"""Subscription of one LISTEN request, and the index of all subscriptions by key. Pure.

Subscription index: which subscriptions a key concerns. Pure.

Single keys are in a dictionary, ranges in an interval index, and there also the searches for the
expressions of a session, by the range that these are about. A range that nobody listens to any more
is swept out later, a few at a time: a connection may leave a thousand behind.

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
"""Memory of a subscription, besides its keys and its expression."""

RANGE_BYTES = 260
"""Memory of a range in the index, besides its bounds."""

SEARCH_BYTES = 2000
"""Memory of the expressions of a session about one range, besides what is compiled."""


class FilterText(NamedTuple):
    """A key filter without anything compiled."""

    start: bytes
    stop: bytes | None
    expression: bytes | None
    instructions: int


About: TypeAlias = bytes | KeyFilter | FilterText
"""One key, or a filter of keys."""


class Subscription:
    """One subscription; of no more use once it is not ``live``."""

    __slots__ = ("identifier", "key", "keys", "live", "session", "since")

    def __init__(self, session: Hashable, identifier: int, about: About, since: int) -> None:
        self.session = session
        self.identifier = identifier
        """Identifier of the request, which its notifications bear."""
        self.key = about if isinstance(about, bytes) else None
        self.keys: FilterText | None = None
        """The filter, where it is not about one key."""
        if not isinstance(about, bytes):
            self.keys = FilterText(about.start, about.stop, about.expression, about.instructions)
        self.since = since
        """Number of the last change before it began."""
        self.live = True

    @property
    def about(self) -> bytes | FilterText:
        """Key or filter."""
        if self.key is not None:
            return self.key
        assert self.keys is not None
        return self.keys


ExpressionSearch: TypeAlias = SetSearch[Subscription]


def own_bytes(about: About) -> int:
    """Return the memory of a subscription, besides what it may share with others."""
    if isinstance(about, bytes):
        return SUBSCRIPTION_BYTES + len(about)
    size = SUBSCRIPTION_BYTES + RANGE_BYTES + len(about.start) + len(about.stop or b"")
    return size if about.expression is None else size + SEARCH_BYTES + len(about.expression)


def full_bytes(about: About) -> int:
    """Return the memory of a subscription, with its expression compiled for itself alone."""
    if isinstance(about, bytes) or about.expression is None:
        return own_bytes(about)
    return own_bytes(about) + memory_of(about.instructions)


RANGES_AT_A_TIME = 100
"""Ranges that the interval index is asked for in one go."""

Hit: TypeAlias = Subscription | ExpressionSearch
"""A subscription that a key concerns, or a search that finds out which ones it does."""


class SubscriptionIndex:
    """Subscriptions by the keys that they are about."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, dict[Subscription, None]] = {}
        self._ranges: Intervals[Hit] = Intervals()
        self.retired: deque[tuple[bytes, bytes | None, Hit]] = deque()
        """Ranges that stand in the index for nobody any more."""
        self.bytes = 0
        """Memory of the subscriptions in it and of their places, but for compiled expressions."""

    def add(self, one: Subscription) -> None:
        """Add a subscription, but for its expression: that is its search's. O(log n)."""
        self.bytes += own_bytes(one.about)
        if one.key is not None:
            self._by_key.setdefault(one.key, {})[one] = None
        elif one.keys is not None and one.keys.expression is None:
            self._ranges.add(one.keys.start, one.keys.stop, one)

    def retire(self, one: Subscription) -> None:
        """Let a subscription be found no more. O(1)."""
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
        """Add a search that is about the keys of a range. O(log n)."""
        self._ranges.add(start, stop, search)

    def retire_search(self, start: bytes, stop: bytes | None, search: ExpressionSearch) -> None:
        """Let a search be found no more. O(1)."""
        search.live = False
        self.retired.append((start, stop, search))

    def sweep(self, number_max: int) -> None:
        """Take retired ranges out, at most so many. O(log n) each."""
        for _ in range(min(number_max, len(self.retired))):
            start, stop, hit = self.retired.popleft()
            self._ranges.remove(start, stop, hit)
            if isinstance(hit, Subscription):
                self.bytes -= own_bytes(hit.about)
            else:
                hit.clear()

    def clear(self) -> None:
        """Drop all that was retired: no subscription is left. O(n)."""
        for _, _, hit in self.retired:
            if not isinstance(hit, Subscription):
                hit.clear()
        self.retired.clear()
        self._ranges = Intervals()
        self.bytes = 0

    @property
    def only(self) -> dict[bytes, dict[Subscription, None]] | None:
        """The single keys in it, which may change later; None: there are ranges too. O(1)."""
        return None if self._ranges else self._by_key

    # --- looking up -----------------------------------------------------------------------------

    def of_key(self, key: bytes) -> tuple[Subscription, ...]:
        """Return the subscriptions to just this key. O(their number)."""
        return tuple(self._by_key.get(key, ()))

    def next_ranges(self, key: bytes, behind: Bounds) -> tuple[Iterator[Hit], Bounds | None, int]:
        """Return what stands under the next ranges that a key is in. O(log n + ranges).

        Args:
            key: It.
            behind: Bounds of the last range that was found for it, or ``FIRST``.

        Returns:
            Subscriptions under them; the bounds of the last of them, None: there are no more; and
            the number of steps.
        """
        before = self._ranges.looks
        ranges = self._ranges.stab(key, behind, RANGES_AT_A_TIME)
        # each range when its turn comes: a hundred thousand may listen to one
        hits = chain.from_iterable(map(tuple, (items for _, items in ranges)))
        last = None if len(ranges) < RANGES_AT_A_TIME else ranges[-1][0]
        return hits, last, self._ranges.looks - before

    def check(
        self, live: list[Subscription], searches: set[tuple[bytes, bytes | None, Hit]]
    ) -> None:
        """Assert that it holds these subscriptions and searches, and what retired. O(n)."""
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
