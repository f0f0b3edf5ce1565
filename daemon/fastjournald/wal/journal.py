"""What happens to persistent entries, as records of the command log (docs/cmdlog.md).

Pure: records are handed to ``append``, which keeps them in memory until the commit writes them.
All records of one call are one append, so that a write is cut between requests or, where it is
cut inside one, recovery settles it: the new stands before the removal of the old, and a group
(operation with ``following``) is all or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastjournal.cmdlog.format import envelope, workq
from fastjournal.cmdlog.format.packed_entry import FACTS_BYTES
from fastjournal.cmdlog.format.records import (
    Command,
    encode_result,
    encode_simple,
)
from fastjournal.cmdlog.format.segments import OFFSET_BITS
from fastjournal.cmdlog.recovery.removals import REPLACED_BY_NONE, REPLACED_BY_URI
from fastjournald.tables.entry import Entry
from fastjournald.wal.entry_records import Ledger


class Journal(Ledger):
    """Encodes what happens to persistent entries, on top of the account of them."""

    # --- entries --------------------------------------------------------------------------------

    def restated(self, entry: Entry, now: int, taken: tuple[int, ...] | None) -> None:
        """Write a live entry anew, so that no record about it from before matters any more."""
        old = entry.job_id
        self._append(
            self._operation(
                envelope.Batch(2 + 2 * bool(entry.token) + (entry.reason is not None)), now
            ),
            1,
            now,
        )
        self.stored(entry, now, taken)
        if taken is not None:
            self.displaced[entry.job_id] = True
        if entry.token:
            self._lease([entry], envelope.Lease(1, entry.token, again=True), now)
        if entry.reason is not None:
            self.buried(entry, now)
        self.removed_before(old, now, 1 + 2 * bool(entry.token) + (entry.reason is not None))

    def completed(
        self, entry: Entry, timestamp: int, now: int, replaced: int = REPLACED_BY_NONE
    ) -> None:
        """The entry is gone and leaves a tombstone with this timestamp.

        Args:
            entry: Which.
            timestamp: Of the tombstone.
            now: The present.
            replaced: What takes its place, see ``cmdlog.recovery.removals``.
        """
        job_id = self._forget(entry)
        if entry.extra.reason is None:
            time = self._time_of_removal(now, replaced)
            self._append(self._completion(job_id, entry.key, timestamp, time), 1, now)
            return
        # buried is failed to workq, which refuses to complete a failed job
        if replaced < REPLACED_BY_URI:
            # the head of the batch stands between them
            replaced += 1
        parts = (
            self._operation(envelope.Batch(2), now),
            encode_simple(Command.DELETE, self._time_of_removal(now, replaced), job_id),
            self._operation(envelope.Tombstone(entry.key, timestamp), now),
        )
        self._append(b"".join(parts), len(parts), now)

    def popped(self, entries: list[Entry], now: int) -> None:
        """NEXT removed these entries; each leaves a tombstone with its own timestamp."""
        time = self._time_of_removal(now, REPLACED_BY_NONE)
        parts = [
            self._completion(self._forget(entry), entry.key, entry.timestamp, time)
            for entry in entries
        ]
        if len(parts) > 1:
            parts.insert(0, self._operation(envelope.Batch(len(parts)), now))
        self._append(b"".join(parts), len(parts), now)

    def restored(self, entry: Entry, now: int) -> None:
        """What NEXT removed stands again: as a new job, for the old one is complete to workq."""
        entry.run = None
        entry.facts = entry.facts[:FACTS_BYTES]
        self.stored(entry, now, erases=True)

    def deleted(self, entry: Entry, now: int, replaced: int = REPLACED_BY_NONE) -> None:
        """The entry is gone without trace; ``replaced``: what takes its place."""
        self.removed_before(self._forget(entry), now, replaced)

    def expired(self, entry: Entry, now: int) -> None:
        """The entry's life is over."""
        job_id = self._forget(entry)
        self._append(encode_simple(Command.EXPIRE, self._time_at(now), job_id), 1, now)

    def buried(self, entry: Entry, now: int) -> None:
        """The entry was set aside with its reason, which ends its lease."""
        self.amended[entry.job_id] = entry
        self._append(self._failure(entry, now), 1, now)

    def buried_again(self, entry: Entry, now: int) -> None:
        """The entry, which was set aside before, has another reason: workq fails a job once."""
        self._append(self._operation(envelope.Batch(3), now), 1, now)
        self._store_again(entry, now)
        self.buried(entry, now)

    def kicked(self, entries: list[Entry], now: int) -> None:
        """The entries, which were set aside, wait again: as new jobs, for workq never does that."""
        self._append(self._operation(envelope.Batch(2 * len(entries)), now), 1, now)
        for entry in entries:
            self._store_again(entry, now)

    # --- leases ---------------------------------------------------------------------------------

    def leased(
        self, entries: list[Entry], token: int, now: int, touched: Sequence[Entry] = ()
    ) -> None:
        """One request is about to lease these entries: one token, and an attempt of each.

        Args:
            entries: Which.
            token: Of the lease.
            now: The present.
            touched: Those of them whose expiry it moves.
        """
        for entry in entries:
            if entry.extra.starts >= workq.ATTEMPTS_MAX:
                self._store_again(entry, now)
        if touched:
            together = envelope.Batch(len(touched) + 1 + len(entries))
            self._append(self._operation(together, now), 1, now)
            for entry in touched:
                self.touched(entry, now)
        self._lease(entries, envelope.Lease(len(entries), token), now)
        # behind the append: the first record of a segment tells of what is before it
        self.last_token = token

    def newest_token(self, now: int) -> None:
        """Say which token is the newest, for no record about its entries may be left."""
        self._append(self._operation(envelope.Lease(0, self.last_token), now), 1, now)

    def _lease(self, entries: list[Entry], lease: envelope.Lease, now: int) -> None:
        time = self._time_at(now)
        parts = [self._operation(lease, now)]
        amended = self.amended
        for entry in entries:
            entry.own().starts += 1
            # in one piece from now on, as it is what stands in ``amended``
            job_id = entry.run = entry.job_id
            amended[job_id] = entry
            parts.append(encode_simple(Command.START_ATTEMPT, time, job_id))
        self._append(b"".join(parts), len(parts), now)

    def _store_again(self, entry: Entry, now: int) -> None:
        old = entry.job_id
        self.stored(entry, now)
        self.removed_before(old, now, 1)

    def lease_over(self, entry: Entry, now: int) -> None:
        """The lease ran out or was given back: the entry waits again."""
        self._append(
            encode_simple(Command.TIMEOUT_ATTEMPT, self._time_at(now), entry.job_id), 1, now
        )

    def released_with_delay(self, entry: Entry, now: int) -> None:
        """The lease was given back, and the entry must not start before its new instant."""
        parts = (
            self._operation(envelope.Batch(2), now),
            self._operation(envelope.Delay(entry.job_id, entry.not_before), now),
            encode_simple(Command.TIMEOUT_ATTEMPT, self._time_at(now), entry.job_id),
        )
        self._append(b"".join(parts), len(parts), now)

    def extended(self, entry: Entry, now: int) -> None:
        """The lease ends at the entry's token instead."""
        self._append(self._operation(envelope.Extend(entry.job_id, entry.token), now), 1, now)
        self.last_token = entry.token

    # --- all else -------------------------------------------------------------------------------

    def touched(self, entry: Entry, now: int) -> None:
        """The expiry moved."""
        self._amend(entry, envelope.Touch(entry.job_id, entry.expires), now)

    def paused(self, domain: bytes, until: int, now: int) -> None:
        """A domain is paused until that instant; 0: no more."""
        position = self._append(self._operation(envelope.Pause(domain, until), now), 1, now)
        self.space.paused(position >> OFFSET_BITS, domain, until)

    def revalued(self, entry: Entry, now: int) -> None:
        """The entry has another value of the same type."""
        value = entry.value
        assert isinstance(value, bytes), "what ADD and NOT change stays in memory"
        self._amend(entry, envelope.Value(entry.job_id, value, entry.timestamp), now)

    def resized(self, entry: Entry, before: int, now: int) -> None:
        """The value of ``before`` bytes was cut, or filled up with zero bytes."""
        size = len(entry.value)
        self.trimmed[entry.job_id] = min(self.trimmed.get(entry.job_id, before), size)
        self._amend(entry, envelope.Resize(entry.job_id, size, entry.timestamp), now)

    def linked(self, entry: Entry, key: bytes, now: int) -> None:
        """The entry stands under one more key."""
        self._amend(entry, envelope.Link(entry.job_id, key), now)

    def renamed(
        self, entry: Entry, old: bytes, replaced: Entry | None, now: int, *, tombstone: bool
    ) -> None:
        """The primary key of the entry was ``old``.

        Args:
            entry: Which, persistent or not.
            old: Has a tombstone with the timestamp of the entry.
            replaced: What stood under the key that it has now.
            now: The present.
            tombstone: That of an entry that is not persistent is persistent all the same.
        """
        parts = []
        if entry.persistent:
            self.amended[entry.job_id] = entry
            self.erasers.add(entry.job_id)
            change = envelope.Rename(entry.job_id, entry.key, entry.timestamp, old)
            parts.append(self._operation(change, now))
        elif tombstone:
            parts.append(self._operation(envelope.Tombstone(old, entry.timestamp), now))
        if replaced is not None and replaced.persistent:
            self._forget(replaced)
            time = self._time_of_removal(now, 1 if entry.persistent else REPLACED_BY_NONE)
            parts.append(encode_simple(Command.DELETE, time, replaced.job_id))
        if len(parts) > 1:
            parts.insert(0, self._operation(envelope.Batch(len(parts)), now))
        if parts:
            self._append(b"".join(parts), len(parts), now)

    def tombstone(self, key: bytes, timestamp: int, now: int, *, learnt: int | None = None) -> None:
        """A tombstone was left where no persistent entry stood, now or when ``learnt`` says."""
        data = self._operation(
            envelope.Tombstone(key, timestamp), now if learnt is None else learnt
        )
        self._append(data, 1, now)

    def forgotten(self, key: bytes, now: int) -> None:
        """The tombstone under this key was removed."""
        self._append(self.forget_record(key, now), 1, now)

    def segment_rewritten(
        self, number: int, size: int, crc32c: int, now: int, *, done: bool
    ) -> None:
        """A sealed segment is about to have this size and checksum, or has them."""
        told = envelope.SegmentRewritten(number, size, crc32c, done)
        position = self._append(self._operation(told, now), 1, now)
        self.space.told(number, position >> OFFSET_BITS)

    def segment_removed(self, number: int, now: int) -> None:
        """A segment is about to leave the disk, or has left it."""
        self._append(self._operation(envelope.SegmentRemoved(number), now), 1, now)

    # --- parts ----------------------------------------------------------------------------------

    def _amend(self, entry: Entry, change: envelope.Change, now: int) -> None:
        self.amended[entry.job_id] = entry
        self._append(self._operation(change, now), 1, now)

    def _completion(self, job_id: bytes, key: bytes, timestamp: int, time: bytes) -> bytes:
        result = envelope.pack_fields((timestamp, key))
        return encode_result(Command.COMPLETE, time, job_id, result)

    def _failure(self, entry: Entry, now: int) -> bytes:
        result = envelope.pack(envelope.Failure(entry.reason or b""))
        return encode_result(Command.FAIL, self._time_at(now), entry.job_id, result)
