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

from fastjournal.protocol import ErrorCode
from fastjournald.engine.pubsub.change_set import Change, ChangeSet
from fastjournald.engine.pubsub.deliveries import Deliveries
from fastjournald.engine.pubsub.expression_fan_out import ExpressionFanOut
from fastjournald.engine.pubsub.fan_out import FanOut
from fastjournald.engine.pubsub.listener import Listener
from fastjournald.engine.pubsub.match_budget import MatchBudget
from fastjournald.engine.pubsub.regex_sets import CompiledSets, Search
from fastjournald.engine.pubsub.subscription import (
    About,
    ExpressionSearch,
    Subscription,
)
from fastjournald.engine.pubsub.subscription_index import Hit, SubscriptionIndex
from fastjournald.engine.pubsub.subscription_limits import why_refused
from fastjournald.tables.signals import CHANGES

RETIRED_AT_A_TIME = 20
"""Ranges that nobody listens to any more that leave the index in one go, some 30 us each."""

TOO_COSTLY = (
    f"{ErrorCode.BUSY} the subscription has ended: this connection listens to more than can be "
    "matched as fast as it changes; listen to less, and read anew what may have been missed"
)
"""The last notification of a subscription that costs too much."""

MayKnow: TypeAlias = Callable[[Hashable, bytes, bytes | None], bool]
"""Whether a session may know of a key, and whose it was before."""


class Subscriptions:
    """Subscriptions of all sessions, and the notifications that wait to be delivered.

    Args:
        changes: Where changed keys are noted; switched on and off as subscriptions come and go.
    """

    def __init__(self, changes: ChangeSet) -> None:
        self.changes = changes
        self.listeners: dict[Hashable, Listener] = {}
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
            self.listeners.get(session),
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
        listener = self.listeners.get(session)
        if listener is None:
            listener = self.listeners[session] = Listener(session)
        one = Subscription(session, identifier, about, self.changes.last)
        self._number += 1
        listener.add(one)
        self._index.add(one)
        if one.keys is not None and one.keys.expression is not None:
            bounds = one.keys.start, one.keys.stop
            search = listener.searches.get(bounds)
            if search is None:
                search = listener.searches[bounds] = Search(session, self._compiled)
                self._index.add_search(*bounds, search)
            search.add(one.keys.expression, one.keys.instructions, one)

    def end(self, session: Hashable, identifier: int) -> bool:
        """End a subscription and drop its notifications; whether there was one.

        O(log n), and the other expressions that were compiled with its own are compiled anew.
        """
        was_there = self._end(session, identifier)
        self._switch_off_if_idle()
        return was_there

    def end_all(self, session: Hashable) -> None:
        """End all subscriptions of a session. O(their number)."""
        listener = self.listeners.get(session)
        if listener is not None:
            self._drop(listener)
        self._switch_off_if_idle()

    def _end(self, session: Hashable, identifier: int) -> bool:
        listener = self.listeners.get(session)
        if listener is None:
            return False
        had_ended = identifier in listener.notifications.ended
        listener.notifications.ended.pop(identifier, None)
        one = listener.pop(identifier)
        if one is not None:
            self._retire(one)
            if one.keys is not None and one.keys.expression is not None:
                bounds = one.keys.start, one.keys.stop
                search = listener.searches[bounds]
                search.remove(one.keys.expression, one)
                if not search:
                    del listener.searches[bounds]
                    self._index.retire_search(*bounds, search)
        self._index.sweep(2)
        if not listener.count:
            self._drop(listener)
        return had_ended or one is not None

    def _drop(self, listener: Listener) -> None:
        del self.listeners[listener.session]
        for one in listener.subscriptions.values():
            self._retire(one)
        self._end_searches(listener)
        self._deliveries.drop(listener)

    def _retire(self, one: Subscription) -> None:
        self._number -= 1
        self._index.retire(one)

    def _end_searches(self, listener: Listener) -> None:
        for bounds, search in listener.searches.items():
            self._index.retire_search(*bounds, search)
        listener.searches.clear()
        self.expressions.drop(listener)

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
        """Return how much is to be matched still, but for matches that take long. O(1)."""
        return len(self._fan_out) + len(self.expressions) + (len(self._index.retired) > 0)

    def match(
        self, steps_max: int, may_know: MayKnow | None
    ) -> tuple[list[Hashable], list[Hashable]]:
        """Match changed keys with subscriptions, in about ``steps_max`` steps.

        A step is a microsecond: a look at a subscription, or at a node of the index.

        Args:
            steps_max: How many steps are worth one go.
            may_know: Rights; None: all sessions may know of all keys.

        Returns:
            Sessions that have notifications and had none before, and slow consumers: their
            subscriptions have ended, and their connection has to.
        """
        self._may_know = may_know
        if self._index.retired:
            self._index.sweep(RETIRED_AT_A_TIME)
            steps_max //= 2
        for listener in self._budget.costliest(self.listeners.values(), self.changes.bytes):
            self._end_costly(listener)
        # expressions have half of the time, where there is something to do besides
        for_index = steps_max // 2 if self.expressions else steps_max
        left = self._fan_out.run(for_index, self._on_hit, self._on_search)
        left = self.expressions.run(left + steps_max - for_index, self._on_hit)
        self.steps += steps_max - left
        if not self.unmatched() and self.expressions.is_idle:
            self._deliveries.early.clear()
            self._budget.end_period()
        slow, self._slow = self._slow, []
        self._switch_off_if_idle()
        return self._deliveries.take_woken(), slow

    def _on_hit(self, one: Subscription, change: Change) -> None:
        """Queue a notification, if the change is new to the session and it may know of it."""
        if not one.live or change.number <= one.since:
            return
        listener = self.listeners[one.session]
        if self._budget.charge(listener, 1):
            self._end_costly(listener)
            if not one.live:
                return
        may_know = self._may_know
        if (
            may_know is None
            or (one, change.key) in self._deliveries.early
            or may_know(one.session, change.key, change.owner)
        ):
            self._deliveries.queue(listener, one, change)
            slow = self._deliveries.slow_consumer(listener, self.listeners.values())
            if slow is not None:
                self._slow.append(slow.session)
                self._drop(slow)

    def _on_search(self, search: ExpressionSearch, change: Change) -> None:
        """Let a changed key wait for the expressions of a session."""
        listener = self.listeners.get(search.session)
        if listener is None or not search:
            return
        if self._budget.charge(listener, 1):
            self._end_costly(listener)
            if not search:
                return
        self.expressions.add(listener, search, change)
        costly = self.expressions.beyond_limit(listener)
        if costly is not None:
            self._end_costly(costly)

    def _end_costly(self, listener: Listener) -> None:
        """End the subscriptions of a session to ranges and expressions, or if it has none, all."""
        ending = [one for one in listener.subscriptions.values() if one.key is None]
        ending = ending or list(listener.subscriptions.values())
        if not ending:
            return
        self._end_searches(listener)
        self._deliveries.queue_ends(listener, [one.identifier for one in ending])
        for one in ending:
            self._retire(one)
            listener.pop(one.identifier)
        self.too_costly += len(ending)
        listener.work = 0

    # --- delivery -------------------------------------------------------------------------------

    def has(self, session: Hashable) -> bool:
        """Return whether a session listens to anything. O(1)."""
        return session in self.listeners

    def has_notifications(self, session: Hashable) -> bool:
        """Return whether there is something to deliver to a session. O(1)."""
        listener = self.listeners.get(session)
        return listener is not None and bool(listener.notifications)

    def next_ended(self, session: Hashable) -> int | None:
        """Take the identifier of a subscription that has ended because it costs too much."""
        listener = self.listeners.get(session)
        if listener is None:
            return None
        identifier = listener.notifications.pop_ended()
        if not listener.count:
            self._drop(listener)
            self._switch_off_if_idle()
        return identifier

    def upcoming(self, session: Hashable, number_max: int) -> list[bytes]:
        """Return the keys of the next notifications of a session, which stay. O(number)."""
        listener = self.listeners.get(session)
        return [] if listener is None else listener.notifications.next_keys(number_max)

    def next_notification(self, session: Hashable) -> tuple[int, bytes] | None:
        """Take the oldest notification of a session: the identifier that it bears, and the key.

        The caller delivers what stands under the key now. Where that has changed once more already,
        this is recorded, so that nothing is delivered twice.
        """
        listener = self.listeners.get(session)
        if listener is None:
            return None

        def number_of(one: Subscription, key: bytes) -> int:
            return self._fan_out.number_of(key) or listener.queued_number(one, key)

        return self._deliveries.next(listener, number_of)

    def check(self) -> None:
        """Assert that the parts say the same. O(n), for tests."""
        listeners = list(self.listeners.values())
        live = [one for listener in listeners for one in listener.subscriptions.values()]
        assert all(one.live for one in live)
        assert len(live) == self._number
        assert self.changes.wanted == (self._number > 0)
        assert self.changes.wanted or not self.unmatched()
        searches: set[tuple[bytes, bytes | None, Hit]] = {
            (*bounds, search)
            for listener in listeners
            for bounds, search in listener.searches.items()
        }
        self._index.check(live, searches)
        self.expressions.check(listeners)
        self._deliveries.check(listeners)
        for listener in listeners:
            listener.check()
