"""Expression queue: changed keys that wait for the expressions of one session. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

from fastjournal.limits import LONG_MATCHES
from fastjournald.engine.pubsub.change_set import ChangedKey
from fastjournald.engine.pubsub.regex_sets import CompiledSet, Part
from fastjournald.engine.pubsub.subscription import ExpressionSearch, Subscription

OnHit: TypeAlias = Callable[[Subscription, ChangedKey], None]
"""Called with a subscription and a change that concerns it."""

_Item: TypeAlias = tuple[ExpressionSearch, bytes]


class ExpressionQueue:
    """Searches and the keys that they have not looked at yet, the next one first."""

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
        """Work of long matches for which nobody was charged so far."""
        self._found: dict[CompiledSet, list[int]] = {}
        """Results of long matches,"""
        self._found_in = b""
        """of this key."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, search: ExpressionSearch, change: ChangedKey) -> int:
        """Let a changed key wait for a search; return by how many bytes this adds. O(1)."""
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
        """Assert that the bytes are right. O(n), for tests."""
        assert self.bytes == sum(change.pending_bytes for change in self._items.values())
        assert all(key == change.key for (_, key), change in self._items.items())
