"""Scheduler: ready and delayed queues of the domains, and dead letters. Pure.

Each domain has a queue of what is ready, in the order of work, and one of what is delayed. Which
domain is asked next is the matter of the round robin (``tables.domain``).

n is the number of entries or domains; every operation is O(log n) unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from sortedcontainers import SortedList

from fastjournal.cmdlog.format.packed_entry import not_before_of
from fastjournald.tables.domain import NEVER, Domain, RoundRobin
from fastjournald.tables.domain_limits import DomainLimits, Pauses
from fastjournald.tables.entry import BURY, INSERT, Cause, Entry, EntryState
from fastjournald.tables.signals import Signals

_READY, _DELAYED, _BURIED = EntryState.READY, EntryState.DELAYED, EntryState.BURIED


class Scheduler:
    """Queues of all domains.

    Args:
        signals: Told of deadlines, and of work for requests that wait.
        limits: Empty, with the default limit of a domain.
    """

    def __init__(self, signals: Signals, limits: DomainLimits) -> None:
        self._signals = signals
        self.domains: dict[bytes, Domain] = {}
        """By name, those that hold entries."""
        self.names: SortedList = SortedList()
        """Names of the domains that hold entries, a pause or a limit, in byte order."""
        self.plain = Domain(b"")
        """Home of plain entries, and of the leases after which nothing comes back to a queue."""
        self.pauses = Pauses()
        self.limits = limits
        self.round_robin = RoundRobin(signals)
        self.delayed = 0
        """Number of delayed entries."""
        self.buried = 0
        """Number of buried entries, plain ones too."""

    # --- domains --------------------------------------------------------------------------------

    def domain_of(self, name: bytes) -> Domain:
        """Return the domain of that name, made where there is none. O(1), O(log n) to make it."""
        domain = self.domains.get(name)
        if domain is None:
            domain = self.domains[name] = Domain(name)
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
        """One entry fewer is in a domain, which goes with its last one. O(1), then O(log n)."""
        domain.entries -= 1
        if domain.limit is not None:
            self.round_robin.hold_or_free(domain)
        if not domain.entries and domain is not self.plain:
            del self.domains[domain.name]
            self.drop_name(domain.name)

    def note_name(self, name: bytes) -> None:
        """Note the name of a domain that is about to get a pause or a limit."""
        if not self._is_listed(name):
            self.names.add(name)

    def drop_name(self, name: bytes) -> None:
        """Note that a domain lost its last entry, its pause or its limit."""
        if not self._is_listed(name):
            self.names.remove(name)

    def _is_listed(self, name: bytes) -> bool:
        return name in self.domains or name in self.pauses.ends or name in self.limits.own_limits

    # --- ready and delayed queues ---------------------------------------------------------------

    def enqueue(self, entry: Entry, blocked_until: int, now: int, cause: Cause) -> None:
        """Put a journal entry into the ready or the delayed queue of its domain.

        Args:
            entry: In no queue.
            blocked_until: Instant before which something else keeps it from being ready; 0: nothing
                does.
            now: The present.
            cause: Cause of the transition of its state.
        """
        domain = entry.domain
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
        """Put new journal entries, which nothing blocks, into their domains (bulk insert)."""
        ready: dict[Domain, list[Entry]] = {}
        for entry in entries:
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
            # both at once: what is in no list counts as leased
            domain.entries += len(arrived)
            domain.ready.add_all(arrived)
            if not domain.has_ready:
                self.round_robin.begin_turns(domain)
            if domain.limit is not None:
                self.round_robin.hold_or_free(domain)

    def dequeue(self, entry: Entry) -> None:
        """Take an entry out of the ready or delayed queue; its next state is up to the caller."""
        domain = entry.domain
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
        """Take out the first ready entry of a domain that takes turns: it is leased or removed."""
        ready = domain.ready
        entry: Entry = ready.pop_first()
        if not ready:
            self.round_robin.end_turns(domain)
        return entry

    def pop_delayed(self, domain: Domain) -> Entry:
        """Take out the first delayed entry of a domain, to be enqueued; refresh the timers then."""
        entry: Entry = domain.delayed.pop_first()
        if entry.extra.waits_until:
            entry.extra.waits_until = 0
        self.delayed -= 1
        return entry

    @contextmanager
    def facts_change(self, entry: Entry) -> Iterator[None]:
        """Take an entry out of the list that is sorted by its facts while these change.

        Its state stays as it is, and so does the turn of its domain.
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
        """Return a ready entry of a domain by its place in the order of work. O(rank)."""
        entry: Entry = next(islice(domain.ready, rank, None))
        return entry

    def load(
        self, ready: Mapping[bytes, list[Entry]], delayed: Mapping[bytes, list[Entry]]
    ) -> None:
        """Bulk load of the queues of all domains, which are empty, by name. O(n log n)."""
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
        """Bury an entry that is in no queue and not leased: it is a dead letter from now on."""
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
        """Let an entry be no dead letter any more; its next state is up to the caller."""
        domain = entry.domain
        domain.buried -= 1
        self.buried -= 1
        if entry.journal:
            domain.buried_order.remove(entry)

    # --- deadlines ------------------------------------------------------------------------------

    def first_deadline(self) -> tuple[int, bytes] | None:
        """Return when a lease, a delay or a hold of a domain ends next, and its name. O(1)."""
        first = self.round_robin.wakes.first()
        if self.pauses.ends or self.limits.any:
            ends = self.pauses.first_end(), self.limits.first_end()
            for other in (self.round_robin.held.wakes.first(), *ends):
                if other is not None and (first is None or other < first):
                    first = other
        return first

    def next_at(self, name: bytes) -> int:
        """Return when something of a domain will be due (empty name: of any), at the earliest.

        ``NEVER`` where nothing will by time. Entries that are due already do not count. O(1).
        """
        domain = self.domains.get(name)
        return NEVER if name and domain is None else self.round_robin.next_at(domain)
