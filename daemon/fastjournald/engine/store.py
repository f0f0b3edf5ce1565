"""Store: tables of entries, updated together with the write-ahead log. Pure.

A handler decides what a request does. The store updates keys, queues, expiry, locks and values.
Time is an argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from struct import Struct
from typing import NamedTuple

from sortedcontainers import SortedList

from fastjournal.cmdlog.format.packed_entry import VALUE_TYPE_AT
from fastjournal.limits import COUNTED_DOMAIN_WORK, ENTRY_WORK, INSTANT_MAX, UNLOCK_WORK
from fastjournal.protocol import Flag, Pair, Reply
from fastjournald.engine.pubsub.change_set import ChangeSet
from fastjournald.tables.domain import NEVER
from fastjournald.tables.domain_limits import DomainLimits
from fastjournald.tables.domain_rules import DomainRules
from fastjournald.tables.entry import (
    INSERT,
    NOTHING,
    REMOVE,
    REQUEUE,
    Cause,
    Cold,
    Entry,
    EntryState,
)
from fastjournald.tables.key_table import COMPLETION_BYTES, KeyTable, Tombstones
from fastjournald.tables.leases import LeaseTable
from fastjournald.tables.locks import Locks
from fastjournald.tables.scheduler import Scheduler
from fastjournald.tables.signals import Signals
from fastjournald.tables.value_cache import Values
from fastjournald.wal.journal import Journal
from fastjournald.wal.live_capture import LiveCapture

_INSTANT = Struct(">Q")
_KEY_AT = _INSTANT.size

_pack_instant = _INSTANT.pack


class ExpiryQueue:
    """Primary keys by expiry: u64 and key. A leased entry is added after its lease.

    n is the number of items; every operation is O(log n) unless it says otherwise.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: SortedList = SortedList()

    def add(self, expires: int, key: bytes) -> None:
        """Add the entry under ``key``."""
        self._items.add(_pack_instant(expires) + key)

    def extend(self, pairs: list[tuple[int, bytes]]) -> None:
        """Add many at once. O(n log n)."""
        self._items.update([_pack_instant(expires) + key for expires, key in pairs])

    def remove(self, expires: int, key: bytes) -> None:
        """Take the entry under ``key`` out."""
        self._items.remove(_pack_instant(expires) + key)

    def first(self) -> int:
        """Return the earliest expiry, ``NEVER`` where there is none. O(1)."""
        return _instant_of(self._items[0]) if self._items else NEVER

    def pop_key(self) -> bytes:
        """Take the earliest out and return its key."""
        item: bytes = self._items.pop(0)
        return item[_KEY_AT:]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for item in self._items:
            yield _instant_of(item), item[_KEY_AT:]


def _instant_of(item: bytes) -> int:
    return int.from_bytes(item[:_KEY_AT], "big")


_DATA, _META, _TWO_KEYS = int(Flag.DATA), int(Flag.META), int(Flag.TWO_KEYS)
_ABSENT, _PLAIN = EntryState.ABSENT, EntryState.PLAIN
_LEASED, _BURIED = EntryState.LEASED, EntryState.BURIED
_DELAYED = EntryState.DELAYED
_QUEUED = (EntryState.READY, _DELAYED)


class EntryCounts(NamedTuple):
    """Numbers of entries by state. ``plain`` counts plain entries neither leased nor buried."""

    entries: int
    due: int
    delayed: int
    leased: int
    buried: int
    plain: int


class Store:
    """Entries and all indexes of them.

    Args:
        journal: Write-ahead log.
        tombstones: Empty table, with its bounds.
        values: Empty table, with its bound; None: all values are in memory.
        limits: Empty table, with the default; None: no domain has a limit unless it is set.
    """

    def __init__(
        self,
        journal: Journal,
        tombstones: Tombstones,
        values: Values | None = None,
        limits: DomainLimits | None = None,
    ) -> None:
        self.journal = journal
        self.tombstones = tombstones
        self.values = values
        self.signals = Signals()
        """Wake-ups of the daemon's tasks."""
        self.keys = KeyTable(self.signals)
        self.find = self.keys.get
        """Return the entry under any of its keys. O(1)."""
        self.scheduler = Scheduler(self.signals, DomainLimits() if limits is None else limits)
        self.rules = DomainRules(self.scheduler, self.signals)
        """Pauses and limits of domains."""
        self.leases = LeaseTable(self.scheduler, self.signals)
        self.leased_uris = self.leases.by_uri
        self.expiry = ExpiryQueue()
        self.locks = Locks()
        self.locked = self.locks.by_key
        """Empty if nothing is locked: the cheapest check."""
        self.changes = ChangeSet(self.signals)
        """Keys added, removed or with a new value; recorded only while somebody is subscribed."""
        self.capture: LiveCapture | None = None
        """Capture of the live entries for the snapshot in progress; None: no snapshot."""
        self.entries = 0
        self.work = 0
        """Work done so far, in units of about a microsecond (``limits.ENTRY_WORK`` and others)."""

    def __iter__(self) -> Iterator[Entry]:
        """Every entry once, in no particular order."""
        return iter(self.keys)

    def counts(self) -> EntryCounts:
        """Return how many entries there are by state. O(1)."""
        scheduler, leases = self.scheduler, self.leases
        plain = scheduler.plain
        # ready entries: journal entries in no other state
        buried = scheduler.buried - plain.buried
        leased = leases.count - leases.plain_count
        due = self.entries - plain.entries - scheduler.delayed - buried - leased
        return EntryCounts(
            entries=self.entries,
            due=due,
            delayed=scheduler.delayed,
            leased=leases.count,
            buried=scheduler.buried,
            plain=plain.entries - leases.plain_count - plain.buried,
        )

    # --- snapshots ------------------------------------------------------------------------------

    def begin_capture(self, next_segment: int) -> LiveCapture:
        """Begin a capture of the current live entries; the log continues in ``next_segment``."""
        records = self.journal.records
        capture = LiveCapture(
            self.keys, records.amended, records.trimmed, records.superseded, next_segment
        )
        self.capture = records.capture = capture
        return capture

    def end_capture(self) -> None:
        """End the capture."""
        self.capture = self.journal.records.capture = None

    def before_change(self, entry: Entry) -> None:
        """Capture an entry before the log's state of it changes.

        The journal does this itself when a lease begins and when the record of an entry is removed.
        """
        if self.capture is not None:
            self.capture.take(entry)

    # --- insert and remove ----------------------------------------------------------------------

    def insert(self, entry: Entry, now: int) -> None:
        """Put a new entry under its keys and into its indexes."""
        if self.changes.wanted:
            self.note_value(entry)
        self.keys.add(entry)
        extra = entry.extra
        if extra is not NOTHING:
            self.work += len(extra.links or ())
            if extra.expires:
                self.watch_expiry(entry)
        if self.values is not None:
            self.values.add(entry)
        self.entries += 1
        domain = entry.domain
        domain.entries += 1
        scheduler = self.scheduler
        if domain is scheduler.plain:
            entry.move_to(_PLAIN, INSERT)
        elif self.leased_uris or self.locked:
            self.enqueue(entry, now, INSERT)
        else:
            scheduler.enqueue(entry, 0, now, INSERT)

    def insert_new(self, entries: list[Entry], now: int) -> None:
        """Bulk insert: add entries that have their keys in the table to the other indexes.

        The entries have no links and do not expire. The caller has noted the changes of their keys.
        """
        if self.values is not None:
            for entry in entries:
                self.values.add(entry)
        self.entries += len(entries)
        leased, plain = self.leased_uris, self.scheduler.plain
        if not self.locked and not (leased and any(entry.uri in leased for entry in entries)):
            self.scheduler.enqueue_new(entries, now)
            return
        for entry in entries:
            entry.domain.entries += 1
            if entry.domain is plain:
                entry.move_to(_PLAIN, INSERT)
            else:
                self.enqueue(entry, now, INSERT)

    def remove(self, entry: Entry, now: int, *, popped: bool = False) -> None:
        """Remove an entry from all indexes; the next entry of its URI may be leased.

        ``popped``: the entry was dequeued before.
        """
        extra, state = entry.extra, entry.state
        if extra.links:
            self.work += len(extra.links)
        if state == _LEASED:
            self.end_work(entry, now)
        else:
            if state == _BURIED:
                self.scheduler.unbury(entry)
            elif state in _QUEUED and not popped:
                self.scheduler.dequeue(entry)
            if extra.expires:
                self.expiry.remove(extra.expires, entry.key)
        if self.changes.wanted:
            for key in entry.all_keys():
                if self.find(key) is entry:
                    self.changes.note(key, entry.key)
        self.keys.remove(entry)
        if self.values is not None:
            self.values.discard(entry)
        if entry.key in self.locked and self.find(entry.key) is None:
            self.locks.discard(entry.key)
        entry.move_to(_ABSENT, REMOVE)
        self.entries -= 1
        self.scheduler.leave(entry.domain)

    def remove_replaced(self, replaced: list[tuple[Entry, int]], now: int) -> None:
        """Bulk removal of waiting entries, each replaced by a SET with this timestamp on its URI.

        The entries have no links and are not locked. The caller has removed their records from the
        log and noted the changes of their keys.
        """
        scheduler, keys = self.scheduler, self.keys
        tombstones: list[tuple[bytes, int, int]] = []
        for entry, timestamp in replaced:
            if entry.extra.expires:
                self.expiry.remove(entry.extra.expires, entry.key)
            scheduler.dequeue(entry)
            keys.remove(entry)
            if self.values is not None:
                self.values.discard(entry)
            entry.move_to(_ABSENT, REMOVE)
            scheduler.leave(entry.domain)
            tombstones.append((entry.key, timestamp, 0 if entry.run is None else COMPLETION_BYTES))
        self.tombstones.put_all(tombstones, now)
        self.entries -= len(replaced)

    def put_key(self, key: bytes, entry: Entry) -> None:
        """Add a key to an entry. O(1)."""
        self.note_key(key)
        self.keys.put(key, entry)

    def drop_key(self, key: bytes, entry: Entry) -> None:
        """Remove a key from an entry. O(1)."""
        self.note_key(key)
        self.keys.pop(key, entry)

    def note_value(self, entry: Entry) -> None:
        """Notify subscribers of the keys of an entry: it has a new value."""
        if self.changes.wanted:
            for key in entry.all_keys():
                if not entry.superseded or self.find(key) is entry:
                    self.note_key(key)

    def note_key(self, key: bytes) -> None:
        """Note for publish/subscribe that the entry under a key is about to change."""
        if self.changes.wanted:
            standing = self.find(key)
            self.changes.note(key, None if standing is None else standing.key)

    def replace_by_uri(self, entry: Entry, timestamp: int, now: int, how: int) -> None:
        """Remove a waiting entry whose URI was taken by a SET with this timestamp."""
        self.remove(entry, now)
        self.tombstones.put_for(entry, timestamp, now)
        self.journal.completed(entry, timestamp, now, how)

    # --- queues and locks -----------------------------------------------------------------------

    def enqueue(self, entry: Entry, now: int, cause: Cause) -> None:
        """Enqueue a journal entry that is in no queue, as ready or delayed."""
        blocked_until = 0
        if entry.uri is not None:
            leased = self.leased_uris.get(entry.uri)
            if leased is not None:
                blocked_until = leased.extra.leased_until
        if self.locked:
            lock = self.locked.get(entry.key)
            if lock is not None:
                blocked_until = max(blocked_until, lock.until)
        self.scheduler.enqueue(entry, blocked_until, now, cause)

    def requeue(self, entry: Entry, now: int) -> None:
        """Enqueue a waiting entry again: the lock or lease that delays it changed. O(log n)."""
        self.scheduler.dequeue(entry)
        self.enqueue(entry, now, REQUEUE)

    def wait_again(self, entry: Entry, now: int, cause: Cause) -> None:
        """Enqueue an entry that is in no queue; a plain entry has none and becomes PLAIN."""
        if entry.journal:
            self.enqueue(entry, now, cause)
        else:
            entry.move_to(_PLAIN, cause)

    def lock(self, entry: Entry, owner: Hashable, until: int, now: int) -> None:
        """Lock an entry: NEXT skips it until the instant ``until``. O(log n)."""
        self.locks.put(entry.key, owner, until, now)
        self.signals.wake_at(until)
        if entry.state in _QUEUED:
            self.requeue(entry, now)

    def unlock(self, entry: Entry, now: int) -> None:
        """Release the lock of an entry. O(log n)."""
        self.locks.discard(entry.key)
        if entry.state == _DELAYED:
            self.requeue(entry, now)

    def unlock_all(self, owner: Hashable, now: int) -> bool:
        """Release all locks of a session; return whether there were any. O(log n) for each."""
        keys = self.locks.keys_of(owner)
        self.work += UNLOCK_WORK * len(keys)
        for key in keys:
            entry = self.find(key)
            assert entry is not None
            self.unlock(entry, now)
        return bool(keys)

    # --- reading --------------------------------------------------------------------------------

    def pair(self, entry: Entry, key: bytes, flags: int, now: int) -> Pair:
        """Return the pair of an entry under one of its keys, with the fields in the flags.

        With DATA the value must be in memory: handlers check ``Entry.is_missing`` first.
        """
        value = entry.value if flags & _DATA else b""
        # isinstance takes longer than all of the rest: the metaclass of Cold answers it
        assert type(value) is not Cold, "who needs a value asks whether it is missing"
        if key != entry.key:
            second_key = entry.key
        else:
            second_key = entry.uri or b""
            if entry.extra.superseded and self.find(second_key) is not entry:
                second_key = b""
        meta = entry.meta(locked=self.locks.is_locked(entry.key, now)) if flags & _META else None
        return Pair(key, entry.facts[VALUE_TYPE_AT], value, second_key, meta)

    def pairs(self, entries: list[Entry], flags: int, now: int) -> list[Pair]:
        """Return the pairs of entries under their primary keys. No entry is superseded."""
        if flags & _META or not flags & _DATA:
            return [self.pair(entry, entry.key, flags, now) for entry in entries]
        # same as ``pair``, without a call for each (tests.bench.bench_instructions)
        pairs = []
        for entry in entries:
            value = entry.value
            assert type(value) is not Cold, "who needs a value asks whether it is missing"
            pairs.append(Pair(entry.key, entry.facts[VALUE_TYPE_AT], value, entry.uri or b""))
        return pairs

    def pair_reply(self, entry: Entry, key: bytes, flags: int, now: int) -> Reply:
        """Return a reply with one pair."""
        has_two = entry.uri is not None or key != entry.key
        return Reply(flags=_TWO_KEYS if has_two else 0, pairs=[self.pair(entry, key, flags, now)])

    def access(self, entry: Entry, now: int) -> None:
        """Record that an entry was read. O(1)."""
        extra = entry.extra
        if extra is NOTHING:
            extra = entry.own_times()
        extra.seen = now
        if self.values is not None:
            self.values.touch(entry)

    def set_value(self, entry: Entry, value: bytes | Cold) -> None:
        """Replace the value of an entry. O(1)."""
        self.before_change(entry)
        if self.values is None:
            entry.value = value
        else:
            self.values.put(entry, value)

    # --- leases and expiry ----------------------------------------------------------------------

    def dequeue(self, entry: Entry) -> None:
        """Remove an entry from its queue, if it is in one, before it is leased by its key."""
        if entry.state in _QUEUED:
            self.scheduler.dequeue(entry)

    def begin_work(self, entries: list[Entry], token: int, session: Hashable, now: int) -> None:
        """Lease entries, which are in no queue, until ``token`` to a session."""
        job_counts = self.scheduler.job_counts
        begun = job_counts.begun
        self.leases.begin(entries, token, session, now)
        self.work += COUNTED_DOMAIN_WORK * (job_counts.begun - begun)
        if self.values is not None:
            for entry in entries:
                self.values.touch(entry)
        for entry in entries:
            if entry.extra.expires:
                # an entry does not expire while it is leased
                self.expiry.remove(entry.extra.expires, entry.key)

    def end_work(self, entry: Entry, now: int) -> None:
        """Release the lease. The caller requeues, buries or removes the entry."""
        if self.capture is not None:
            self.capture.take(entry)
        uris = self.leases.end(entry)
        if entry.extra.superseded:
            self.work += ENTRY_WORK * len(uris)
        for uri in uris:
            successor = self.find(uri)
            if successor is not None and successor.state == _DELAYED:
                self.requeue(successor, now)

    def watch_expiry(self, entry: Entry) -> None:
        """Add an entry, which is not leased, to the expiry queue."""
        self.expiry.add(entry.expires, entry.key)
        self.signals.wake_at(entry.expires)

    def move_expiry(self, entry: Entry, asked: int | None, now: int) -> bool:
        """Set the expiry of an entry on a read: ``asked`` (0: never), or by its ttl if None.

        Returns:
            Whether the expiry changed. The caller writes it to the log, together with a lease.
        """
        extra = entry.extra
        expires = extra.expires
        if asked is not None:
            expires = asked
        elif extra.ttl and expires:
            expires = max(expires, min(now + extra.ttl, INSTANT_MAX))
        if expires == extra.expires:
            return False
        self.set_expiry(entry, expires)
        return True

    def set_expiry(self, entry: Entry, expires: int) -> None:
        """Set the instant at which an entry expires; 0: never."""
        self.before_change(entry)
        leased = entry.state == _LEASED
        if entry.expires and not leased:
            self.expiry.remove(entry.expires, entry.key)
        if expires or entry.expires:
            entry.own().expires = expires
        if expires and not leased:
            self.watch_expiry(entry)
