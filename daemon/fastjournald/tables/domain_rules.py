"""Rules of the domains: pauses and limits, and the holds that follow from them. Pure.

n is the number of domains; every operation is O(log n) unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastjournal.limits import INTERVALS_BYTES_MAX, INTERVALS_MAX
from fastjournald.tables.domain import Domain
from fastjournald.tables.domain_limits import EVERYTHING, DomainLimit, moved
from fastjournald.tables.scheduler import Scheduler
from fastjournald.tables.signals import Signals


class DomainRules:
    """Changes of pauses and limits, and deliveries, which limits count.

    Args:
        scheduler: Domains with their pauses and limits.
        signals: Receives deadlines.
    """

    __slots__ = ("_scheduler", "_signals", "limits", "pauses")

    def __init__(self, scheduler: Scheduler, signals: Signals) -> None:
        self._scheduler = scheduler
        self._signals = signals
        self.pauses = scheduler.pauses
        self.limits = scheduler.limits

    # --- pauses ---------------------------------------------------------------------------------

    def pause(self, name: bytes, until: int) -> None:
        """Pause a domain, or ``EVERYTHING``: NEXT delivers nothing of it until that instant."""
        self._scheduler.note_name(name)
        self.pauses.put(name, until)
        self._signals.wake_at(until)
        domain = self._scheduler.domains.get(name)
        if domain is not None:
            domain.paused_until = until
            self._scheduler.round_robin.hold_or_free(domain)

    def resume(self, name: bytes) -> None:
        """End the pause of a domain, which has its turn after all others, or of ``EVERYTHING``."""
        self.pauses.discard(name)
        if name == EVERYTHING:
            self._scheduler.round_robin.serve_again()
        self._scheduler.drop_name(name)
        domain = self._scheduler.domains.get(name)
        if domain is not None:
            domain.paused_until = 0
            self._scheduler.round_robin.hold_or_free(domain)

    # --- limits ---------------------------------------------------------------------------------

    def limit(self, name: bytes, limit: DomainLimit, now: int) -> None:
        """Set the limits of a domain."""
        limits = self.limits
        self._scheduler.note_name(name)
        limits.put(name, limit)
        self._scheduler.drop_name(name)
        domain = self._scheduler.domains.get(name)
        delivered_at = limits.last_delivery(name) if domain is None else domain.delivered_at
        waits_until = limits.begin_interval(name, delivered_at, now)
        if waits_until:
            self._signals.wake_at(waits_until)
        if domain is not None:
            domain.limit = limits.holding(name)
            domain.waits_until = waits_until
            self._scheduler.round_robin.hold_or_free(domain)

    def note_delivery(self, domain: Domain, now: int) -> None:
        """Note that an entry of a domain, in no queue any more, is delivered."""
        domain.delivered_at = now
        if domain.limit is not None:
            if domain.limit.interval_us:
                domain.waits_until = self.limits.begin_interval(domain.name, now, now)
                self._signals.wake_at(domain.waits_until)
                self._bound_intervals()
            self._scheduler.round_robin.hold_or_free(domain)

    def _bound_intervals(self) -> None:
        """End the intervals that end first if too many run."""
        limits = self.limits
        while limits.intervals > INTERVALS_MAX or limits.interval_bytes > INTERVALS_BYTES_MAX:
            first = limits.first_end()
            assert first is not None
            self.end_hold(first[1], first[0])

    def move_intervals(self, step_us: int) -> None:
        """Move the ends of running intervals by a step of the clock. O(n log n).

        No last delivery is later than the present: on a step back, deliveries whose interval has
        ended move too.
        """
        self.limits.move_intervals(step_us)
        for domain in self._scheduler.domains.values():
            if domain.waits_until or (domain.delivered_at and step_us < 0):
                domain.delivered_at = moved(domain.delivered_at, step_us)
            domain.waits_until = self.limits.waits_until(domain.name)
            if domain.limit is not None:
                self._scheduler.round_robin.hold_or_free(domain)

    # --- deadlines and recovery -----------------------------------------------------------------

    def end_hold(self, name: bytes, now: int) -> None:
        """End the pause or the interval of a domain whose time has come."""
        if 0 < self.limits.waits_until(name) <= now:
            self.limits.end_interval(name)
            domain = self._scheduler.domains.get(name)
            if domain is not None:
                domain.waits_until = 0
                self._scheduler.round_robin.hold_or_free(domain)
        else:
            self.resume(name)

    def load(self, pauses: Mapping[bytes, int], limits: Mapping[bytes, DomainLimit]) -> None:
        """Load pauses and limits by domain, before there are entries. O(n log n)."""
        self.pauses.load(pauses.items())
        self.limits.load(limits.items())
        self._scheduler.names.update({*pauses, *limits} - {EVERYTHING})

    def restore_delivery(self, name: bytes, delivered_at: int, now: int) -> None:
        """Restore from the log the instant of a domain's last delivery.

        At most the present instant: the log may be from a clock that was years ahead.
        """
        delivered_at = min(delivered_at, now)
        waits_until = self.limits.begin_interval(name, delivered_at, now)
        domain = self._scheduler.domains.get(name)
        if domain is not None:
            domain.delivered_at = delivered_at
            domain.waits_until = waits_until
            self._scheduler.round_robin.hold_or_free(domain)
        self._bound_intervals()
