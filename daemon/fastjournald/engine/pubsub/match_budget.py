"""Matching budget: steps that a session may cost in a busy period. Pure.

A busy period ends when nothing waits to be matched. A session whose subscriptions cost far more
than their share in it loses them and gets an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from fastjournal.limits import CHANGES_BYTES_MAX, MATCH_WORK_A_CHANGE, MATCH_WORK_MAX
from fastjournald.engine.pubsub.subscriber import Subscriber

ENDED_AT_A_TIME = 2
"""Sessions whose subscriptions end in one go, where too many changes wait,"""

ENDED_EACH = 1000
"""after each so many changes that are matched meanwhile."""


class MatchBudget:
    """Work of matching in the busy period."""

    def __init__(self) -> None:
        self._period = 0
        """Number of the busy period."""
        self.matched = 0
        """Changes that were matched in it."""
        self._ended_at = -ENDED_EACH
        """So many were when the costliest subscriptions ended last."""

    def charge(self, subscriber: Subscriber, work: int) -> bool:
        """Count steps for a session; return whether these are far more than its share. O(1)."""
        if subscriber.period != self._period:
            subscriber.period, subscriber.work = self._period, 0
        subscriber.work += work
        return subscriber.work > MATCH_WORK_MAX and self._is_costly(subscriber)

    def costliest(self, subscribers: Iterable[Subscriber], pending_bytes: int) -> list[Subscriber]:
        """Return sessions that cost more than their share, where too much waits. O(sessions)."""
        if pending_bytes <= CHANGES_BYTES_MAX or self.matched < self._ended_at + ENDED_EACH:
            return []
        self._ended_at = self.matched
        costly = (subscriber for subscriber in subscribers if self._is_costly(subscriber))
        return nlargest(ENDED_AT_A_TIME, costly, key=lambda subscriber: subscriber.work)

    def end_period(self) -> None:
        """Begin anew: nothing waits to be matched."""
        self._period += 1
        self.matched = 0
        self._ended_at = -ENDED_EACH

    def _is_costly(self, subscriber: Subscriber) -> bool:
        return subscriber.period == self._period and (
            subscriber.work > MATCH_WORK_A_CHANGE * self.matched
        )
