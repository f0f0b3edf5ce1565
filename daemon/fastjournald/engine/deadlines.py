"""Deadlines: timers for the end of leases, delays, pauses and locks, and for expiry. Pure.

``ClockSteps`` moves the deadlines after a clock step (docs/decisions/work-scheduling.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from fastjournal.cmdlog.recovery.replayed_entry import BeganAhead
from fastjournal.keys import parse_journal_key
from fastjournal.limits import ENTRY_WORK, RUN_OUT_WORK
from fastjournald.engine.job_lifecycle import JobLifecycle
from fastjournald.engine.store import Store
from fastjournald.engine.waiters import Waiters
from fastjournald.tables.domain import Domain, Leases
from fastjournald.tables.domain_limits import moved
from fastjournald.tables.entry import REQUEUE, Entry, EntryState
from fastjournald.tables.signals import TIMER


class Deadlines:
    """Timers: applies deadlines that have passed.

    Args:
        store: Entries.
        jobs: Lifecycle of entries whose lease expires.
    """

    def __init__(self, store: Store, jobs: JobLifecycle) -> None:
        self.behind = False
        """The last ``advance`` left deadlines over; the timers continue it."""
        self._store = store
        self._jobs = jobs
        self._plain_leases = store.scheduler.plain.leases

    def next_instant(self) -> int:
        """Return the next end of a lease, delay, pause, ttl or lock, or ``NEVER``. O(1)."""
        store = self._store
        first = store.scheduler.first_deadline()
        instant = min(self._plain_leases.first(), store.expiry.first(), store.locks.first_end())
        return instant if first is None else min(first[0], instant)

    def advance(self, now: int, work_max: int) -> None:
        """Apply deadlines: first leases and delays, then holds of domains, then expiry and locks.

        At the same instant, domains come in the order of their names, and after them the leases of
        entries in none: plain and superseded ones.

        Args:
            now: Up to this instant.
            work_max: After so much work, the rest waits for the next call.
        """
        store = self._store
        work_over = store.work + work_max
        self._advance_domains(now, work_over)
        while store.work < work_over and store.expiry.first() <= now:
            store.work += ENTRY_WORK
            entry = store.find(store.expiry.pop_key())
            assert entry is not None
            store.before_change(entry)
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
        for entry in leases.first_of(token, -(-(work_over - store.work) // RUN_OUT_WORK)):
            if store.work >= work_over:
                break
            store.work += RUN_OUT_WORK
            self._jobs.run_out(entry, now)

    def _become_ready(self, domain: Domain, instant: int, now: int, work_over: int) -> None:
        store, scheduler = self._store, self._store.scheduler
        while store.work < work_over and domain.first_delay() <= instant:
            store.work += ENTRY_WORK
            store.enqueue(scheduler.pop_delayed(domain), now, REQUEUE)
        scheduler.round_robin.refresh(domain)


class MovedEnds(msgspec.Struct, frozen=True, gc=False):
    """Numbers of durations whose end was moved because the clock was set."""

    leases: int = 0
    delays: int = 0
    pauses: int = 0
    expiries: int = 0

    def total(self) -> int:
        """Return the sum of all kinds."""
        return sum(msgspec.structs.astuple(self))


class ClockSteps:
    """Moves the ends of durations after a clock step, while running or before a start.

    Args:
        store: Entries.
        jobs: Lifecycle of entries whose lease ends.
        waiters: Requests that wait for work.
    """

    def __init__(self, store: Store, jobs: JobLifecycle, waiters: Waiters) -> None:
        self._store = store
        self._jobs = jobs
        self._waiters = waiters

    def step(self, now: int, step_us: int) -> MovedEnds:
        """Correct all durations by a step of the clock, so that their length stays. O(n log n).

        A step ahead moves leases, and durations that are only in memory. The other durations have
        passed: nearly always the machine was suspended.

        Args:
            now: Present instant, after the step.
            step_us: Size of the step ahead; negative: back.
        """
        store = self._store
        counts: Counter[str] = Counter()
        store.locks.move_ends(step_us)
        self._waiters.move_deadlines(step_us)
        leased = list(self._leased())
        counts["leases"] = self._move_leases(
            [(entry, moved(entry.leased_until, step_us)) for entry in leased], now
        )
        store.rules.move_intervals(step_us)
        if step_us < 0:
            store.leases.move_begins(step_us)
            store.tombstones.begin_anew(now)
            for name, until in list(store.rules.pauses):
                counts["pauses"] += self._pause(name, moved(until, step_us), now)
            for entry in store:
                counts["delays"] += self._set_back(entry, now, step_us)
                if self._lives_since(entry) > now:
                    counts["expiries"] += self._expire(entry, moved(entry.expires, step_us), now)
        for key in list(store.locked):
            self._requeue(key, now)
        return self._counted(counts)

    def begin_anew(
        self, began: BeganAhead, written: Iterable[tuple[Entry, int]], now: int
    ) -> MovedEnds:
        """After replay at a start, begin durations now that began in the future by the log.

        Leases that have ended, and whose end a clock step had moved, are returned: their workers
        may have renewed them.

        Args:
            began: Begins of durations with a record of their own.
            written: Entries with a delay of RELEASE in their own record, and its time.
            now: Present instant.
        """
        counts: Counter[str] = Counter()
        self._return_moved(began, now)
        counts["leases"] = self._move_leases(
            [
                (entry, moved(now, entry.leased_until - at))
                for entry, at in self._recorded(began.leases)
                if entry.token
            ],
            now,
        )
        for entry, at in [*self._recorded(began.delays), *written]:
            counts["delays"] += self._set_back(entry, now, now - at)
        for entry, at in self._recorded(began.expiries):
            if entry.expires > at:
                counts["expiries"] += self._expire(entry, moved(now, entry.expires - at), now)
        for entry in self._store if began.any else ():
            if began.present_us < self._lives_since(entry) == entry.modified:
                counts["expiries"] += self._expire(entry, moved(now, entry.extra.ttl), now)
        for name, at in began.pauses.items():
            until = self._store.rules.pauses.until(name)
            if until > at:
                counts["pauses"] += self._pause(name, moved(now, until - at), now)
        self._store.tombstones.begin_anew(now)
        return self._counted(counts)

    def _return_moved(self, began: BeganAhead, now: int) -> None:
        """Return leases that have ended, and whose end a clock step had moved."""
        for entry in list(self._leased()):
            is_over = entry.token != entry.leased_until <= now
            if is_over and entry.job_id not in began.leases:
                # otherwise replay takes it for an expired lease
                self._move_lease(entry, now + 1, now, ends_next=True)
                self._jobs.release(entry, now)

    # --- parts ----------------------------------------------------------------------------------

    def _counted(self, counts: Counter[str]) -> MovedEnds:
        ends = MovedEnds(**counts)
        self._store.work += ENTRY_WORK * ends.total()
        return ends

    def _leased(self) -> Iterator[Entry]:
        """Yield the leased entries."""
        scheduler = self._store.scheduler
        for domain in (scheduler.plain, *scheduler.domains.values()):
            yield from domain.leases

    def _recorded(self, began: Mapping[bytes, int]) -> Iterator[tuple[Entry, int]]:
        """Yield the entries of live jobs, with the value in ``began`` for each."""
        amended = self._store.journal.records.amended
        for job_id, at in began.items():
            entry = amended.get(job_id)
            if entry is not None:
                yield entry, at

    def _move_leases(self, ends: list[tuple[Entry, int]], now: int) -> int:
        """Move the ends of leases; return how many changed.

        Their records are not a group, which must be in memory as a whole: after a crash some of
        them may be missing. Each is valid without the others. A lease without its record ends as if
        the crash had come before the step.
        """
        for entry, until in ends:
            self._move_lease(entry, until, now)
        return len(ends)

    def _move_lease(self, entry: Entry, until: int, now: int, *, ends_next: bool = False) -> None:
        store = self._store
        uris = store.leases.move_end(entry, until)
        store.journal.leases.end_moved(entry, now, ends_next=ends_next)
        if entry.domain.limit is not None:
            store.scheduler.round_robin.hold_or_free(entry.domain)
        for uri in uris:
            self._requeue(uri, now)

    def _requeue(self, key: bytes, now: int) -> None:
        """Requeue the waiting entry under a key: the end of its delay has moved."""
        entry = self._store.find(key)
        if entry is not None and entry.state == EntryState.DELAYED:
            self._store.requeue(entry, now)

    def _set_back(self, entry: Entry, now: int, step_us: int) -> bool:
        """Adjust a waiting entry to a clock that was set back; return whether it waits less.

        The due time in its key stays, so the entry waits for it again. A delay of RELEASE ends
        earlier by the size of the step.
        """
        store, scheduler = self._store, self._store.scheduler
        not_before = entry.not_before
        if not_before <= now or not entry.journal:
            return False
        parts = parse_journal_key(entry.key)
        assert parts is not None
        delayed_until = not_before
        if not_before > parts.not_before_us:
            delayed_until = max(parts.not_before_us, not_before + step_us)
        store.before_change(entry)
        is_ready = entry.state == EntryState.READY
        if entry.state == EntryState.DELAYED or (is_ready and delayed_until > now):
            scheduler.dequeue(entry)
            entry.not_before = delayed_until
            store.enqueue(entry, now, REQUEUE)
        else:
            with scheduler.facts_change(entry):
                entry.not_before = delayed_until
        if delayed_until == not_before:
            return False
        store.journal.leases.delay_moved(entry, now)
        return True

    @staticmethod
    def _lives_since(entry: Entry) -> int:
        """Return the begin of the lifetime that its ttl measures; 0: no ttl, a fixed instant."""
        extra = entry.extra
        began = extra.expires - extra.ttl
        return began if extra.ttl and began in (entry.accessed, entry.modified) else 0

    def _expire(self, entry: Entry, expires: int, now: int) -> int:
        self._store.set_expiry(entry, expires)
        self._store.journal.touched(entry, now)
        return 1

    def _pause(self, name: bytes, until: int, now: int) -> int:
        self._store.rules.pause(name, until)
        self._store.journal.log.paused(name, until, now)
        return 1
