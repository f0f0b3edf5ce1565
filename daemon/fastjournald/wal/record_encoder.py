"""Records of the write-ahead log: encoder, and index of those that carry live entries. Pure.

The times of consecutive records are often equal, and so are the headers of their jobs (name, times
and priority, before the payload): both are encoded once. A native leaf (``_native/records.c``)
encodes whole bulks, so a change of a record of an entry, a completion or a start is one of it too.

The index has the facts that compaction needs of each record: job id, position and length, and the
content of other records about its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import TypeAlias

from fastjournal import _native
from fastjournal.cmdlog.format import envelope, workq
from fastjournal.cmdlog.format.endings import (
    ATTEMPT_MAX,
    BURIED,
    COMPLETED,
    HOW,
    NO_ATTEMPT,
    NO_DUE,
    NOT_LEASED,
    REPLACED,
    REWRITTEN,
    pack_attempt,
)
from fastjournal.cmdlog.format.envelope import (
    MAGIC,
    ORIGIN_SET,
    Completion,
    Failure,
    encode_fields,
    pack,
)
from fastjournal.cmdlog.format.layout import (
    JOB_ID_BYTES,
    NO_TIME,
    OFFSET_BITS,
    Command,
    encode_varint,
)
from fastjournal.cmdlog.format.operation_records import (
    End,
    Operation,
    encode_operation,
    operation_head,
)
from fastjournal.cmdlog.format.packed_entry import (
    FACTS_BYTES,
    PRIORITY_AT,
    SERIAL,
    pack_record,
    unpack_facts,
    unpack_record,
)
from fastjournal.cmdlog.format.records import (
    encode_head,
    encode_job,
    encode_result,
    encode_simple,
    encode_simples,
    encode_time,
)
from fastjournal.cmdlog.format.workq import SCHEDULED_US_BACK
from fastjournal.keys import split_journal_key
from fastjournal.limits import PRIORITY_DEFAULT, PRIORITY_MAX
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import (
    ARRIVAL_MAX,
    NOTHING,
    RUN_KEPT_BYTES,
    AccessTimes,
    Entry,
    Extra,
)
from fastjournald.wal.live_capture import SEGMENT_SHIFT, LiveCapture
from fastjournald.wal.segment_usage import SegmentUsage


class EntryRecords:
    """Index of the records that carry live entries.

    Args:
        usage: Live bytes by segment, updated together with it.
    """

    def __init__(self, usage: SegmentUsage) -> None:
        self._usage = usage
        self._segment = -1
        """The segment with the newest record of an entry."""
        self.live_bytes = 0
        """Bytes of the records that carry live entries."""
        self.amended: dict[bytes, Entry] = {}
        """Job id to the live entry about which there may be more records than its own."""
        self.superseded: dict[bytes, int] = {}
        """Job ids of entries worked on that a persistent SET superseded, to the timestamp of that
        SET, whose record says so; 0: their own record says it."""
        self.erasers: set[bytes] = set()
        """Job ids of live entries whose record erased a tombstone under their key."""
        self.trimmed: dict[bytes, int] = {}
        """Job id to the bytes of the value in its record that still count, where TRUNCATE changed
        it; zero bytes follow."""
        self.tables = usage.live, self.amended, self.superseded, self.erasers, self.trimmed
        """What the removal of a record changes, for the native leaves."""
        self.capture: LiveCapture | None = None
        """Takes the live entries of a snapshot that is being written; None: none is."""

    def add(self, entry: Entry, position: int, size: int, *, erases: bool) -> None:
        """Add the record that carries an entry from now on.

        Args:
            entry: The entry; it has its job id.
            position: Position of the record.
            size: Size of the record.
            erases: Whether it erased a tombstone under its key.
        """
        entry.facts += pack_record(position >> 8, position & 0xFF, size)
        if erases:
            self.erasers.add(entry.job_id)
        segment = position >> OFFSET_BITS
        if segment != self._segment:
            self._segment = segment
            self._usage.begins(entry.job_id, segment)
        self._usage.live[segment] += size
        self.live_bytes += size

    def add_new(self, entries: list[Entry], positions: list[int], sizes: list[int]) -> None:
        """Add the records of one append that carry new entries, at least one."""
        self.count_new(entries[0], positions[0], sum(sizes))
        for entry, position, size in zip(entries, positions, sizes, strict=True):
            entry.facts += pack_record(position >> 8, position & 0xFF, size)

    def count_new(self, first: Entry, position: int, size: int) -> None:
        """Count the live bytes of one append: its position, and the entry of its first record."""
        segment = position >> OFFSET_BITS
        if segment != self._segment:
            self._segment = segment
            self._usage.begins(first.job_id, segment)
        self._usage.live[segment] += size
        self.live_bytes += size

    def remove(self, entry: Entry) -> bytes:
        """Drop the record of an entry, which is dead; return the id of its job."""
        if self.capture is not None:
            self.capture.take_gone(entry)
        position, _, size = unpack_record(entry.facts, FACTS_BYTES)
        self.live_bytes -= size
        self._usage.live[position >> SEGMENT_SHIFT] -= size
        job_id = entry.run
        if job_id is None or len(job_id) != JOB_ID_BYTES:
            job_id = entry.job_id
        if self.erasers:
            self.erasers.discard(job_id)
        if self.trimmed:
            self.trimmed.pop(job_id, None)
        if self.amended.pop(job_id, None) is not None and self.superseded:
            self.superseded.pop(job_id, None)
        return job_id

    def amend(self, entry: Entry) -> bytes:
        """Note another record about an entry; return the id of its job."""
        if entry.extra is NOTHING:
            # so few entries have to be looked up in ``amended``
            entry.own_times()
        job_id = entry.job_id
        self.amended[job_id] = entry
        return job_id

    def unrecorded_superseded(self) -> list[bytes]:
        """Return the superseded jobs whose own records do not have that."""
        return [job_id for job_id, timestamp in self.superseded.items() if timestamp]


_HEADER_ENDS = [
    encode_varint(workq.workq_priority(priority)) + bytes(2) for priority in range(PRIORITY_MAX + 1)
]
"""End of a job's header, by the priority of its entry: priority, max attempts 0, max fails 0. workq
counts releases as attempts, and would fail a job that is only released."""
_HEADER_END_BYTES = len(_HEADER_ENDS[PRIORITY_DEFAULT])
"""Bytes of the end of priority 0 of workq."""
_PLAIN = envelope.PLAIN_NAME.encode()

if _native.leaves is not None:
    _native.leaves.bind_records(
        *(Entry, Extra, AccessTimes, Domain, NOTHING),
        *(_HEADER_ENDS, SCHEDULED_US_BACK, ARRIVAL_MAX),
    )


class WorkqHeaders:
    """Encodes headers of jobs. A domain keeps the part of those that do not expire.

    Args:
        lease_us: Default lease, which is the time to run in workq.
    """

    def __init__(self, lease_us: int) -> None:
        self._ttr_ms = workq.workq_ttr_ms(lease_us)
        self.plain = self._encode(_PLAIN, workq.TTL_MS_MAX, 0)
        """The header of an entry that is no journal entry and does not expire."""
        self.operation = operation_head(self._ttr_ms)
        """The header of every operation."""

    def of_domain(self, domain: Domain) -> bytes:
        """Return the header of a domain's jobs that do not expire, up to their priority."""
        header = self._encode(workq.workq_name(domain.name), workq.TTL_MS_MAX, 0)
        domain.job_header = header[:-_HEADER_END_BYTES]
        return domain.job_header

    def expiring(self, entry: Entry, begins: int) -> bytes:
        """Return the header of the job of an entry that expires.

        Args:
            entry: The entry.
            begins: Start of its time to live in workq.
        """
        ttl_ms = workq.workq_ttl_ms(entry.extra.expires, begins)
        if not entry.journal:
            return self._encode(_PLAIN, ttl_ms, 0)
        name = workq.workq_name(entry.domain.name)
        return self._encode(name, ttl_ms, workq.workq_priority(entry.priority))

    def _encode(self, name: bytes, ttl_ms: int, priority: int) -> bytes:
        return encode_head(name, self._ttr_ms, ttl_ms, priority, 0, 0)


# plain integers: indexing a list with a member of an enum is slow
_ADD, _SCHEDULE = Command.ADD.value, Command.SCHEDULE.value
_COMPLETE, _FAIL = Command.COMPLETE.value, Command.FAIL.value
_DELETE = Command.DELETE.value
_START, _TIMEOUT = Command.START_ATTEMPT.value, Command.TIMEOUT_ATTEMPT.value

_pack_serial = Struct(">Q").pack
_SERIAL_BASE = 1 << 63
"""The variant bits of a UUIDv4."""


Append: TypeAlias = Callable[[bytes, int, int], int]
"""Appends bytes, the number of records in them and the instant; returns their position."""


class JobIds:
    """Serial numbers of one run of the daemon, and ascending job ids (UUIDv4) made of them.

    Layout of an id: 8 bytes that are the same in one run, then the serial number as u64 with the
    variant bits of a UUIDv4. The id of a job that carries an entry ends in the entry's arrival
    number if possible, so that the entry need not store it (``tables.entry``).

    Args:
        seed: 8 random bytes, so that job ids differ between runs.
    """

    def __init__(self, seed: bytes) -> None:
        self.serial = 0
        """Last serial number, of the arrival of an entry or of a job id."""
        self.prefix = seed[:6] + bytes((0x40 | seed[6] & 0x0F,)) + seed[7:8]
        """First bytes of all ids of this run."""
        self.run = (self.prefix + _pack_serial(_SERIAL_BASE))[:RUN_KEPT_BYTES]
        """The bytes that an entry keeps of the id of its job."""
        self.entry_serial = 0
        """Serial number in the id of the newest job that carries an entry; they ascend."""

    def next_serial(self) -> int:
        """Return a number greater than all before, also of earlier runs."""
        self.serial += 1
        return self.serial

    def next_id(self) -> bytes:
        """Return the id of a new job that carries no entry."""
        return self.prefix + _pack_serial(_SERIAL_BASE | self.next_serial())

    def assign(self, entry: Entry, arrival: int) -> bytes:
        """Assign the id of a new job to an entry, and return it."""
        if self.entry_serial < arrival <= ARRIVAL_MAX:
            self.entry_serial = arrival
            entry.run = self.run
            return self.prefix + _pack_serial(_SERIAL_BASE | arrival)
        self.entry_serial = self.next_serial()
        job_id = entry.run = self.prefix + _pack_serial(_SERIAL_BASE | self.entry_serial)
        return job_id


def attempt_of(entry: Entry) -> bytes:
    """Return due time, serial number and attempt of an entry, in the encoding of facts."""
    _, not_before, serial, _, created, _ = unpack_facts(entry.facts)
    extra = entry.extra
    due = extra.due
    if not due:
        due = extra.changed or created
        due = max(due, not_before)
    attempt = extra.attempts + 1
    attempt = min(attempt, ATTEMPT_MAX)
    return pack_attempt(due, serial >> 16, serial & 0xFFFF, attempt)


def _last_fields(
    extra: Extra, taken: tuple[int, ...] | None, origin: int, *, erases: bool
) -> tuple[object, ...]:
    """Return the last fields of an envelope that do not have their default."""
    if origin or extra.due:
        return (taken or (), erases, extra.error, extra.due, origin)
    if extra.error is not None:
        return (taken or (), erases, extra.error)
    return (taken or (), erases) if erases or taken is not None else ()


class RecordEncoder:
    """Encodes log records.

    Args:
        ids: The job ids of this run.
        lease_us: Default lease, which is the time to run in workq.
    """

    def __init__(self, ids: JobIds, lease_us: int) -> None:
        self._ids = ids
        headers = WorkqHeaders(lease_us)
        self._plain_header = headers.plain
        self._header_of_domain = headers.of_domain
        self._expiring_header = headers.expiring
        self._operation_header = headers.operation
        self._now = -1
        self._time = NO_TIME

    @property
    def last_serial(self) -> int:
        """The highest serial number so far."""
        return self._ids.serial

    def entry(
        self,
        entry: Entry,
        now: int,
        taken: tuple[int, ...] | None = None,
        origin: int = ORIGIN_SET,
        *,
        erases: bool = False,
    ) -> bytes:
        """Return the record that carries the current state of an entry, under a new job id.

        Args:
            entry: The entry; its value is in memory.
            now: Present instant.
            taken: Keys that persistent SETs took from it during its lease: 0 is its URI, n the n-th
                link; None: none.
            origin: Reason of the write, see ``Envelope.origin``.
            erases: There was a tombstone under its key, or there may be one earlier in the log.
        """
        value = entry.value
        assert isinstance(value, bytes), "a cold value is read before its entry is written anew"
        _, not_before, arrival, timestamp, created, value_type = unpack_facts(entry.facts)
        extra = entry.extra
        time = self._time if now == self._now else self._time_at(now)
        payload = MAGIC + encode_fields(
            (
                entry.key,
                entry.uri,
                extra.links or (),
                value_type,
                value,
                timestamp,
                created,
                extra.changed or created,
                arrival,
                not_before,
                extra.expires,
                extra.ttl,
                extra.attempts,
                extra.token,
                0 if taken is None else extra.superseded,
                extra.reason,
                extra.first_due,
                *_last_fields(extra, taken, origin, erases=erases),
            )
        )
        domain = entry.domain.name
        if domain:
            command, begins, start = _SCHEDULE, now, time
            if not_before > now - SCHEDULED_US_BACK:
                begins, start = not_before, encode_time(not_before)
            born = time if created == now else encode_time(created)
        else:
            # workq counts from here; the envelope has the time of creation
            command, begins, start, born = _ADD, now, NO_TIME, time
        if extra.expires:
            header = self._expiring_header(entry, begins)
        elif domain:
            header = entry.domain.job_header or self._header_of_domain(entry.domain)
            header += _HEADER_ENDS[entry.facts[PRIORITY_AT]]
        else:
            header = self._plain_header
        return encode_job(
            command,
            time,
            self._ids.assign(entry, arrival),
            header,
            payload,
            start,
            born,
        )

    def new_entries(self, entries: list[Entry], now: int) -> list[bytes]:
        """Return the records of entries as ``entry`` does, set at this instant.

        They have only keys, a value, and possibly a first due time.
        """
        time, assign = self._time_at(now), self._ids.assign
        earliest = now - SCHEDULED_US_BACK
        begun, start = now, time
        records = []
        for entry in entries:
            facts, domain = entry.facts, entry.domain
            _, not_before, arrival, timestamp, created, value_type = unpack_facts(facts)
            payload = MAGIC + encode_fields(
                (
                    *(entry.key, entry.uri, (), value_type, entry.value, timestamp, created, now),
                    *(arrival, not_before, 0, 0, 0, 0, 0, None, entry.extra.first_due),
                )
            )
            if domain.name:
                header = domain.job_header or self._header_of_domain(domain)
                header += _HEADER_ENDS[facts[PRIORITY_AT]]
                begins = not_before if not_before > earliest else now
                if begins != begun:
                    begun, start = begins, encode_time(begins)
                command, starts = _SCHEDULE, start
                born = time if created == now else encode_time(created)
            else:
                header = self._plain_header
                command, starts, born = _ADD, NO_TIME, time
            job_id = assign(entry, arrival)
            records.append(encode_job(command, time, job_id, header, payload, starts, born))
        return records

    def store_entries(
        self,
        entries: list[Entry],
        now: int,
        replaced: Mapping[int, tuple[Entry, int]],
        records: EntryRecords,
        append: Append,
    ) -> bool:
        """Carry out ``Journal.stored_new`` natively; return whether that was possible."""
        if _native.leaves is None or records.capture is not None:
            return False
        ids = self._ids
        stored = _native.leaves.store_entries(
            entries,
            now,
            replaced,
            records.tables,
            ids.prefix,
            ids.run,
            ids.entry_serial,
            self._plain_header,
            self._header_of_domain,
            append,
        )
        if stored is None:
            return False
        ids.entry_serial, position, size, dead = stored
        records.live_bytes -= dead
        records.count_new(entries[0], position, size)
        return True

    def operation(self, operation: Operation, now: int) -> bytes:
        """Return the record of an operation."""
        time = self._time_at(now)
        return encode_operation(operation, time, self._ids.next_id(), self._operation_header)

    @staticmethod
    def facts(entry: Entry, how: int) -> bytes:
        """Return the facts of an entry whose lease or life ends; see ``cmdlog.format.endings``."""
        leased = entry.extra.leased
        if leased and how == COMPLETED:
            return leased
        if not leased and REPLACED <= how < REWRITTEN:
            return NO_DUE + entry.facts[SERIAL] + NO_ATTEMPT + HOW[how]
        return (leased or attempt_of(entry) + NOT_LEASED) + HOW[how]

    def completion(
        self, job_id: bytes, entry: Entry, timestamp: int | None, now: int, how: int = COMPLETED
    ) -> bytes:
        """Return the record that completes a job, with its tombstone, if any."""
        facts = self.facts(entry, how)
        if timestamp is None:
            fields: tuple[object, ...]
            fields = (None, entry.domain.name, facts, entry.facts[PRIORITY_AT])
        else:
            fields = (timestamp, entry.key, facts)
        return encode_result(_COMPLETE, self._time_at(now), job_id, MAGIC + encode_fields(fields))

    def pack_completions(
        self, entries: list[tuple[Entry, int]], now: int, records: EntryRecords
    ) -> bytes | None:
        """Return the records of ``Journal.completed_all`` natively; None: it has to make them."""
        if _native.leaves is None or records.capture is not None:
            return None
        data: bytes | None
        data, dead = _native.leaves.pack_completions(entries, now, records.tables)
        records.live_bytes -= dead
        return data

    def completed_work(
        self, done: list[tuple[bytes, tuple[int, bytes, bytes]]], now: int
    ) -> list[bytes]:
        """Return the records that workers completed jobs: of ids, and of ``Completion``s."""
        time = self._time_at(now)
        return [
            encode_result(_COMPLETE, time, job_id, MAGIC + encode_fields(fields))
            for job_id, fields in done
        ]

    def replacements(self, done: list[tuple[bytes, Entry, int]], now: int) -> list[bytes]:
        """Return the removals of waiting entries, each of which the record before it replaces.

        ``done``: job ids, entries, and timestamps of the tombstones.
        """
        time, how = self._time_at(now), NO_ATTEMPT + HOW[REPLACED + 1]
        return [
            encode_result(
                _COMPLETE,
                time,
                job_id,
                MAGIC + encode_fields((timestamp, entry.key, NO_DUE + entry.facts[SERIAL] + how)),
            )
            for job_id, entry, timestamp in done
        ]

    def completions(
        self, done: list[tuple[bytes, Entry, int]], now: int, how: int = COMPLETED
    ) -> list[bytes]:
        """Return the records as ``completion`` does, of job ids, entries and timestamps."""
        time, how_ended = self._time_at(now), HOW[how]
        records: list[bytes] = []
        for job_id, entry, timestamp in done:
            facts = (entry.extra.leased or attempt_of(entry) + NOT_LEASED) + how_ended
            result = MAGIC + encode_fields((timestamp, entry.key, facts))
            records.append(encode_result(_COMPLETE, time, job_id, result))
        return records

    def end(
        self,
        job_id: bytes,
        entry: Entry,
        timestamp: int | None,
        now: int,
        how: int,
        *,
        following: int = 1,
    ) -> bytes:
        """Return the operation of the end of a lease, or of a buried job."""
        key = entry.domain.name if timestamp is None else entry.key
        facts = self.facts(entry, how)
        end = End(following, job_id, timestamp, key, facts, entry.facts[PRIORITY_AT])
        return self.operation(end, now)

    def rewritten(self, job_id: bytes, now: int, distance: int, *, buried: bool) -> list[bytes]:
        """Return the removal of a job whose entry was written again ``distance`` records before."""
        return self.removal(job_id, b"", bytes((REWRITTEN + distance,)), now, buried=buried)

    def removal(
        self, job_id: bytes, key: bytes, facts: bytes, now: int, *, buried: bool
    ) -> list[bytes]:
        """Return the removal of a job without a tombstone; ``buried``: whether workq failed it."""
        parts = split_journal_key(key)
        domain, priority = (b"", 0) if parts is None else parts[:2]
        if buried:
            end = End(1, job_id, None, domain, facts, priority)
            return [self.operation(end, now), self.deletion(job_id, now)]
        result = pack(Completion(None, domain, facts, priority))
        return [encode_result(_COMPLETE, self._time_at(now), job_id, result)]

    def deletion(self, job_id: bytes, now: int) -> bytes:
        """Return the record that deletes a buried job; it comes after its operation."""
        return encode_simple(_DELETE, self._time_at(now), job_id)

    def failure(self, job_id: bytes, entry: Entry, now: int, how: int = BURIED) -> bytes:
        """Return the record that a job failed: its entry is buried."""
        if how == REWRITTEN:
            failure = Failure(entry.reason or b"", facts=bytes((how,)), domain=b"", priority=0)
        else:
            domain, priority = entry.domain.name, entry.facts[PRIORITY_AT]
            failure = Failure(entry.reason or b"", domain, priority, self.facts(entry, how))
        return encode_result(_FAIL, self._time_at(now), job_id, pack(failure))

    def starts(self, job_ids: Iterable[bytes], now: int) -> list[bytes]:
        """Return the records of the start of an attempt of each of these jobs."""
        return encode_simples(_START, self._time_at(now), job_ids)

    def timeout(self, job_id: bytes, now: int) -> bytes:
        """Return the record of the end of an attempt of a job."""
        return encode_simple(_TIMEOUT, self._time_at(now), job_id)

    def _time_at(self, now: int) -> bytes:
        if now != self._now:
            self._now = now
            self._time = encode_time(now)
        return self._time
