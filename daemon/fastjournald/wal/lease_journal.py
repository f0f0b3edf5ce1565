"""Log records of leases: begun, renewed, released and lost leases, and failed attempts. Pure.

It belongs to the journal (``wal.journal``), and ignores entries that are not persistent as that
does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastjournal.cmdlog.format import workq
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Delay,
    Delivered,
    Extend,
    Failed,
    Lease,
    Operation,
    Touch,
)
from fastjournald.tables.entry import Entry
from fastjournald.wal.entry_records import EntryRecords
from fastjournald.wal.record_encoder import Append, RecordEncoder


class LeaseJournal:
    """Writes log records of what happens to leases of persistent entries.

    Args:
        append: Where the records go.
        encode: Encoder of the records.
        records: The records that carry live entries.
        store_again: Writes an entry anew, as a new job: workq takes 255 attempts of one.
    """

    def __init__(
        self,
        append: Append,
        encode: RecordEncoder,
        records: EntryRecords,
        store_again: Callable[[Entry, int], None],
    ) -> None:
        self.append = append
        self.last_token = 0
        """The newest lease token of the log."""
        self._encode = encode
        self._records = records
        self._store_again = store_again

    def leased(
        self,
        entries: list[Entry],
        token: int,
        now: int,
        touched: Sequence[Entry] = (),
        attempts_max: int = 0,
        delivered: Sequence[bytes] = (),
    ) -> None:
        """One request is about to lease these entries: one token, and an attempt of each.

        Args:
            entries: Which.
            token: Token of the lease.
            now: The present.
            touched: Those of them whose expiry it moves.
            attempts_max: Bound of the lease on failed attempts; 0: it has none.
            delivered: Domains whose last delivery this is, if their interval runs and no record
                of the lease proves it.
        """
        entries = [entry for entry in entries if entry.run is not None]
        if not entries and not delivered:
            return
        for entry in entries:
            if entry.extra.starts >= workq.ATTEMPTS_MAX:
                self._store_again(entry, now)
        encode, parts = self._encode, list[bytes]()
        if touched or delivered:
            for entry in touched:
                if entry.run is not None:
                    touch = Touch(self._records.amend(entry), entry.expires)
                    parts.append(encode.operation(touch, now))
            parts += [encode.operation(Delivered(name, now), now) for name in delivered]
            number = len(parts) + (1 + len(entries) if entries else 0)
            if parts and number > 1:
                parts.insert(0, encode.operation(Batch(number), now))
            if not entries:
                self.append(b"".join(parts), len(parts), now)
                return
        lease = Lease(len(entries), token, False, attempts_max)
        self._begin(parts, entries, lease, now)
        # behind the append: the first record of a segment tells of what is before it
        self.last_token = token

    def copied_forward(self, entry: Entry, now: int) -> None:
        """The record of a leased entry was written anew; this is its lease."""
        lease = Lease(1, entry.token, again=True, attempts=entry.extra.attempts_max)
        self._begin([], [entry], lease, now)

    def newest_token(self, now: int) -> None:
        """Say which token is the newest, for no record about its entries may be left."""
        self._append_operation(Lease(0, self.last_token), now)

    def lease_over(self, entry: Entry, now: int) -> None:
        """The lease ran out or was released: the entry waits again."""
        if entry.run is not None:
            self.append(self._encode.timeout(entry.job_id, now), 1, now)

    def released_with_delay(self, entry: Entry, now: int) -> None:
        """The lease was released, and the entry must not start before its new instant."""
        if entry.run is None:
            return
        parts = (
            self._encode.operation(Batch(2), now),
            self._encode.operation(Delay(entry.job_id, entry.not_before), now),
            self._encode.timeout(entry.job_id, now),
        )
        self.append(b"".join(parts), len(parts), now)

    def failed(self, entry: Entry, now: int, *, delayed: bool) -> None:
        """An attempt failed with the entry's error: it waits again, or is a dead letter now."""
        if entry.run is None:
            return
        encode, job_id = self._encode, self._records.amend(entry)
        parts = [
            encode.operation(Failed(job_id, entry.extra.attempts, entry.extra.error or b""), now)
        ]
        if delayed:
            parts.append(encode.operation(Delay(job_id, entry.not_before), now))
        if entry.reason is None:
            parts.append(encode.timeout(job_id, now))
        else:
            parts.append(encode.failure(job_id, entry.reason, now))
        parts.insert(0, encode.operation(Batch(len(parts)), now))
        self.append(b"".join(parts), len(parts), now)

    def failed_before_removal(self, entry: Entry, error: bytes, now: int) -> None:
        """An attempt failed with this error, and the entry is removed: that record is the next."""
        if entry.run is not None:
            self._append_operation(Batch(2), now)
            failed = Failed(entry.job_id, entry.extra.attempts + 1, error)
            self._append_operation(failed, now)

    def extended(self, entry: Entry, now: int) -> None:
        """The lease ends at the entry's token instead."""
        if entry.run is None:
            return
        self._append_operation(Extend(entry.job_id, entry.token), now)
        self.last_token = entry.token

    def end_moved(self, entry: Entry, now: int, *, ends_next: bool = False) -> None:
        """A step of the clock moved the end of the lease, and left its token.

        Args:
            entry: Which.
            now: The present.
            ends_next: The next record ends the lease: both are one group.
        """
        if entry.run is None:
            return
        if ends_next:
            self._append_operation(Batch(2), now)
        moved = Extend(self._records.amend(entry), entry.token, entry.leased_until)
        self._append_operation(moved, now)

    def delay_moved(self, entry: Entry, now: int) -> None:
        """A step of the clock moved the instant until which a RELEASE has delayed the entry."""
        if entry.run is not None:
            self._append_operation(Delay(self._records.amend(entry), entry.not_before), now)

    # --- parts ----------------------------------------------------------------------------------

    def _begin(self, parts: list[bytes], entries: list[Entry], lease: Lease, now: int) -> None:
        """Append these parts, the lease, and an attempt of each entry."""
        parts.append(self._encode.operation(lease, now))
        amended = self._records.amended
        job_ids = []
        for entry in entries:
            entry.own().starts += 1
            # in one piece from now on, as it is what stands in ``amended``
            job_id = entry.run = entry.job_id
            amended[job_id] = entry
            job_ids.append(job_id)
        parts += self._encode.starts(job_ids, now)
        self.append(b"".join(parts), len(parts), now)

    def _append_operation(self, operation: Operation, now: int) -> None:
        self.append(self._encode.operation(operation, now), 1, now)
