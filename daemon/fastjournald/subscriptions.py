"""Who is told of changes to which keys: SET and GET with LISTEN. Pure.

    store notes the keys that change -> ``match``, slice by slice -> news of a session -> ``take``

A request only notes which keys changed. Whom that concerns is found out afterwards, so that no
request waits for a thousand expressions. A session's news are keys, not values: whoever takes one
looks up what stands there at that moment, so changes that follow faster than a client reads are
one piece of news.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain, islice
from typing import Protocol, TypeAlias

from fastjournal.limits import (
    NEWS_BYTES_MAX,
    NEWS_BYTES_PER_CONNECTION_MAX,
    SUBSCRIPTIONS_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
    TOLD_EARLY_MAX,
)
from fastjournal.protocol import ErrorCode

NEWS_OVERHEAD_BYTES = 250
"""Of one piece of news in memory, besides its key."""

INSTRUCTIONS_A_STEP = 100
"""Of an expression: they take as long as a look at a subscription without one, a microsecond."""

_TOO_MANY_HERE = (
    f"{ErrorCode.BUSY} {SUBSCRIPTIONS_PER_CONNECTION_MAX} subscriptions stand on this connection"
)
_TOO_MANY = f"{ErrorCode.BUSY} {SUBSCRIPTIONS_MAX} subscriptions stand on all connections"


class Selects(Protocol):
    """Which keys a subscription is about."""

    instructions: int
    """Of the expression's program, for each byte of a key; 0: there is none."""

    def matches(self, key: bytes) -> bool:
        """Whether a key is meant."""


MayKnow: TypeAlias = Callable[[Hashable, bytes, bytes | None], bool]


class Changes:
    """The keys that changed since they were last matched, in the order of the first change."""

    __slots__ = ("_keys", "last")

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, tuple[int, bytes | None]] = OrderedDict()
        self.last = 0
        """Number of the last change; each has the next one."""

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, key: bytes, owner: bytes | None) -> None:
        """A key came, went or has a new value. O(1).

        Args:
            key: It.
            owner: Primary key of what stood there before; None: nothing did.
        """
        self.last += 1
        noted = self._keys.get(key)
        self._keys[key] = self.last, owner if noted is None else noted[1]

    def pop(self) -> tuple[bytes, int, bytes | None]:
        """Take out the key that has waited longest. O(1).

        Returns:
            It, the number of its last change, and whose it was before the first.
        """
        key, (number, owner) = self._keys.popitem(last=False)
        return key, number, owner

    def number_of(self, key: bytes) -> int:
        """Return the number of a key's last change, 0 where it has none to be matched. O(1)."""
        noted = self._keys.get(key)
        return 0 if noted is None else noted[0]


class Subscription:
    """One request's wish to be told; of no more use once it is not ``live``."""

    __slots__ = ("identifier", "key", "live", "selection", "session", "since")

    def __init__(
        self, session: Hashable, identifier: int, about: bytes | Selects, since: int
    ) -> None:
        self.session = session
        self.identifier = identifier
        """Of the request: its notifications bear it."""
        self.key = about if isinstance(about, bytes) else None
        self.selection = None if isinstance(about, bytes) else about
        self.since = since
        """Number of the last change before it began."""
        self.live = True


class _Listener:
    """A session's subscriptions and its news."""

    __slots__ = ("by_identifier", "bytes", "news")

    def __init__(self) -> None:
        self.by_identifier: dict[int, Subscription] = {}
        self.news: OrderedDict[tuple[Subscription, bytes], None] = OrderedDict()
        self.bytes = 0
        """What the news take in memory."""


class Subscriptions:
    """All subscriptions, and what they have to be told."""

    def __init__(self) -> None:
        self._listeners: dict[Hashable, _Listener] = {}
        self._by_key: dict[bytes, dict[Subscription, None]] = {}
        self._wide: dict[Subscription, None] = {}
        """Those of ranges and expressions."""
        self._wide_now: tuple[Subscription, ...] | None = ()
        """The same to walk along, made anew after a change."""
        self._count = 0
        self._bytes = 0
        self._key = b""
        """The key that is being matched, while its number is not 0."""
        self._number = 0
        self._owner: bytes | None = None
        """Whose that key was before."""
        self._left: Iterator[Subscription] = iter(())
        """Subscriptions that it has not been held against yet."""
        self._told_early: dict[tuple[Subscription, bytes], int] = {}
        """Who was told what stands under a key before its last change was matched."""
        self._awake: list[Hashable] = []
        self._overrun: list[Hashable] = []

    def __len__(self) -> int:
        return self._count

    # --- beginning and ending -------------------------------------------------------------------

    def refuses(self, session: Hashable, identifier: int) -> str:
        """Return why a session cannot have one more subscription; empty: it can. O(1)."""
        listener = self._listeners.get(session)
        if listener is not None:
            if identifier in listener.by_identifier:
                return ""
            if len(listener.by_identifier) >= SUBSCRIPTIONS_PER_CONNECTION_MAX:
                return _TOO_MANY_HERE
        return _TOO_MANY if self._count >= SUBSCRIPTIONS_MAX else ""

    def begin(self, session: Hashable, identifier: int, about: bytes | Selects, since: int) -> None:
        """Tell a session of changes after number ``since`` to a key or a selection. O(1).

        It takes the place of the one that had this identifier.
        """
        self.end(session, identifier)
        listener = self._listeners.setdefault(session, _Listener())
        subscription = Subscription(session, identifier, about, since)
        listener.by_identifier[identifier] = subscription
        self._count += 1
        if subscription.key is not None:
            self._by_key.setdefault(subscription.key, {})[subscription] = None
        else:
            self._wide[subscription] = None
            self._wide_now = None

    def end(self, session: Hashable, identifier: int) -> bool:
        """End a subscription and drop its news; whether there was one. O(1)."""
        listener = self._listeners.get(session)
        if listener is None or identifier not in listener.by_identifier:
            return False
        self._unlist(listener.by_identifier.pop(identifier))
        if not listener.by_identifier:
            self.forget(session)
        return True

    def forget(self, session: Hashable) -> None:
        """End all subscriptions of a session. O(their number)."""
        listener = self._listeners.pop(session, None)
        if listener is None:
            return
        for subscription in listener.by_identifier.values():
            self._unlist(subscription)
        self._bytes -= listener.bytes

    def _unlist(self, subscription: Subscription) -> None:
        subscription.live = False
        self._count -= 1
        key = subscription.key
        if key is None:
            del self._wide[subscription]
            self._wide_now = None
            return
        of_key = self._by_key[key]
        del of_key[subscription]
        if not of_key:
            del self._by_key[key]

    def rest(self) -> None:
        """Nobody listens any more: nothing is left to be matched."""
        self._number = 0
        self._told_early.clear()

    # --- matching -------------------------------------------------------------------------------

    def unmatched(self, changes: Changes) -> int:
        """Return how many keys have to be matched still. O(1)."""
        return len(changes) + (self._number > 0)

    def match(
        self, changes: Changes, steps_max: int, may_know: MayKnow | None
    ) -> tuple[list[Hashable], list[Hashable]]:
        """Hold changed keys against subscriptions, about ``steps_max`` of them.

        Args:
            changes: The keys.
            steps_max: How many looks at a subscription are worth one go.
            may_know: Whether a session may know of a key, and whose it was before; None: all may.

        Returns:
            Sessions that have news and had none before, and those that fell behind so far that
            their subscriptions ended and their connection has to.
        """
        left = steps_max
        while left > 0:
            if not self._number:
                if not changes:
                    self._told_early.clear()
                    break
                self._key, self._number, self._owner = changes.pop()
                self._left = self._concerned(self._key)
                left -= 1
            key, number = self._key, self._number
            for subscription in self._left:
                left -= 1
                if subscription.live and number > subscription.since:
                    selection = subscription.selection
                    if selection is not None:
                        left -= selection.instructions * len(key) // INSTRUCTIONS_A_STEP
                    if (selection is None or selection.matches(key)) and (
                        may_know is None
                        or (subscription, key) in self._told_early
                        or may_know(subscription.session, key, self._owner)
                    ):
                        self._add_news(subscription, key, number)
                if left <= 0:
                    break
            else:
                self._number = 0
        awake, self._awake = self._awake, []
        overrun, self._overrun = self._overrun, []
        return awake, overrun

    def _concerned(self, key: bytes) -> Iterator[Subscription]:
        if self._wide_now is None:
            self._wide_now = tuple(self._wide)
        of_key = self._by_key.get(key)
        return iter(self._wide_now) if of_key is None else chain(tuple(of_key), self._wide_now)

    def _add_news(self, subscription: Subscription, key: bytes, number: int) -> None:
        item = subscription, key
        if self._told_early:
            told = self._told_early.get(item, 0)
            if 0 < told <= number:
                del self._told_early[item]
            if told >= number:
                return
        session = subscription.session
        listener = self._listeners[session]
        news = listener.news
        if item in news:
            return
        if not news:
            self._awake.append(session)
        news[item] = None
        size = len(key) + NEWS_OVERHEAD_BYTES
        listener.bytes += size
        self._bytes += size
        if listener.bytes > NEWS_BYTES_PER_CONNECTION_MAX:
            self._overrun.append(session)
            self.forget(session)
        elif self._bytes > NEWS_BYTES_MAX:
            most = max(self._listeners, key=lambda one: self._listeners[one].bytes)
            self._overrun.append(most)
            self.forget(most)

    # --- telling --------------------------------------------------------------------------------

    def has(self, session: Hashable) -> bool:
        """Return whether a session listens to anything. O(1)."""
        return session in self._listeners

    def has_news(self, session: Hashable) -> bool:
        """Return whether there is something to tell a session. O(1)."""
        listener = self._listeners.get(session)
        return listener is not None and bool(listener.news)

    def upcoming(self, session: Hashable, number_max: int) -> list[bytes]:
        """Return the keys of the next pieces of news of a session, which stay. O(number)."""
        listener = self._listeners.get(session)
        if listener is None:
            return []
        live = (key for subscription, key in listener.news if subscription.live)
        return list(islice(live, number_max))

    def take(self, session: Hashable, changes: Changes) -> tuple[int, bytes] | None:
        """Take the oldest piece of news of a session: the identifier to tell it with, and the key.

        The caller tells what stands under the key now. Where that has changed once more already,
        this is remembered, so that nothing is told twice.
        """
        listener = self._listeners.get(session)
        while listener is not None and listener.news:
            item, _ = listener.news.popitem(last=False)
            subscription, key = item
            size = len(key) + NEWS_OVERHEAD_BYTES
            listener.bytes -= size
            self._bytes -= size
            if not subscription.live:
                continue
            number = changes.number_of(key)
            if not number and key == self._key:
                number = self._number
            if number:
                if len(self._told_early) >= TOLD_EARLY_MAX:
                    self._told_early.clear()
                self._told_early[item] = number
            return subscription.identifier, key
        return None

    def check(self, changes: Changes | None) -> None:
        """Assert that the parts say the same. O(n), for tests."""
        by_session = [
            subscription
            for listener in self._listeners.values()
            for subscription in listener.by_identifier.values()
        ]
        assert all(subscription.live for subscription in by_session)
        listed = {*self._wide, *(one for of_key in self._by_key.values() for one in of_key)}
        assert listed == set(by_session)
        assert len(by_session) == self._count
        assert (changes is not None) == (self._count > 0)
        assert self._bytes == sum(listener.bytes for listener in self._listeners.values())
        for listener in self._listeners.values():
            assert listener.by_identifier
            sizes = (len(key) + NEWS_OVERHEAD_BYTES for _, key in listener.news)
            assert listener.bytes == sum(sizes)
