"""Domain limits and pauses: rate and concurrency limit, lease, attempts; paused domains. Pure.

A limit is of a domain, with entries or without. A number that is 0 means the daemon's default. The
instant of the last delivery is kept while its interval runs, also without entries: a domain that
gets new entries within the interval still has to wait.

n is the number of domains with a running interval, or of paused domains; every operation is O(log
n) unless it says otherwise. ``HeldDomains`` of ``tables.domain`` has the queues of paused domains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import msgspec
from sortedcontainers import SortedList

from fastjournal.cmdlog.format.operation_records import Limit
from fastjournal.limits import INSTANT_MAX, INTERVAL_BYTES, LIMIT_BYTES, PAUSE_BYTES


def moved(instant: int, step_us: int) -> int:
    """Return an instant moved by ``step_us``; the result is a valid instant, and not 0."""
    return min(max(instant + step_us, 1), INSTANT_MAX)


class DomainLimit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Limits of one domain; 0: the daemon's default, or in the default: no limit."""

    interval_us: int = 0
    """Least time between two deliveries."""
    jobs: int = 0
    """Most entries that are leased at once."""
    lease_us: int = 0
    """Length of a lease if the request names none."""
    attempts: int = 0
    """Failed attempts after which an entry is buried; -1: never."""

    @classmethod
    def from_record(cls, record: Limit) -> Self:
        """Return the limits in a log record."""
        return cls(
            interval_us=record.interval_us,
            jobs=record.jobs,
            lease_us=record.lease_us,
            attempts=record.attempts,
        )


UNLIMITED = DomainLimit()


class DomainLimits:
    """Limits by domain, and the domains whose interval after a delivery runs.

    Args:
        default: Limits of a domain without numbers of its own.
    """

    __slots__ = (
        *("_ends", "_last", "any", "bytes", "default", "interval_bytes", "own_limits"),
        "unlogged",
    )

    def __init__(self, default: DomainLimit = UNLIMITED) -> None:
        self.default = default
        self.own_limits: dict[bytes, DomainLimit] = {}
        """Domain to its own limits. Read only; a dict is the cheapest lookup."""
        self.any = default != UNLIMITED
        """Whether any domain may have a limit."""
        self.bytes = 0
        """Memory of the domains with limits of their own."""
        self.interval_bytes = 0
        """Memory of the intervals that run."""
        self.unlogged: dict[bytes, None] = {}
        """Domains with a running interval whose last delivery has no log record of its own. The
        records of leases prove these deliveries until compaction drops them."""
        self._last: dict[bytes, tuple[int, int]] = {}
        """Domain to its last delivery and the end of the interval after it."""
        self._ends: SortedList = SortedList()

    def __len__(self) -> int:
        """Return how many domains have a limit of their own. O(1)."""
        return len(self.own_limits)

    def __iter__(self) -> Iterator[tuple[bytes, DomainLimit]]:
        """Names and limits of their own, in no particular order."""
        return iter(self.own_limits.items())

    def own(self, name: bytes) -> DomainLimit:
        """Return the limits set for a domain. O(1)."""
        return self.own_limits.get(name, UNLIMITED)

    def of(self, name: bytes) -> DomainLimit:
        """Return the limits in force for a domain, with defaults. O(1)."""
        own, default = self.own_limits.get(name), self.default
        if own is None:
            return default
        return DomainLimit(
            interval_us=own.interval_us or default.interval_us,
            jobs=own.jobs or default.jobs,
            lease_us=own.lease_us or default.lease_us,
            attempts=own.attempts or default.attempts,
        )

    def holding(self, name: bytes) -> DomainLimit | None:
        """Return the limits in force for a domain; None: no limit. O(1)."""
        limit = self.of(name)
        return None if limit == UNLIMITED else limit

    def put(self, name: bytes, limit: DomainLimit) -> None:
        """Set the limits of a domain; all zeros: remove them."""
        if self.own_limits.pop(name, None) is not None:
            self.bytes -= LIMIT_BYTES + len(name)
        if limit != UNLIMITED:
            self.own_limits[name] = limit
            self.bytes += LIMIT_BYTES + len(name)
        self.any = bool(self.own_limits) or self.default != UNLIMITED

    def load(self, limits: Iterable[tuple[bytes, DomainLimit]]) -> None:
        """Load names and limits. O(n)."""
        for name, limit in limits:
            self.put(name, limit)

    # --- intervals ------------------------------------------------------------------------------

    @property
    def intervals(self) -> int:
        """Number of running intervals. O(1)."""
        return len(self._last)

    def waits_until(self, name: bytes) -> int:
        """Return the end of the interval after a domain's last delivery; 0: none runs. O(1)."""
        return self._last.get(name, (0, 0))[1]

    def begin_interval(self, name: bytes, delivered_at: int, now: int) -> int:
        """Begin the interval of a domain at its last delivery.

        Returns:
            Its end; 0: it has ended already, or the domain has no interval.
        """
        if name in self._last:
            self.end_interval(name)
        interval = self.of(name).interval_us
        end = min(delivered_at + interval, INSTANT_MAX)
        if not interval or not delivered_at or end <= now:
            # instant 0: no delivery is known
            return 0
        self._last[name] = delivered_at, end
        self.unlogged[name] = None
        self._ends.add((end, name))
        self.interval_bytes += INTERVAL_BYTES + len(name)
        return end

    def last_delivery(self, name: bytes) -> int:
        """Return the last delivery of a domain whose interval runs; 0: none runs. O(1)."""
        return self._last.get(name, (0, 0))[0]

    def first_end(self) -> tuple[int, bytes] | None:
        """Return the end of the interval that ends first, and its domain. O(1)."""
        return self._ends[0] if self._ends else None

    def move_intervals(self, step_us: int) -> None:
        """Move all deliveries whose intervals run by a step of the clock. O(n log n)."""
        self._last = {
            name: (moved(delivered_at, step_us), moved(end, step_us))
            for name, (delivered_at, end) in self._last.items()
        }
        self._ends = SortedList((end, name) for name, (_, end) in self._last.items())
        # no record has these instants
        self.unlogged = dict.fromkeys(self._last)

    def end_interval(self, name: bytes) -> None:
        """End the interval of a domain."""
        _, end = self._last.pop(name)
        self.unlogged.pop(name, None)
        self._ends.remove((end, name))
        self.interval_bytes -= INTERVAL_BYTES + len(name)


EVERYTHING = b""
"""Name under which the pause of everything stands among those of domains."""


class Pauses:
    """Pauses by domain, also of domains without entries; and the pause of everything."""

    __slots__ = ("_ends", "bytes", "ends")

    def __init__(self) -> None:
        self.ends: dict[bytes, int] = {}
        """Domain to the end of its pause. Read only; a dict is the cheapest lookup."""
        self.bytes = 0
        """Memory of the pauses."""
        self._ends: SortedList = SortedList()

    def __len__(self) -> int:
        return len(self.ends)

    def __contains__(self, name: bytes) -> bool:
        return name in self.ends

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Names and ends, in no particular order."""
        return iter(self.ends.items())

    @property
    def domains(self) -> int:
        """Number of paused domains, without the pause of everything. O(1)."""
        return len(self.ends) - (EVERYTHING in self.ends)

    @property
    def everything_until(self) -> int:
        """End of the pause of everything; 0: there is none. O(1)."""
        return self.ends.get(EVERYTHING, 0)

    def until(self, name: bytes) -> int:
        """Return when the pause of a domain ends; 0: it is not paused. O(1)."""
        return self.ends.get(name, 0)

    def first_end(self) -> tuple[int, bytes] | None:
        """Return the end of the pause that ends first, and its domain. O(1)."""
        return self._ends[0] if self._ends else None

    def put(self, name: bytes, until: int) -> None:
        """Pause a domain until that instant; it replaces an earlier pause."""
        before = self.ends.get(name)
        if before is not None:
            self._ends.remove((before, name))
        else:
            self.bytes += PAUSE_BYTES + len(name)
        self.ends[name] = until
        self._ends.add((until, name))

    def load(self, pauses: Iterable[tuple[bytes, int]]) -> None:
        """Load names and ends into an empty table. O(n log n)."""
        self.ends.update(pauses)
        self.bytes = sum(PAUSE_BYTES + len(name) for name in self.ends)
        self._ends.update((until, name) for name, until in self.ends.items())

    def discard(self, name: bytes) -> None:
        """End the pause of a domain."""
        self.bytes -= PAUSE_BYTES + len(name)
        self._ends.remove((self.ends.pop(name), name))
