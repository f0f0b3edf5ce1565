"""Write-ahead log of persistent entries: each change of one becomes log records (docs/cmdlog.md).

Pure: records are handed to ``append``, which keeps them in memory until the commit writes them.
All records of one call are one append, so that a write is cut between requests or, where it is
cut inside one, recovery settles it: the new stands before the removal of the old, and a group
(operation with ``following``) is all or nothing.

It ignores what is not persistent: no caller has to ask. Entries for which ``stored`` was called
are; a tombstone, a pause or a segment always is.

The journal has the journals of leases (``wal.lease_journal``) and of what is no entry
(``LogJournal``), an encoder (``wal.record_encoder``), an index of the records that carry live
entries (``wal.entry_records``), and the segment usage table (``wal.segment_usage``).

Log records that are no entry's: tombstones, pauses and limits of domains, segments. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from fastjournal.cmdlog.format.endings import (
    BURIED,
    COMPLETED,
    EXPIRED,
    POPPED,
    PURGED,
    REPLACED,
    REPLACED_UNLOGGED,
    REWRITTEN,
    UNKNOWN,
)
from fastjournal.cmdlog.format.envelope import (
    ORIGIN_AGAIN,
    ORIGIN_KICK,
    ORIGIN_SET,
    ORIGIN_UNDELIVERED,
)
from fastjournal.cmdlog.format.layout import OFFSET_BITS, SegmentInfo
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Change,
    Delivered,
    Erasure,
    Limit,
    Link,
    Operation,
    Pause,
    Rename,
    Resize,
    SegmentRemoved,
    SegmentRewritten,
    SegmentStart,
    Tombstone,
    Touch,
    Value,
)
from fastjournal.cmdlog.format.packed_entry import FACTS_BYTES
from fastjournald.tables.domain_limits import DomainLimit
from fastjournald.tables.entry import Entry
from fastjournald.wal.lease_journal import LeaseJournal
from fastjournald.wal.record_encoder import Append, EntryRecords, JobIds, RecordEncoder
from fastjournald.wal.segment_usage import SegmentUsage


class LogJournal:
    """Writes log records of tombstones, domains and segments.

    Args:
        append: Where the records go.
        encode: Encoder of the records.
        usage: Segment usage table.
        leases: Has the newest lease token, which each segment begins with.
    """

    def __init__(
        self, append: Append, encode: RecordEncoder, usage: SegmentUsage, leases: LeaseJournal
    ) -> None:
        self.append = append
        self._leases = leases
        self._encode = encode
        self._usage = usage

    # --- tombstones -----------------------------------------------------------------------------

    def tombstone(
        self, key: bytes, timestamp: int, now: int, *, deleted_us: int | None = None
    ) -> None:
        """A tombstone was left where no persistent entry stood, now or when ``deleted_us`` says."""
        at = now if deleted_us is None else deleted_us
        self._append_operation(Tombstone(key, timestamp), at, now)

    def tombstone_erased(self, key: bytes, now: int) -> None:
        """The tombstone under this key was removed."""
        self._append_operation(Erasure(key), now, now)

    def erasure_record(self, key: bytes, now: int) -> bytes:
        """Return the record that the tombstone under a key was removed."""
        return self._encode.operation(Erasure(key), now)

    # --- domains --------------------------------------------------------------------------------

    def paused(self, domain: bytes, until: int, now: int, *, again: bool = False) -> None:
        """A domain is paused until that instant; 0: no more. ``again``: the log says so already."""
        position = self._append_operation(Pause(domain, until, again), now, now)
        self._usage.paused(position >> OFFSET_BITS, domain, until)

    def limited(self, domain: bytes, limit: DomainLimit, now: int, *, again: bool = False) -> None:
        """A domain has these limits from now on. ``again``: the log says so already."""
        record = Limit(domain, limit.interval_us, limit.jobs, limit.lease_us, limit.attempts, again)
        position = self._append_operation(record, now, now)
        self._usage.limited(position >> OFFSET_BITS, domain)

    def delivered(self, domain: bytes, instant: int, now: int) -> None:
        """The last delivery of a domain was at that instant."""
        self._append_operation(Delivered(domain, instant), now, now)

    # --- segments -------------------------------------------------------------------------------

    def segment_start(self, previous: SegmentInfo | None, now: int) -> bytes:
        """Return the first record of a new segment; ``previous``: the one before it."""
        start = SegmentStart(
            0, self._leases.last_token, last_serial=self._encode.last_serial, bytes=0, crc32c=0
        )
        if previous is not None:
            start.previous, start.bytes = previous.number, previous.bytes
            start.crc32c = previous.crc32c
        return self._encode.operation(start, now)

    def segment_rewritten(
        self, number: int, size: int, crc32c: int, now: int, *, done: bool
    ) -> None:
        """A sealed segment is about to have this size and checksum, or has them."""
        record = SegmentRewritten(number, size, crc32c, done)
        self._usage.add_seal(number, self._append_operation(record, now, now) >> OFFSET_BITS)

    def segment_removed(self, number: int, now: int) -> None:
        """A segment is about to leave the disk, or has left it."""
        self._append_operation(SegmentRemoved(number), now, now)

    def _append_operation(self, operation: Operation, at: int, now: int) -> int:
        """Append the record of an operation of that instant; return its position."""
        return self.append(self._encode.operation(operation, at), 1, now)


class Journal:
    """Writes log records of what happens to persistent entries.

    Args:
        append: Where the records go.
        seed: 8 random bytes: job ids differ between runs by them.
        lease_us: Default lease, which workq gets as time to run.
    """

    def __init__(self, append: Append, *, seed: bytes, lease_us: int) -> None:
        self._append = append
        self.ids = JobIds(seed)
        """Serial numbers, of entries and jobs."""
        self.usage = SegmentUsage()
        """Live bytes by segment, and what else compaction goes by."""
        self.records = EntryRecords(self.usage)
        """The records that carry live entries."""
        self._encode = encode = RecordEncoder(self.ids, lease_us)
        self.leases = LeaseJournal(append, encode, self.records, self._store_leased)
        self.log = LogJournal(append, encode, self.usage, self.leases)

    def append_to(self, append: Append) -> None:
        """Hand records to ``append`` from now on."""
        self._append = self.leases.append = self.log.append = append

    # --- entries --------------------------------------------------------------------------------

    def stored(
        self,
        entry: Entry,
        now: int,
        taken: tuple[int, ...] | None = None,
        origin: int = ORIGIN_SET,
        *,
        erases: bool = False,
    ) -> None:
        """Write the entry as it stands, under a fresh job id.

        Args:
            entry: Which.
            now: The present.
            taken: The keys that persistent SETs took from it while it is worked on: 0 is its URI,
                n the n-th link; None: none took any.
            origin: Why it is written, see ``Envelope.origin``.
            erases: A tombstone stood under its key, or may stand in the log before it.
        """
        records = self.records
        if entry.run is not None:
            erases = entry.job_id in records.erasers
            records.remove(entry)
            entry.facts = entry.facts[:FACTS_BYTES]
        data = self._encode.entry(entry, now, taken, origin, erases=erases)
        if entry.extra.starts:
            entry.extra.starts = 0
        records.add(entry, self._append(data, 1, now), len(data), erases=erases)

    def stored_new(
        self, entries: list[Entry], now: int, replaced: Mapping[int, tuple[Entry, int]]
    ) -> None:
        """Write entries that have nothing but keys, value and first due date, in one append.

        Args:
            entries: Which.
            now: The present.
            replaced: Place in ``entries`` to the entry whose URI that one took, which is gone, and
                the timestamp of its tombstone.
        """
        parts = self._encode.new_entries(entries, now)
        sizes = list(map(len, parts))
        places = list(accumulate(sizes[:-1], initial=0))
        replaced = {at: old for at, old in replaced.items() if old[0].run is not None}
        if replaced:
            parts, places = self._with_removals(parts, now, replaced)
        position = self._append(b"".join(parts), len(parts), now)
        self.records.add_new(entries, [position + place for place in places], sizes)

    def _with_removals(
        self, parts: list[bytes], now: int, replaced: Mapping[int, tuple[Entry, int]]
    ) -> tuple[list[bytes], list[int]]:
        """Return records with the removal of what each replaces behind it, and their places."""
        remove, place = self.records.remove, 0
        records: list[bytes] = []
        places: list[int] = []
        done = [(remove(old), old, timestamp) for old, timestamp in replaced.values()]
        removals = iter(self._encode.replacements(done, now))
        for number, record in enumerate(parts):
            places.append(place)
            records.append(record)
            place += len(record)
            if number in replaced:
                removal = next(removals)
                records.append(removal)
                place += len(removal)
        return records, places

    def copied_forward(self, entry: Entry, now: int, taken: tuple[int, ...] | None) -> None:
        """Compaction writes a live entry anew: no record about it from before matters any more."""
        old = entry.job_id
        leased, buried = bool(entry.token), entry.reason is not None
        moved = entry.leased_until != entry.token
        others = 2 * leased + moved + buried
        removal = self._encode.rewritten(old, now, 1 + others, buried=buried)
        self._append_operation(Batch(1 + others + len(removal)), now)
        self.stored(entry, now, taken, ORIGIN_AGAIN)
        if taken is not None:
            self.records.superseded[entry.job_id] = 0
        if leased:
            self.leases.copied_forward(entry, now)
        if moved:
            self.leases.end_moved(entry, now)
        if buried:
            self._buried(entry, now, REWRITTEN)
        self._append(b"".join(removal), len(removal), now)

    def completed(
        self,
        entry: Entry,
        timestamp: int,
        now: int,
        how: int = COMPLETED,
        *,
        persist: bool = False,
    ) -> None:
        """The entry is gone and leaves a tombstone with this timestamp.

        Args:
            entry: Which.
            timestamp: Timestamp of the tombstone.
            now: The present.
            how: Why it goes, see ``cmdlog.format.endings``.
            persist: Its tombstone is persistent, also if the entry is not.
        """
        if entry.run is not None:
            self._append_all(self._removal(entry, timestamp, now, how), now)
        elif persist:
            self.log.tombstone(entry.key, timestamp, now)

    def completed_all(self, entries: list[tuple[Entry, int]], now: int) -> None:
        """Entries that were leased are gone, and leave tombstones of these timestamps.

        Each by a request of its own: their records are one append, but no batch.
        """
        remove = self.records.remove
        done = [
            (remove(entry), (timestamp, entry.key, entry.extra.leased))
            for entry, timestamp in entries
            if entry.run is not None
        ]
        if done:
            self._append_all(self._encode.completed_work(done, now), now)

    def _removal(self, entry: Entry, timestamp: int | None, now: int, how: int) -> list[bytes]:
        """Return the records that remove an entry: workq refuses to complete a failed job.

        ``timestamp``: of its tombstone; None: it leaves none.
        """
        encode, job_id = self._encode, self.records.remove(entry)
        if entry.extra.reason is None:
            return [encode.completion(job_id, entry, timestamp, now, how)]
        return [encode.end(job_id, entry, timestamp, now, how), encode.deletion(job_id, now)]

    def purged(
        self, entries: list[tuple[Entry, int]], now: int, *, tombstones: bool, persist: bool
    ) -> None:
        """PURGE deleted these entries, all or none of them.

        Args:
            entries: Which, and the timestamps of their tombstones.
            now: The present.
            tombstones: Whether they leave any.
            persist: Tombstones of entries that are not persistent are persistent all the same.
        """
        parts: list[bytes] = []
        for entry, timestamp in entries:
            if entry.run is not None:
                parts += self._removal(entry, timestamp if tombstones else None, now, PURGED)
            elif tombstones and persist:
                parts.append(self._encode.operation(Tombstone(entry.key, timestamp), now))
        if parts:
            self._append_group(parts, now)

    def superseded(self, entry: Entry, timestamp: int) -> None:
        """A persistent SET took the URI of the entry, which is worked on; its record says so."""
        if entry.run is not None:
            # 0 says that the entry's own record does
            self.records.superseded.setdefault(entry.job_id, max(timestamp, 1))

    def popped(self, entries: list[Entry], now: int, delivered: Sequence[bytes] = ()) -> None:
        """NEXT removed these entries; each leaves a tombstone with its own timestamp.

        ``delivered``: domains whose last delivery this is, if their interval runs.
        """
        remove = self.records.remove
        done = [(remove(each), each, each.timestamp) for each in entries if each.run is not None]
        parts = self._encode.completions(done, now, POPPED)
        if delivered:
            parts = [
                self._encode.operation(Delivered(name, now), now) for name in delivered
            ] + parts
        if parts:
            self._append_group(parts, now)

    def restored(self, entry: Entry, now: int) -> None:
        """The entry, removed by NEXT, stands again: as a new job, for workq completed the old."""
        if entry.run is None:
            return
        entry.run = None
        entry.facts = entry.facts[:FACTS_BYTES]
        self.stored(entry, now, origin=ORIGIN_UNDELIVERED, erases=True)

    def deleted(self, entry: Entry, now: int, how: int) -> int:
        """The entry is gone without trace; return the number of records that say so."""
        if entry.run is None:
            return 0
        parts = self._removal(entry, None, now, how)
        self._append_all(parts, now)
        return len(parts)

    def gone(self, job_id: bytes, key: bytes, facts: bytes, now: int, *, buried: bool) -> None:
        """A job is gone by another record, which is there: it must not return if that goes."""
        self._append_all(self._encode.removal(job_id, key, facts, now, buried=buried), now)

    def expired(self, entry: Entry, now: int, lease_end: int = 0) -> None:
        """The entry's life is over; ``lease_end``: how a lease ended with it."""
        self.deleted(entry, now, EXPIRED | lease_end)

    def buried(self, entry: Entry, now: int, lease_end: int = 0) -> None:
        """The entry is a dead letter now, with its reason; ``lease_end``: as for ``expired``."""
        if entry.run is not None:
            self._buried(entry, now, BURIED | lease_end)

    def buried_again(self, entry: Entry, now: int) -> None:
        """The entry, a dead letter already, has another reason: workq fails a job once."""
        if entry.run is None:
            return
        self._append_operation(Batch(4), now)
        self._store_again(entry, now, ORIGIN_AGAIN, buried=True)
        self._buried(entry, now, REWRITTEN)

    def kicked(self, entries: list[Entry], now: int) -> None:
        """The entries, dead letters so far, wait again: as new jobs, for workq never does that."""
        entries = [entry for entry in entries if entry.run is not None]
        if not entries:
            return
        self._append_operation(Batch(3 * len(entries)), now)
        for entry in entries:
            self._store_again(entry, now, ORIGIN_KICK, buried=True)

    # --- other changes --------------------------------------------------------------------------

    def touched(self, entry: Entry, now: int, *, is_instant: bool = False) -> None:
        """The expiry moved; ``is_instant``: to one that a client gave."""
        if entry.run is not None:
            self._amend(entry, Touch(entry.job_id, entry.expires, is_instant), now)

    def revalued(self, entry: Entry, now: int) -> None:
        """The entry has another value of the same type."""
        if entry.run is None:
            return
        value = entry.value
        assert isinstance(value, bytes), "what ADD and NOT change stays in memory"
        self._amend(entry, Value(entry.job_id, value, entry.timestamp), now)

    def resized(self, entry: Entry, before: int, now: int) -> None:
        """The value of ``before`` bytes was cut, or filled up with zero bytes."""
        if entry.run is None:
            return
        size = len(entry.value)
        trimmed = self.records.trimmed
        trimmed[entry.job_id] = min(trimmed.get(entry.job_id, before), size)
        self._amend(entry, Resize(entry.job_id, size, entry.timestamp), now)

    def linked(self, entry: Entry, key: bytes, now: int) -> None:
        """The entry stands under one more key."""
        if entry.run is not None:
            self._amend(entry, Link(entry.job_id, key), now)

    def renamed(
        self, entry: Entry, old: bytes, replaced: Entry | None, now: int, *, tombstone: bool
    ) -> None:
        """The primary key of the entry was ``old``.

        Args:
            entry: Which, persistent or not.
            old: Has a tombstone with the timestamp of the entry.
            replaced: Entry that stood under the key that it has now.
            now: The present.
            tombstone: A tombstone is logged, though the entry is not persistent.
        """
        parts = []
        if entry.persistent:
            job_id = self.records.amend(entry)
            self.records.erasers.add(job_id)
            facts = self._encode.facts(entry, UNKNOWN)
            change = Rename(job_id, entry.key, entry.timestamp, old, facts)
            parts.append(self._encode.operation(change, now))
        elif tombstone:
            laid = Tombstone(old, entry.timestamp)
            parts.append(self._encode.operation(laid, now))
        if replaced is not None and replaced.persistent:
            how = REPLACED + 1 if entry.persistent else REPLACED_UNLOGGED
            parts += self._removal(replaced, None, now, how)
        if parts:
            self._append_group(parts, now)

    # --- parts ----------------------------------------------------------------------------------

    def _append_operation(self, operation: Operation, now: int) -> int:
        return self._append(self._encode.operation(operation, now), 1, now)

    def _append_all(self, parts: list[bytes], now: int) -> None:
        self._append(b"".join(parts), len(parts), now)

    def _append_group(self, parts: list[bytes], now: int) -> None:
        """Append records of one request: all or nothing."""
        if len(parts) > 1:
            parts.insert(0, self._encode.operation(Batch(len(parts)), now))
        self._append_all(parts, now)

    def _amend(self, entry: Entry, change: Change, now: int) -> None:
        self.records.amend(entry)
        self._append_operation(change, now)

    def _buried(self, entry: Entry, now: int, how: int) -> None:
        self._append(self._encode.failure(self.records.amend(entry), entry, now, how), 1, now)

    def _store_again(self, entry: Entry, now: int, origin: int, *, buried: bool) -> None:
        """Write an entry under a new job id, and remove the old one; ``buried``: whether it is."""
        old = entry.job_id
        self.stored(entry, now, origin=origin)
        self._append_all(self._encode.rewritten(old, now, 1, buried=buried), now)

    def _store_leased(self, entry: Entry, now: int) -> None:
        self._store_again(entry, now, ORIGIN_AGAIN, buried=False)
