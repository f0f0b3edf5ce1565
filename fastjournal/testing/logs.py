"""Segment builder: segments of a command log, record by record, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fastjournal.cmdlog.format.endings import COMPLETED, REWRITTEN
from fastjournal.cmdlog.format.envelope import PLAIN_NAME, Completion, Envelope, Failure, pack
from fastjournal.cmdlog.format.layout import NO_TIME, SEGMENT_HEADER, Command
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    End,
    Lease,
    Operation,
    SegmentStart,
    encode_operation,
)
from fastjournal.cmdlog.format.records import (
    decode_record,
    encode_head,
    encode_job,
    encode_record,
    encode_result,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.format.workq import TTL_MS_MAX, make_job_id, workq_name, workq_priority
from fastjournal.cmdlog.recovery.scan import scan_segment
from fastjournal.keys import parse_journal_key

START_US = 1_795_165_389_000_000
"""Default instant of the first record: 2026-11-20."""
_TTR_MS = 60_000


def in_zone(segment: bytes, minutes: int) -> bytes:
    """Return a segment whose times have another zone offset. The instants are the same.

    Args:
        segment: A whole segment.
        minutes: The offset, an i16; -1 means UTC.
    """
    zone = minutes.to_bytes(2, signed=True)
    records = [decode_record(segment, start)[0] for start, _, _ in scan_segment(segment).spans()]
    moved = (
        msgspec.structs.replace(
            record,
            time=record.time[:-2] + zone,
            not_before=record.not_before[:-2] + zone,
            created=record.created[:-2] + zone,
        )
        for record in records
    )
    return b"".join((SEGMENT_HEADER, *map(encode_record, moved)))


class SegmentBuilder:
    """One segment under construction. Job ids are numbers in the order of their use.

    Args:
        previous: Number of the segment before, for a segment of ours; None: a foreign one.
        now_us: Time of the records; tests move it.
        ids_from: The first job id; to be different for every segment of a log.
    """

    def __init__(
        self, previous: int | None = 0, *, now_us: int = START_US, ids_from: int = 1
    ) -> None:
        self.now_us = now_us
        self.data = bytearray(SEGMENT_HEADER)
        self.offsets: list[int] = []
        """Where each record starts."""
        self._next_id = ids_from
        if previous is not None:
            self.operation(SegmentStart(previous, 0, 0, 0, 0))

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def job_id(self) -> bytes:
        """Return a job id that was not used."""
        self._next_id += 1
        return make_job_id((self._next_id - 1).to_bytes(16))

    def record(self, record: bytes) -> None:
        """Append a whole record."""
        self.offsets.append(len(self.data))
        self.data += record

    def entry(
        self,
        key: bytes,
        *,
        timestamp: int | None = None,
        uri: bytes | None = None,
        value: bytes = b"value",
        arrival: int = 0,
        job_id: bytes | None = None,
        **fields: Any,
    ) -> bytes:
        """Append the record of an entry; return its job id.

        Args:
            key: A journal key makes a schedule record, any other an add record.
            timestamp: Timestamp of the write; None: ``now_us``, like ``created`` and ``modified``.
            uri: The second key.
            value: A buffer.
            arrival: Serial number.
            job_id: None: a fresh one.
            **fields: Further fields of ``Envelope``.
        """
        written = self.now_us if timestamp is None else timestamp
        envelope = Envelope(
            **dict.fromkeys(Envelope.__struct_fields__[: -len(Envelope.__struct_defaults__)], 0)
            | {"key": key, "uri": uri, "links": [], "value_type": 1, "value": value}
            | {"timestamp": written, "created": written, "modified": written, "arrival": arrival}
            | {"reason": None}
            | fields
        )
        job_id = self.job_id() if job_id is None else job_id
        parts = parse_journal_key(key)
        time = encode_time(self.now_us)
        if parts is None:
            head = encode_head(PLAIN_NAME.encode(), _TTR_MS, TTL_MS_MAX, 0, 0, 0)
            command, due = Command.ADD, NO_TIME
        else:
            priority = workq_priority(parts.priority)
            head = encode_head(workq_name(parts.domain), _TTR_MS, TTL_MS_MAX, priority, 0, 0)
            command, due = Command.SCHEDULE, encode_time(envelope.not_before)
        self.record(encode_job(command, time, job_id, head, pack(envelope), due, time))
        return job_id

    def foreign(
        self,
        name: bytes,
        payload: bytes = b"",
        *,
        job_id: bytes | None = None,
        ttr_ms: int = _TTR_MS,
        ttl_ms: int = TTL_MS_MAX,
        priority: int = 0,
        attempts_max: int = 0,
        due_us: int | None = None,
        created_us: int | None = None,
    ) -> bytes:
        """Append an add or schedule record as workq writes it; return its job id."""
        job_id = self.job_id() if job_id is None else job_id
        head = encode_head(name, ttr_ms, ttl_ms, priority, attempts_max, 0)
        created = encode_time(self.now_us if created_us is None else created_us)
        command, due = Command.ADD, NO_TIME
        if due_us is not None:
            command, due = Command.SCHEDULE, encode_time(due_us)
        time = encode_time(self.now_us)
        self.record(encode_job(command, time, job_id, head, payload, due, created))
        return job_id

    def operation(self, operation: Operation) -> None:
        """Append an operation."""
        time = encode_time(self.now_us)
        self.record(encode_operation(operation, time, self.job_id()))

    def simple(self, command: Command, job_id: bytes) -> None:
        """Append a delete, expire, start-attempt or timeout-attempt record."""
        self.record(encode_simple(command, encode_time(self.now_us), job_id))

    def result(self, command: Command, job_id: bytes, result: bytes = b"") -> None:
        """Append a complete or fail record with any result."""
        self.record(encode_result(command, encode_time(self.now_us), job_id, result))

    def complete(
        self, job_id: bytes, key: bytes, timestamp: int | None = None, *, how: int = COMPLETED
    ) -> None:
        """Append a complete record that leaves a tombstone; ``how``: ``cmdlog.format.endings``."""
        written = self.now_us if timestamp is None else timestamp
        self.result(Command.COMPLETE, job_id, pack(Completion(written, key, bytes((how,)))))

    def remove(self, job_id: bytes, how: int = REWRITTEN) -> None:
        """Append a complete record that leaves no tombstone."""
        self.result(Command.COMPLETE, job_id, pack(Completion(None, b"", bytes((how,)))))

    def remove_buried(self, job_id: bytes, how: int = REWRITTEN) -> None:
        """Append the removal of a buried job that leaves no tombstone: two records."""
        self.operation(End(1, job_id, None, b"", bytes((how,)), 0))
        self.simple(Command.DELETE, job_id)

    def fail(self, job_id: bytes, reason: bytes) -> None:
        """Append a fail record of ours: buried."""
        self.result(Command.FAIL, job_id, pack(Failure(reason, b"", 0, b"")))

    def lease(self, job_ids: Sequence[bytes], token: int) -> None:
        """Append a lease group."""
        self.operation(Lease.bare(len(job_ids), token))
        for job_id in job_ids:
            self.simple(Command.START_ATTEMPT, job_id)

    def batch(self, following: int) -> None:
        """Append the head of a batch."""
        self.operation(Batch(following))
