"""Deliveries: the notification queues of all sessions, and their bounds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from fastjournal.limits import NOTIFICATIONS_BYTES_MAX, NOTIFICATIONS_BYTES_PER_CONNECTION_MAX
from fastjournald.engine.pubsub.change_set import ChangedKey
from fastjournald.engine.pubsub.notification_queue import EarlyDeliveries
from fastjournald.engine.pubsub.subscriber import Subscriber
from fastjournald.engine.pubsub.subscription import Subscription


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
        """Drop the notifications of a session that is gone. O(1)."""
        self._bytes -= subscriber.notifications.bytes

    def take_woken(self) -> list[Hashable]:
        """Return sessions that have notifications and had none the last time."""
        woken, self._woken = self._woken, []
        return woken

    def next(
        self, subscriber: Subscriber, number_of: Callable[[Subscription, bytes], int]
    ) -> tuple[int, bytes] | None:
        """Take the oldest notification of a session: its identifier, and the key.

        Args:
            subscriber: The session.
            number_of: Tells the number of a key's last change that waits to be matched with a
                subscription, 0: none does. This notification shows it already.
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
        """Assert that the bytes are right. O(n), for tests."""
        self.early.check()
        assert self._bytes == sum(subscriber.notifications.bytes for subscriber in subscribers)
