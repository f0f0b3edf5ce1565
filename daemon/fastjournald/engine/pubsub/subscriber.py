"""Subscriber: a session with its subscriptions, and all that is pending for it. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from fastjournald.engine.pubsub.expression_queue import ExpressionQueue
from fastjournald.engine.pubsub.notification_queue import NotificationQueue
from fastjournald.engine.pubsub.subscription import ExpressionSearch, Subscription, full_bytes


class Subscriber:
    """One session that listens.

    Args:
        session: Stands for the connection.
    """

    __slots__ = (
        *("bytes", "expressions", "matched", "notifications", "paid_us", "searches", "session"),
        *("subscriptions", "work"),
    )

    def __init__(self, session: Hashable) -> None:
        self.session = session
        self.subscriptions: dict[int, Subscription] = {}
        """By identifier."""
        self.searches: dict[tuple[bytes, bytes | None], ExpressionSearch] = {}
        """By start and stop of a range: the expressions about its keys."""
        self.bytes = 0
        """Memory that the subscriptions would take, if nothing was shared."""
        self.expressions = ExpressionQueue()
        self.notifications = NotificationQueue()
        self.work = 0
        """Work for its sake that is not paid back (``match_budget``)."""
        self.matched = 0
        """Changes that have paid back their share so far,"""
        self.paid_us = 0
        """and the spare microseconds that have."""

    def add(self, one: Subscription) -> None:
        """Add a subscription."""
        self.subscriptions[one.identifier] = one
        self.bytes += full_bytes(one.about)

    def pop(self, identifier: int) -> Subscription | None:
        """Take a subscription out; None: it has none with this identifier."""
        one = self.subscriptions.pop(identifier, None)
        if one is not None:
            self.bytes -= full_bytes(one.about)
        return one

    def queued_number(self, one: Subscription, key: bytes) -> int:
        """Return the number of a change that waits for a subscription's expression; 0: none."""
        if one.keys is None or one.keys.expression is None or not self.expressions:
            return 0
        return self.expressions.number_of(self.searches[one.keys.start, one.keys.stop], key)

    @property
    def count(self) -> int:
        """Number of its subscriptions, and of ended ones whose error is due."""
        return len(self.subscriptions) + len(self.notifications.ended)

    def check(self) -> None:
        """Assert that the parts say the same. O(n), for tests."""
        assert self.count
        assert not self.subscriptions.keys() & self.notifications.ended.keys()
        assert self.bytes == sum(full_bytes(one.about) for one in self.subscriptions.values())
        self.notifications.check()
        self.expressions.check()
        searched = [
            one
            for search in self.searches.values()
            for part in search.parts
            for of_expression in part.members.values()
            for one in of_expression
        ]
        expected = [
            one
            for one in self.subscriptions.values()
            if one.keys is not None and one.keys.expression is not None
        ]
        assert len(searched) == len(expected)
        assert set(searched) == set(expected)
