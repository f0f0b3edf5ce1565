"""Log records of leases: begun, renewed, released and lost leases, and failed attempts. Pure.

It belongs to the journal (``wal.journal``), and ignores entries that are not persistent as that
does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from fastjournal import _native
from fastjournal.cmdlog.format import workq
from fastjournal.cmdlog.format.endings import (
    ATTEMPT_AT,
    ATTEMPT_MAX,
    FIRST_ATTEMPT,
    HOW,
    LEASE_LOST,
    LEASE_RETURNED,
    START,
    START_AT,
    UNKNOWN,
    WAITS,
    pack_due,
    unpack_start,
)
from fastjournal.cmdlog.format.layout import JOB_ID_BYTES
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
from fastjournal.cmdlog.format.packed_entry import unpack_due
from fastjournald.tables.entry import JOB_ID_REST, NOTHING, Entry, Extra
from fastjournald.wal.record_encoder import Append, EntryRecords, RecordEncoder

_pack_u64 = Struct(">Q").pack


class LeaseJournal:
    """Writes log records of leases of persistent entries.

    Args:
        append: Receives the records.
        encode: Encoder of the records.
        records: Index of the records that carry live entries.
        store_again: Logs an entry as a new job: workq accepts 255 attempts of one.
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
        if self._records.capture is not None:
            for entry in entries:
                self._records.capture.take(entry)
        encode = self._encode
        parts: list[bytes] = []
        if touched or delivered:
            for entry in touched:
                if entry.run is not None:
                    if entry.extra.starts >= workq.ATTEMPTS_MAX:
                        self._store_again(entry, now)
                    touch = Touch(self._records.amend(entry), entry.expires, is_instant=False)
                    parts.append(encode.operation(touch, now))
            parts += [encode.operation(Delivered(name, now), now) for name in delivered]
            number = len(parts) + (1 + len(entries) if entries else 0)
            if parts and number > 1:
                parts.insert(0, encode.operation(Batch(number), now))
            if not entries:
                self.append(b"".join(parts), len(parts), now)
                return
        self._begin(parts, entries, token, attempts_max, now)
        # after the append: the first record of a segment has the token of all before it
        self.last_token = token

    def copied_forward(self, entry: Entry, now: int) -> None:
        """Log the lease of an entry that was copied forward."""
        since = unpack_start(entry.extra.leased[START], now)
        lease = Lease(
            1,
            entry.token,
            again=True,
            attempts=entry.extra.attempts_max,
            since=since,
            facts=b"",
            priorities=b"",
            numbers=b"",
            domains=[],
        )
        entry.own().starts += 1
        job_id = self._records.amend(entry)
        self._append_all(
            [self._encode.operation(lease, now), *self._encode.starts([job_id], now)], now
        )

    def newest_token(self, now: int) -> None:
        """Say which token is the newest, for no record about its entries may be left."""
        self._append_operation(
            Lease.bare(0, self.last_token),
            now,
        )

    def lost(self, entry: Entry, now: int, *, delayed: bool) -> None:
        """The lease ran out: the entry waits again; ``delayed``: see ``returned``."""
        if entry.run is not None:
            self._append_all(self._end(entry, now, LEASE_LOST, delayed=delayed), now)

    def returned(self, entry: Entry, now: int, *, delayed: bool) -> None:
        """The lease was released; ``delayed``: the entry must not start before its new instant."""
        if entry.run is not None:
            self._append_all(self._end(entry, now, LEASE_RETURNED, delayed=delayed), now)

    def failed(self, entry: Entry, now: int, *, delayed: bool) -> None:
        """An attempt failed with the entry's error: it waits again, or is a dead letter now."""
        if entry.run is None:
            return
        encode, job_id = self._encode, self._records.amend(entry)
        error, attempts = entry.extra.error or b"", entry.extra.attempts
        parts = [self._failed(entry, attempts, error, now)]
        if delayed:
            parts.append(encode.operation(Delay(job_id, entry.not_before), now))
        if entry.reason is None:
            parts.append(encode.timeout(job_id, now))
        else:
            entry.own().leased = b""
            parts.append(encode.failure(job_id, entry, now))
        parts.insert(0, encode.operation(Batch(len(parts)), now))
        self._append_all(parts, now)

    def failed_before_removal(self, entry: Entry, error: bytes, now: int) -> None:
        """An attempt failed with this error, and the entry is removed: that record is the next."""
        if entry.run is not None:
            self._append_operation(Batch(2), now)
            failed = self._failed(entry, entry.extra.attempts + 1, error, now)
            self.append(failed, 1, now)

    def extended(self, entry: Entry, now: int) -> None:
        """The lease ends at the entry's token instead."""
        if entry.run is None:
            return
        facts, priority = self._encode.facts(entry, UNKNOWN), entry.priority
        extend = Extend(entry.job_id, entry.token, 0, entry.domain.name, priority, facts)
        self._append_operation(extend, now)
        self.last_token = entry.token

    def end_moved(self, entry: Entry, now: int, *, ends_next: bool = False) -> None:
        """A step of the clock moved the end of the lease, and left its token.

        Args:
            entry: Which.
            now: The present.
            ends_next: The lease ends next: all of it is one group.
        """
        if entry.run is None:
            return
        if ends_next:
            # the end of a lease is two records, a removal is one
            is_gone = entry.superseded or 0 < entry.expires <= now
            self._append_operation(Batch(2 if is_gone else 3), now)
        moved = Extend(self._records.amend(entry), entry.token, entry.leased_until, b"", 0, b"")
        self._append_operation(moved, now)

    def delay_moved(self, entry: Entry, now: int) -> None:
        """A step of the clock moved the instant until which a RELEASE has delayed the entry."""
        if entry.run is not None:
            self._append_operation(Delay(self._records.amend(entry), entry.not_before), now)

    # --- parts ----------------------------------------------------------------------------------

    def _begin(
        self, parts: list[bytes], entries: list[Entry], token: int, attempts_max: int, now: int
    ) -> None:
        """Append these parts, the lease, and an attempt of each entry."""
        begun: tuple[bytes, bytes, bytes, list[bytes | int], bytes] | None = None
        if _native.leaves is not None:
            begun = _native.leaves.begin_leases(entries, now, self._records.amended)
        dues, priorities, numbers, domains, starts = begun or self._begin_each(entries, now)
        again, since = False, 0
        fields = dues, priorities, numbers, domains, since
        lease = Lease(len(entries), token, again, attempts_max, *fields)
        parts += self._encode.operation(lease, now), starts
        self.append(b"".join(parts), len(parts) - 1 + len(entries), now)

    def _begin_each(
        self, entries: list[Entry], now: int
    ) -> tuple[bytes, bytes, bytes, list[bytes | int], bytes]:
        """Begin the lease of each entry.

        Returns:
            Of ``Lease``: facts, priorities, numbers and domains. And the records of the starts.
        """
        amended, nothing = self._records.amended, NOTHING
        first = FIRST_ATTEMPT + _pack_u64(now)[START_AT:]
        job_ids: list[bytes] = []
        dues: list[bytes] = []
        domains: list[bytes | int] = []
        priorities, first_ones, domain, count = bytearray(), True, None, 0
        for entry in entries:
            facts, extra = entry.facts, entry.extra
            priority, not_before, serial, due = unpack_due(facts)
            if extra is nothing:
                # as most are: without a call (tests.bench.bench_instructions)
                packed = pack_due(not_before if not_before > due else due, serial)
                entry.extra = Extra(0, 0, 0, 0, 0, packed + first, 1)
            else:
                if extra.starts >= workq.ATTEMPTS_MAX:
                    self._store_again(entry, now)
                if type(extra) is not Extra:
                    extra = entry.own()
                due = extra.due or max(extra.changed or due, not_before)
                packed = pack_due(due, serial)
                if extra.attempts:
                    first_ones = False
                    extra.leased = packed + HOW[min(extra.attempts + 1, ATTEMPT_MAX)] + first[1:]
                else:
                    extra.leased = packed + first
                extra.starts += 1
            dues.append(packed)
            priorities.append(priority)
            if entry.domain is not domain:
                if domain is not None:
                    domains += (domain.name, count)
                domain, count = entry.domain, 0
            count += 1
            run = entry.run
            assert run is not None, "these are persistent"
            # whole from now on, like the id in ``amended``
            if len(run) != JOB_ID_BYTES:
                run = entry.run = run + facts[JOB_ID_REST]
            amended[run] = entry
            job_ids.append(run)
        assert domain is not None, "there is one entry at least"
        domains += (domain.name, count)
        numbers = [] if first_ones else [each.extra.leased[ATTEMPT_AT] for each in entries]
        starts = b"".join(self._encode.starts(job_ids, now))
        return b"".join(dues), bytes(priorities), bytes(numbers), domains, starts

    def _end(self, entry: Entry, now: int, lease_end: int, *, delayed: bool) -> list[bytes]:
        """Return the records of the end of a lease after which the entry waits again."""
        encode, job_id = self._encode, self._records.amend(entry)
        parts = [
            encode.end(job_id, entry, None, now, WAITS | lease_end),
            encode.timeout(job_id, now),
        ]
        if delayed:
            delay = encode.operation(Delay(job_id, entry.not_before), now)
            parts[:0] = [encode.operation(Batch(1 + len(parts)), now), delay]
        return parts

    def _failed(self, entry: Entry, attempts: int, error: bytes, now: int) -> bytes:
        domain, priority = entry.domain.name, entry.priority
        facts = self._encode.facts(entry, UNKNOWN)
        failed = Failed(entry.job_id, attempts, error, domain, priority, facts)
        return self._encode.operation(failed, now)

    def _append_all(self, parts: list[bytes], now: int) -> None:
        self.append(b"".join(parts), len(parts), now)

    def _append_operation(self, operation: Operation, now: int) -> None:
        self.append(self._encode.operation(operation, now), 1, now)
