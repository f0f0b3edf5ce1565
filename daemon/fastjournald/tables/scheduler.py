"""Where each entry stands: under its keys, and in which queue of its domain.

Pure, and without a journal: what has to reach the disk is the store's matter, which is built on
this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from itertools import islice

from sortedcontainers import SortedList

from fastjournal.limits import HAND_OUTS_MAX, UNLOCK_WORK
from fastjournald.tables.domain import NEVER, Domain, Turns, WakeIndex
from fastjournald.tables.domain_limits import DomainLimit, DomainLimits
from fastjournald.tables.entry import Entry, Place
from fastjournald.tables.expiry import Expiry
from fastjournald.tables.held_domains import HeldDomains
from fastjournald.tables.key_table import KeyTable
from fastjournald.tables.locks import Locks
from fastjournald.tables.pauses import Pauses
from fastjournald.tables.signals import READY, Signals


class NewlyReady:
    """Domains in which something became ready, noted while requests wait for work.

    Args:
        signals: Told of each.
    """

    __slots__ = ("_signals", "domains", "wanted")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self.domains: deque[Domain] = deque()
        self.wanted = False
        """Whether requests wait, which set this: else nobody has to note a domain."""

    def note(self, *domains: Domain) -> None:
        """Note domains; somebody waits."""
        self.domains.extend(domains)
        self._signals.bits |= READY

    def stop(self) -> None:
        """Note nothing any more."""
        self.wanted = False
        self.domains.clear()


class Queues:
    """Entries by key, the indexes over them, and their numbers."""

    def __init__(self, limits: DomainLimits | None = None) -> None:
        self.signals = Signals()
        self.keys = KeyTable(self.signals)
        self.find = self.keys.get
        """Return the entry under any of its keys. O(1)."""
        self.domains: dict[bytes, Domain] = {}
        self.names: SortedList = SortedList()
        """Names of the domains that have entries, a pause or a limit, in byte order."""
        self.plain = Domain(b"")
        """Home of plain entries, and of the leases after which nothing comes back to a queue."""
        self.turns = Turns()
        self.wakes = WakeIndex()
        """Timer queue of all domains but the held ones."""
        self.pauses = Pauses()
        self.limits = DomainLimits() if limits is None else limits
        self.held = HeldDomains()
        self.expiry = Expiry()
        self.running: dict[bytes, Entry] = {}
        """URI to the entry that is worked on for it."""
        self.locks = Locks()
        self.locked = self.locks.by_key
        """Empty, where nothing is locked: what costs least to find out."""
        self.newly_ready = NewlyReady(self.signals)
        self.work = 0
        """Done so far, in units of about a microsecond (``limits.ENTRY_WORK`` and others)."""
        self.entries = 0
        self.delayed = 0
        self.buried = 0
        self.worked_on = 0
        self.plain_worked_on = 0
        """Of ``worked_on`` those that are plain entries."""

    @property
    def due(self) -> int:
        """How many entries are ready: the journal entries that are nowhere else. O(1)."""
        buried = self.buried - self.plain.buried
        worked_on = self.worked_on - self.plain_worked_on
        return self.entries - self.plain.entries - self.delayed - buried - worked_on

    def __iter__(self) -> Iterator[Entry]:
        """Every entry once, in no particular order."""
        return iter(self.keys)

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
                domain.handed_out = self.limits.last_hand_out(name)
                domain.waits_until = self.limits.waits_until(name)
                domain.held = domain.must_wait()
        return domain

    def leave_domain(self, domain: Domain) -> None:
        """One entry fewer is in a domain, which goes with its last one. O(1), then O(log n)."""
        domain.entries -= 1
        if domain.limit is not None:
            self.hold_or_free(domain)
        if not domain.entries and domain is not self.plain:
            del self.domains[domain.name]
            self._unlist(domain.name)

    def _list(self, name: bytes) -> None:
        """Note a domain that gets its first entry, a pause or a limit. O(log n)."""
        if (
            name not in self.domains
            and name not in self.pauses.ends
            and name not in self.limits.own_limits
        ):
            self.names.add(name)

    def _unlist(self, name: bytes) -> None:
        """Note that a domain lost its last entry, its pause or its limit. O(log n)."""
        if (
            name not in self.domains
            and name not in self.pauses.ends
            and name not in self.limits.own_limits
        ):
            self.names.remove(name)

    # --- locks ----------------------------------------------------------------------------------

    def lock(self, entry: Entry, owner: Hashable, until: int, now: int) -> None:
        """Lock an entry, which NEXT leaves out until then. O(log n)."""
        self.locks.put(entry.key, owner, until)
        self.signals.wake_at(until)
        if entry.place in (Place.READY, Place.DELAYED):
            self.queue_again(entry, now)

    def unlock(self, entry: Entry, now: int) -> None:
        """End the lock of an entry. O(log n)."""
        self.locks.discard(entry.key)
        if entry.place == Place.DELAYED:
            self.queue_again(entry, now)

    def unlock_all(self, owner: Hashable, now: int) -> bool:
        """End all locks of a session; whether there were any. O(log n) for each."""
        keys = self.locks.keys_of(owner)
        self.work += UNLOCK_WORK * len(keys)
        for key in keys:
            entry = self.find(key)
            assert entry is not None
            self.unlock(entry, now)
        return bool(keys)

    def is_locked(self, entry: Entry, now: int) -> bool:
        """Whether anybody has locked the entry. O(1)."""
        return bool(self.locked) and self.locks.held(entry.key, now) is not None

    def locked_to(self, entry: Entry, session: Hashable, now: int) -> bool:
        """Whether somebody else has locked the entry, so that this session must not write. O(1)."""
        if not self.locked:
            return False
        lock = self.locks.held(entry.key, now)
        return lock is not None and lock.owner != session

    # --- queues ---------------------------------------------------------------------------------

    def queue(self, entry: Entry, now: int) -> None:
        """Put a journal entry where it belongs while nobody works on it: ready or delayed."""
        domain = entry.domain
        instant = not_before = entry.not_before
        if self.running and entry.uri is not None:
            other = self.running.get(entry.uri)
            if other is not None and other.extra.token > instant:
                instant = other.extra.token
        if self.locked:
            lock = self.locked.get(entry.key)
            if lock is not None and lock.until > instant:
                instant = lock.until
        if instant <= now:
            entry.place = Place.READY
            ready = domain.ready
            ready.add(entry)
            if len(ready) == 1:
                self._has_ready(domain)
        else:
            entry.place = Place.DELAYED
            if instant != not_before:
                entry.own().waits_until = instant
            domain.delay(entry)
            self.delayed += 1
            if instant < domain.wake:
                self.refresh(domain)
                self.signals.wake_at(instant)
        if domain.limit is not None:
            self.hold_or_free(domain)

    def unqueue(self, entry: Entry) -> None:
        """Take an entry out of the ready or delayed list that it stands in. O(log n)."""
        domain = entry.domain
        if entry.place == Place.READY:
            domain.ready.remove(entry)
            if not domain.ready:
                self.lose_turn(domain)
        else:
            extra = entry.extra
            domain.delayed.remove(entry)
            if extra.waits_until:
                extra.waits_until = 0
            self.delayed -= 1
            self.refresh(domain)
        entry.place = Place.PLAIN

    def lose_turn(self, domain: Domain) -> None:
        """Nothing is ready any more in a domain."""
        if domain.held:
            del self.held.ready[domain.name]
            self.held.refresh(domain)
        else:
            self.turns.remove(domain)

    @contextmanager
    def facts_change(self, entry: Entry) -> Iterator[None]:
        """Take an entry out of the list that is sorted by its facts while these change. O(log n).

        Its place stays as it is, and so does the turn of its domain.
        """
        order = None
        if entry.place == Place.READY:
            order = entry.domain.ready
        elif entry.place == Place.BURIED and entry.journal:
            order = entry.domain.buried_order
        if order is None:
            yield
        else:
            order.remove(entry)
            yield
            order.add(entry)

    def queue_again(self, entry: Entry, now: int) -> None:
        """What an entry in a queue waits for has changed. O(log n)."""
        self.unqueue(entry)
        self.queue(entry, now)

    def _has_ready(self, domain: Domain) -> None:
        """The first entry of a domain became ready."""
        if domain.held:
            self.held.take_in(domain)
            return
        self.turns.add(domain)
        if self.newly_ready.wanted:
            self.newly_ready.note(domain)

    def pop_ready(self, domain: Domain, entry: Entry) -> None:
        """Take the first ready entry of a domain, one of the turns, to be leased or removed."""
        ready = domain.ready
        ready.pop(0)
        if not ready:
            self.turns.remove(domain)
        entry.place = Place.PLAIN

    def ready_at(self, domain: Domain, rank: int) -> Entry:
        """Return a ready entry of a domain by its place in the order of work. O(rank)."""
        entry: Entry = next(islice(domain.ready, rank, None))
        return entry

    def refresh(self, domain: Domain) -> None:
        """The next delay or lease of a domain may be another one. O(log n)."""
        if domain.held:
            self.held.refresh(domain)
        elif domain is not self.plain:
            self.wakes.refresh(domain)

    # --- set aside ------------------------------------------------------------------------------

    def set_aside(self, entry: Entry, reason: bytes) -> None:
        """Bury an entry that is in no queue and that nobody works on. O(log n)."""
        domain = entry.domain
        entry.place = Place.BURIED
        entry.own().reason = reason
        domain.buried += 1
        self.buried += 1
        if entry.journal:
            domain.bury(entry)
            if domain.limit is not None:
                self.hold_or_free(domain)

    def take_back(self, entry: Entry) -> None:
        """The entry is buried no more; what comes of it is the caller's matter. O(log n)."""
        domain = entry.domain
        entry.place = Place.PLAIN
        domain.buried -= 1
        self.buried -= 1
        if entry.journal:
            domain.buried_order.remove(entry)

    def buried_in(self, domain: Domain) -> Iterator[Entry]:
        """Yield the buried journal entries of a domain in the order of work."""
        yield from domain.buried_order

    # --- pauses ---------------------------------------------------------------------------------

    def pause(self, name: bytes, until: int) -> None:
        """NEXT hands out nothing of a domain until that instant. O(log n)."""
        domain = self.domains.get(name)
        self._list(name)
        self.pauses.put(name, until)
        self.signals.wake_at(until)
        if domain is not None:
            domain.paused_until = until
            self.hold_or_free(domain)

    def resume(self, name: bytes) -> None:
        """The pause of a domain is over: it has its turn after all others. O(log n)."""
        self.pauses.discard(name)
        domain = self.domains.get(name)
        self._unlist(name)
        if domain is not None:
            domain.paused_until = 0
            self.hold_or_free(domain)

    # --- limits ---------------------------------------------------------------------------------

    def limit(self, name: bytes, limit: DomainLimit, now: int) -> None:
        """Set the limits of a domain. O(log n)."""
        limits = self.limits
        self._list(name)
        limits.put(name, limit)
        self._unlist(name)
        domain = self.domains.get(name)
        handed_out = limits.last_hand_out(name) if domain is None else domain.handed_out
        waits_until = limits.begin_interval(name, handed_out, now)
        if waits_until:
            self.signals.wake_at(waits_until)
        if domain is not None:
            domain.limit = limits.holding(name)
            domain.waits_until = waits_until
            self.hold_or_free(domain)

    def hand_out(self, domain: Domain, now: int) -> None:
        """Note that an entry of a domain, in no queue any more, is handed out. O(log n)."""
        domain.handed_out = now
        if domain.limit is not None:
            if domain.limit.interval_us:
                domain.waits_until = self.limits.begin_interval(domain.name, now, now)
                self.signals.wake_at(domain.waits_until)
                while self.limits.intervals > HAND_OUTS_MAX:
                    first = self.limits.first_end()
                    assert first is not None
                    self.end_hold(first[1], first[0])
            self.hold_or_free(domain)

    def restore_hand_out(self, name: bytes, handed_out: int, now: int) -> None:
        """Take over from the log when a domain handed out last. O(log n)."""
        waits_until = self.limits.begin_interval(name, handed_out, now)
        domain = self.domains.get(name)
        if domain is not None:
            domain.handed_out = handed_out
            domain.waits_until = waits_until
            self.hold_or_free(domain)

    def end_hold(self, name: bytes, now: int) -> None:
        """End the pause or the interval of a domain whose time has come. O(log n)."""
        if 0 < self.limits.waits_until(name) <= now:
            self.limits.end_interval(name)
            domain = self.domains.get(name)
            if domain is not None:
                domain.waits_until = 0
                self.hold_or_free(domain)
        else:
            self.resume(name)

    def hold_or_free(self, domain: Domain) -> None:
        """Hold a domain back if it must wait, else let it have its turns. O(log n)."""
        must_wait = domain.must_wait()
        if must_wait and domain.held:
            self.held.refresh(domain)
        elif must_wait:
            domain.held = True
            self.wakes.remove(domain)
            if domain.ready:
                self.turns.remove(domain)
            self.held.take_in(domain)
        elif domain.held:
            domain.held = False
            self.held.let_go(domain)
            self.wakes.refresh(domain)
            if domain.ready:
                self._has_ready(domain)

    def next_at(self, name: bytes) -> int:
        """Return when something of a domain will be due (empty name: of any), at the earliest.

        ``NEVER`` where nothing will by time. What is due already does not count. O(1).
        """
        if name:
            domain = self.domains.get(name)
            if domain is None:
                return NEVER
            return self.held.due_at(name) if domain.held else domain.next_instant()
        first = self.wakes.first()
        instant = self.held.first_due()
        return instant if first is None else min(first[0], instant)
