"""Fan-out by indexes: finds the subscriptions that changed keys concern, in slices. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fastjournald.engine.pubsub.change_set import ChangedKey, ChangeSet
from fastjournald.engine.pubsub.expression_queue import OnHit
from fastjournald.engine.pubsub.match_budget import MatchBudget
from fastjournald.engine.pubsub.subscription import ExpressionSearch, Subscription
from fastjournald.engine.pubsub.subscription_index import Hit, SubscriptionIndex
from fastjournald.tables.interval_index import FIRST, Bounds


class FanOut:
    """Takes changes from the change set, and looks each up in the index.

    Args:
        changes: Changed keys.
        index: Subscriptions.
        budget: Told of each change.
    """

    def __init__(self, changes: ChangeSet, index: SubscriptionIndex, budget: MatchBudget) -> None:
        self._changes = changes
        self._index = index
        self._budget = budget
        self._change: ChangedKey | None = None
        """The change that is being matched."""
        self._left: Iterator[Hit] = iter(())
        """Hits of it that are not dealt with yet."""
        self._behind: Bounds | None = FIRST
        """The last range that was found for it; None: there are no more."""

    def __len__(self) -> int:
        """How many changes are not matched so far. O(1)."""
        return len(self._changes) + (self._change is not None)

    def number_of(self, key: bytes) -> int:
        """Return the number of a key's last change that is not matched so far; 0: none. O(1)."""
        number = self._changes.number_of(key)
        if not number and self._change is not None and self._change.key == key:
            return self._change.number
        return number

    def run(
        self, left: int, on_hit: OnHit, on_search: Callable[[ExpressionSearch, ChangedKey], int]
    ) -> int:
        """Match changes, as long as steps are left; return how many are.

        Args:
            left: Steps, each about a microsecond: a subscription, or a node of the index.
            on_hit: Called with each subscription that a change concerns, or did a moment ago.
            on_search: Called with each search that has to look at the key; returns the steps that
                this took.
        """
        while left > 0:
            change = self._change
            if change is None:
                if not self._changes:
                    break
                change = self._change = self._changes.pop()
                self._left = iter(self._index.of_key(change.key))
                self._behind = FIRST
                self._budget.matched += 1
                left -= 1
            for hit in self._left:
                left -= 1
                if isinstance(hit, Subscription):
                    on_hit(hit, change)
                else:
                    left -= on_search(hit, change)
                if left <= 0:
                    break
            else:
                if self._behind is None:
                    self._change = None
                    continue
                self._left, self._behind, steps = self._index.next_ranges(change.key, self._behind)
                left -= steps
        return left

    def reset(self) -> None:
        """Drop all changes: no subscription is left."""
        self._changes.clear()
        self._change = None
        self._left = iter(())
