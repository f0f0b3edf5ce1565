"""Deadlines: what happens by time: the end of leases, delays, pauses and locks, expiry. Pure."""

from __future__ import annotations

from fastjournal.limits import ENTRY_WORK
from fastjournald.engine.job_lifecycle import JobLifecycle
from fastjournald.engine.store import Store
from fastjournald.tables.domain import Domain, Leases
from fastjournald.tables.entry_states import REQUEUE
from fastjournald.tables.signals import TIMER


class Deadlines:
    """Applies what time has brought.

    Args:
        store: Entries.
        jobs: Lifecycle of those whose lease runs out.
    """

    def __init__(self, store: Store, jobs: JobLifecycle) -> None:
        self.behind = False
        """The last ``advance`` left something undone: only the timers carry it on."""
        self._store = store
        self._jobs = jobs
        self._plain_leases = store.scheduler.plain.leases

    def next_instant(self) -> int:
        """Return when a lease, delay, pause, life or lock ends; ``NEVER`` where none does. O(1)."""
        store = self._store
        first = store.scheduler.first_deadline()
        instant = min(self._plain_leases.first(), store.expiry.first(), store.locks.first_end())
        return instant if first is None else min(first[0], instant)

    def advance(self, now: int, work_max: int) -> None:
        """Advance the clock: leases and delays end, holds of domains, then lives and locks.

        At one instant, domains come in the order of their names, and behind them the leases of
        entries in none: plain and superseded ones.

        Args:
            now: Up to this instant.
            work_max: With so much work done, the rest waits for the next call.
        """
        store = self._store
        work_over = store.work + work_max
        self._advance_domains(now, work_over)
        while store.work < work_over and store.expiry.first() <= now:
            store.work += ENTRY_WORK
            entry = store.find(store.expiry.pop_key())
            assert entry is not None
            entry.own().expires = 0
            store.remove(entry, now)
            store.journal.expired(entry, now)
        number_max = max(0, work_over - store.work) // ENTRY_WORK
        store.work += ENTRY_WORK * store.locks.drop_over(now, number_max)
        signals = store.signals
        signals.deadline = self.next_instant()
        signals.bits |= TIMER
        self.behind = signals.deadline <= now

    def _advance_domains(self, now: int, work_over: int) -> None:
        store, scheduler = self._store, self._store.scheduler
        while store.work < work_over:
            first = scheduler.first_deadline()
            plain = self._plain_leases.first()
            if first is not None and first[0] <= now and first[0] <= plain:
                instant, name = first
                domain = scheduler.domains.get(name)
                if domain is None or domain.wake > instant:
                    store.work += ENTRY_WORK
                    store.rules.end_hold(name, instant)
                elif domain.leases.first() <= instant:
                    self._run_out(domain.leases, instant, now, work_over)
                else:
                    self._become_ready(domain, instant, now, work_over)
            elif plain <= now:
                self._run_out(self._plain_leases, plain, now, work_over)
            else:
                break

    def _run_out(self, leases: Leases, token: int, now: int, work_over: int) -> None:
        store = self._store
        for entry in leases.first_of(token, -(-(work_over - store.work) // ENTRY_WORK)):
            if store.work >= work_over:
                break
            store.work += ENTRY_WORK
            self._jobs.run_out(entry, now)

    def _become_ready(self, domain: Domain, instant: int, now: int, work_over: int) -> None:
        store, scheduler = self._store, self._store.scheduler
        while store.work < work_over and domain.first_delay() <= instant:
            store.work += ENTRY_WORK
            store.enqueue(scheduler.pop_delayed(domain), now, REQUEUE)
        scheduler.round_robin.refresh(domain)
