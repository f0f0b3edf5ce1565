"""Notification queue of a session, and delivery dedupe. Pure.

A pending notification is a subscription and a key, no value: what stands there is looked up when it
is delivered, so changes that follow faster than a client reads are one notification.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TypeAlias

from fastjournal.limits import EARLY_DELIVERIES_BYTES_MAX
from fastjournald.engine.pubsub.subscription import Subscription

NOTIFICATION_BYTES = 190
"""Memory of a pending notification, besides its key."""

EARLY_DELIVERY_BYTES = 250
"""Memory of the record of a key that was delivered before it was matched."""

Item: TypeAlias = tuple[Subscription, bytes]


class NotificationQueue:
    """Pending notifications of one session, the oldest first."""

    __slots__ = ("_items", "bytes", "ended")

    def __init__(self) -> None:
        self._items: OrderedDict[Item, None] = OrderedDict()
        self.bytes = 0
        """Memory that they take."""
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
        """Take out the identifier of a subscription that has ended; None: none has. O(1)."""
        if not self.ended:
            return None
        identifier = next(iter(self.ended))
        del self.ended[identifier]
        return identifier

    def next_keys(self, number_max: int) -> list[bytes]:
        """Return the keys of the next ones, which stay. O(number)."""
        return list(islice((key for one, key in self._items if one.live), number_max))

    def check(self) -> None:
        """Assert that the bytes are right. O(n), for tests."""
        assert self.bytes == sum(len(key) + NOTIFICATION_BYTES for _, key in self._items)


class EarlyDeliveries:
    """Delivery dedupe: notifications that showed a change before it was matched.

    They are kept until it is, so that nothing is delivered twice; too many are dropped.
    """

    def __init__(self) -> None:
        self._numbers: dict[Item, int] = {}
        """To the number of the last change that was shown."""
        self.bytes = 0
        """Memory that they take."""

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
        """Assert that the bytes are right. O(n), for tests."""
        assert self.bytes == sum(len(key) + EARLY_DELIVERY_BYTES for _, key in self._numbers)
