"""Fan-out by expressions: sessions take turns, and long matches go to a thread. Pure.

A costly expression makes nobody wait but who asked for it: each session has a queue of its own, and
a session whose next match may take long waits for a thread (``LongMatch``), if there is one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from math import ceil
from typing import NamedTuple

from fastjournal.limits import (
    EXPRESSION_STEPS_A_UNIT,
    SEARCH_QUEUE_BYTES_MAX,
    SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX,
    SEARCH_QUEUE_TURN_STEPS,
)
from fastjournald.engine.pubsub.change_set import ChangedKey
from fastjournald.engine.pubsub.expression_queue import OnHit
from fastjournald.engine.pubsub.regex_sets import CompiledSet
from fastjournald.engine.pubsub.subscriber import Subscriber
from fastjournald.engine.pubsub.subscription import ExpressionSearch


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
        """Whether matches that take long are left to whoever asks for the ``next_long``."""

    def __len__(self) -> int:
        """How many sessions have matches to be done here."""
        return len(self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether no key waits, also for no match that takes long."""
        return not self._ready and not self._long

    def add(self, subscriber: Subscriber, search: ExpressionSearch, change: ChangedKey) -> None:
        """Let a changed key wait for a search of a session. O(1)."""
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
        """Go on with the results of long matches, if anybody still waits for them."""
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
