"""When a failed entry is tried again, and when it has been tried enough.

The daemon counts the attempts whose lease ran out; those that a worker gave back it does not. So a
worker remembers its own failures of each entry, as long as it runs, and adds the two.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

_REMEMBERED_MAX = 100_000
"""Entries whose failures are remembered; the longest untouched is forgotten: a few MB at most."""

_DOUBLINGS_MAX = 62


class Verdict(msgspec.Struct, frozen=True):
    """What to do with an entry that has failed."""

    attempts: int
    """Failed ones, this one included."""
    delay_us: int
    """Give it back for that long."""
    enough: bool
    """It has failed as often as it may: bury it instead."""


class Retries:
    """Delays grow from ``delay_us``, doubled with each failure, to ``delay_us_max``.

    Args:
        delay_us: After the first failure, in microseconds.
        delay_us_max: The longest, in microseconds.
        attempts_max: So many failures are enough; 0: none are.
    """

    def __init__(self, delay_us: int, delay_us_max: int, attempts_max: int) -> None:
        self._delay_us = delay_us
        self._delay_us_max = delay_us_max
        self._attempts_max = attempts_max
        self._failures: OrderedDict[bytes, int] = OrderedDict()

    def attempts(self, key: bytes, leases_lost: int) -> int:
        """Return how often the entry has failed, as far as is known here."""
        return leases_lost + self._failures.get(key, 0)

    def failed(self, key: bytes, leases_lost: int) -> Verdict:
        """Count a failure, and return what follows from it."""
        before = self.attempts(key, leases_lost)
        self._failures[key] = self._failures.pop(key, 0) + 1
        if len(self._failures) > _REMEMBERED_MAX:
            self._failures.popitem(last=False)
        delay_us = min(self._delay_us << min(before, _DOUBLINGS_MAX), self._delay_us_max)
        return Verdict(before + 1, delay_us, 0 < self._attempts_max <= before + 1)

    def forget(self, key: bytes) -> None:
        """The entry is done, or no longer this worker's."""
        self._failures.pop(key, None)
