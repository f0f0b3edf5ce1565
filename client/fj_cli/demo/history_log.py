"""Log records of a simulated history, appended to segments as the daemon appends them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fastjournal.cmdlog.format.endings import (
    BURIED,
    COMPLETED,
    DUE_BYTES,
    LEASE_LOST,
    REPLACED,
    UNKNOWN,
    WAITS,
    pack_ending,
)
from fastjournal.cmdlog.format.envelope import Completion, Envelope, Failure, pack
from fastjournal.cmdlog.format.layout import Command, SegmentInfo
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Delay,
    End,
    Failed,
    Lease,
    Operation,
    SegmentStart,
    encode_operation,
)
from fastjournal.cmdlog.format.records import (
    encode_head,
    encode_job,
    encode_result,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.format.workq import TTL_MS_MAX, make_job_id, workq_name, workq_priority
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import OsDisk
from fastjournal.keys import parse_journal_key

_TTR_MS = 60_000


class _LoggedJob(msgspec.Struct):
    """State of a job, for its next records."""

    key: bytes
    serial: int
    due: int
    attempts: int = 0
    lease_start: int = 0
    buried: bool = False

    @property
    def place(self) -> tuple[bytes, int]:
        """Domain and priority."""
        parts = parse_journal_key(self.key)
        assert parts is not None
        return parts.domain, parts.priority

    def facts(self, how: int) -> bytes:
        """Return the facts of a record about it."""
        return pack_ending(how, self.serial, self.attempts + 1, self.due, self.lease_start)


class HistoryLog:
    """Command log with the records of entries, leases and their ends, at any instants.

    Args:
        directory: Directory of the log; it is created.
        segment_bytes: Size from which on a segment is sealed.
    """

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        disk = OsDisk()
        disk.mkdir(str(directory))
        self._ids = 0
        self._serial = 0
        self._jobs: dict[bytes, _LoggedJob] = {}
        self._token = 0
        self._writer = LogWriter(
            disk,
            str(directory),
            segment_bytes_max=segment_bytes,
            sync=SyncPolicy.OS,
            active=None,
            sealed=[],
            segment_start=self._segment_start,
        )

    def set(
        self,
        key: bytes,
        uri: bytes,
        now_us: int,
        not_before: int,
        replaces: bytes | None,
    ) -> bytes:
        """Append a SET; return the job id.

        Args:
            key: Journal key.
            uri: Second key.
            now_us: Instant of the SET, in microseconds since the Unix epoch.
            not_before: Instant before which it must not start.
            replaces: Job id of the entry whose URI it takes; None: there is none.
        """
        parts = parse_journal_key(key)
        assert parts is not None
        job = _LoggedJob(key, self._serial + 1, max(not_before, now_us))
        self._serial = job.serial
        envelope = Envelope(
            key=key,
            uri=uri,
            links=[],
            value_type=1,
            value=uri,
            timestamp=now_us,
            created=now_us,
            modified=now_us,
            arrival=job.serial,
            not_before=not_before,
            expires=0,
            ttl=0,
            attempts=0,
            token=0,
            superseded=0,
            reason=None,
            first_due=0,
        )
        head = encode_head(
            workq_name(parts.domain), _TTR_MS, TTL_MS_MAX, workq_priority(parts.priority), 0, 0
        )
        job_id, time = self._job_id(), encode_time(now_us)
        due = encode_time(not_before)
        records = [encode_job(Command.SCHEDULE, time, job_id, head, pack(envelope), due, time)]
        self._jobs[job_id] = job
        if replaces is not None:
            records += self._replaced(replaces, now_us)
        self._append(records, now_us)
        return job_id

    def lease(self, job_id: bytes, now_us: int, token: int) -> None:
        """Append a lease of one job that ends at ``token``."""
        self._token = max(self._token, token)
        job = self._jobs[job_id]
        domain, priority = job.place
        lease = Lease(
            1,
            token,
            facts=job.facts(UNKNOWN)[:DUE_BYTES],
            priorities=bytes((priority,)),
            numbers=bytes((job.attempts + 1,)),
            domains=[domain, 1],
            again=False,
            attempts=0,
            since=0,
        )
        head = self._operation(lease, now_us)
        self._append([head, self._simple(Command.START_ATTEMPT, job_id, now_us)], now_us)
        job.lease_start = now_us

    def complete(self, job_id: bytes, now_us: int) -> None:
        """Append the completion of a leased job."""
        self._append([self._removal(job_id, now_us, COMPLETED)], now_us)

    def lose(self, job_id: bytes, now_us: int) -> None:
        """Append the end of a lease by time."""
        job = self._jobs[job_id]
        domain, priority = job.place
        end = End(1, job_id, None, domain, job.facts(WAITS | LEASE_LOST), priority)
        timeout = self._simple(Command.TIMEOUT_ATTEMPT, job_id, now_us)
        self._append([self._operation(end, now_us), timeout], now_us)
        job.attempts, job.due, job.lease_start = job.attempts + 1, now_us, 0

    def fail(self, job_id: bytes, error: bytes, now_us: int, retry_us: int) -> None:
        """Append a failed attempt, after which the job waits until ``retry_us``."""
        job = self._jobs[job_id]
        failed = Failed(job_id, job.attempts + 1, error, *job.place, job.facts(UNKNOWN))
        records = [
            self._operation(Batch(3), now_us),
            self._operation(failed, now_us),
            self._operation(Delay(job_id, retry_us), now_us),
            self._simple(Command.TIMEOUT_ATTEMPT, job_id, now_us),
        ]
        self._append(records, now_us)
        job.attempts, job.due, job.lease_start = job.attempts + 1, retry_us, 0

    def bury(self, job_id: bytes, reason: bytes, now_us: int) -> None:
        """Append the burial of a leased job."""
        job = self._jobs[job_id]
        result = pack(Failure(reason, *job.place, job.facts(BURIED)))
        time = encode_time(now_us)
        self._append([encode_result(Command.FAIL, time, job_id, result)], now_us)
        job.buried, job.lease_start = True, 0

    def close(self) -> list[SegmentInfo]:
        """Seal the last segment; return all."""
        self._writer.roll()
        self._writer.close()
        return self._writer.sealed

    def _append(self, records: list[bytes], now_us: int) -> None:
        self._writer.append(b"".join(records), len(records), now_us)
        self._writer.write()

    def _segment_start(self, previous: SegmentInfo | None, now_us: int) -> bytes:
        start = SegmentStart(0, self._token, last_serial=self._serial, bytes=0, crc32c=0)
        if previous is not None:
            start.previous, start.bytes = previous.number, previous.bytes
            start.crc32c = previous.crc32c
        return self._operation(start, now_us)

    def _operation(self, operation: Operation, now_us: int) -> bytes:
        return encode_operation(operation, encode_time(now_us), self._job_id())

    def _simple(self, command: Command, job_id: bytes, now_us: int) -> bytes:
        return encode_simple(command, encode_time(now_us), job_id)

    def _replaced(self, job_id: bytes, now_us: int) -> list[bytes]:
        """Return the records that remove a replaced entry, directly after that of the new one."""
        if not self._jobs[job_id].buried:
            return [self._removal(job_id, now_us, REPLACED + 1)]
        # workq refuses to complete a failed job
        job = self._jobs.pop(job_id)
        end = End(1, job_id, now_us, job.key, job.facts(REPLACED + 1), 0)
        return [self._operation(end, now_us), self._simple(Command.DELETE, job_id, now_us)]

    def _removal(self, job_id: bytes, now_us: int, how: int) -> bytes:
        job = self._jobs.pop(job_id)
        result = pack(Completion(now_us, job.key, job.facts(how)))
        return encode_result(Command.COMPLETE, encode_time(now_us), job_id, result)

    def _job_id(self) -> bytes:
        self._ids += 1
        return make_job_id(self._ids.to_bytes(16))
