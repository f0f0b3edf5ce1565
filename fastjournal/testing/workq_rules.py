"""Replay rules of a real workq-server, in executable form.

A model, compared with recorded logs of a real server, and with a real server where one is
installed (tests/format): it refuses what the server refuses at start, and otherwise has the same
jobs in the same states. The logs of fastjournald are compared with it.

Life. A scheduled job lives until its scheduled time + ttl, an added one until its creation + ttl;
the TIME of a record has no meaning. A job whose life is over is skipped before anything else of it
is checked. An added job with a scheduled time, which workq's own clients cannot make, is refused if
that + ttl is over.

Order. Jobs wait by priority, scheduled time, time of creation and id, each in nanoseconds as 64
bits hold them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from struct import Struct
from uuid import UUID

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, UNIX_SECONDS, Command, segment_name
from fastjournal.cmdlog.format.records import Record, decode_record
from fastjournal.cmdlog.format.workq import (
    ATTEMPTS_MAX,
    TTL_MS_MAX,
    TTR_MS_MAX,
    is_job_id,
    is_workq_name,
)
from fastjournal.cmdlog.locks import list_segments
from fastjournal.disk import OsDisk
from fastjournal.errors import LogCorruptError
from fastjournal.limits import LOG_PAYLOAD_BYTES_MAX


class WorkqRefusalError(AssertionError):
    """workq would not start on this log."""


class WorkqJobState(IntEnum):
    """State of a job, by workq's numbers."""

    NEW = 0
    COMPLETED = 1
    FAILED = 2
    PENDING = 3
    LEASED = 4


_PROCESSED = (WorkqJobState.COMPLETED, WorkqJobState.FAILED)
_TIME = Struct(">xqi")


@dataclass
class WorkqJob:
    """A job as workq shows it after the replay."""

    record: Record
    state: WorkqJobState = WorkqJobState.NEW
    attempts: int = 0
    result: bytes | None = None
    is_ready: bool = False
    """It is in the list of ready jobs."""
    is_asleep: bool = False
    """It is in the list of scheduled jobs; that it is in both can be."""

    def dequeue(self) -> None:
        """Take it out of one list, as workq does."""
        if self.is_ready:
            self.is_ready = False
        else:
            self.is_asleep = False

    def awake(self, now_us: int) -> None:
        """Move it to the ready jobs if its time has come."""
        if self.is_asleep and (self.record.not_before_us or 0) <= now_us:
            self.is_ready, self.is_asleep = True, False


@dataclass
class WorkqState:
    """State of workq after a replay."""

    now_us: int
    jobs: dict[UUID, WorkqJob] = field(default_factory=dict)

    def is_over(self, begins_us: int | None, record: Record) -> bool:
        """Whether the life of a job is over that begins then; None is the year 1."""
        return begins_us is None or begins_us + record.ttl_ms * 1000 <= self.now_us

    def ready(self, name: str) -> list[UUID]:
        """Return the jobs of a queue that may start, in workq's order."""
        return self._waiting(name, lambda job: job.is_ready)

    def scheduled(self, name: str) -> list[UUID]:
        """Return the jobs of a queue whose time has not come, in the order workq lists them."""
        return self._waiting(name, lambda job: job.is_asleep)

    def _waiting(self, name: str, is_in_list: Callable[[WorkqJob], bool]) -> list[UUID]:
        found = [
            (_order(job.record), number)
            for number, job in self.jobs.items()
            if job.record.name == name and is_in_list(job)
        ]
        return [number for _, number in sorted(found)]


def assert_workq_accepts(
    log: str | os.PathLike[str] | Iterable[bytes], *, now_us: int = 0
) -> WorkqState:
    """Replay a log as workq does.

    Args:
        log: A log directory, or the contents of its segments in order.
        now_us: workq's clock; at 0 no job has expired, so that every one is validated.

    Returns:
        The state after the replay.

    Raises:
        WorkqRefusalError: workq would refuse it; the message says where and why.
    """
    state = WorkqState(now_us)
    for number, content in _segments(log):
        if not content.startswith(SEGMENT_HEADER):
            raise WorkqRefusalError(f"segment {number}: no header")
        offset = len(SEGMENT_HEADER)
        while offset < len(content):
            try:
                record, end = decode_record(content, offset)
                _apply(state, record)
            except (LogCorruptError, WorkqRefusalError) as error:
                raise WorkqRefusalError(f"segment {number}, offset {offset}: {error}") from error
            offset = end
    for job in state.jobs.values():
        job.awake(now_us)
    return state


def _segments(log: str | os.PathLike[str] | Iterable[bytes]) -> Iterable[tuple[int, bytes]]:
    if isinstance(log, str | os.PathLike):
        directory = Path(log)
        for number in list_segments(OsDisk(), str(directory)):
            yield number, (directory / segment_name(number)).read_bytes()
    else:
        yield from enumerate(log, 1)


def _refuse_if(wrong: bool, why: str) -> None:
    if wrong:
        raise WorkqRefusalError(why)


def _apply(state: WorkqState, record: Record) -> None:
    number = UUID(bytes=record.job_id)
    if record.command <= Command.SCHEDULE:
        _add(state, number, record)
        return
    _refuse_if(not is_job_id(record.job_id), "the job id is no UUIDv4")
    _refuse_if(len(record.result) > LOG_PAYLOAD_BYTES_MAX, "the result is over 1 MiB")
    job = state.jobs.get(number)
    if job is None:
        return
    match record.command:
        case Command.DELETE | Command.EXPIRE:
            del state.jobs[number]
        case Command.START_ATTEMPT:
            _refuse_if(job.state is WorkqJobState.LEASED, "Job already leased")
            _refuse_if(job.state in _PROCESSED, "Job already processed")
            _refuse_if(job.attempts >= ATTEMPTS_MAX, "over 255 attempts")
            job.dequeue()
            job.state = WorkqJobState.LEASED
            job.attempts += 1
        case Command.TIMEOUT_ATTEMPT if job.state not in _PROCESSED:
            last = 0 < job.record.max_attempts <= job.attempts
            job.is_ready = job.is_ready or not last
            job.state = WorkqJobState.FAILED if last else WorkqJobState.PENDING
            job.result = b"" if last else None
        case Command.COMPLETE | Command.FAIL:
            _refuse_if(job.state in _PROCESSED, "Duplicate result")
            job.dequeue()
            completed = record.command is Command.COMPLETE
            job.state = WorkqJobState.COMPLETED if completed else WorkqJobState.FAILED
            job.result = record.result


def _add(state: WorkqState, number: UUID, record: Record) -> None:
    scheduled = record.command is Command.SCHEDULE
    if state.is_over(record.not_before_us if scheduled else record.created_us, record):
        return
    if why := _fault_of(record):
        raise WorkqRefusalError(why)
    timed = not scheduled and record.not_before_us is not None
    _refuse_if(timed and state.is_over(record.not_before_us, record), "Invalid Time")
    _refuse_if(number in state.jobs, "Duplicate job")
    state.jobs[number] = WorkqJob(record, is_ready=not scheduled, is_asleep=scheduled)


def _order(record: Record) -> tuple[int, int, int]:
    return -record.priority, _unix_ns(record.not_before), _unix_ns(record.created)


def _unix_ns(time: bytes) -> int:
    """Return a time as Go's ``UnixNano`` does, which wraps outside of the years 1678 to 2262."""
    seconds, nanoseconds = _TIME.unpack_from(time)
    wrapped = (seconds - UNIX_SECONDS) * 1_000_000_000 + nanoseconds + 2**63
    return int(wrapped % 2**64 - 2**63)


def _fault_of(record: Record) -> str:
    """Return why workq refuses a job by itself; empty: it takes it."""
    if not is_job_id(record.job_id):
        return "the job id is no UUIDv4"
    if not is_workq_name(record.name.encode("latin-1")):
        return f"name {record.name!r}"
    if not 1 <= record.ttr_ms <= TTR_MS_MAX:
        return f"ttr {record.ttr_ms} ms"
    if not 1 <= record.ttl_ms <= TTL_MS_MAX:
        return f"ttl {record.ttl_ms} ms"
    if max(record.max_attempts, record.max_fails) > ATTEMPTS_MAX:
        return "max attempts or fails"
    if len(record.payload) > LOG_PAYLOAD_BYTES_MAX:
        return "the payload is over 1 MiB"
    return ""
