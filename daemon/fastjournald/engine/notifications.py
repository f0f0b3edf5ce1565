"""Notifications of LISTEN: matching of changes with subscriptions, and messages of them. Pure.

A notification shows what stands under a key at the moment at which it is made, not at that of the
change. Like a reply it may be sent once all that was appended until then is durable.
"""

from __future__ import annotations

from collections.abc import Hashable

from fastjournal.limits import (
    CHANGES_STOP_BYTES,
    MATCH_STEPS_MAX,
    NOTIFICATIONS_TURN_BYTES,
    REQUEST_WORK,
)
from fastjournal.protocol import ErrorCode, Pair, Reply, encode_reply
from fastjournald.engine.context import DATA, LISTEN, META, Context
from fastjournald.engine.pubsub.subscriptions import TOO_COSTLY
from fastjournald.engine.value_memory import missing_notifications
from fastjournald.tables.entry import Cold
from fastjournald.tables.value_cache import ALL_READABLE, Unreadable


class Notifications:
    """Maker of notifications.

    Args:
        context: Subscriptions, entries and rights.
    """

    def __init__(self, context: Context) -> None:
        self.sent = 0
        """Notifications made so far."""
        self._context = context
        self._store = context.store
        self._subscriptions = context.subscriptions

    @property
    def unmatched(self) -> int:
        """How many changed keys have to be matched with subscriptions still. O(1)."""
        return self._subscriptions.unmatched()

    @property
    def behind(self) -> bool:
        """Whether so many wait to be matched that no more should change for now. O(1).

        Subscriptions that cost too much have ended before: there was no time to match at all.
        """
        return self._store.changes.bytes > CHANGES_STOP_BYTES

    def match(self, idle_us: int = 0) -> tuple[list[Hashable], list[Hashable]]:
        """Match some of the changed keys with subscriptions; call it while there are ``unmatched``.

        Args:
            idle_us: Microseconds for which the daemon had nothing to do so far.

        Returns:
            Sessions that have notifications and had none before, and slow consumers: their
            subscriptions have ended, and their connection has to.
        """
        may_know = None if self._context.grants is None else self._may_know
        steps = self._subscriptions.steps
        spare_us = idle_us + self._store.work - steps - REQUEST_WORK * self.sent
        found = self._subscriptions.match(MATCH_STEPS_MAX, may_know, spare_us)
        self._store.work += self._subscriptions.steps - steps
        return found

    def _may_know(self, session: Hashable, key: bytes, owner: bytes | None) -> bool:
        """Whether a session may see what stands under a key, or might see what stood there."""
        grants = self._context.grants
        grant = None if grants is None else grants.sessions.get(session)
        if grant is None:
            return False
        if owner is not None and grant.covers_key(owner):
            return True
        entry = self._store.find(key)
        return entry is not None and grant.covers(entry)

    def has_notifications(self, session: Hashable) -> bool:
        """Return whether there is something to tell a session. O(1)."""
        return self._subscriptions.has_notifications(session)

    def pop(self, session: Hashable, now: int, unreadable: Unreadable = ALL_READABLE) -> bytes:
        """Return notifications for a session, a turn's worth; empty: there are none.

        It ends where a value is on disk only: ``missing_notifications`` asks for that. Where the
        read of it has failed, and so it is ``unreadable``, the notification says so.
        """
        context, subscriptions = self._context, self._subscriptions
        now = max(now, context.now)
        notifications: list[bytes] = []
        room = NOTIFICATIONS_TURN_BYTES
        evicts = self._store.values is not None
        while room > 0 and (ended := subscriptions.next_ended(session)) is not None:
            data = encode_reply(Reply(ended, LISTEN, now, error=TOO_COSTLY))
            room -= len(data)
            notifications.append(data)
        while room > 0:
            if evicts and missing_notifications(context, session, unreadable, 1) is not None:
                break
            pending = subscriptions.next_notification(session)
            if pending is None:
                break
            data = encode_reply(self._notification(session, *pending, now, unreadable))
            room -= len(data)
            notifications.append(data)
        self.sent += len(notifications)
        self._store.work += REQUEST_WORK * len(notifications)
        return b"".join(notifications)

    def _notification(
        self, session: Hashable, identifier: int, key: bytes, now: int, unreadable: Unreadable
    ) -> Reply:
        """Return the notification of a change of what stands under a key."""
        store = self._store
        entry = store.find(key)
        reply = Reply(identifier, LISTEN, now)
        if entry is None or not self._context.may_see(session, entry):
            reply.error = ErrorCode.NOT_FOUND
            reply.pairs = [Pair(key)]
        elif isinstance(entry.value, Cold):
            reply.error = f"{ErrorCode.NOT_READABLE} {unreadable[entry.job_id]}"
            reply.pairs = [store.pair(entry, key, META, now)]
        else:
            reply.pairs = [store.pair(entry, key, DATA | META, now)]
        return reply
