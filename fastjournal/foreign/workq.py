"""The command log of a workq-server: reader and writer.

The reader reads to the end, then yields the jobs one by one. A job becomes the entry that a daemon
makes of it which starts on the log (``cmdlog.recovery.workq_jobs``), with two differences: its
worker at the end has lost it with the server, and the attempts are counted again from 0. Reading
keeps less than a kilobyte for each live job; the values are read again, a segment at a time, when
the items are requested.

The writer writes jobs of workq's own, with the value as payload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b

from fastjournal.cmdlog.format.layout import (
    NO_TIME,
    SEGMENT_HEADER,
    Command,
    segment_name,
    unpack_position,
)
from fastjournal.cmdlog.format.records import (
    decode_record,
    encode_head,
    encode_job,
    encode_result,
    encode_time,
)
from fastjournal.cmdlog.format.workq import (
    TTL_MS_MAX,
    TTR_MS_MAX,
    is_job_id,
    make_job_id,
    workq_name,
    workq_priority,
    workq_ttl_ms,
    workq_ttr_ms,
)
from fastjournal.cmdlog.locks import APPEND_LOCK, lock_append
from fastjournal.cmdlog.recovery.inspect_log import Progress, inspect_log
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.segment_reader import read_segment
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError
from fastjournal.foreign.formats import Format, ours, require_format
from fastjournal.foreign.items import (
    OTHER_LIMITS,
    Fault,
    FittedName,
    Item,
    OnProgress,
    QueueCounts,
    QueueNames,
)
from fastjournal.foreign.journal_files import JournalFiles
from fastjournal.foreign.snapshot_entries import SnapshotEntry
from fastjournal.limits import LOG_PAYLOAD_BYTES_MAX, SEGMENT_BYTES_MAX

_UNREADABLE = ("damaged", "missing", "torn", "unfinished")
"""Kinds of diagnostics; the others hold no jobs."""


class WorkqJournal:
    """The live jobs of a log.

    Attributes:
        count: How many.
        faults: Places that could not be read.
        queues: Names, with the times to run and numbers of attempts of their jobs.
        not_carried: Facts of jobs that an entry does not hold.
    """

    def __init__(self, disk: Disk, directory: str, on_progress: OnProgress | None) -> None:
        self._disk = disk
        self._directory = directory
        self._on_progress = on_progress
        self._state = ReplayState()
        self._position = -1
        inspection = inspect_log(disk, directory, self._state, self._progressed)
        if self._state.previous or any(not job.more.foreign for job in self._state.jobs.values()):
            raise ours(directory)
        self.count = len(self._state.jobs)
        self.faults = [
            Fault(diagnostic.path, diagnostic.offset, diagnostic.message, diagnostic.damage)
            for diagnostic in inspection.diagnostics
            if diagnostic.kind in _UNREADABLE
        ]
        counts, lost = QueueCounts(), Counter[str]()
        for job in self._state.jobs.values():
            bounds = filter(None, (job.more.attempts_max, job.more.fails_max))
            counts.add(job.domain or b"", job.more.ttr_us, min(bounds, default=0))
            lost["priorities_cut"] += job.more.priority_cut
            lost["attempted"] += job.more.attempts > 0
            lost["leased"] += job.token > 0
        self.queues = counts.facts()
        lost[OTHER_LIMITS] += sum(queue.others for queue in self.queues)
        self.not_carried = {name: number for name, number in lost.items() if number}

    def items(self) -> Iterator[Item]:
        """Yield the jobs in the order of their records.

        Raises:
            LogCorruptError: A record is not there any more as it was read before.
            LogFailedError: A segment cannot be read any more.
        """
        path, data, current = "", b"", -1
        for job in self._state.jobs.values():
            number, offset = unpack_position(job.position)
            if number != current:
                current = number
                path = f"{self._directory}/{segment_name(number)}"
                data, _ = read_segment(self._disk, path)
            try:
                record, _ = decode_record(data, offset)
            except LogCorruptError as error:
                raise LogCorruptError(error.message, path=path, offset=offset) from error
            if record.job_id != job.job_id:
                raise LogCorruptError("the record changed meanwhile", path=path, offset=offset)
            yield Item(
                key=job.key,
                value=record.payload,
                # the wire takes 0 for none
                timestamp=job.timestamp or 1,
                expires=job.expires,
                reason=None if job.reason is None else job.reason.decode(),
                path=path,
                offset=offset,
            )

    def _progressed(self, progress: Progress) -> None:
        """Erase the values of the jobs read since the last call."""
        known, newest = self._position, self._position
        for job in reversed(self._state.jobs.values()):
            if job.position <= known:
                break
            newest = max(newest, job.position)
            job.value = b""
        self._position = newest
        if self._on_progress is not None:
            self._on_progress(progress.bytes_done, progress.bytes)


@contextmanager
def open_workq(
    disk: Disk, directory: str, *, on_progress: OnProgress | None = None
) -> Iterator[WorkqJournal]:
    """Read the log of a workq-server, and keep it as it is while the block runs. Writes nothing.

    Args:
        disk: Where the log is.
        directory: Directory of the log.
        on_progress: Called a few times a second while it is read.

    Raises:
        BadRequestError: There is no segment, or fastjournald wrote this log.
        LogLockedError: A server runs on it.
        LogFailedError: Something cannot be read.
    """
    require_format(disk, directory, Format.WORKQ, for_import=True)
    with ExitStack() as locks:
        # without this file no server was ever here: it is a copy
        if disk.exists(f"{directory}/{APPEND_LOCK}"):
            locks.callback(lock_append(disk, directory).close)
        yield WorkqJournal(disk, directory, on_progress)


_JOB_ID_DIGITS = 32


def _fit(domain: bytes) -> FittedName:
    name = workq_name(domain)
    return FittedName(name, name == domain)


class WorkqWriter:
    """Writes entries as add and schedule records, and a fail record for each buried one.

    workq counts the life of an added job from its creation, and orders jobs of one priority and
    scheduled time by their creation. So all are created at the export, a nanosecond after the job
    before. The instant of an entry that is due is the TIME of its record, at which workq does not
    look and from which an import takes it. A job whose entry came from workq keeps its id.
    """

    def __init__(self, files: JournalFiles, now_us: int, not_carried: Counter[str]) -> None:
        self._files = files
        self._now_us = now_us
        self._time = encode_time(now_us)
        self._jobs = 0
        self._not_carried = not_carried
        self._names = QueueNames(_fit, not_carried)
        self._ids: set[bytes] = set()

    def leaves_out(self, entry: SnapshotEntry) -> str | None:
        """Return the kind of entries that are left out and that this is one of; None: it is not."""
        return "values_too_large" if len(entry.value) > LOG_PAYLOAD_BYTES_MAX else None

    def add(self, entry: SnapshotEntry) -> None:
        """Write an entry."""
        self._names.enter(entry.domain)
        later_us, nanoseconds = divmod(self._jobs, 1000)
        self._jobs += 1
        created_us = self._now_us + later_us
        delayed = entry.not_before > self._now_us
        begins = entry.not_before if delayed else created_us
        lost = self._not_carried
        # an entry without expiry has a life of 30 days in workq
        lost["lives_cut_to_30_days"] += (
            not entry.expires or entry.expires - begins > TTL_MS_MAX * 1000
        )
        lost["leases_cut_to_a_day"] += entry.lease_us > TTR_MS_MAX * 1000
        lost["attempts"] += entry.attempts > 0
        head = encode_head(
            self._names.name,
            workq_ttr_ms(entry.lease_us),
            workq_ttl_ms(entry.expires, begins),
            workq_priority(entry.priority),
            0,
            0,
        )
        job_id = self._job_id(entry)
        record = encode_job(
            Command.SCHEDULE if delayed else Command.ADD,
            # an import takes 0 for no time
            self._time if delayed else encode_time(max(entry.not_before, 1)),
            job_id,
            head,
            entry.value,
            encode_time(entry.not_before) if delayed else NO_TIME,
            encode_time(created_us, nanoseconds),
        )
        if entry.reason is not None:
            record += encode_result(Command.FAIL, self._time, job_id, entry.reason)
        self._write(record)

    def finish(self) -> None:
        """End the journal."""
        if self._files.files == 0:
            self._begin()
        self._files.end()

    def advice(self) -> str | None:
        """Return an option that the server needs; None: there is none."""
        return None

    def _job_id(self, entry: SnapshotEntry) -> bytes:
        """Return the id that the entry had in workq, if it is free, else one made of its key."""
        job_id = b""
        if len(entry.id) == _JOB_ID_DIGITS:
            try:
                job_id = bytes.fromhex(entry.id.decode("ascii"))
            except ValueError:
                job_id = b""
        digest = entry.key
        while not is_job_id(job_id) or job_id in self._ids:
            digest = blake2b(digest, digest_size=16).digest()
            job_id = make_job_id(digest)
        self._ids.add(job_id)
        return job_id

    def _write(self, record: bytes) -> None:
        full = self._files.file_bytes + len(record) > SEGMENT_BYTES_MAX
        if self._files.files == 0 or (full and self._files.file_bytes > len(SEGMENT_HEADER)):
            self._begin()
        self._files.write(record)

    def _begin(self) -> None:
        self._files.begin(segment_name(self._files.files + 1))
        self._files.write(SEGMENT_HEADER)
