"""Subscriber: a session with its subscriptions, match queue, notification queue and bounds. Pure.

Changed keys wait in the match queue for the expressions of the session.

A pending notification is a subscription and a key, without a value: the current value is read when
the notification is delivered. So changes that are faster than the client's reads become one
notification. A notification that shows a later change already is not repeated (delivery dedupe).

Queues and subscriptions are bounded in number and bytes, for a connection and for all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import TypeAlias

from fastjournal.limits import (
    EARLY_DELIVERIES_BYTES_MAX,
    LONG_MATCHES,
    NOTIFICATIONS_BYTES_MAX,
    NOTIFICATIONS_BYTES_PER_CONNECTION_MAX,
    SUBSCRIPTIONS_BYTES_MAX,
    SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX,
    SUBSCRIPTIONS_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
)
from fastjournal.protocol import ErrorCode
from fastjournald.engine.pubsub.change_set import ChangedKey
from fastjournald.engine.pubsub.regex_sets import CompiledSet, Part
from fastjournald.engine.pubsub.subscription import (
    About,
    ExpressionSearch,
    Subscription,
    full_bytes,
)

OnHit: TypeAlias = Callable[[Subscription, ChangedKey], None]
"""Called with a subscription and a change that concerns it."""

_Item: TypeAlias = tuple[ExpressionSearch, bytes]


class ExpressionQueue:
    """Searches and the keys that they have not examined yet, the next one first."""

    __slots__ = ("_found", "_found_in", "_items", "_parts", "bytes", "thread_work", "waits_long")

    def __init__(self) -> None:
        self._items: OrderedDict[_Item, ChangedKey] = OrderedDict()
        self.bytes = 0
        """Memory of the keys."""
        self._parts: list[Part[Subscription]] | None = None
        """Parts of the first search that are left; None: it has not begun."""
        self.waits_long = False
        """Whether the next match takes long, and its result is not there."""
        self.thread_work = 0
        """Work of long matches that was not charged so far."""
        self._found: dict[CompiledSet, list[int]] = {}
        """Results of long matches,"""
        self._found_in = b""
        """of this key."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, search: ExpressionSearch, change: ChangedKey) -> int:
        """Queue a changed key for a search; return the added bytes. O(1)."""
        item = search, change.key
        waiting = self._items.get(item)
        if waiting is None:
            self._items[item] = change
            size = change.pending_bytes
            self.bytes += size
            return size
        if self._parts is not None and next(iter(self._items)) == item:
            # it has begun: what is done of it has to be done once more
            self._parts = None
        self._items[item] = ChangedKey(change.key, change.number, waiting.owner)
        return 0

    def number_of(self, search: ExpressionSearch, key: bytes) -> int:
        """Return the number of a change that waits for a search; 0: none does. O(1)."""
        waiting = self._items.get((search, key))
        return 0 if waiting is None else waiting.number

    def match(self, steps: int, on_hit: OnHit, *, defers_long: bool) -> int:
        """Carry on with the first key.

        Args:
            steps: About so many, each about a microsecond.
            on_hit: May clear the queue.
            defers_long: Whether to stop before a match that takes long, see ``waits_long``.

        Returns:
            How many steps were done.
        """
        (search, key), change = next(iter(self._items.items()))
        if self._parts is None:
            self._parts = search.parts[::-1]
        done = 0
        while self._parts and done < steps:
            found = None
            compiled = self._parts[-1].compiled
            if compiled is not None and defers_long and compiled.takes_long(key):
                if self._found_in is key:
                    found = self._found.pop(compiled, None)
                if found is None:
                    self.waits_long = True
                    return done + 1
            elif compiled is not None:
                done += compiled.work(key)
            for one in self._parts.pop().found_in(key, found):
                done += 1
                on_hit(one, change)
        return done

    def pop_matched(self) -> int | None:
        """Take the first key out if nothing is left to do with it; return its bytes. O(1)."""
        if self._parts is None or self._parts:
            return None
        self._parts = None
        _, change = self._items.popitem(last=False)
        self.bytes -= change.pending_bytes
        return change.pending_bytes

    def clear(self) -> int:
        """Drop all keys; return their bytes. O(n)."""
        size, self.bytes = self.bytes, 0
        self._items.clear()
        self._parts = None
        self.waits_long = False
        return size

    # --- matches that take long -----------------------------------------------------------------

    def long_match(self) -> tuple[bytes, list[CompiledSet]]:
        """Return the key and the expressions of the next matches that take long."""
        _, key = next(iter(self._items))
        parts = reversed(self._parts or ())
        sets = (part.compiled for part in parts if part.compiled is not None)
        return key, list(islice(sets, LONG_MATCHES))

    def take_results(self, key: bytes, found: dict[CompiledSet, list[int]]) -> None:
        """Go on with the results of long matches of a key."""
        self.waits_long = False
        self._found_in = key
        self._found = found
        self.thread_work += sum(compiled.work(key) for compiled in found)

    def check(self) -> None:
        """Assert that the byte counts are right. O(n), for tests."""
        assert self.bytes == sum(change.pending_bytes for change in self._items.values())
        assert all(key == change.key for (_, key), change in self._items.items())


NOTIFICATION_BYTES = 190
"""Memory of a pending notification, without its key."""

EARLY_DELIVERY_BYTES = 250
"""Memory of the record of a key that was delivered before it was matched."""

Item: TypeAlias = tuple[Subscription, bytes]


class NotificationQueue:
    """Pending notifications of one session, the oldest first."""

    __slots__ = ("_items", "bytes", "ended")

    def __init__(self) -> None:
        self._items: OrderedDict[Item, None] = OrderedDict()
        self.bytes = 0
        """Memory of the tombstones."""
        self.ended: dict[int, None] = {}
        """Identifiers of subscriptions that ended because they cost too much; an error is due."""

    def __bool__(self) -> bool:
        return bool(self._items or self.ended)

    def add(self, item: Item) -> int:
        """Add a notification, if it is not there; return by how many bytes this adds. O(1)."""
        if item in self._items:
            return 0
        self._items[item] = None
        size = len(item[1]) + NOTIFICATION_BYTES
        self.bytes += size
        return size

    def pop(self) -> Item | None:
        """Take the oldest one out; None: there is none. O(1)."""
        if not self._items:
            return None
        item, _ = self._items.popitem(last=False)
        self.bytes -= len(item[1]) + NOTIFICATION_BYTES
        return item

    def pop_ended(self) -> int | None:
        """Remove and return the identifier of an ended subscription; None: there is none. O(1)."""
        if not self.ended:
            return None
        identifier = next(iter(self.ended))
        del self.ended[identifier]
        return identifier

    def next_keys(self, number_max: int) -> list[bytes]:
        """Return the keys of the next ones, which stay. O(number)."""
        return list(islice((key for one, key in self._items if one.live), number_max))

    def check(self) -> None:
        """Assert that the byte counts are right. O(n), for tests."""
        assert self.bytes == sum(len(key) + NOTIFICATION_BYTES for _, key in self._items)


class EarlyDeliveries:
    """Delivery dedupe: notifications that showed a change before it was matched.

    They are kept until it is, so that nothing is delivered twice; too many are dropped.
    """

    def __init__(self) -> None:
        self._numbers: dict[Item, int] = {}
        """To the number of the last change that was shown."""
        self.bytes = 0
        """Memory of the tombstones."""

    def __contains__(self, item: Item) -> bool:
        return item in self._numbers

    def note(self, item: Item, number: int) -> None:
        """Note that a notification showed the change of this number. O(1)."""
        if self.bytes > EARLY_DELIVERIES_BYTES_MAX:
            self.clear()
        if item not in self._numbers:
            self.bytes += len(item[1]) + EARLY_DELIVERY_BYTES
        self._numbers[item] = number

    def showed(self, item: Item, number: int) -> bool:
        """Whether the change of this number was shown; it is matched now. O(1)."""
        if not self._numbers:
            return False
        shown = self._numbers.get(item, 0)
        if 0 < shown <= number:
            del self._numbers[item]
            self.bytes -= len(item[1]) + EARLY_DELIVERY_BYTES
        return shown >= number

    def clear(self) -> None:
        """Forget them: nothing waits to be matched, or there are too many."""
        self._numbers.clear()
        self.bytes = 0

    def check(self) -> None:
        """Assert that the byte counts are right. O(n), for tests."""
        assert self.bytes == sum(len(key) + EARLY_DELIVERY_BYTES for _, key in self._numbers)


class Deliveries:
    """Pending notifications of all sessions."""

    def __init__(self) -> None:
        self._bytes = 0
        self.early = EarlyDeliveries()
        self._woken: list[Hashable] = []

    @property
    def memory_bytes(self) -> int:
        """Memory of what is pending, and of the delivery dedupe. O(1)."""
        return self._bytes + self.early.bytes

    def queue(self, subscriber: Subscriber, one: Subscription, change: ChangedKey) -> bool:
        """Queue a notification, if the change was not shown so far; whether there is one more.

        O(1).
        """
        item = one, change.key
        if self.early.showed(item, change.number):
            return False
        had_some = bool(subscriber.notifications)
        added = subscriber.notifications.add(item)
        self._bytes += added
        if added and not had_some:
            self._woken.append(subscriber.session)
        return added > 0

    def queue_ends(self, subscriber: Subscriber, identifiers: Iterable[int]) -> None:
        """Queue the ends of subscriptions that cost too much. O(their number)."""
        if not subscriber.notifications:
            self._woken.append(subscriber.session)
        subscriber.notifications.ended.update(dict.fromkeys(identifiers))

    def slow_consumer(
        self, subscriber: Subscriber, all_: Iterable[Subscriber]
    ) -> Subscriber | None:
        """Return whose notifications take too much memory, after one was queued for a session.

        O(1), and O(sessions) where those of all do.
        """
        if subscriber.notifications.bytes > NOTIFICATIONS_BYTES_PER_CONNECTION_MAX:
            return subscriber
        if self._bytes > NOTIFICATIONS_BYTES_MAX:
            return max(all_, key=lambda one: one.notifications.bytes)
        return None

    def drop(self, subscriber: Subscriber) -> None:
        """Drop the notifications of a closed session. O(1)."""
        self._bytes -= subscriber.notifications.bytes

    def take_woken(self) -> list[Hashable]:
        """Return sessions that have notifications and had none the last time."""
        woken, self._woken = self._woken, []
        return woken

    def next(
        self, subscriber: Subscriber, number_of: Callable[[Subscription, bytes], int]
    ) -> tuple[int, bytes] | None:
        """Remove and return the oldest notification of a session: its identifier, and the key.

        Args:
            subscriber: The session.
            number_of: Returns the number of a key's last change that is not yet matched with a
                subscription, 0: none. This notification shows it already.
        """
        queue = subscriber.notifications
        before = queue.bytes
        item = queue.pop()
        while item is not None and not item[0].live:
            item = queue.pop()
        self._bytes -= before - queue.bytes
        if item is None:
            return None
        number = number_of(*item)
        if number:
            self.early.note(item, number)
        return item[0].identifier, item[1]

    def check(self, subscribers: list[Subscriber]) -> None:
        """Assert that the byte counts are right. O(n), for tests."""
        self.early.check()
        assert self._bytes == sum(subscriber.notifications.bytes for subscriber in subscribers)


class Subscriber:
    """One session with subscriptions.

    Args:
        session: Key of the session.
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


_TOO_MANY_HERE = (
    f"{ErrorCode.BUSY} {SUBSCRIPTIONS_PER_CONNECTION_MAX} subscriptions stand on this connection"
)
_TOO_MANY = f"{ErrorCode.BUSY} {SUBSCRIPTIONS_MAX} subscriptions stand on all connections"
_TOO_LARGE_HERE = (
    f"{ErrorCode.BUSY} the subscriptions of a connection may take "
    f"{SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX} bytes"
)
_TOO_LARGE = (
    f"{ErrorCode.BUSY} the subscriptions of all connections take {SUBSCRIPTIONS_BYTES_MAX} bytes"
)


def why_refused(
    subscriber: Subscriber | None, identifier: int, about: About, *, number: int, size: int
) -> str:
    """Return why a session cannot have one subscription more; empty: it can. O(1).

    Args:
        subscriber: The session; None: it has no subscription.
        identifier: It takes the place of the subscription that has this identifier.
        about: Key or filter of the new one.
        number: Subscriptions on all connections.
        size: Bytes that they take.
    """
    added = full_bytes(about)
    if size + added > SUBSCRIPTIONS_BYTES_MAX:
        return _TOO_LARGE
    if subscriber is not None:
        standing = subscriber.subscriptions.get(identifier)
        replaced = 0 if standing is None else full_bytes(standing.about)
        if subscriber.bytes + added - replaced > SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX:
            return _TOO_LARGE_HERE
        if standing is not None:
            return ""
        if subscriber.count >= SUBSCRIPTIONS_PER_CONNECTION_MAX:
            return _TOO_MANY_HERE
    return _TOO_MANY if number >= SUBSCRIPTIONS_MAX else ""
