"""Locks: their owners and ends. Pure; in memory only: a lock never outlives its connection.

A lock belongs to the entry with its primary key. n is the number of locks.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
from sortedcontainers import SortedList

from fastjournald.tables.domain import NEVER
from fastjournald.tables.domain_limits import moved

LOCK_BYTES = 320
"""Memory of a lock; its key is the one of the locked entry."""


class Lock(msgspec.Struct, gc=False):
    """One lock."""

    owner: Hashable
    """The session that asked for it."""
    until: int
    """Instant at which it ends."""
    since: int
    """Instant at which it was requested."""


class Locks:
    """The locks by key, by owner and by end.

    ``by_key`` is a plain dict, so that those who only want to know whether there is any lock at
    all ask that: every SET does.
    """

    __slots__ = ("_by_owner", "_ends", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[bytes, Lock] = {}
        self._by_owner: dict[Hashable, dict[bytes, None]] = {}
        self._ends: SortedList = SortedList()

    def __len__(self) -> int:
        return len(self.by_key)

    def put(self, key: bytes, owner: Hashable, until: int, since: int) -> None:
        """Lock a key; this replaces its lock. O(log n)."""
        self.discard(key)
        self.by_key[key] = Lock(owner, until, since)
        self._by_owner.setdefault(owner, {})[key] = None
        self._ends.add((until, key))

    def discard(self, key: bytes) -> None:
        """End the lock under a key, if there is one. O(log n)."""
        lock = self.by_key.pop(key, None)
        if lock is None:
            return
        keys = self._by_owner[lock.owner]
        del keys[key]
        if not keys:
            del self._by_owner[lock.owner]
        self._ends.remove((lock.until, key))

    def move(self, old: bytes, new: bytes) -> None:
        """The entry has another primary key: so has its lock, and no other one. O(log n)."""
        lock = self.by_key.get(old)
        self.discard(new)
        if lock is not None:
            self.discard(old)
            self.put(new, lock.owner, lock.until, lock.since)

    def held(self, key: bytes, now: int) -> Lock | None:
        """Return the lock under a key, None where there is none or it is over. O(1)."""
        lock = self.by_key.get(key)
        return None if lock is None or lock.until <= now else lock

    def is_locked(self, key: bytes, now: int) -> bool:
        """Whether any session has locked an entry. O(1)."""
        return bool(self.by_key) and self.held(key, now) is not None

    def locked_to(self, key: bytes, session: Hashable, now: int) -> bool:
        """Whether another session has locked an entry, so that this one must not write. O(1)."""
        if not self.by_key:
            return False
        lock = self.held(key, now)
        return lock is not None and lock.owner != session

    def count_of(self, owner: Hashable) -> int:
        """Return how many locks a session holds. O(1)."""
        return len(self._by_owner.get(owner, ()))

    def keys_of(self, owner: Hashable) -> list[bytes]:
        """Return what a session has locked, in the order of locking."""
        return list(self._by_owner.get(owner, ()))

    def first_end(self) -> int:
        """Return when a lock ends next, ``NEVER`` where there is none. O(1)."""
        return self._ends[0][0] if self._ends else NEVER

    def move_ends(self, step_us: int) -> None:
        """Move the ends of all locks by a step of the clock. O(n log n)."""
        for lock in self.by_key.values():
            lock.until = moved(lock.until, step_us)
        self._ends = SortedList((lock.until, key) for key, lock in self.by_key.items())

    def drop_over(self, now: int, number_max: int) -> int:
        """Drop locks whose time is over, at most so many; return how many. O(log n) each."""
        number = 0
        while number < number_max and self.first_end() <= now:
            self.discard(self._ends[0][1])
            number += 1
        return number

    def check(self) -> None:
        """Assert that all three say the same. O(n log n), for tests."""
        assert list(self._ends) == sorted((lock.until, key) for key, lock in self.by_key.items())
        held = [(owner, key) for owner, keys in self._by_owner.items() for key in keys]
        assert len(held) == len(self.by_key)
        assert all(self.by_key[key].owner == owner for owner, key in held)
        assert all(self._by_owner.values())
