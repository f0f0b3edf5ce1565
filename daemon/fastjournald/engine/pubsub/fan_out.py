"""Fan-out: matches changed keys with subscriptions, in slices and within a budget. Pure.

``FanOut`` finds the subscriptions to a changed key in the indexes.

The matching budget bounds the work for a session. All work for a session is a debt: hits of the
indexes, matches of its expressions, notifications. Each matched change pays back a share of it. The
daemon's work for requests and its idle time pay back a share too, independent of the speed of the
machine. The debt outlives pauses, so a client that writes in windows, and waits for each, is
protected as well. A session whose debt becomes too large loses its subscriptions and gets an error.

Expressions are matched by session, in turns: each session has a queue of its own, so a costly
expression delays only its own session. A session whose next match may take long waits for a thread
(``LongMatch``), if there is one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from itertools import chain
from math import ceil
from typing import NamedTuple

from fastjournal.limits import (
    CHANGES_BYTES_MAX,
    EXPRESSION_STEPS_A_UNIT,
    MATCH_SPARE_PARTS,
    MATCH_WORK_A_CHANGE,
    MATCH_WORK_MAX,
    SEARCH_QUEUE_BYTES_MAX,
    SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX,
    SEARCH_QUEUE_TURN_STEPS,
)
from fastjournald.engine.pubsub.change_set import ChangedKey, ChangeSet
from fastjournald.engine.pubsub.regex_sets import CompiledSet
from fastjournald.engine.pubsub.subscriber import OnHit, Subscriber
from fastjournald.engine.pubsub.subscription import (
    ExpressionSearch,
    Hit,
    Subscription,
    SubscriptionIndex,
)
from fastjournald.tables.interval_index import FIRST, Bounds

ENDED_AT_A_TIME = 2
"""Sessions whose subscriptions end in one pass if too many changes wait,"""

ENDED_EACH = 1000
"""after each so many changes that are matched meanwhile."""


class MatchBudget:
    """Debts of the sessions."""

    def __init__(self) -> None:
        self.spare_us = 0
        """Sum of other work of the daemon so far: for requests, and waiting, in microseconds."""
        self.matched = 0
        """Changes that were matched so far."""
        self._ended_at = -ENDED_EACH
        """So many were when the costliest subscriptions ended last."""

    def charge(self, subscriber: Subscriber, work: int) -> bool:
        """Count work for a session; return whether its debt is too large. O(1)."""
        self._pay_back(subscriber)
        subscriber.work += work
        return subscriber.work > MATCH_WORK_MAX

    def costliest(self, subscribers: Iterable[Subscriber], pending_bytes: int) -> list[Subscriber]:
        """Return the sessions with the largest debts, where too much waits. O(sessions)."""
        if pending_bytes <= CHANGES_BYTES_MAX or self.matched < self._ended_at + ENDED_EACH:
            return []
        self._ended_at = self.matched
        indebted = []
        for subscriber in subscribers:
            self._pay_back(subscriber)
            if subscriber.work > MATCH_WORK_A_CHANGE:
                indebted.append(subscriber)
        return nlargest(ENDED_AT_A_TIME, indebted, key=lambda subscriber: subscriber.work)

    def _pay_back(self, subscriber: Subscriber) -> None:
        matched = self.matched - subscriber.matched
        spare = (self.spare_us - subscriber.paid_us) // MATCH_SPARE_PARTS
        if matched or spare:
            paid = MATCH_WORK_A_CHANGE * matched + spare
            subscriber.work = max(0, subscriber.work - paid)
            subscriber.matched = self.matched
            subscriber.paid_us += spare * MATCH_SPARE_PARTS


class LongMatch(NamedTuple):
    """Matches that take long, so that others wait for them in a thread."""

    subscriber: Subscriber
    key: bytes
    sets: list[CompiledSet]

    def run(self) -> list[list[int]]:
        """Return the expressions that each set finds; any thread may call it."""
        return [compiled.match(self.key) for compiled in self.sets]


class ExpressionFanOut:
    """Round robin between the sessions that have keys to be matched with expressions."""

    def __init__(self) -> None:
        self._ready: OrderedDict[Subscriber, None] = OrderedDict()
        """The next one first."""
        self._long: OrderedDict[Subscriber, None] = OrderedDict()
        """Sessions whose next match takes long."""
        self.bytes = 0
        """Memory of the keys of all."""
        self.defers_long = False
        """Whether long matches are deferred to the caller of ``next_long``."""

    def __len__(self) -> int:
        """How many sessions have matches to be done here."""
        return len(self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether no key waits, also for no match that takes long."""
        return not self._ready and not self._long

    def add(self, subscriber: Subscriber, search: ExpressionSearch, change: ChangedKey) -> None:
        """Queue a changed key for a search of a session. O(1)."""
        added = subscriber.expressions.add(search, change)
        if added:
            self.bytes += added
            if subscriber not in self._long:
                self._ready[subscriber] = None

    def beyond_limit(self, subscriber: Subscriber) -> Subscriber | None:
        """Return the session whose keys take too much memory, after some were added to one's."""
        if subscriber.expressions.bytes > SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX:
            return subscriber
        if self.bytes > SEARCH_QUEUE_BYTES_MAX:
            return max(chain(self._ready, self._long), key=lambda one: one.expressions.bytes)
        return None

    def drop(self, subscriber: Subscriber) -> None:
        """Drop all keys of a session."""
        self.bytes -= subscriber.expressions.clear()
        self._ready.pop(subscriber, None)
        self._long.pop(subscriber, None)

    def run(self, left: int, on_hit: OnHit, on_work: Callable[[Subscriber, int], object]) -> int:
        """Match, as long as steps are left; return how many are.

        Args:
            left: Steps, each about a microsecond.
            on_hit: Called with each subscription that a change concerns.
            on_work: Called with a session and the work of a turn, that of threads included.
        """
        while left > 0 and self._ready:
            subscriber = next(iter(self._ready))
            done = self._turn(subscriber, min(left, SEARCH_QUEUE_TURN_STEPS), on_hit)
            left -= done
            queue = subscriber.expressions
            thread_work, queue.thread_work = queue.thread_work, 0
            on_work(subscriber, ceil((done + thread_work) / EXPRESSION_STEPS_A_UNIT))
        return left

    def _turn(self, subscriber: Subscriber, steps: int, on_hit: OnHit) -> int:
        """Carry on with the session whose turn it is; return in how many steps."""
        queue = subscriber.expressions
        done = 0
        while done < steps and queue:
            done += queue.match(steps - done, on_hit, defers_long=self.defers_long)
            if queue.waits_long:
                del self._ready[subscriber]
                self._long[subscriber] = None
                return done
            matched = queue.pop_matched()
            if matched is not None:
                done += 1
                self.bytes -= matched
        if queue:
            self._ready.move_to_end(subscriber)
        else:
            self._ready.pop(subscriber, None)
        return done

    def next_long(self) -> LongMatch | None:
        """Return matches that take long: ``run`` them, and ``take_long``. O(1)."""
        if not self._long:
            return None
        subscriber = next(iter(self._long))
        return LongMatch(subscriber, *subscriber.expressions.long_match())

    def take_long(self, match: LongMatch, found: list[list[int]]) -> None:
        """Continue with the results of long matches, if their session still exists."""
        subscriber = match.subscriber
        if subscriber in self._long:
            del self._long[subscriber]
            subscriber.expressions.take_results(
                match.key, dict(zip(match.sets, found, strict=True))
            )
            self._ready[subscriber] = None
            self._ready.move_to_end(subscriber, last=False)

    def check(self, subscribers: list[Subscriber]) -> None:
        """Assert that the sessions with keys are these, and the bytes. O(n), for tests."""
        assert not self._ready.keys() & self._long.keys()
        assert self._ready.keys() | self._long.keys() == {
            subscriber for subscriber in subscribers if subscriber.expressions
        }
        assert self.bytes == sum(subscriber.expressions.bytes for subscriber in subscribers)


class FanOut:
    """Takes changes from the change set, and looks each up in the index.

    Args:
        changes: Changed keys.
        index: Subscriptions.
        budget: Counts each change.
    """

    def __init__(self, changes: ChangeSet, index: SubscriptionIndex, budget: MatchBudget) -> None:
        self._changes = changes
        self._index = index
        self._budget = budget
        self._change: ChangedKey | None = None
        """The change that is being matched."""
        self._left: Iterator[Hit] = iter(())
        """Its hits that are not handled yet."""
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
