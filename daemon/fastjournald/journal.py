"""What happens to persistent entries, as records of the command log (docs/cmdlog.md).

Pure: records are handed to ``append``, which keeps them in memory until the commit writes them.
All records of one call are one append, so that a write is cut between requests or, where it is
cut inside one, recovery settles it: the new stands before the removal of the old, and a group
(operation with ``following``) is all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TypeAlias

from fastjournal.cmdlog import envelope, workq
from fastjournal.cmdlog.facts import FACTS_BYTES, pack_record, unpack_facts, unpack_record
from fastjournal.cmdlog.records import (
    JOB_ID_BYTES,
    NO_TIME,
    Command,
    encode_job,
    encode_result,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.segments import OFFSET_BITS
from fastjournald.entry import ARRIVAL_MAX, RUN_KEPT_BYTES, Entry
from fastjournald.jobheads import JobHeads, id_prefix
from fastjournald.space import Space

Append: TypeAlias = Callable[[bytes, int, int], int]
"""Takes bytes, the number of records in them and the instant; returns their position."""

_pack_serial = Struct(">Q").pack
SEGMENT_SHIFT = OFFSET_BITS - 8
"""From a position without its last byte to the segment."""
_SERIAL_BASE = 1 << 63
"""The variant bits of a UUIDv4."""


class Journal:
    """Encodes changes of persistent entries and keeps account of what is live in the log.

    Args:
        append: Where the records go.
        seed: 8 random bytes: job ids differ between runs by them.
        lease_us: Default lease, which workq is told as time to run.
    """

    def __init__(self, append: Append, *, seed: bytes, lease_us: int) -> None:
        self._append = append
        self._prefix = id_prefix(seed)
        self._run = (self._prefix + _pack_serial(_SERIAL_BASE))[:RUN_KEPT_BYTES]
        self.serial = 0
        """The last serial number given, as the arrival of an entry or for the id of a job."""
        self._entry_serial = 0
        """The serial number in the id of the newest job that carries an entry: they ascend."""
        heads = JobHeads(lease_us)
        self._head_of = heads.of
        self._operation_head = heads.operation
        self._now = -1
        self._time = NO_TIME
        self.live_bytes = 0
        """Bytes of the records that carry live entries."""
        self.space = Space()
        """Where they are, and what else cleaning goes by."""
        self.amended: dict[bytes, Entry] = {}
        """Job id to the live entry about which there may be more records than its own."""
        self.displaced: dict[bytes, bool] = {}
        """Job ids of entries worked on that a persistent SET superseded, and whether their own
        record says so; until then the record of that SET does."""
        self.erasers: set[bytes] = set()
        """Job ids of live entries under whose key a tombstone stood, which is gone by them."""
        self.trimmed: dict[bytes, int] = {}
        """Job id to the bytes of the value in its record that still count, where TRUNCATE changed
        it; zero bytes follow."""
        self.last_token = 0
        """The newest lease token of the log."""
        self._segment = -1
        """The segment with the newest record of an entry."""

    def next_serial(self) -> int:
        """Return a number greater than all before, also of runs before this one."""
        self.serial += 1
        return self.serial

    # --- entries --------------------------------------------------------------------------------

    def stored(
        self,
        entry: Entry,
        now: int,
        taken: tuple[bytes, ...] | None = None,
        *,
        erases: bool = False,
    ) -> None:
        """Write the entry as it stands, under a fresh job id.

        Args:
            entry: Which.
            now: The present.
            taken: The keys that persistent SETs took from it while it is worked on; None: none
                took any.
            erases: A tombstone stood under its key, or may stand in the log before it.
        """
        facts = entry.facts
        if entry.run is not None:
            erases = entry.job_id in self.erasers
            self._forget(entry)
            facts = facts[:FACTS_BYTES]
        value = entry.value
        assert isinstance(value, bytes), "a cold value is read before its entry is written anew"
        _, not_before, arrival, timestamp, created, value_type = unpack_facts(facts)
        extra = entry.extra
        time = self._time if now == self._now else self._time_at(now)
        payload = envelope.pack_fields(
            (
                entry.key,
                entry.uri,
                extra.links or (),
                value_type,
                value,
                timestamp,
                created,
                entry.changed or created,
                arrival,
                not_before,
                extra.expires,
                extra.ttl,
                extra.attempts,
                extra.token,
                0 if taken is None else extra.superseded,
                extra.reason,
                extra.first_due,
                *((taken or (), erases) if erases or taken is not None else ()),
            )
        )
        if self._entry_serial < arrival <= ARRIVAL_MAX:
            self._entry_serial = arrival
            entry.run = self._run
            job_id = self._prefix + _pack_serial(_SERIAL_BASE | arrival)
        else:
            self._entry_serial = self.next_serial()
            job_id = entry.run = self._prefix + _pack_serial(_SERIAL_BASE | self._entry_serial)
        if entry.domain.name:
            command, start = Command.SCHEDULE, encode_time(not_before)
        else:
            command, start = Command.ADD, NO_TIME
        data = encode_job(
            command,
            time,
            job_id,
            self._head_of(entry),
            payload,
            start,
            time if created == now else encode_time(created),
        )
        if erases:
            self.erasers.add(job_id)
        if extra.starts:
            extra.starts = 0
        size = len(data)
        position = self._append(data, 1, now)
        entry.facts = facts + pack_record(position >> 8, position & 0xFF, size)
        segment = position >> OFFSET_BITS
        if segment != self._segment:
            self._segment = segment
            self.space.begins(job_id, segment)
        self.space.live[segment] += size
        self.live_bytes += size

    def restated(self, entry: Entry, now: int, taken: tuple[bytes, ...] | None) -> None:
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
        self.removed_before(old, now)

    def removed_before(self, job_id: bytes, now: int) -> None:
        """A job is gone for another reason than a record that is there: it must not return."""
        self._append(encode_simple(Command.DELETE, self._time_at(now), job_id), 1, now)

    def unsaid(self) -> list[bytes]:
        """Return the jobs that were superseded and do not say so themselves."""
        return [job_id for job_id, said in self.displaced.items() if not said]

    def _forget(self, entry: Entry) -> bytes:
        """The record that carries the entry is dead; return the id of its job."""
        position, _, size = unpack_record(entry.facts, FACTS_BYTES)
        self.live_bytes -= size
        self.space.live[position >> SEGMENT_SHIFT] -= size
        job_id = entry.run
        if job_id is None or len(job_id) != JOB_ID_BYTES:
            job_id = entry.job_id
        if self.erasers:
            self.erasers.discard(job_id)
        if self.trimmed:
            self.trimmed.pop(job_id, None)
        if self.amended.pop(job_id, None) is not None and self.displaced:
            self.displaced.pop(job_id, None)
        return job_id

    def completed(self, entry: Entry, timestamp: int, now: int) -> None:
        """The entry is gone and leaves a tombstone with this timestamp."""
        job_id = self._forget(entry)
        if entry.extra.reason is None:
            self._append(self._completion(job_id, entry.key, timestamp, now), 1, now)
            return
        # buried is failed to workq, which refuses to complete a failed job
        parts = (
            self._operation(envelope.Batch(2), now),
            encode_simple(Command.DELETE, self._time_at(now), job_id),
            self._operation(envelope.Tombstone(entry.key, timestamp), now),
        )
        self._append(b"".join(parts), len(parts), now)

    def popped(self, entries: list[Entry], now: int) -> None:
        """NEXT removed these entries; each leaves a tombstone with its own timestamp."""
        parts = [
            self._completion(self._forget(entry), entry.key, entry.timestamp, now)
            for entry in entries
        ]
        if len(parts) > 1:
            parts.insert(0, self._operation(envelope.Batch(len(parts)), now))
        self._append(b"".join(parts), len(parts), now)

    def deleted(self, entry: Entry, now: int) -> None:
        """The entry is gone without trace."""
        self._removed(Command.DELETE, entry, now)

    def expired(self, entry: Entry, now: int) -> None:
        """The entry's life is over."""
        self._removed(Command.EXPIRE, entry, now)

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
        self.removed_before(old, now)

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
            time = self._time_at(now)
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

    def forget_record(self, key: bytes, now: int) -> bytes:
        """Return the record that says so."""
        return self._operation(envelope.Forget(key), now)

    def segment_start(self, previous: int, now: int) -> bytes:
        """Return the first record of a new segment."""
        return self._operation(envelope.SegmentStart(previous, self.last_token), now)

    def segment_removed(self, number: int, now: int) -> None:
        """A segment is about to leave the disk, or has left it."""
        self._append(self._operation(envelope.SegmentRemoved(number), now), 1, now)

    # --- parts ----------------------------------------------------------------------------------

    def _time_at(self, now: int) -> bytes:
        if now != self._now:
            self._now = now
            self._time = encode_time(now)
        return self._time

    def _amend(self, entry: Entry, change: envelope.Change, now: int) -> None:
        self.amended[entry.job_id] = entry
        self._append(self._operation(change, now), 1, now)

    def _removed(self, command: Command, entry: Entry, now: int) -> None:
        job_id = self._forget(entry)
        self._append(encode_simple(command, self._time_at(now), job_id), 1, now)

    def _completion(self, job_id: bytes, key: bytes, timestamp: int, now: int) -> bytes:
        result = envelope.pack_fields((timestamp, key))
        return encode_result(Command.COMPLETE, self._time_at(now), job_id, result)

    def _failure(self, entry: Entry, now: int) -> bytes:
        result = envelope.pack(envelope.Failure(entry.reason or b""))
        return encode_result(Command.FAIL, self._time_at(now), entry.job_id, result)

    def _operation(self, operation: envelope.Operation, now: int) -> bytes:
        time = self._time_at(now)
        job_id = self._prefix + _pack_serial(_SERIAL_BASE | self.next_serial())
        payload = envelope.pack(operation)
        return encode_job(Command.ADD, time, job_id, self._operation_head, payload, NO_TIME, time)
