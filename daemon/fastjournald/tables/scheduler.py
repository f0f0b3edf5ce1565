"""Scheduler: ready and delayed queues of the domains, and dead letters. Pure.

Each domain has a queue of ready entries and one of delayed entries. The round robin
(``tables.domain``) chooses the next domain.

n is the number of entries or domains; every operation is O(log n) unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from sortedcontainers import SortedList

from fastjournal import _native
from fastjournal.cmdlog.format.packed_entry import not_before_of
from fastjournal.keys import parse_journal_key
from fastjournald.tables.domain import NEVER, Domain, RoundRobin
from fastjournald.tables.domain_limits import EVERYTHING, DomainLimits, Pauses
from fastjournald.tables.entry import BURY, INSERT, Cause, Entry, EntryState
from fastjournald.tables.job_counts import JobCounts, JobCountsTable
from fastjournald.tables.signals import Signals

_READY, _DELAYED, _BURIED = EntryState.READY, EntryState.DELAYED, EntryState.BURIED
_PLAIN = EntryState.PLAIN


def asked_since(entry: Entry) -> int:
    """Return since when a waiting entry is asked for: since it was created, or was due at first."""
    parts = parse_journal_key(entry.key)
    return max(entry.created, 0 if parts is None else parts.not_before_us)


class Scheduler:
    """Queues of all domains.

    Args:
        signals: Receives deadlines, and ready work for waiting requests.
        limits: Empty table, with the default limit of a domain.
    """

    def __init__(self, signals: Signals, limits: DomainLimits) -> None:
        self._signals = signals
        self.domains: dict[bytes, Domain] = {}
        """Domains that have entries, by name."""
        self.names: SortedList = SortedList()
        """Names of the domains that have entries, a pause or a limit, in byte order."""
        self.plain = Domain(b"")
        """Domain of plain entries, and of leases whose entries are never requeued."""
        self.job_counts = JobCountsTable(self.domains)
        # plain entries are no jobs: these counts are in no sum
        self.plain.counts = JobCounts()
        self.requeued: dict[bytes, Domain] = {}
        """Domains with waiting entries that were leased before, by name."""
        self.pauses = Pauses()
        self.limits = limits
        self.round_robin = RoundRobin(signals)
        self.delayed = 0
        """Number of delayed entries."""
        self.buried = 0
        """Number of buried entries, with plain ones."""

    # --- domains --------------------------------------------------------------------------------

    def domain_of(self, name: bytes) -> Domain:
        """Return the domain of this name; create it if needed. O(1), O(log n) to create it."""
        domain = self.domains.get(name)
        if domain is None:
            domain = self.domains[name] = Domain(name)
            self.job_counts.attach(domain)
            if name not in self.pauses.ends and name not in self.limits.own_limits:
                self.names.add(name)
            if self.pauses.ends:
                domain.paused_until = self.pauses.until(name)
                domain.held = bool(domain.paused_until)
            if self.limits.any:
                domain.limit = self.limits.holding(name)
                domain.delivered_at = self.limits.last_delivery(name)
                domain.waits_until = self.limits.waits_until(name)
                domain.held = domain.must_wait()
        return domain

    def leave(self, domain: Domain) -> None:
        """Count one entry less in a domain; the last one removes it. O(1), then O(log n)."""
        domain.entries -= 1
        if domain.limit is not None:
            self.round_robin.hold_or_free(domain)
        if not domain.entries and domain is not self.plain:
            del self.domains[domain.name]
            self.drop_name(domain.name)

    def note_name(self, name: bytes) -> None:
        """Add the name of a domain that is about to get a pause or a limit."""
        if name != EVERYTHING and not self._is_listed(name):
            self.names.add(name)

    def drop_name(self, name: bytes) -> None:
        """Remove the name of a domain if it has no entry, pause or limit any more."""
        if name != EVERYTHING and not self._is_listed(name):
            self.names.remove(name)

    def _is_listed(self, name: bytes) -> bool:
        return name in self.domains or name in self.pauses.ends or name in self.limits.own_limits

    # --- ready and delayed queues ---------------------------------------------------------------

    def enqueue(self, entry: Entry, blocked_until: int, now: int, cause: Cause) -> None:
        """Put a journal entry into the ready or the delayed queue of its domain.

        Args:
            entry: In no queue.
            blocked_until: End of a lock or lease that delays the entry; 0: none.
            now: Present instant.
            cause: Cause of the transition of its state.
        """
        domain = entry.domain
        if entry.extra.due:
            self.note_requeued(entry)
        instant = not_before = not_before_of(entry.facts)[0]
        if blocked_until:
            instant = max(instant, blocked_until)
        if instant <= now:
            entry.move_to(_READY, cause)
            domain.ready.add(entry)
            if not domain.has_ready:
                self.round_robin.begin_turns(domain)
        else:
            entry.move_to(_DELAYED, cause)
            if instant != not_before:
                entry.own().waits_until = instant
            domain.delay(entry)
            self.delayed += 1
            if instant < domain.wake:
                self.round_robin.refresh(domain)
                self._signals.wake_at(instant)
        if domain.limit is not None:
            self.round_robin.hold_or_free(domain)

    def enqueue_new(self, entries: list[Entry], now: int) -> None:
        """Bulk insert: enqueue new entries that no lock or lease delays, and count plain ones."""
        if _native.leaves is not None:
            _native.leaves.enqueue_new(
                *(entries, now, self.plain, INSERT, self.enqueue),
                *(self.round_robin.begin_turns, self.round_robin.hold_or_free),
            )
            return
        ready: dict[Domain, list[Entry]] = {}
        for entry in entries:
            if entry.domain is self.plain:
                self.plain.entries += 1
                entry.move_to(_PLAIN, INSERT)
                continue
            if not_before_of(entry.facts)[0] > now:
                entry.domain.entries += 1
                self.enqueue(entry, 0, now, INSERT)
                continue
            domain = entry.domain
            if domain in ready:
                ready[domain].append(entry)
            else:
                ready[domain] = [entry]
        for domain, arrived in ready.items():
            Entry.move_all(arrived, _READY, INSERT)
            # together with the queue: an entry in no list counts as leased
            domain.entries += len(arrived)
            domain.ready.add_all(arrived)
            if not domain.has_ready:
                self.round_robin.begin_turns(domain)
            if domain.limit is not None:
                self.round_robin.hold_or_free(domain)

    def dequeue(self, entry: Entry) -> None:
        """Remove an entry from the ready or delayed queue. The caller sets its next state."""
        domain = entry.domain
        if entry.extra.due:
            self.drop_requeued(entry)
        if entry.state == _READY:
            domain.ready.remove(entry)
            if not domain.ready:
                self.round_robin.end_turns(domain)
        else:
            domain.delayed.remove(entry)
            if entry.extra.waits_until:
                entry.extra.waits_until = 0
            self.delayed -= 1
            self.round_robin.refresh(domain)

    def pop_ready(self, domain: Domain) -> Entry:
        """Dequeue the first ready entry of a domain in the round robin, to lease or remove it.

        The caller drops it from those that were leased before.
        """
        ready = domain.ready
        entry: Entry = ready.pop_first()
        if not ready:
            self.round_robin.end_turns(domain)
        return entry

    def pop_delayed(self, domain: Domain) -> Entry:
        """Dequeue the first delayed entry of a domain.

        The caller enqueues it and refreshes the timers.
        """
        entry: Entry = domain.delayed.pop_first()
        if entry.extra.due:
            self.drop_requeued(entry)
        if entry.extra.waits_until:
            entry.extra.waits_until = 0
        self.delayed -= 1
        return entry

    # --- entries that were leased before --------------------------------------------------------

    def note_requeued(self, entry: Entry) -> None:
        """Add a waiting entry that was leased before to those of its domain."""
        domain = entry.domain
        if domain.requeued is None:
            domain.requeued = SortedList()
            self.requeued[domain.name] = domain
        domain.requeued.add((asked_since(entry), entry.key))

    def drop_requeued(self, entry: Entry) -> None:
        """Remove an entry from those; it may be in none of them: its value was changed since."""
        domain = entry.domain
        if domain.requeued is not None:
            domain.requeued.discard((asked_since(entry), entry.key))
            if not domain.requeued:
                domain.requeued = None
                del self.requeued[domain.name]

    @contextmanager
    def facts_change(self, entry: Entry) -> Iterator[None]:
        """Remove an entry from the list sorted by its facts while these change, and add it again.

        Its state and the turn of its domain stay the same.
        """
        order = None
        if entry.state == _READY:
            order = entry.domain.ready
        elif entry.state == _BURIED and entry.journal:
            order = entry.domain.buried_order
        if order is None:
            yield
        else:
            order.remove(entry)
            yield
            order.add(entry)

    def ready_at(self, domain: Domain, rank: int) -> Entry:
        """Return the ready entry of a domain at this rank in the queue. O(rank)."""
        entry: Entry = next(islice(domain.ready, rank, None))
        return entry

    def load(
        self, ready: Mapping[bytes, list[Entry]], delayed: Mapping[bytes, list[Entry]]
    ) -> None:
        """Bulk load of the queues of all domains, by name; they must be empty. O(n log n)."""
        for name, entries in ready.items():
            if entries:
                self.domains[name].ready.update(entries)
                self.domains[name].has_ready = True
        for name, entries in delayed.items():
            if entries:
                self.domains[name].load_delayed(entries)
                self.delayed += len(entries)
        for domain in self.domains.values():
            self.round_robin.load(domain)
        for name in ready:
            domain = self.domains[name]
            if domain.has_ready and not domain.held:
                self.round_robin.turns[domain.name] = domain

    # --- dead letters ---------------------------------------------------------------------------

    def bury(self, entry: Entry, reason: bytes, cause: Cause = BURY) -> None:
        """Bury an entry that is in no queue and not leased: it becomes a dead letter."""
        domain = entry.domain
        entry.move_to(_BURIED, cause)
        entry.own().reason = reason
        domain.buried += 1
        self.buried += 1
        if entry.journal:
            domain.bury(entry)
            if domain.limit is not None:
                self.round_robin.hold_or_free(domain)

    def unbury(self, entry: Entry) -> None:
        """Remove an entry from the dead letters. The caller sets its next state."""
        domain = entry.domain
        domain.buried -= 1
        self.buried -= 1
        if entry.journal:
            domain.buried_order.remove(entry)

    # --- deadlines ------------------------------------------------------------------------------

    def first_deadline(self) -> tuple[int, bytes] | None:
        """Return the next end of a lease, delay or hold, and the name of its domain. O(1)."""
        first = self.round_robin.wakes.first()
        if self.pauses.ends or self.limits.any:
            ends = self.pauses.first_end(), self.limits.first_end()
            for other in (self.round_robin.held.wakes.first(), *ends):
                if other is not None and (first is None or other < first):
                    first = other
        return first

    def next_at(self, name: bytes) -> int:
        """Return when the next entry of a domain (empty name: any) becomes due, or ``NEVER``.

        Entries that are due now do not count, unless everything is paused. O(1).
        """
        domain, round_robin = self.domains.get(name), self.round_robin
        if name and domain is None:
            return NEVER
        until = self.pauses.everything_until
        if until and (name in round_robin.turns or (not name and round_robin.turns)):
            return until
        return max(round_robin.next_at(domain), until)
