"""Write-ahead log journal: log records of entries, tombstones, domains and segments. Pure.

The format is in docs/cmdlog.md. ``append`` receives the records and keeps them in memory until the
commit writes them. All records of one call are one append. So a torn write ends between requests,
or recovery resolves it: a new record comes before the removal of the old one, and a group
(operation with ``following``) is all or nothing.

The journal ignores entries that are not persistent, so callers need no check. An entry is
persistent if ``stored`` was called for it; tombstones, pauses and segments always are.

``Journal`` writes the records of entries. Its parts are the journal of leases
(``wal.lease_journal``), ``LogJournal`` for tombstones, pauses and limits of domains, and segments,
the encoder (``wal.record_encoder``), the index of records that carry live entries
(``wal.entry_records``), and the segment usage table (``wal.segment_usage``).
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
from fastjournald.tables.entry import NOTHING, Entry
from fastjournald.wal.lease_journal import LeaseJournal
from fastjournald.wal.record_encoder import Append, EntryRecords, JobIds, RecordEncoder
from fastjournald.wal.segment_usage import SegmentUsage


class LogJournal:
    """Writes log records of tombstones, domains and segments.

    Args:
        append: Receives the records.
        encode: Encoder of the records.
        usage: Segment usage table.
        leases: Journal of leases; its newest token is in the first record of each segment.
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
        """Log a tombstone of an entry that is not persistent, left now or at ``deleted_us``."""
        at = now if deleted_us is None else deleted_us
        self._append_operation(Tombstone(key, timestamp), at, now)

    def tombstone_erased(self, key: bytes, now: int) -> None:
        """Log that the tombstone under this key was removed."""
        self._append_operation(Erasure(key), now, now)

    def erasure_record(self, key: bytes, now: int) -> bytes:
        """Return the record that the tombstone under a key was removed."""
        return self._encode.operation(Erasure(key), now)

    # --- domains --------------------------------------------------------------------------------

    def paused(self, domain: bytes, until: int, now: int, *, again: bool = False) -> None:
        """Log the end of a domain's pause; 0: not paused. ``again``: a copy of an older record."""
        position = self._append_operation(Pause(domain, until, again), now, now)
        self._usage.paused(position >> OFFSET_BITS, domain, until)

    def limited(self, domain: bytes, limit: DomainLimit, now: int, *, again: bool = False) -> None:
        """Log the limits of a domain. ``again``: a copy of an older record."""
        record = Limit(domain, limit.interval_us, limit.jobs, limit.lease_us, limit.attempts, again)
        position = self._append_operation(record, now, now)
        self._usage.limited(position >> OFFSET_BITS, domain)

    def delivered(self, domain: bytes, instant: int, now: int) -> None:
        """Log the instant of the last delivery of a domain."""
        self._append_operation(Delivered(domain, instant), now, now)

    # --- segments -------------------------------------------------------------------------------

    def segment_start(self, previous: SegmentInfo | None, now: int) -> bytes:
        """Return the first record of a new segment; ``previous``: the segment before it."""
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
        """Log size and checksum of a rewritten segment, before or after (``done``) the rename."""
        record = SegmentRewritten(number, size, crc32c, done)
        self._usage.add_seal(number, self._append_operation(record, now, now) >> OFFSET_BITS)

    def segment_removed(self, number: int, now: int) -> None:
        """Log that a segment is removed, before the unlink."""
        self._append_operation(SegmentRemoved(number), now, now)

    def _append_operation(self, operation: Operation, at: int, now: int) -> int:
        """Append the record of an operation with this time; return its position."""
        return self.append(self._encode.operation(operation, at), 1, now)


class Journal:
    """Writes log records of changes of persistent entries.

    Args:
        append: Receives the records.
        seed: 8 random bytes, so that job ids differ between runs.
        lease_us: Default lease, which is the time to run in the workq records.
    """

    def __init__(self, append: Append, *, seed: bytes, lease_us: int) -> None:
        self._append = append
        self.ids = JobIds(seed)
        """Serial numbers of entries and jobs."""
        self.usage = SegmentUsage()
        """Live bytes by segment, and other input of the compaction policy."""
        self.records = EntryRecords(self.usage)
        """Index of the records that carry live entries."""
        self._encode = encode = RecordEncoder(self.ids, lease_us)
        self.leases = LeaseJournal(append, encode, self.records, self._store_leased)
        self.log = LogJournal(append, encode, self.usage, self.leases)

    def append_to(self, append: Append) -> None:
        """Append records with ``append`` from now on."""
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
        """Log the current state of an entry, under a new job id.

        Args:
            entry: The entry.
            now: Present instant.
            taken: Keys that persistent SETs took from it during its lease: 0 is its URI, n the n-th
                link; None: none.
            origin: Reason of the write, see ``Envelope.origin``.
            erases: There was a tombstone under its key, or there may be one earlier in the log.
        """
        records = self.records
        if (
            entry.extra is NOTHING
            and not (erases or origin or taken)
            and entry.run is None
            and entry.created == now
            and self._encode.store_entries([entry], now, {}, records, self._append)
        ):
            return
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
        """Log new entries that have only keys, value and first due time, in one append.

        Args:
            entries: The entries.
            now: Present instant.
            replaced: Index in ``entries`` to the removed entry whose URI the new one took, and the
                timestamp of its tombstone.
        """
        if replaced:
            replaced = {at: old for at, old in replaced.items() if old[0].run is not None}
        if self._encode.store_entries(entries, now, replaced, self.records, self._append):
            return
        parts = self._encode.new_entries(entries, now)
        sizes = list(map(len, parts))
        places = list(accumulate(sizes[:-1], initial=0))
        if replaced:
            parts, places = self._with_removals(parts, now, replaced)
        position = self._append(b"".join(parts), len(parts), now)
        self.records.add_new(entries, [position + place for place in places], sizes)

    def _with_removals(
        self, parts: list[bytes], now: int, replaced: Mapping[int, tuple[Entry, int]]
    ) -> tuple[list[bytes], list[int]]:
        """Return the records, each followed by the removal of its replaced entry, and offsets."""
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
        """Copy a live entry forward. Older records about this entry are obsolete."""
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
        """Log the removal of an entry that leaves a tombstone with this timestamp.

        Args:
            entry: The entry.
            timestamp: Timestamp of the tombstone.
            now: Present instant.
            how: Reason of the removal, see ``cmdlog.format.endings``.
            persist: The tombstone is persistent, even if the entry is not.
        """
        if entry.run is not None:
            if how == COMPLETED and entry.extra.leased:
                self.completed_all([(entry, timestamp)], now)
            else:
                self._append_all(self._removal(entry, timestamp, now, how), now)
        elif persist:
            self.log.tombstone(entry.key, timestamp, now)

    def completed_all(self, entries: list[tuple[Entry, int]], now: int) -> None:
        """Log the removal of leased entries, with the timestamps of their tombstones.

        Each removal is a request of its own: the records are one append, but not a batch.
        """
        packed = self._encode.pack_completions(entries, now, self.records)
        if packed is not None:
            self._append(packed, len(entries), now)
            return
        remove = self.records.remove
        done = [
            (remove(entry), (timestamp, entry.key, entry.extra.leased))
            for entry, timestamp in entries
            if entry.run is not None
        ]
        if done:
            self._append_all(self._encode.completed_work(done, now), now)

    def _removal(self, entry: Entry, timestamp: int | None, now: int, how: int) -> list[bytes]:
        """Return the records that remove an entry: two if buried, as workq completes no failed job.

        ``timestamp``: that of its tombstone; None: no tombstone.
        """
        encode, job_id = self._encode, self.records.remove(entry)
        if entry.extra.reason is None:
            return [encode.completion(job_id, entry, timestamp, now, how)]
        return [encode.end(job_id, entry, timestamp, now, how), encode.deletion(job_id, now)]

    def purged(
        self, entries: list[tuple[Entry, int]], now: int, *, tombstones: bool, persist: bool
    ) -> None:
        """Log that PURGE deleted these entries, all or none of them.

        Args:
            entries: The entries, and the timestamps of their tombstones.
            now: Present instant.
            tombstones: Whether they leave tombstones.
            persist: Tombstones of entries that are not persistent are persistent too.
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
        """Note that a persistent SET took the URI of a leased entry; its record says so."""
        if entry.run is not None:
            # 0: the record of the leased entry itself has it
            self.records.superseded.setdefault(entry.job_id, max(timestamp, 1))

    def popped(self, entries: list[Entry], now: int, delivered: Sequence[bytes] = ()) -> None:
        """Log that NEXT popped these entries; each leaves a tombstone with its own timestamp.

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
        """Log a popped entry that is restored, as a new job: workq completed the old one."""
        if entry.run is None:
            return
        entry.run = None
        entry.facts = entry.facts[:FACTS_BYTES]
        self.stored(entry, now, origin=ORIGIN_UNDELIVERED, erases=True)

    def deleted(self, entry: Entry, now: int, how: int) -> int:
        """Log the removal of an entry without a tombstone; return the number of records."""
        if entry.run is None:
            return 0
        parts = self._removal(entry, None, now, how)
        self._append_all(parts, now)
        return len(parts)

    def gone(self, job_id: bytes, key: bytes, facts: bytes, now: int, *, buried: bool) -> None:
        """Log the removal of a job again: it must not return if compaction drops the other."""
        self._append_all(self._encode.removal(job_id, key, facts, now, buried=buried), now)

    def expired(self, entry: Entry, now: int, lease_end: int = 0) -> None:
        """Log the expiry of an entry; ``lease_end``: how a lease ended with it."""
        self.deleted(entry, now, EXPIRED | lease_end)

    def buried(self, entry: Entry, now: int, lease_end: int = 0) -> None:
        """Log that an entry was buried, with the reason; ``lease_end``: as for ``expired``."""
        if entry.run is not None:
            self._buried(entry, now, BURIED | lease_end)

    def buried_again(self, entry: Entry, now: int) -> None:
        """Log a new reason of a buried entry, as a new job: workq fails a job only once."""
        if entry.run is None:
            return
        self._append_operation(Batch(4), now)
        self._store_again(entry, now, ORIGIN_AGAIN, buried=True)
        self._buried(entry, now, REWRITTEN)

    def kicked(self, entries: list[Entry], now: int) -> None:
        """Log that buried entries are requeued, as new jobs: workq has no such operation."""
        entries = [entry for entry in entries if entry.run is not None]
        if not entries:
            return
        self._append_operation(Batch(3 * len(entries)), now)
        for entry in entries:
            self._store_again(entry, now, ORIGIN_KICK, buried=True)

    # --- other changes --------------------------------------------------------------------------

    def touched(self, entry: Entry, now: int, *, is_instant: bool = False) -> None:
        """Log a new expiry; ``is_instant``: a client named it."""
        if entry.run is not None:
            self._amend(entry, Touch(entry.job_id, entry.expires, is_instant), now)

    def revalued(self, entry: Entry, now: int) -> None:
        """Log a new value of the same type."""
        if entry.run is None:
            return
        value = entry.value
        assert isinstance(value, bytes), "what ADD and NOT change stays in memory"
        self._amend(entry, Value(entry.job_id, value, entry.timestamp), now)

    def resized(self, entry: Entry, before: int, now: int) -> None:
        """Log that a value of ``before`` bytes was cut, or extended with zero bytes."""
        if entry.run is None:
            return
        size = len(entry.value)
        trimmed = self.records.trimmed
        trimmed[entry.job_id] = min(trimmed.get(entry.job_id, before), size)
        self._amend(entry, Resize(entry.job_id, size, entry.timestamp), now)

    def linked(self, entry: Entry, key: bytes, now: int) -> None:
        """Log one more key of an entry."""
        if entry.run is not None:
            self._amend(entry, Link(entry.job_id, key), now)

    def renamed(
        self, entry: Entry, old: bytes, replaced: Entry | None, now: int, *, tombstone: bool
    ) -> None:
        """Log a RENAME of an entry whose primary key was ``old``.

        Args:
            entry: The entry, persistent or not.
            old: Former key; it has a tombstone with the timestamp of the entry.
            replaced: Entry that had the new key before.
            now: Present instant.
            tombstone: Log a tombstone even if the entry is not persistent.
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
        """Log an entry as a new job, and remove the old one; ``buried``: the old one is failed."""
        old = entry.job_id
        self.stored(entry, now, origin=origin)
        self._append_all(self._encode.rewritten(old, now, 1, buried=buried), now)

    def _store_leased(self, entry: Entry, now: int) -> None:
        self._store_again(entry, now, ORIGIN_AGAIN, buried=False)
