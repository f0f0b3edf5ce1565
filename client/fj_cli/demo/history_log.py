"""Log records of a simulated history, appended to segments as the daemon appends them."""

from __future__ import annotations

from pathlib import Path

from fastjournal.cmdlog.format.envelope import Completion, Envelope, Failure, pack
from fastjournal.cmdlog.format.layout import Command
from fastjournal.cmdlog.format.operation_records import (
    Batch,
    Delay,
    Failed,
    Lease,
    Operation,
    SegmentStart,
    Tombstone,
    encode_operation,
)
from fastjournal.cmdlog.format.records import (
    encode_head,
    encode_job,
    encode_result,
    encode_simple,
    encode_time,
)
from fastjournal.cmdlog.format.removal_time import REPLACED_BY_NONE, encode_removal_time
from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournal.cmdlog.format.workq import TTL_MS_MAX, make_job_id, workq_name, workq_priority
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import OsDisk
from fastjournal.keys import parse_journal_key

_TTR_MS = 60_000


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
        self._arrival = 0
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
        replaces: tuple[bytes, bytes, bool] | None,
    ) -> bytes:
        """Append a SET; return the job id.

        Args:
            key: Journal key.
            uri: Second key.
            now_us: Instant of the SET, in microseconds since the Unix epoch.
            not_before: Instant before which it must not start.
            replaces: Job id and key of the entry whose URI it takes, and whether that is buried.
        """
        parts = parse_journal_key(key)
        assert parts is not None
        self._arrival += 1
        envelope = Envelope(
            key=key,
            uri=uri,
            links=[],
            value_type=1,
            value=uri,
            timestamp=now_us,
            created=now_us,
            modified=now_us,
            arrival=self._arrival,
            not_before=not_before,
        )
        head = encode_head(
            workq_name(parts.domain), _TTR_MS, TTL_MS_MAX, workq_priority(parts.priority), 0, 0
        )
        job_id, time = self._job_id(), encode_time(now_us)
        due = encode_time(not_before)
        records = [encode_job(Command.SCHEDULE, time, job_id, head, pack(envelope), due, time)]
        if replaces is not None:
            records += self._replaced(*replaces, now_us)
        self._append(records, now_us)
        return job_id

    def lease(self, job_id: bytes, now_us: int, token: int) -> None:
        """Append a lease of one job that ends at ``token``."""
        self._token = max(self._token, token)
        head = self._operation(Lease(1, token), now_us)
        self._append([head, self._simple(Command.START_ATTEMPT, job_id, now_us)], now_us)

    def complete(self, job_id: bytes, key: bytes, now_us: int) -> None:
        """Append the completion of a leased job."""
        self._append([self._removal(job_id, key, now_us, REPLACED_BY_NONE)], now_us)

    def lose(self, job_id: bytes, now_us: int) -> None:
        """Append the end of a lease by time."""
        self._append([self._simple(Command.TIMEOUT_ATTEMPT, job_id, now_us)], now_us)

    def fail(self, job_id: bytes, attempts: int, error: bytes, now_us: int, retry_us: int) -> None:
        """Append a failed attempt, after which the job waits until ``retry_us``."""
        records = [
            self._operation(Batch(3), now_us),
            self._operation(Failed(job_id, attempts, error), now_us),
            self._operation(Delay(job_id, retry_us), now_us),
            self._simple(Command.TIMEOUT_ATTEMPT, job_id, now_us),
        ]
        self._append(records, now_us)

    def bury(self, job_id: bytes, reason: bytes, now_us: int) -> None:
        """Append the burial of a leased job."""
        time = encode_time(now_us)
        self._append([encode_result(Command.FAIL, time, job_id, pack(Failure(reason)))], now_us)

    def close(self) -> list[SegmentInfo]:
        """Seal the last segment; return all."""
        self._writer.roll()
        self._writer.close()
        return self._writer.sealed

    def _append(self, records: list[bytes], now_us: int) -> None:
        self._writer.append(b"".join(records), len(records), now_us)
        self._writer.write()

    def _segment_start(self, previous: SegmentInfo | None, now_us: int) -> bytes:
        start = SegmentStart(0, self._token)
        if previous is not None:
            start = SegmentStart(previous.number, self._token, previous.bytes, previous.crc32c)
        return self._operation(start, now_us)

    def _operation(self, operation: Operation, now_us: int) -> bytes:
        return encode_operation(operation, encode_time(now_us), self._job_id())

    def _simple(self, command: Command, job_id: bytes, now_us: int) -> bytes:
        return encode_simple(command, encode_time(now_us), job_id)

    def _replaced(self, job_id: bytes, key: bytes, buried: bool, now_us: int) -> list[bytes]:
        """Return the records, right behind that of a new entry, that it takes another's place."""
        if not buried:
            return [self._removal(job_id, key, now_us, 1)]
        # workq refuses to complete a failed job
        return [
            self._operation(Batch(2), now_us),
            encode_simple(Command.DELETE, encode_removal_time(now_us, 2), job_id),
            self._operation(Tombstone(key, now_us), now_us),
        ]

    def _removal(self, job_id: bytes, key: bytes, now_us: int, replaced: int) -> bytes:
        time = encode_removal_time(now_us, replaced)
        return encode_result(Command.COMPLETE, time, job_id, pack(Completion(now_us, key)))

    def _job_id(self) -> bytes:
        self._ids += 1
        return make_job_id(self._ids.to_bytes(16))
