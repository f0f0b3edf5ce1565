"""Matching budget: work that the subscriptions of a session may cost. Pure.

All work for a session is a debt: hits of the indexes, matches of its expressions, notifications.
Each change that is matched pays back a share of it. So does a part of what the daemon does besides:
its work for requests, counted, and the time in which it waits for some. How fast the machine is
does not count. The debt outlives pauses, so a client that writes in windows, and waits for each, is
protected as well. A session whose debt becomes too large loses its subscriptions and gets an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from fastjournal.limits import (
    CHANGES_BYTES_MAX,
    MATCH_SPARE_PARTS,
    MATCH_WORK_A_CHANGE,
    MATCH_WORK_MAX,
)
from fastjournald.engine.pubsub.subscriber import Subscriber

ENDED_AT_A_TIME = 2
"""Sessions whose subscriptions end in one go, where too many changes wait,"""

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
