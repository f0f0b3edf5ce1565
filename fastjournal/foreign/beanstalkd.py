"""The binlog of a beanstalkd: read to its end, then its jobs one by one.

Reading keeps under 500 bytes for each live job; the bodies are read again when the items are asked
for. A job has a full record when it is put, and again when beanstalkd moves it out of an old file;
short records change it, and those of a job without a full record belong to a file that is gone.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from fastjournal.disk import Disk, translating
from fastjournal.errors import LogCorruptError, LogLockedError
from fastjournal.foreign.beanstalkd_records import (
    BODY_BYTES_MAX,
    BODY_END,
    TTR_US_MIN,
    VERSION_BYTES,
    BinlogRecord,
    BinlogVersion,
    BrokenBinlogError,
    JobState,
    read_record,
    read_version,
)
from fastjournal.foreign.formats import Format, list_binlogs, require_format
from fastjournal.foreign.items import Fault, ForeignRecord, Item, OnProgress, ReadProgress
from fastjournal.foreign.names import domain_of
from fastjournal.foreign.queue_facts import OTHER_LIMITS, QueueCounts
from fastjournal.foreign.windowed_file import NO_FILE, WindowedFile, WindowedFiles, find_size
from fastjournal.keys import journal_key_of
from fastjournal.limits import INSTANT_MAX, PRIORITY_MAX

LOCK_NAME = "lock"
REASON_BURIED = "buried in beanstalkd"
_COUNTS = ("reserves", "timeouts", "releases", "buries", "kicks")


class _BinlogJob(msgspec.Struct, gc=False):
    """A live job: its last record, and where its body is."""

    tube: bytes
    path: str
    offset: int
    """Offset of the record with the body."""
    body_bytes: int
    pri: int
    ttr_us: int
    created_us: int
    deadline_us: int
    state: int
    counts: tuple[int, ...]


class BeanstalkdJournal:
    """The live jobs of all tubes.

    Attributes:
        count: How many.
        faults: Places that could not be read.
        queues: Tubes, with the times to run of their jobs.
        not_carried: Facts of jobs that an entry does not hold.
    """

    def __init__(self, disk: Disk, directory: str, on_progress: OnProgress | None = None) -> None:
        self.faults: list[Fault] = []
        self._disk = disk
        self._jobs: dict[int, _BinlogJob] = {}
        self._shared: dict[Any, Any] = {}
        """Tube names and counts, which many jobs have in common."""
        for path, record in _read_binlogs(disk, directory, self.faults, on_progress):
            self._apply(path, record)
        self.count = len(self._jobs)
        counts, lost = QueueCounts(), Counter[str]()
        for job in self._jobs.values():
            counts.add(domain_of(job.tube), job.ttr_us)
            lost["priorities_cut"] += job.pri > PRIORITY_MAX
            for name, number in zip(_COUNTS, job.counts, strict=True):
                lost[name] += number
        self.queues = counts.facts()
        lost[OTHER_LIMITS] += sum(queue.others for queue in self.queues)
        self.not_carried = {name: number for name, number in lost.items() if number}

    def items(self) -> Iterator[Item]:
        """Yield the jobs in the order of their ids, in which beanstalkd runs equal priorities.

        Raises:
            LogCorruptError: A record is not there any more as it was read before.
            LogFailedError: A file cannot be read any more.
        """
        files = WindowedFiles(self._disk)
        versions: dict[str, BinlogVersion] = {}
        for number in sorted(self._jobs):
            job = self._jobs[number]
            value = _body(files.at(job.path), versions, number, job)
            created = min(job.created_us, INSTANT_MAX)
            delayed = job.state == JobState.DELAYED
            yield Item(
                key=journal_key_of(
                    domain_of(job.tube),
                    b"beanstalkd-%d" % number,
                    not_before_us=min(job.deadline_us, INSTANT_MAX) if delayed else created,
                    priority=min(job.pri, PRIORITY_MAX),
                ),
                value=value,
                # the wire takes 0 for none
                timestamp=created or 1,
                expires=0,
                reason=REASON_BURIED if job.state == JobState.BURIED else None,
                path=job.path,
                offset=job.offset,
            )

    def _apply(self, path: str, record: BinlogRecord) -> None:
        job = self._jobs.get(record.id)
        if job is None and not record.tube:
            return
        if record.state == JobState.DELETED:
            self._jobs.pop(record.id, None)
            return
        if job is not None and record.body_bytes != job.body_bytes:
            before = job.body_bytes
            text = f"job {record.id} has a body of {record.body_bytes} bytes, before of {before}"
            self.faults.append(Fault(path, record.offset, text, damage=True))
            return
        if record.tube:
            at = (path, record.offset, record.body_bytes)
            # a job that moved to another file stays in its tube
            tube = record.tube if job is None else job.tube
        else:
            assert job is not None
            at = (job.path, job.offset, job.body_bytes)
            tube = job.tube
        counts = tuple(getattr(record, name) for name in _COUNTS)
        self._jobs[record.id] = _BinlogJob(
            self._shared.setdefault(tube, tube),
            *at,
            record.pri,
            max(record.ttr_us, TTR_US_MIN),
            # version 7 has signed times: a negative instant has passed
            max(record.created_us, 0),
            max(record.deadline_us, 0),
            record.state,
            self._shared.setdefault(counts, counts),
        )


def _body(
    file: WindowedFile, versions: dict[str, BinlogVersion], number: int, job: _BinlogJob
) -> bytes:
    """Return the body of a job, whose record has to be there still; keep its file's version."""
    try:
        if job.path not in versions:
            versions[job.path] = read_version(file)
        record = read_record(file, job.offset, versions[job.path])
    except BrokenBinlogError as error:
        raise LogCorruptError(str(error), path=job.path, offset=job.offset) from error
    if record is None or (record.id, record.body_bytes) != (number, job.body_bytes):
        raise LogCorruptError("the record changed meanwhile", path=job.path, offset=job.offset)
    return file.read(record.body_at, record.body_bytes - len(BODY_END))


@contextmanager
def open_beanstalkd(
    disk: Disk, directory: str, *, on_progress: OnProgress | None = None
) -> Iterator[BeanstalkdJournal]:
    """Read the binlog of a beanstalkd, and keep it as it is while the block runs. Writes nothing.

    Args:
        disk: Where it is.
        directory: Directory of beanstalkd's option -b.
        on_progress: Called a few times a second while it is read.

    Raises:
        BadRequestError: There is no binlog.
        LogLockedError: A beanstalkd runs on it.
        LogFailedError: Something cannot be read.
    """
    require_format(disk, directory, Format.BEANSTALKD, for_import=True)
    with ExitStack() as locks:
        # without this file no server was ever here: it is a copy
        if disk.exists(f"{directory}/{LOCK_NAME}"):
            locks.callback(os.close, _lock(f"{directory}/{LOCK_NAME}"))
        yield BeanstalkdJournal(disk, directory, on_progress)


def beanstalkd_records(
    disk: Disk,
    directory: str,
    faults: list[Fault],
    on_progress: OnProgress | None = None,
    *,
    value_bytes_max: int = BODY_BYTES_MAX,
    binlogs: Collection[int] | None = None,
) -> Iterator[ForeignRecord]:
    """Yield every record, oldest first.

    Args:
        disk: Where it is.
        directory: Directory of beanstalkd's option -b.
        faults: Gets the places that cannot be read.
        on_progress: Called a few times a second while it is read.
        value_bytes_max: Larger bodies are left out.
        binlogs: Numbers of the files that are read; None: all.

    Raises:
        LogFailedError: Something cannot be read.
    """
    files = WindowedFiles(disk)
    for path, record in _read_binlogs(disk, directory, faults, on_progress, binlogs):
        file = files.at(path)
        size = record.end - record.body_at - len(BODY_END)
        yield ForeignRecord(
            path,
            record.offset,
            record.end - record.offset,
            _fields(record),
            file.read(record.body_at, size) if 0 <= size <= value_bytes_max else None,
        )


def _lock(path: str) -> int:
    """Lock a file as beanstalkd does, which is no flock; return its descriptor."""
    with translating("lock", path):
        # a FIFO of this name is not waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            os.close(descriptor)
            raise LogLockedError(
                "a beanstalkd runs on this binlog", path=path, hint="stop it first"
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def _read_binlogs(
    disk: Disk,
    directory: str,
    faults: list[Fault],
    on_progress: OnProgress | None,
    binlogs: Collection[int] | None = None,
) -> Iterator[tuple[str, BinlogRecord]]:
    numbers = list_binlogs(disk, directory)
    chosen = [
        (number, before, f"{directory}/binlog.{number}")
        for number, before in zip(numbers, [numbers[0] - 1, *numbers], strict=False)
        if binlogs is None or number in binlogs
    ]
    progress = ReadProgress(sum(find_size(disk, path) or 0 for _, _, path in chosen), on_progress)
    for number, before, path in chosen:
        if number != before + 1:
            text = f"the binlogs before it are missing, from binlog.{before + 1} on"
            faults.append(Fault(path, 0, text, damage=True))
        for record in _read_binlog(disk, path, faults, last=number == numbers[-1]):
            yield path, record
            progress.add(record.end - record.offset)


def _read_binlog(
    disk: Disk, path: str, faults: list[Fault], *, last: bool
) -> Iterator[BinlogRecord]:
    if find_size(disk, path) is None:
        faults.append(Fault(path, 0, f"{NO_FILE}; beanstalkd leaves it out", damage=True))
        return
    file = WindowedFile(disk, path)
    offset = 0
    try:
        version = read_version(file)
        offset = VERSION_BYTES
        while offset < file.size:
            record = read_record(file, offset, version)
            if record is None:
                return
            yield record
            offset = record.end
    except BrokenBinlogError as error:
        if (offset or last) and file.has_only_zeros(offset):
            # allocated in advance, with less room than a record takes, or for a record to come
            return
        left = f"{error}; beanstalkd leaves out the {file.size - offset:,} bytes from here on"
        faults.append(Fault(path, offset, left, damage=not (error.torn and last)))


def _fields(record: BinlogRecord) -> dict[str, Any]:
    fields = record._asdict()
    for name in ("offset", "end", "tube", "body_at"):
        del fields[name]
    kind = "full" if record.tube else "short"
    state = JobState(record.state).name.lower()
    return {"record": kind, "tube": record.tube, **fields, "state": state}
