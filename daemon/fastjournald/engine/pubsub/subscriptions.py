"""Who is told of changes to which keys: SET and GET with LISTEN. Pure.

    store notes the keys that change -> ``match``, slice by slice -> news of a session -> ``take``

A request only notes which keys changed. Whom that concerns is found out afterwards, so that no
request waits for a thousand expressions: single keys by a dictionary, ranges by an interval index.
Keys that may match an expression wait in a queue of the session that asked for it, and sessions
take turns, so a costly expression makes nobody wait but who asked for it. A session whose
subscriptions cost more than their share loses them and is told so: ``busy``.

A session's news are keys, not values: whoever takes one looks up what stands there at that moment,
so changes that follow faster than a client reads are one piece of news.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from heapq import nlargest
from itertools import chain, islice
from typing import NamedTuple, Protocol, TypeAlias

from fastjournal.limits import (
    CHANGES_BYTES_MAX,
    LONG_MATCHES,
    MATCH_WORK_A_CHANGE,
    MATCH_WORK_MAX,
    NEWS_BYTES_MAX,
    NEWS_BYTES_PER_CONNECTION_MAX,
    SEARCH_QUEUE_BYTES_MAX,
    SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX,
    SEARCH_QUEUE_TURN_STEPS,
    SUBSCRIPTIONS_BYTES_MAX,
    SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX,
    SUBSCRIPTIONS_MAX,
    SUBSCRIPTIONS_PER_CONNECTION_MAX,
    TOLD_EARLY_BYTES_MAX,
)
from fastjournal.protocol import ErrorCode
from fastjournald.engine.pubsub.regex_sets import CompiledSet, CompiledSets, Part, Search, memory_of
from fastjournald.tables.interval_index import FIRST, Bounds, Intervals
from fastjournald.tables.signals import CHANGES, Signals

NEWS_BYTES = 190
"""Of one piece of news in memory, besides its key."""

WAITING_BYTES = 250
"""Of a key that waits to be matched."""

TOLD_EARLY_BYTES = 250
"""Of what is remembered of a key that was told before it was matched."""

SUBSCRIPTION_BYTES = 410
"""Of a subscription in memory, besides its keys and its expression."""

RANGE_BYTES = 260
"""Of a range in the index, besides its bounds."""

SEARCH_BYTES = 2000
"""Of the expressions of a session about one range, besides what is compiled."""

STABBED_AT_A_TIME = 100
"""Ranges that the index is asked for in one go."""

ENDED_AT_A_TIME = 2
"""Sessions whose subscriptions end in one go, where too many changes wait,"""

ENDED_EACH = 1000
"""after each so many changes that are matched meanwhile."""

SWEPT_AT_A_TIME = 20
"""Ranges that nobody listens to any more that leave the index in one go, some 30 us each."""

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
TOO_COSTLY = (
    f"{ErrorCode.BUSY} the subscription has ended: this connection listens to more than can be "
    "matched as fast as it changes; listen to less, and read anew what may have been missed"
)
"""The last notification of a subscription that costs too much."""


class Selects(Protocol):
    """Which keys are meant: those from ``start`` up to ``stop`` that an expression matches."""

    @property
    def start(self) -> bytes:
        """The first key that may be meant."""

    @property
    def stop(self) -> bytes | None:
        """The first one behind that is not; None: there is no upper end."""

    @property
    def expression(self) -> bytes | None:
        """None: all keys of the range."""

    @property
    def instructions(self) -> int:
        """Of the expression's program."""


class About(NamedTuple):
    """The same, without anything compiled."""

    start: bytes
    stop: bytes | None
    expression: bytes | None
    instructions: int


def _own_bytes(about: bytes | Selects) -> int:
    """What a subscription takes in memory, besides what may be shared with others."""
    if isinstance(about, bytes):
        return SUBSCRIPTION_BYTES + len(about)
    size = SUBSCRIPTION_BYTES + RANGE_BYTES + len(about.start) + len(about.stop or b"")
    return size if about.expression is None else size + SEARCH_BYTES + len(about.expression)


def _all_bytes(about: bytes | Selects) -> int:
    """What a subscription takes in memory, with its expression, compiled for itself alone."""
    if isinstance(about, bytes) or about.expression is None:
        return _own_bytes(about)
    return _own_bytes(about) + memory_of(about.instructions)


MayKnow: TypeAlias = Callable[[Hashable, bytes, bytes | None], bool]


class Changes:
    """The keys that changed since they were last matched, in the order of the first change.

    Args:
        signals: Told that there are some.
    """

    __slots__ = ("_keys", "bytes", "last", "signals", "wanted")

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self._keys: OrderedDict[bytes, tuple[int, bytes | None]] = OrderedDict()
        self.bytes = 0
        """What they take in memory."""
        self.last = 0
        """Number of the last change; each has the next one."""
        self.wanted = False
        """Whether there are subscriptions, which set this: else nobody has to note a change."""

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, key: bytes, owner: bytes | None) -> None:
        """A key came, went or has a new value. O(1).

        Args:
            key: It.
            owner: Primary key of what stood there before; None: nothing did.
        """
        self.last += 1
        self.signals.bits |= CHANGES
        noted = self._keys.get(key)
        if noted is None:
            self.bytes += _waiting_bytes(key, owner)
            self._keys[key] = self.last, owner
        else:
            self._keys[key] = self.last, noted[1]

    def clear(self) -> None:
        """Drop all keys; numbers go on. O(n)."""
        self._keys.clear()
        self.bytes = 0

    def pop(self) -> tuple[bytes, int, bytes | None]:
        """Take out the key that has waited longest. O(1).

        Returns:
            It, the number of its last change, and whose it was before the first.
        """
        key, (number, owner) = self._keys.popitem(last=False)
        self.bytes -= _waiting_bytes(key, owner)
        return key, number, owner

    def number_of(self, key: bytes) -> int:
        """Return the number of a key's last change, 0 where it has none to be matched. O(1)."""
        noted = self._keys.get(key)
        return 0 if noted is None else noted[0]


def _waiting_bytes(key: bytes, owner: bytes | None) -> int:
    return len(key) + (0 if owner is None else len(owner)) + WAITING_BYTES


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
        self.selection: About | None = None
        if not isinstance(about, bytes):
            self.selection = About(about.start, about.stop, about.expression, about.instructions)
        self.since = since
        """Number of the last change before it began."""
        self.live = True

    @property
    def about(self) -> bytes | About:
        """Key or selection."""
        if self.key is not None:
            return self.key
        assert self.selection is not None
        return self.selection


Searching: TypeAlias = Search[Subscription]
Found: TypeAlias = Subscription | Searching


class _Listener:
    """A session's subscriptions, its news, and the keys that wait for its expressions."""

    __slots__ = (
        *("by_identifier", "bytes", "ended", "found", "found_in", "news", "parts", "period"),
        *("queue", "queue_bytes", "searches", "subscriptions_bytes", "work"),
    )

    def __init__(self) -> None:
        self.by_identifier: dict[int, Subscription] = {}
        self.ended: dict[int, None] = {}
        """Identifiers of subscriptions that have ended because they cost too much, to be told."""
        self.news: OrderedDict[tuple[Subscription, bytes], None] = OrderedDict()
        self.bytes = 0
        """What the news take in memory."""
        self.searches: dict[tuple[bytes, bytes | None], Searching] = {}
        """By start and stop of a range: the expressions about its keys."""
        self.subscriptions_bytes = 0
        """What they would take in memory, if nothing was shared."""
        self.queue: OrderedDict[tuple[Searching, bytes], tuple[int, bytes | None]] = OrderedDict()
        """Searches and keys that they have not been held against yet: number and owner."""
        self.queue_bytes = 0
        self.parts: list[Part[Subscription]] | None = None
        """Of the first search in the queue, those that are left; None: it has not begun."""
        self.found: dict[CompiledSet, list[int]] = {}
        """What long matches have found,"""
        self.found_in = b""
        """in this key."""
        self.work = 0
        """Steps for its sake in this busy period."""
        self.period = 0


class LongMatch(NamedTuple):
    """Matches that take long, so that others wait for them in a thread."""

    session: Hashable
    key: bytes
    sets: list[CompiledSet]

    def run(self) -> list[list[int]]:
        """Return what each set finds; any thread may call it."""
        return [compiled.match(self.key) for compiled in self.sets]


class Subscriptions:
    """All subscriptions, and what they have to be told.

    Args:
        changes: Where changed keys are noted; switched on and off as subscriptions come and go.
    """

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self._listeners: dict[Hashable, _Listener] = {}
        self._by_key: dict[bytes, dict[Subscription, None]] = {}
        self._wide: Intervals[Found] = Intervals()
        """Those of ranges, and the searches of those of expressions."""
        self._gone: deque[tuple[bytes, bytes | None, Found]] = deque()
        """What stands there for nobody any more: a connection may leave a thousand behind."""
        self.sets = CompiledSets()
        """Expressions, compiled."""
        self._count = 0
        self._own_bytes = 0
        """What the subscriptions take in memory, but for what is compiled."""
        self.bytes = 0
        """What the news of all take in memory."""
        self._key = b""
        """The key that is being matched, while its number is not 0."""
        self._number = 0
        self._owner: bytes | None = None
        """Whose that key was before."""
        self._left: Iterator[Found] = iter(())
        """Found for it and not dealt with yet."""
        self._behind: Bounds = FIRST
        """The last range that was found for it."""
        self._queued: OrderedDict[Hashable, _Listener] = OrderedDict()
        """Sessions with keys that wait for their expressions, the next one first."""
        self.queue_bytes = 0
        """What these keys take in memory."""
        self.defers_long = False
        """Whether matches that take long are left to whoever asks for the ``next_long``."""
        self._long: OrderedDict[Hashable, _Listener] = OrderedDict()
        """Sessions whose next match takes long."""
        self._period = 0
        """Number of the busy period: it ends when nothing waits to be matched."""
        self.steps = 0
        """Done so far in matching, each about a microsecond."""
        self._matched = 0
        """Changes that were matched in it."""
        self._ended_at = -ENDED_EACH
        """So many were when the costliest subscriptions ended last."""
        self._told_early: dict[tuple[Subscription, bytes], int] = {}
        """Who was told what stands under a key before its last change was matched."""
        self._told_early_bytes = 0
        self._awake: list[Hashable] = []
        self._overrun: list[Hashable] = []
        self.too_costly = 0
        """Subscriptions that ended because they cost too much so far."""

    def __len__(self) -> int:
        return self._count

    @property
    def subscriptions_bytes(self) -> int:
        """What the subscriptions take in memory, with what is compiled. O(1)."""
        return self._own_bytes + self.sets.bytes

    @property
    def news_bytes(self) -> int:
        """What is to be told takes in memory. O(1)."""
        return self.bytes + self._told_early_bytes

    # --- beginning and ending -------------------------------------------------------------------

    def refuses(self, session: Hashable, identifier: int, about: bytes | Selects) -> str:
        """Return why a session cannot have this subscription as well; empty: it can. O(1)."""
        listener = self._listeners.get(session)
        if self.subscriptions_bytes + _all_bytes(about) > SUBSCRIPTIONS_BYTES_MAX:
            return _TOO_LARGE
        if listener is not None:
            standing = listener.by_identifier.get(identifier)
            size = listener.subscriptions_bytes + _all_bytes(about)
            if standing is not None:
                size -= _all_bytes(standing.about)
            if size > SUBSCRIPTIONS_BYTES_PER_CONNECTION_MAX:
                return _TOO_LARGE_HERE
            if standing is not None:
                return ""
            number = len(listener.by_identifier) + len(listener.ended)
            if number >= SUBSCRIPTIONS_PER_CONNECTION_MAX:
                return _TOO_MANY_HERE
        return _TOO_MANY if self._count >= SUBSCRIPTIONS_MAX else ""

    def begin(self, session: Hashable, identifier: int, about: bytes | Selects) -> None:
        """Tell a session of changes from now on to a key or a selection.

        It takes the place of the one that had this identifier. O(log n), and an expression is
        compiled with others of its session.
        """
        self._end(session, identifier)
        self._sweep(2)
        self.changes.wanted = True
        listener = self._listeners.setdefault(session, _Listener())
        subscription = Subscription(session, identifier, about, self.changes.last)
        listener.by_identifier[identifier] = subscription
        self._count += 1
        self._own_bytes += _own_bytes(subscription.about)
        listener.subscriptions_bytes += _all_bytes(subscription.about)
        selection = subscription.selection
        if subscription.key is not None:
            self._by_key.setdefault(subscription.key, {})[subscription] = None
        elif selection is not None and selection.expression is not None:
            self._begin_search(listener, subscription, selection, selection.expression)
        elif selection is not None:
            self._wide.add(selection.start, selection.stop, subscription)

    def _begin_search(
        self, listener: _Listener, one: Subscription, selection: Selects, expression: bytes
    ) -> None:
        about = selection.start, selection.stop
        search = listener.searches.get(about)
        if search is None:
            search = listener.searches[about] = Search(one.session, self.sets)
            self._wide.add(*about, search)
        search.add(expression, selection.instructions, one)

    def end(self, session: Hashable, identifier: int) -> bool:
        """End a subscription and drop its news; whether there was one.

        O(log n), and the other expressions that were compiled with its own are compiled anew.
        """
        was_there = self._end(session, identifier)
        self._rest_if_idle()
        return was_there

    def _end(self, session: Hashable, identifier: int) -> bool:
        listener = self._listeners.get(session)
        if listener is None:
            return False
        was_there = identifier in listener.by_identifier or identifier in listener.ended
        listener.ended.pop(identifier, None)
        subscription = listener.by_identifier.pop(identifier, None)
        if subscription is not None:
            self._unlist(listener, subscription)
            selection = subscription.selection
            if selection is not None and selection.expression is not None:
                about = selection.start, selection.stop
                search = listener.searches[about]
                search.remove(selection.expression, subscription)
                if not search:
                    del listener.searches[about]
                    self._gone.append((*about, search))
        self._sweep(2)
        if not listener.by_identifier and not listener.ended:
            self._drop(session)
        return was_there

    def forget(self, session: Hashable) -> None:
        """End all subscriptions of a session. O(their number)."""
        self._drop(session)
        self._rest_if_idle()

    def _drop(self, session: Hashable) -> None:
        listener = self._listeners.pop(session, None)
        if listener is None:
            return
        for subscription in listener.by_identifier.values():
            self._unlist(listener, subscription)
        self._end_searches(session, listener)
        self.bytes -= listener.bytes

    def _end_searches(self, session: Hashable, listener: _Listener) -> None:
        for about, search in listener.searches.items():
            search.live = False
            self._gone.append((*about, search))
        listener.searches.clear()
        listener.queue.clear()
        listener.parts = None
        self.queue_bytes -= listener.queue_bytes
        listener.queue_bytes = 0
        self._queued.pop(session, None)
        self._long.pop(session, None)

    def _unlist(self, listener: _Listener, subscription: Subscription) -> None:
        """Take a subscription out, but for its expression."""
        subscription.live = False
        self._count -= 1
        listener.subscriptions_bytes -= _all_bytes(subscription.about)
        key, selection = subscription.key, subscription.selection
        if selection is not None and selection.expression is None:
            self._gone.append((selection.start, selection.stop, subscription))
            return
        self._own_bytes -= _own_bytes(subscription.about)
        if key is None:
            return
        of_key = self._by_key[key]
        del of_key[subscription]
        if not of_key:
            del self._by_key[key]

    def _rest_if_idle(self) -> None:
        """Stop noting changes where no subscription is left: nothing is left to be matched."""
        if self._count or not self.changes.wanted:
            if self._gone:
                self.changes.signals.bits |= CHANGES
            return
        self.changes.wanted = False
        self.changes.clear()
        self._number = 0
        self._left = iter(())
        self._forget_told_early()
        for _, _, found in self._gone:
            if not isinstance(found, Subscription):
                found.clear()
        self._gone.clear()
        self._wide = Intervals()
        self._own_bytes = 0

    def _sweep(self, number: int) -> None:
        """Take what nobody listens to out of the index, at most so many. O(log n) each."""
        for _ in range(min(number, len(self._gone))):
            start, stop, found = self._gone.popleft()
            self._wide.remove(start, stop, found)
            if isinstance(found, Subscription):
                self._own_bytes -= _own_bytes(found.about)
            else:
                found.clear()

    def _forget_told_early(self) -> None:
        self._told_early.clear()
        self._told_early_bytes = 0

    # --- the price ------------------------------------------------------------------------------

    def _charge(self, session: Hashable, listener: _Listener, work: int) -> None:
        """Count work for a session; if it is far more than one with its share has, end it."""
        if listener.period != self._period:
            listener.period, listener.work = self._period, 0
        listener.work += work
        if listener.work > MATCH_WORK_MAX and self._is_costly(listener):
            self._end_costly(session, listener)

    def _is_costly(self, listener: _Listener) -> bool:
        return listener.period == self._period and (
            listener.work > MATCH_WORK_A_CHANGE * self._matched
        )

    def _end_costly(self, session: Hashable, listener: _Listener) -> None:
        """End the subscriptions of a session to ranges and expressions, or if it has none, all."""
        ending = [one for one in listener.by_identifier.values() if one.key is None]
        ending = ending or list(listener.by_identifier.values())
        if not ending:
            return
        self._end_searches(session, listener)
        if not listener.news and not listener.ended:
            self._awake.append(session)
        for subscription in ending:
            self._unlist(listener, subscription)
            del listener.by_identifier[subscription.identifier]
            listener.ended[subscription.identifier] = None
        self.too_costly += len(ending)
        listener.work = 0

    def _end_costliest(self) -> None:
        """Too much waits: end some of the subscriptions that this is due to. O(sessions)."""
        costly = ((session, one) for session, one in self._listeners.items())
        costliest = nlargest(
            ENDED_AT_A_TIME,
            (found for found in costly if self._is_costly(found[1])),
            key=lambda found: found[1].work,
        )
        for session, listener in costliest:
            self._end_costly(session, listener)

    # --- matching -------------------------------------------------------------------------------

    def unmatched(self) -> int:
        """Return how many keys have to be matched still, but for matches that take long. O(1)."""
        return len(self.changes) + (self._number > 0) + len(self._queued) + (len(self._gone) > 0)

    def match(
        self, steps_max: int, may_know: MayKnow | None
    ) -> tuple[list[Hashable], list[Hashable]]:
        """Hold changed keys against subscriptions, in about ``steps_max`` steps.

        A step is a microsecond: a look at a subscription, or at a node of the index.

        Args:
            steps_max: How many steps are worth one go.
            may_know: Whether a session may know of a key, and whose it was before; None: all may.

        Returns:
            Sessions that have news and had none before, and those that fell behind so far that
            their subscriptions ended and their connection has to.
        """
        if self._gone:
            self._sweep(SWEPT_AT_A_TIME)
            steps_max //= 2
        if self.changes.bytes > CHANGES_BYTES_MAX and self._matched >= self._ended_at + ENDED_EACH:
            self._ended_at = self._matched
            self._end_costliest()
        # expressions have half of the time, where there is something to do besides
        left = self._match_index(steps_max // (1 + bool(self._queued)), may_know)
        left += steps_max - steps_max // (1 + bool(self._queued))
        while left > 0 and self._queued:
            left -= self._search_next(min(left, SEARCH_QUEUE_TURN_STEPS), may_know)
        self.steps += steps_max - left
        if not self.unmatched() and not self._long:
            self._forget_told_early()
            self._period += 1
            self._matched = 0
            self._ended_at = -ENDED_EACH
        awake, self._awake = self._awake, []
        overrun, self._overrun = self._overrun, []
        self._rest_if_idle()
        return awake, overrun

    def _match_index(self, left: int, may_know: MayKnow | None) -> int:
        """Find whom keys concern by the indexes; return how many steps are left."""
        changes = self.changes
        while left > 0:
            if not self._number:
                if not changes:
                    break
                self._key, self._number, self._owner = changes.pop()
                self._left = iter(tuple(self._by_key.get(self._key, ())))
                self._behind = FIRST
                self._matched += 1
                left -= 1
            for found in self._left:
                left -= 1
                if isinstance(found, Subscription):
                    self._concern(found, self._key, self._number, self._owner, may_know)
                else:
                    self._queue(found)
                if left <= 0:
                    break
            else:
                left -= self._stab()
        return left

    def _stab(self) -> int:
        """Find the next ranges with the key; return in how many steps."""
        wide = self._wide
        before = wide.looks
        ranges = wide.stab(self._key, self._behind, STABBED_AT_A_TIME)
        if ranges:
            self._behind = ranges[-1][0]
            self._left = chain.from_iterable(map(tuple, (items for _, items in ranges)))
        else:
            self._number = 0
        return wide.looks - before

    def _concern(
        self,
        subscription: Subscription,
        key: bytes,
        number: int,
        owner: bytes | None,
        may_know: MayKnow | None,
    ) -> None:
        """A subscription is about a key that has changed."""
        if not subscription.live or number <= subscription.since:
            return
        session = subscription.session
        self._charge(session, self._listeners[session], 1)
        if subscription.live and (
            may_know is None
            or (subscription, key) in self._told_early
            or may_know(session, key, owner)
        ):
            self._add_news(subscription, key, number)

    def _queue(self, search: Searching) -> None:
        """Let the key that is being matched wait for a search."""
        session = search.session
        listener = self._listeners.get(session)
        if listener is None or not search:
            return
        self._charge(session, listener, 1)
        if not search:
            return
        item = search, self._key
        waiting = listener.queue.get(item)
        if waiting is not None:
            if listener.parts is not None and next(iter(listener.queue)) == item:
                # it has begun: what is done of it has to be done once more
                listener.parts = None
            listener.queue[item] = self._number, waiting[1]
            return
        listener.queue[item] = self._number, self._owner
        if session not in self._long:
            self._queued[session] = listener
        size = _waiting_bytes(self._key, self._owner)
        listener.queue_bytes += size
        self.queue_bytes += size
        if listener.queue_bytes > SEARCH_QUEUE_BYTES_PER_CONNECTION_MAX:
            self._end_costly(session, listener)
        elif self.queue_bytes > SEARCH_QUEUE_BYTES_MAX:
            queued = chain(self._queued.items(), self._long.items())
            session, listener = max(queued, key=lambda one: one[1].queue_bytes)
            self._end_costly(session, listener)

    def _search_next(self, steps: int, may_know: MayKnow | None) -> int:
        """Carry on with the queue of the session whose turn it is; return in how many steps."""
        session, listener = next(iter(self._queued.items()))
        done = 0
        while done < steps and listener.queue:
            item, (number, owner) = next(iter(listener.queue.items()))
            search, key = item
            if listener.parts is None:
                listener.parts = search.parts[::-1]
            while listener.parts and done < steps:
                found = None
                compiled = listener.parts[-1].compiled
                if compiled is not None and self.defers_long and compiled.takes_long(key):
                    if listener.found_in is key:
                        found = listener.found.pop(compiled, None)
                    if found is None:
                        self._long[session] = self._queued.pop(session)
                        return done + 1
                elif compiled is not None:
                    done += compiled.work(key)
                for subscription in listener.parts.pop().found_in(key, found):
                    done += 1
                    self._concern(subscription, key, number, owner, may_know)
                if listener.parts is None:
                    # all of this session has ended just now
                    return done
            if not listener.parts:
                done += 1
                listener.parts = None
                del listener.queue[item]
                size = _waiting_bytes(key, owner)
                listener.queue_bytes -= size
                self.queue_bytes -= size
        if listener.queue:
            self._queued.move_to_end(session)
        else:
            self._queued.pop(session, None)
        return done

    def next_long(self) -> LongMatch | None:
        """Return matches that take long: ``run`` them, and ``take_long``. O(1)."""
        if not self._long:
            return None
        session, listener = next(iter(self._long.items()))
        _, key = next(iter(listener.queue))
        parts = reversed(listener.parts or ())
        sets = (part.compiled for part in parts if part.compiled is not None)
        return LongMatch(session, key, list(islice(sets, LONG_MATCHES)))

    def take_long(self, match: LongMatch, found: list[list[int]]) -> None:
        """Go on with what long matches have found, if anybody still waits for it."""
        listener = self._long.pop(match.session, None)
        if listener is not None:
            listener.found_in = match.key
            listener.found = dict(zip(match.sets, found, strict=True))
            self._queued[match.session] = listener
            self._queued.move_to_end(match.session, last=False)

    def _add_news(self, subscription: Subscription, key: bytes, number: int) -> None:
        item = subscription, key
        if self._told_early:
            told = self._told_early.get(item, 0)
            if 0 < told <= number:
                del self._told_early[item]
                self._told_early_bytes -= len(key) + TOLD_EARLY_BYTES
            if told >= number:
                return
        session = subscription.session
        listener = self._listeners[session]
        news = listener.news
        if item in news:
            return
        if not news and not listener.ended:
            self._awake.append(session)
        news[item] = None
        size = len(key) + NEWS_BYTES
        listener.bytes += size
        self.bytes += size
        if listener.bytes > NEWS_BYTES_PER_CONNECTION_MAX:
            self._overrun.append(session)
            self._drop(session)
        elif self.bytes > NEWS_BYTES_MAX:
            most = max(self._listeners, key=lambda one: self._listeners[one].bytes)
            self._overrun.append(most)
            self._drop(most)

    # --- telling --------------------------------------------------------------------------------

    def has(self, session: Hashable) -> bool:
        """Return whether a session listens to anything. O(1)."""
        return session in self._listeners

    def has_news(self, session: Hashable) -> bool:
        """Return whether there is something to tell a session. O(1)."""
        listener = self._listeners.get(session)
        return listener is not None and bool(listener.news or listener.ended)

    def take_ended(self, session: Hashable) -> int | None:
        """Take the identifier of a subscription that has ended because it costs too much."""
        listener = self._listeners.get(session)
        if listener is None or not listener.ended:
            return None
        identifier = next(iter(listener.ended))
        del listener.ended[identifier]
        if not listener.ended and not listener.by_identifier:
            self.forget(session)
        return identifier

    def upcoming(self, session: Hashable, number_max: int) -> list[bytes]:
        """Return the keys of the next pieces of news of a session, which stay. O(number)."""
        listener = self._listeners.get(session)
        if listener is None:
            return []
        live = (key for subscription, key in listener.news if subscription.live)
        return list(islice(live, number_max))

    def take(self, session: Hashable) -> tuple[int, bytes] | None:
        """Take the oldest piece of news of a session: the identifier to tell it with, and the key.

        The caller tells what stands under the key now. Where that has changed once more already,
        this is remembered, so that nothing is told twice.
        """
        listener = self._listeners.get(session)
        while listener is not None and listener.news:
            item, _ = listener.news.popitem(last=False)
            subscription, key = item
            size = len(key) + NEWS_BYTES
            listener.bytes -= size
            self.bytes -= size
            if not subscription.live:
                continue
            number = self.changes.number_of(key)
            if not number and key == self._key:
                number = self._number
            if not number and listener.queue:
                number = self._queued_number(listener, subscription, key)
            if number:
                if self._told_early_bytes > TOLD_EARLY_BYTES_MAX:
                    self._forget_told_early()
                if item not in self._told_early:
                    self._told_early_bytes += len(key) + TOLD_EARLY_BYTES
                self._told_early[item] = number
            return subscription.identifier, key
        return None

    def _queued_number(self, listener: _Listener, one: Subscription, key: bytes) -> int:
        """Return the number of a change that waits for the expression; 0: none does."""
        if one.selection is None or one.selection.expression is None:
            return 0
        search = listener.searches[one.selection.start, one.selection.stop]
        return listener.queue.get((search, key), (0, None))[0]

    def check(self) -> None:
        """Assert that the parts say the same. O(n), for tests."""
        by_session = [
            subscription
            for listener in self._listeners.values()
            for subscription in listener.by_identifier.values()
        ]
        assert all(subscription.live for subscription in by_session)
        assert len(by_session) == self._count
        assert self.changes.wanted == (self._count > 0)
        assert self.changes.wanted or not self.unmatched()
        self._check_indexes(by_session)
        listeners = self._listeners.values()
        assert self.bytes == sum(listener.bytes for listener in listeners)
        gone = [one for _, _, one in self._gone if isinstance(one, Subscription)]
        assert not any(one.live for one in gone)
        assert self._own_bytes == sum(_own_bytes(one.about) for one in by_session + gone)
        assert self._told_early_bytes == sum(
            len(key) + TOLD_EARLY_BYTES for _, key in self._told_early
        )
        assert self.queue_bytes == sum(listener.queue_bytes for listener in listeners)
        assert not self._queued.keys() & self._long.keys()
        assert {**self._queued, **self._long} == {
            session: listener for session, listener in self._listeners.items() if listener.queue
        }
        for listener in listeners:
            assert listener.by_identifier or listener.ended
            assert not listener.by_identifier.keys() & listener.ended.keys()
            sizes = (len(key) + NEWS_BYTES for _, key in listener.news)
            assert listener.bytes == sum(sizes)
            assert listener.queue_bytes == sum(
                _waiting_bytes(key, owner) for (_, key), (_, owner) in listener.queue.items()
            )
            assert listener.subscriptions_bytes == sum(
                _all_bytes(one.about) for one in listener.by_identifier.values()
            )

    def _check_indexes(self, by_session: list[Subscription]) -> None:
        wide = {
            (one.selection.start, one.selection.stop, one)
            for one in by_session
            if one.selection is not None and one.selection.expression is None
        } | {
            (*about, search)
            for listener in self._listeners.values()
            for about, search in listener.searches.items()
        }
        listed = {(start, stop, one) for start, stop, one in self._gone}
        self._wide.check()
        assert set(self._wide) == {
            item for start, stop, item in wide | listed if stop is None or start < stop
        }
        assert {one for of_key in self._by_key.values() for one in of_key} == {
            one for one in by_session if one.key is not None
        }
        searched = [
            one
            for listener in self._listeners.values()
            for search in listener.searches.values()
            for part in search.parts
            for of_expression in part.members.values()
            for one in of_expression
        ]
        expected = [
            one
            for one in by_session
            if one.selection is not None and one.selection.expression is not None
        ]
        assert len(searched) == len(expected)
        assert set(searched) == set(expected)
