"""Change set: the keys that changed since they were last matched with subscriptions. Pure.

A request only notes which keys changed; the fan-out finds out afterwards whom that concerns. A key
that changes again before it is matched stays one change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from typing import NamedTuple

from fastjournald.tables.signals import CHANGES, Signals

PENDING_BYTES = 250
"""Memory of a key that waits to be matched, without its bytes."""


class ChangedKey(NamedTuple):
    """One changed key."""

    key: bytes
    number: int
    """Number of its last change."""
    owner: bytes | None
    """Primary key of the entry before the first change; None: there was none."""

    @property
    def pending_bytes(self) -> int:
        """Memory that it takes while it waits to be matched."""
        return _pending_bytes(self.key, self.owner)


def _pending_bytes(key: bytes, owner: bytes | None) -> int:
    return len(key) + (0 if owner is None else len(owner)) + PENDING_BYTES


class ChangeSet:
    """Changed keys, in the order of their first change.

    Args:
        signals: Set when there are some.
    """

    __slots__ = ("_keys", "bytes", "last", "only", "passed", "signals", "wanted")

    def __init__(self, signals: Signals) -> None:
        self.signals = signals
        self._keys: OrderedDict[bytes, tuple[int, bytes | None]] = OrderedDict()
        self.bytes = 0
        """Memory of the tombstones."""
        self.last = 0
        """Number of the last change; each has the next one."""
        self.wanted = False
        """Whether there are subscriptions; they set it. If False, no change is noted."""
        self.only: Container[bytes] | None = None
        """Only these keys are noted, if there is no subscription to a range; None: all keys."""
        self.passed = 0
        """Changes so far that were not noted."""

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, key: bytes, owner: bytes | None) -> None:
        """Note that a key was added or removed, or has a new value. O(1).

        Args:
            key: The key.
            owner: Primary key of the entry before; None: there was none.
        """
        only = self.only
        if only is not None and key not in only:
            self.passed += 1
            return
        self.last += 1
        self.signals.bits |= CHANGES
        noted = self._keys.get(key)
        if noted is None:
            self.bytes += _pending_bytes(key, owner)
            self._keys[key] = self.last, owner
        else:
            self._keys[key] = self.last, noted[1]

    def clear(self) -> None:
        """Drop all keys; numbers go on. O(n)."""
        self._keys.clear()
        self.bytes = 0

    def pop(self) -> ChangedKey:
        """Remove and return the key that has waited longest. O(1)."""
        key, (number, owner) = self._keys.popitem(last=False)
        self.bytes -= _pending_bytes(key, owner)
        return ChangedKey(key, number, owner)

    def number_of(self, key: bytes) -> int:
        """Return the number of a key's last change, 0 where it has none to be matched. O(1)."""
        noted = self._keys.get(key)
        return 0 if noted is None else noted[0]
