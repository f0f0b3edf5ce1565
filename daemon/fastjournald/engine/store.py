"""What the daemon knows: entries, how they come and go, and what time does to them.

Pure: time comes as an argument, and what has to reach the disk goes to the journal. The handlers
decide what a request does; the store keeps keys, indexes and journal in step while they do it.
"""

from __future__ import annotations

from fastjournal.cmdlog.format.removal_time import REPLACED_BY_NONE, REPLACED_BY_URI
from fastjournal.limits import ENTRY_WORK
from fastjournald.engine.pubsub.change_set import ChangeSet
from fastjournald.tables.domain import Domain, Leases
from fastjournald.tables.domain_limits import DomainLimits
from fastjournald.tables.entry import Cold, Entry, Place
from fastjournald.tables.leases import Leasing
from fastjournald.tables.signals import TIMER
from fastjournald.tables.tombstones import Tombstones
from fastjournald.tables.value_cache import Values
from fastjournald.wal.journal import Journal

BURIED_AT_ATTEMPTS_MAX = b"attempts reached max-attempts"


class Store(Leasing):
    """Entries, their keys, the indexes over them, and the journal of what happens to them.

    Args:
        journal: Where changes of persistent entries go.
        tombstones: Empty, with its bounds.
        attempts_max: Lost leases after which an entry is buried; 0: no limit.
        values: Empty, with its limit; None: there is no limit, all values stay in memory.
        limits: Empty, with the default; None: no domain has a limit unless it is set.
    """

    def __init__(
        self,
        journal: Journal,
        tombstones: Tombstones,
        attempts_max: int,
        values: Values | None = None,
        limits: DomainLimits | None = None,
    ) -> None:
        super().__init__(limits)
        self.journal = journal
        self.tombstones = tombstones
        self.attempts_max = attempts_max
        self.values = values
        self.behind = False
        """The last ``advance`` left something undone: only the timers carry it on."""
        self.changes = ChangeSet(self.signals)
        """Keys that came, went or have a new value, noted while somebody listens."""
        self.leases_lost = 0
        """Leases that ran out so far."""

    # --- coming and going -----------------------------------------------------------------------

    def insert(self, entry: Entry, now: int) -> None:
        """Put a new entry under its keys and into its indexes."""
        if self.changes.wanted:
            self.note_value(entry)
        self.keys.add(entry)
        extra = entry.extra
        if extra.links:
            self.work += len(extra.links)
        if self.values is not None:
            self.values.add(entry)
        self.entries += 1
        domain = entry.domain
        domain.entries += 1
        if extra.expires:
            self.watch_expiry(entry)
        if domain is not self.plain:
            self.queue(entry, now)

    def remove(self, entry: Entry, now: int) -> None:
        """Take an entry out of everything; other work on its URI may begin."""
        domain = entry.domain
        extra = entry.extra
        if extra.links:
            self.work += len(extra.links)
        if self.changes.wanted:
            for key in entry.all_keys():
                if self.find(key) is entry:
                    self.changes.note(key, entry.key)
        self.keys.remove(entry)
        if self.values is not None:
            self.values.discard(entry)
        place = entry.place
        if place == Place.LEASED:
            self.end_work(entry, now)
        else:
            if place in (Place.READY, Place.DELAYED):
                self.unqueue(entry)
            elif place == Place.BURIED:
                self.take_back(entry)
            if extra.expires:
                self.expiry.remove(extra.expires, entry.key)
            entry.place = Place.PLAIN
        if self.locked and entry.key in self.locked and self.find(entry.key) is None:
            self.locks.discard(entry.key)
        self.entries -= 1
        self.leave_domain(domain)

    def put_key(self, key: bytes, entry: Entry) -> None:
        """Let an entry that is there already stand under one more key. O(1)."""
        self.note_key(key)
        self.keys.put(key, entry)

    def drop_key(self, key: bytes, entry: Entry) -> None:
        """Let a key lead to this entry no more. O(1)."""
        self.note_key(key)
        self.keys.pop(key, entry)

    def note_value(self, entry: Entry) -> None:
        """The value of an entry is set: whoever listens to one of its keys is to be told."""
        if self.changes.wanted:
            for key in entry.all_keys():
                if not entry.superseded or self.find(key) is entry:
                    self.note_key(key)

    def note_key(self, key: bytes) -> None:
        """What stands under a key is about to change: whoever listens to it is to be told."""
        if self.changes.wanted:
            standing = self.find(key)
            self.changes.note(key, None if standing is None else standing.key)

    def replace_by_uri(self, entry: Entry, timestamp: int, now: int, replaced: int) -> None:
        """A SET with this timestamp took the URI of a waiting entry: it is gone."""
        self.remove(entry, now)
        self.tombstones.put(entry.key, timestamp, now)
        self.journal.completed(entry, timestamp, now, replaced)

    def supersede(self, entry: Entry, uri: bytes, timestamp: int) -> None:
        """A SET with this timestamp took its URI from an entry that is worked on."""
        # its own URI, or one of its links
        self.running[uri] = entry
        if not entry.superseded:
            home = self.lease_home(entry)
            home.leases.discard(entry.token, entry)
            self.refresh(home)
            # 0 says that none did
            entry.own().superseded = max(timestamp, 1)
            self.plain.leases.add(entry.token, entry)
            self.note_superseded(entry)

    # --- values ---------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """What entries and tombstones take of memory, as estimated; 0 without a limit. O(1)."""
        if self.values is None:
            return 0
        return self.values.bytes + self.tombstones.bytes

    def access(self, entry: Entry, now: int) -> None:
        """Somebody reads an entry. O(1)."""
        entry.accessed = now
        if self.values is not None:
            self.values.touch(entry)

    def set_value(self, entry: Entry, value: bytes | Cold) -> None:
        """Let an entry have another value. O(1)."""
        if self.values is None:
            entry.value = value
        else:
            self.values.put(entry, value)

    def warm_up(
        self, entry: Entry, job_id: bytes, value: bytes | str, *, first_to_leave: bool = False
    ) -> None:
        """A value that is on disk only was read, or could not be. O(1).

        Args:
            entry: Whose it was when the reading began.
            job_id: Of the record that was read.
            value: As it stands in the record, or why it cannot be read.
            first_to_leave: Nobody accessed it: it was needed for another reason.
        """
        values = self.values
        if (
            values is None
            or not isinstance(entry.value, Cold)
            or entry.job_id != job_id
            or self.find(entry.key) is not entry
        ):
            return
        if isinstance(value, str):
            values.unreadable[entry.key] = value
            return
        size = len(entry.value)
        kept = self.journal.records.trimmed.get(entry.job_id)
        if kept is not None:
            value = value[:kept].ljust(size, b"\0")
        assert len(value) == size
        values.warm_up(entry, value, first_to_leave=first_to_leave)

    def evict(self, durable_at: int, number_max: int) -> bool:
        """Let values leave memory while it holds more than the limit. O(number).

        Args:
            durable_at: The position in the log up to which it is durable.
            number_max: Of values, in one go.

        Returns:
            Whether there may be more to do.
        """
        values = self.values
        if values is None:
            return False
        besides = self.memory_bytes - values.bytes
        return values.evict(durable_at, number_max, besides) == number_max

    # --- leases and lives that end --------------------------------------------------------------

    def end_lease(
        self,
        entry: Entry,
        now: int,
        *,
        ran_out: bool = False,
        error: bytes | None = None,
        delayed: bool = False,
    ) -> None:
        """End a lease: the entry waits again, is buried, or is dropped.

        Args:
            entry: Which.
            now: The present.
            ran_out: Nobody released it: a lost lease counts as an attempt.
            error: The attempt failed with it; None: it was released, or ran out.
            delayed: It has a new instant, which stands in the entry already.
        """
        if ran_out:
            self.leases_lost += 1
        if self._is_dropped(entry, now):
            return
        token = entry.token
        self.end_work(entry, now)
        if entry.expires:
            self.watch_expiry(entry)
        extra = entry.own()
        if error is not None:
            extra.error = error
        if ran_out or error is not None:
            is_last = self.is_last_attempt(entry)
            extra.attempts += 1
            if is_last:
                self.set_aside(entry, BURIED_AT_ATTEMPTS_MAX if error is None else error)
                if error is None:
                    self.journal.buried(entry, now)
                else:
                    self.journal.failed(entry, now, delayed=delayed)
                return
        # behind work, a URI may be put off anew from here
        extra.first_due = max(entry.not_before, min(now, token))
        if error is not None:
            self.journal.failed(entry, now, delayed=delayed)
        elif delayed:
            self.journal.released_with_delay(entry, now)
        else:
            self.journal.lease_over(entry, now)
        if entry.journal:
            self.queue(entry, now)

    def attempts_max_of(self, domain: Domain) -> int:
        """Return after how many failed attempts an entry of a domain is buried; 0: never."""
        limit = domain.limit
        return self.attempts_max if limit is None else limit.attempts or self.attempts_max

    def is_last_attempt(self, entry: Entry) -> bool:
        """Whether an entry is buried if one more attempt fails."""
        attempts = entry.extra.attempts + 1
        return entry.journal and 0 < self.attempts_max_of(entry.domain) <= attempts

    def _is_dropped(self, entry: Entry, now: int) -> bool:
        """Let an entry go as its lease ends, if newer work took its URI or its life is over."""
        if entry.superseded:
            self.remove(entry, now)
            self.tombstones.put(entry.key, entry.superseded, now)
            by_record = entry.job_id in self.journal.records.displaced
            replaced = REPLACED_BY_URI if by_record else REPLACED_BY_NONE
            self.journal.completed(entry, entry.superseded, now, replaced)
            return True
        if 0 < entry.expires <= now:
            self.remove(entry, now)
            self.journal.expired(entry, now)
            return True
        return False

    # --- set aside ------------------------------------------------------------------------------

    def bury(self, entry: Entry, reason: bytes, now: int) -> None:
        """Set an entry aside, which ends a lease; superseded or expired work is gone instead."""
        place = entry.place
        if place == Place.BURIED:
            if reason != entry.reason:
                entry.own().reason = reason
                with self.facts_change(entry):
                    self.journal.buried_again(entry, now)
            return
        if place == Place.LEASED:
            if self._is_dropped(entry, now):
                return
            self.end_work(entry, now)
            if entry.expires:
                self.watch_expiry(entry)
        elif place != Place.PLAIN:
            self.unqueue(entry)
        self.set_aside(entry, reason)
        self.journal.buried(entry, now)

    def kick(self, entries: list[Entry], now: int) -> None:
        """Make buried entries ready again, or delayed until their instant."""
        for entry in entries:
            self.take_back(entry)
            extra = entry.own()
            extra.reason = None
            extra.first_due = max(entry.not_before, now)
        self.journal.kicked(entries, now)
        for entry in entries:
            if entry.journal:
                self.queue(entry, now)

    # --- time -----------------------------------------------------------------------------------

    def next_instant(self) -> int:
        """Return when a lease, delay, pause, life or lock ends; ``NEVER`` where none does. O(1)."""
        first = self._first_of_domains()
        instant = min(self.plain.leases.first(), self.expiry.first(), self.locks.first_end())
        return instant if first is None else min(first[0], instant)

    def _first_of_domains(self) -> tuple[int, bytes] | None:
        """Return when a lease, a delay or a hold of a domain ends next, and its name. O(1)."""
        first = self.wakes.first()
        if self.pauses or self.limits.any:
            ends = self.pauses.first_end(), self.limits.first_end()
            for other in (self.held.wakes.first(), *ends):
                if other is not None and (first is None or other < first):
                    first = other
        return first

    def advance(self, now: int, work_max: int) -> None:
        """Apply what time has brought: leases first, then delays, pauses, lives and locks.

        Args:
            now: Up to this instant.
            work_max: With so much work done, the rest waits for the next call.
        """
        work_over = self.work + work_max
        while self.work < work_over:
            first = self._first_of_domains()
            plain = self.plain.leases.first()
            if first is not None and first[0] <= now and first[0] <= plain:
                domain = self.domains.get(first[1])
                if domain is None or domain.wake > first[0]:
                    self.work += ENTRY_WORK
                    self.end_hold(first[1], first[0])
                elif domain.leases.first() <= first[0]:
                    self._run_out(domain.leases, first[0], now, work_over)
                else:
                    self._become_ready(domain, first[0], now, work_over)
            elif plain <= now:
                self._run_out(self.plain.leases, plain, now, work_over)
            else:
                break
        while self.work < work_over and self.expiry.first() <= now:
            self.work += ENTRY_WORK
            entry = self.find(self.expiry.pop_key())
            assert entry is not None
            entry.own().expires = 0
            self.remove(entry, now)
            self.journal.expired(entry, now)
        number_max = max(0, work_over - self.work) // ENTRY_WORK
        self.work += ENTRY_WORK * self.locks.drop_over(now, number_max)
        signals = self.signals
        signals.deadline = self.next_instant()
        signals.bits |= TIMER
        self.behind = signals.deadline <= now

    def _run_out(self, leases: Leases, token: int, now: int, work_over: int) -> None:
        for entry in leases.first_of(token, -(-(work_over - self.work) // ENTRY_WORK)):
            if self.work >= work_over:
                break
            self.work += ENTRY_WORK
            self.end_lease(entry, now, ran_out=True)

    def _become_ready(self, domain: Domain, instant: int, now: int, work_over: int) -> None:
        delayed = domain.delayed
        while self.work < work_over and domain.first_delay() <= instant:
            self.work += ENTRY_WORK
            entry = delayed.pop(0)
            if entry.extra.waits_until:
                entry.extra.waits_until = 0
            self.delayed -= 1
            self.queue(entry, now)
        self.refresh(domain)
