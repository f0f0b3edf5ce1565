"""Subscriptions of SET and GET with LISTEN: their table, and the delivery of notifications. Pure.

    store notes keys that change (change set) -> ``match``, slice by slice: fan-out by indexes, then
    by expressions -> notification queue of a session -> ``next_notification``

No request waits for a thousand expressions: it only notes which keys changed. Single keys are found
by a dictionary, ranges by an interval index, and expressions in a queue of the session that asked
for them. A session that costs more than its share loses subscriptions with an error (``busy``); a
slow consumer, whose notifications take too much memory, is disconnected.

Where nobody is subscribed, the change set is switched off: writes pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from fastjournal.limits import EXPRESSION_STEPS_A_UNIT, REQUEST_WORK, SEARCH_AT_ONCE_STEPS
from fastjournal.protocol import ErrorCode
from fastjournald.engine.pubsub.change_set import ChangedKey, ChangeSet
from fastjournald.engine.pubsub.fan_out import ExpressionFanOut, FanOut, MatchBudget
from fastjournald.engine.pubsub.regex_sets import CompiledSets, SetSearch
from fastjournald.engine.pubsub.subscriber import Deliveries, Subscriber, why_refused
from fastjournald.engine.pubsub.subscription import (
    About,
    ExpressionSearch,
    Hit,
    Subscription,
    SubscriptionIndex,
)
from fastjournald.tables.signals import CHANGES

RETIRED_AT_A_TIME = 20
"""Ranges without subscriptions that are removed from the index in one pass, some 30 us each."""

TOO_COSTLY = (
    f"{ErrorCode.BUSY} the subscription has ended: this connection listens to more than can be "
    "matched as fast as it changes; listen to less, and read anew what may have been missed"
)
"""The last notification of a subscription that costs too much."""

MayKnow: TypeAlias = Callable[[Hashable, bytes, bytes | None], bool]
"""Whether a session may know a key, and its former entry."""


class Subscriptions:
    """Subscriptions of all sessions, and the notifications that wait to be delivered.

    Args:
        changes: Where changed keys are noted; switched on and off as subscriptions come and go.
    """

    def __init__(self, changes: ChangeSet) -> None:
        self.changes = changes
        self.subscribers: dict[Hashable, Subscriber] = {}
        """Sessions that listen to keys, or still get the end of a subscription. Others only ask
        whether there are any."""
        self._number = 0
        self._index = SubscriptionIndex()
        self._compiled = CompiledSets()
        self._budget = MatchBudget()
        self._fan_out = FanOut(changes, self._index, self._budget)
        self.expressions = ExpressionFanOut()
        self._deliveries = Deliveries()
        self._may_know: MayKnow | None = None
        self._slow: list[Hashable] = []
        self.steps = 0
        """Steps of matching so far, each about a microsecond."""
        self.too_costly = 0
        """Subscriptions that ended so far because they cost too much."""

    def __len__(self) -> int:
        return self._number

    @property
    def subscriptions_bytes(self) -> int:
        """Memory of the subscriptions, with compiled expressions. O(1)."""
        return self._index.bytes + self._compiled.bytes

    @property
    def notifications_bytes(self) -> int:
        """Memory of notifications that wait, and of the delivery dedupe. O(1)."""
        return self._deliveries.memory_bytes

    # --- beginning and ending -------------------------------------------------------------------

    def refuses(self, session: Hashable, identifier: int, about: About) -> str:
        """Return why a session cannot have this subscription as well; empty: it can. O(1)."""
        return why_refused(
            self.subscribers.get(session),
            identifier,
            about,
            number=self._number,
            size=self.subscriptions_bytes,
        )

    def begin(self, session: Hashable, identifier: int, about: About) -> None:
        """Notify a session of changes from now on to a key, or the keys of a filter.

        It takes the place of the one that had this identifier. O(log n), and an expression is
        compiled with others of its session.
        """
        self._end(session, identifier)
        self._index.sweep(2)
        self.changes.wanted = True
        subscriber = self.subscribers.get(session)
        if subscriber is None:
            subscriber = self.subscribers[session] = Subscriber(session)
        one = Subscription(session, identifier, about, self.changes.last)
        self._number += 1
        subscriber.add(one)
        self._index.add(one)
        if one.keys is not None and one.keys.expression is not None:
            bounds = one.keys.start, one.keys.stop
            search = subscriber.searches.get(bounds)
            if search is None:
                search = subscriber.searches[bounds] = SetSearch(session, self._compiled)
                self._index.add_search(*bounds, search)
            search.add(one.keys.expression, one.keys.instructions, one)
        self.changes.only = self._index.only

    def end(self, session: Hashable, identifier: int) -> bool:
        """End a subscription and drop its notifications; return whether there was one.

        O(log n); the expressions of the same set are compiled again.
        """
        was_there = self._end(session, identifier)
        self._switch_off_if_idle()
        return was_there

    def end_all(self, session: Hashable) -> int:
        """End all subscriptions of a session; return how many. O(their number)."""
        subscriber = self.subscribers.get(session)
        if subscriber is None:
            return 0
        self._drop(subscriber)
        self._switch_off_if_idle()
        return len(subscriber.subscriptions)

    def _end(self, session: Hashable, identifier: int) -> bool:
        subscriber = self.subscribers.get(session)
        if subscriber is None:
            return False
        had_ended = identifier in subscriber.notifications.ended
        subscriber.notifications.ended.pop(identifier, None)
        one = subscriber.pop(identifier)
        if one is not None:
            self._retire(one)
            if one.keys is not None and one.keys.expression is not None:
                bounds = one.keys.start, one.keys.stop
                search = subscriber.searches[bounds]
                search.remove(one.keys.expression, one)
                if not search:
                    del subscriber.searches[bounds]
                    self._index.retire_search(*bounds, search)
        self._index.sweep(2)
        if not subscriber.count:
            self._drop(subscriber)
        return had_ended or one is not None

    def _drop(self, subscriber: Subscriber) -> None:
        del self.subscribers[subscriber.session]
        for one in subscriber.subscriptions.values():
            self._retire(one)
        self._end_searches(subscriber)
        self._deliveries.drop(subscriber)

    def _retire(self, one: Subscription) -> None:
        self._number -= 1
        self._index.retire(one)

    def _end_searches(self, subscriber: Subscriber) -> None:
        for bounds, search in subscriber.searches.items():
            self._index.retire_search(*bounds, search)
        subscriber.searches.clear()
        self.expressions.drop(subscriber)

    def _switch_off_if_idle(self) -> None:
        """Stop noting changes where no subscription is left: nothing is left to be matched."""
        if self._number or not self.changes.wanted:
            if self._index.retired:
                self.changes.signals.bits |= CHANGES
            return
        self.changes.wanted = False
        self._fan_out.reset()
        self._deliveries.early.clear()
        self._index.clear()

    # --- matching -------------------------------------------------------------------------------

    def unmatched(self) -> int:
        """Return the size of the match queues, without long matches. O(1)."""
        return len(self._fan_out) + len(self.expressions) + (len(self._index.retired) > 0)

    def match(
        self, steps_max: int, may_know: MayKnow | None, spare_us: int
    ) -> tuple[list[Hashable], list[Hashable]]:
        """Match changed keys with subscriptions, in about ``steps_max`` steps.

        A step is a microsecond: a look at a subscription, or at a node of the index.

        Args:
            steps_max: How many steps are worth one go.
            may_know: Rights; None: all sessions may know of all keys.
            spare_us: Sum of other work so far (``MatchBudget``).

        Returns:
            Sessions that have notifications and had none before, and slow consumers: their
            subscriptions have ended, and their connection has to.
        """
        self._may_know = may_know
        self._budget.spare_us = spare_us
        if self._index.retired:
            self._index.sweep(RETIRED_AT_A_TIME)
            self.changes.only = self._index.only
            steps_max //= 2
        self._budget.matched += self.changes.passed
        self.changes.passed = 0
        for subscriber in self._budget.costliest(self.subscribers.values(), self.changes.bytes):
            self._end_costly(subscriber)
        # expressions get half of the time if there is other work
        for_index = steps_max // 2 if self.expressions else steps_max
        left = self._fan_out.run(for_index, self._on_hit, self._on_search)
        left = self.expressions.run(left + steps_max - for_index, self._notify, self.charge)
        self.steps += steps_max - left
        if not self.unmatched() and self.expressions.is_idle:
            self._deliveries.early.clear()
        slow, self._slow = self._slow, []
        self._switch_off_if_idle()
        return self._deliveries.take_woken(), slow

    def _on_hit(self, one: Subscription, change: ChangedKey) -> None:
        """Charge a session for a hit of the indexes, and notify it."""
        if one.live and change.number > one.since:
            self._notify(one, change, 1)

    def _notify(self, one: Subscription, change: ChangedKey, work: int = 0) -> None:
        """Queue a notification, if the change is new to the session and it may know of it.

        Charges the session for that, and for ``work``.
        """
        if not one.live or change.number <= one.since:
            return
        subscriber = self.subscribers[one.session]
        may_know = self._may_know
        if not (
            may_know is None
            or (one, change.key) in self._deliveries.early
            or may_know(one.session, change.key, change.owner)
        ):
            self.charge(subscriber, work)
        else:
            if self._deliveries.queue(subscriber, one, change):
                # it is made and sent later, if the client reads: changes that fold cost less
                work += REQUEST_WORK
            if work:
                self.charge(subscriber, work)
            slow = self._deliveries.slow_consumer(subscriber, self.subscribers.values())
            if slow is not None:
                self._slow.append(slow.session)
                self._drop(slow)

    def _on_search(self, search: ExpressionSearch, change: ChangedKey) -> int:
        """Match a changed key with a few expressions of a session, or queue it for many.

        Returns:
            Number of steps.
        """
        subscriber = self.subscribers.get(search.session)
        if subscriber is None or not search:
            return 0
        if not subscriber.expressions:
            steps = search.work(change.key)
            if steps <= SEARCH_AT_ONCE_STEPS:
                # Steps of the worst keys count.
                work = 1 + steps // EXPRESSION_STEPS_A_UNIT
                self.charge(subscriber, work)
                found = search.found_in(change.key)
                for one in found:
                    self._notify(one, change)
                return work + len(found)
        self.charge(subscriber, 1)
        if not search:
            return 0
        self.expressions.add(subscriber, search, change)
        costly = self.expressions.beyond_limit(subscriber)
        if costly is not None:
            self._end_costly(costly)
        return 0

    def charge(self, subscriber: Subscriber, work: int) -> None:
        """Count work for a session, whose subscriptions end where that is too much."""
        if self._budget.charge(subscriber, work):
            self._end_costly(subscriber)

    def _end_costly(self, subscriber: Subscriber) -> None:
        """End the subscriptions of a session to ranges and expressions, or if it has none, all."""
        ending = [one for one in subscriber.subscriptions.values() if one.key is None]
        ending = ending or list(subscriber.subscriptions.values())
        if not ending:
            return
        self._end_searches(subscriber)
        self._deliveries.queue_ends(subscriber, [one.identifier for one in ending])
        for one in ending:
            self._retire(one)
            subscriber.pop(one.identifier)
        self.too_costly += len(ending)
        subscriber.work = 0

    # --- delivery -------------------------------------------------------------------------------

    def has(self, session: Hashable) -> bool:
        """Return whether a session listens to anything. O(1)."""
        return session in self.subscribers

    def has_notifications(self, session: Hashable) -> bool:
        """Return whether there is something to deliver to a session. O(1)."""
        subscriber = self.subscribers.get(session)
        return subscriber is not None and bool(subscriber.notifications)

    def next_ended(self, session: Hashable) -> int | None:
        """Take the identifier of a subscription that has ended because it costs too much."""
        subscriber = self.subscribers.get(session)
        if subscriber is None:
            return None
        identifier = subscriber.notifications.pop_ended()
        if not subscriber.count:
            self._drop(subscriber)
            self._switch_off_if_idle()
        return identifier

    def upcoming(self, session: Hashable, number_max: int) -> list[bytes]:
        """Return the keys of the next notifications of a session, which stay. O(number)."""
        subscriber = self.subscribers.get(session)
        return [] if subscriber is None else subscriber.notifications.next_keys(number_max)

    def next_notification(self, session: Hashable) -> tuple[int, bytes] | None:
        """Remove and return the oldest notification of a session: its identifier, and the key.

        The caller delivers the current value of the key. If a later change of it is still
        unmatched, this is recorded, so that the same value is not delivered twice.
        """
        subscriber = self.subscribers.get(session)
        if subscriber is None:
            return None

        def number_of(one: Subscription, key: bytes) -> int:
            return self._fan_out.number_of(key) or subscriber.queued_number(one, key)

        return self._deliveries.next(subscriber, number_of)

    def check(self) -> None:
        """Assert that the parts say the same. O(n), for tests."""
        subscribers = list(self.subscribers.values())
        live = [one for subscriber in subscribers for one in subscriber.subscriptions.values()]
        assert all(one.live for one in live)
        assert len(live) == self._number
        assert self.changes.wanted == (self._number > 0)
        assert self.changes.wanted or not self.unmatched()
        assert self.changes.only is None or self.changes.only is self._index.only
        searches: set[tuple[bytes, bytes | None, Hit]] = {
            (*bounds, search)
            for subscriber in subscribers
            for bounds, search in subscriber.searches.items()
        }
        self._index.check(live, searches)
        self.expressions.check(subscribers)
        self._deliveries.check(subscribers)
        for subscriber in subscribers:
            subscriber.check()
