"""The records of the entries that are live, and where they are. Pure.

What carries an entry is encoded here, and what cleaning has to know of it is kept: its job id,
position and length, and what other records say about it. What happens to entries is told by
``fastjournald.wal.journal``, which is built on this.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from fastjournal.cmdlog.format import envelope
from fastjournal.cmdlog.format.packed_entry import (
    FACTS_BYTES,
    pack_record,
    unpack_facts,
    unpack_record,
)
from fastjournal.cmdlog.format.records import (
    JOB_ID_BYTES,
    NO_TIME,
    Command,
    encode_job,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.format.segments import OFFSET_BITS, SegmentInfo
from fastjournal.cmdlog.format.workq import SCHEDULED_US_BACK
from fastjournal.cmdlog.recovery import removals
from fastjournald.tables.entry import ARRIVAL_MAX, RUN_KEPT_BYTES, Entry
from fastjournald.wal.segment_usage import Space
from fastjournald.wal.workq_headers import JobHeads, id_prefix

Append: TypeAlias = Callable[[bytes, int, int], int]
"""Takes bytes, the number of records in them and the instant; returns their position."""

_pack_serial = Struct(">Q").pack
SEGMENT_SHIFT = OFFSET_BITS - 8
"""From a position without its last byte to the segment."""
_SERIAL_BASE = 1 << 63
"""The variant bits of a UUIDv4."""


class Ledger:
    """Encodes entries and keeps account of what is live in the log.

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
        self._removed_at = (-1, 0)
        self._removal_time = NO_TIME
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

    # --- records of entries ---------------------------------------------------------------------

    def stored(
        self,
        entry: Entry,
        now: int,
        taken: tuple[int, ...] | None = None,
        *,
        erases: bool = False,
    ) -> None:
        """Write the entry as it stands, under a fresh job id.

        Args:
            entry: Which.
            now: The present.
            taken: The keys that persistent SETs took from it while it is worked on: 0 is its URI,
                n the n-th link; None: none took any.
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
            command, begins = Command.SCHEDULE, not_before
            if not_before <= now - SCHEDULED_US_BACK:
                begins = now
            start = encode_time(begins)
        else:
            command, begins, start = Command.ADD, now, NO_TIME
        data = encode_job(
            command,
            time,
            job_id,
            self._head_of(entry, begins),
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

    def removed_before(
        self, job_id: bytes, now: int, replaced: int = removals.REPLACED_BY_NONE
    ) -> None:
        """A job is gone for another reason than a record that is there: it must not return.

        Args:
            job_id: Which.
            now: The present.
            replaced: How many records before this one that one stands which takes its place.
        """
        time = self._time_of_removal(now, replaced)
        self._append(encode_simple(Command.DELETE, time, job_id), 1, now)

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

    # --- what else stands in the log ------------------------------------------------------------

    def forget_record(self, key: bytes, now: int) -> bytes:
        """Return the record that says so."""
        return self._operation(envelope.Forget(key), now)

    def segment_start(self, previous: SegmentInfo | None, now: int) -> bytes:
        """Return the first record of a new segment; ``previous``: the one before it."""
        token = self.last_token
        if previous is None:
            return self._operation(envelope.SegmentStart(0, token), now)
        return self._operation(
            envelope.SegmentStart(previous.number, token, previous.bytes, previous.crc32c), now
        )

    def _time_at(self, now: int) -> bytes:
        if now != self._now:
            self._now = now
            self._time = encode_time(now)
        return self._time

    def _time_of_removal(self, now: int, replaced: int) -> bytes:
        """Return the TIME of a removal, see ``cmdlog.recovery.removals``."""
        if self._removed_at != (now, replaced):
            self._removed_at = now, replaced
            self._removal_time = removals.encode_removal_time(now, replaced)
        return self._removal_time

    def _operation(self, operation: envelope.Operation, now: int) -> bytes:
        time = self._time_at(now)
        job_id = self._prefix + _pack_serial(_SERIAL_BASE | self.next_serial())
        payload = envelope.pack(operation)
        return encode_job(Command.ADD, time, job_id, self._operation_head, payload, NO_TIME, time)
