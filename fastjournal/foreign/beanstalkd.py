"""The binlog of a beanstalkd: reader, record codec and writer, versions 7 and 5.

Over 600 lines, because reader, codec and writer share one record layout. The reader reads to the
end, then yields the jobs one by one.

Reading keeps under 500 bytes for each live job; the bodies are read again when the items are asked
for. A job has a full record when it is put, and again when beanstalkd moves it out of an old file;
short records change it, and those of a job without a full record belong to a file that is gone.

Records, little endian. A file begins with its version, i32. Records follow, up to one with job id 0
or the end of the file: beanstalkd allocates a file in advance, so zeros stand behind its records,
also fewer than a record takes, and a killed one may leave a last file of zeros only. *n* is the
length of the tube name, at most 200.

| bytes, version 7 | bytes, version 5 | content |
| --- | --- | --- |
| 4, i32 | 8, u64 | n; 0: a short record |
| n | n | tube name |
| 80 | 77 | job record |
| body size | body size | body; full records only |

A short record has neither name nor body: it changes a job that has a full record. A job record:

| offset | bytes | content |
| --- | --- | --- |
| 0 | 8, u64 | job id |
| 8 | 4, u32 | pri |
| 12 | 4 | 0 |
| 16, 24 | 8 each | delay, ttr |
| 32 | 4, i32 | body size, with the final CR LF of the put command |
| 36 | 4 | 0 |
| 40, 48 | 8 each | created, deadline: instants since the Unix epoch |
| 56, 60, 64, 68, 72 | 4 each, u32 | counts of reserves, timeouts, releases, buries, kicks |
| 76 | 1, u8 | state |
| 77 | 3 | 0; version 7 only |

Delay, ttr and the instants are i64 nanoseconds in version 7, and u64 microseconds in version 5.

beanstalkd 1.5 and later write version 7 and read both. 1.4.6 writes and reads version 5, in the
layout of a 64-bit machine; a 32-bit one has another, which is not read here. Its reader takes full
records of ready and delayed jobs only, and loses the rest of a file at another one. So a buried job
is a full record of a ready one, and a short record that buries it. Source: the programs' sources.

The writer counts ids up in the order of the work.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from fastjournal.disk import Disk, translating
from fastjournal.errors import LogCorruptError, LogLockedError
from fastjournal.foreign.formats import Format, list_binlogs, require_format
from fastjournal.foreign.items import (
    OTHER_LIMITS,
    Fault,
    FittedName,
    ForeignRecord,
    Item,
    OnProgress,
    QueueCounts,
    QueueNames,
    ReadProgress,
    domain_of,
    fit_name,
)
from fastjournal.foreign.journal_files import (
    NO_FILE,
    JournalFiles,
    WindowedFile,
    WindowedFiles,
    find_size,
)
from fastjournal.foreign.snapshot_entries import SnapshotEntry
from fastjournal.keys import journal_key_of
from fastjournal.limits import INSTANT_MAX, PRIORITY_MAX

BinlogVersion: TypeAlias = Literal[7, 5]
VERSION: BinlogVersion = 7
VERSION_OLD: BinlogVersion = 5
VERSION_BYTES = 4
TUBE_BYTES_MAX = 200
TTR_US_MIN = 1_000_000
"""Time to run of a put command that asks for less. Release 1.4.6 writes 1 us for one with 0."""
BODY_BYTES_MAX = 1 << 30
"""The largest that beanstalkd's option -z allows. A start counts the final CR LF in it, a put
command does not."""
BODY_END = b"\r\n"
"""The end of the put command, which is in the file and counts in the size."""


class _VersionLayout(NamedTuple):
    """Layout of a version."""

    name_size: struct.Struct
    job: struct.Struct
    time_units: int
    """Units of its times that are a microsecond."""


_LAYOUTS = {
    VERSION: _VersionLayout(struct.Struct("<i"), struct.Struct("<QI4xqqi4xqqIIIIIB3x"), 1000),
    VERSION_OLD: _VersionLayout(struct.Struct("<Q"), struct.Struct("<QI4xQQi4xQQIIIIIB"), 1),
}


class JobState(IntEnum):
    """State of a job in a record."""

    DELETED = 0
    READY = 1
    RESERVED = 2
    BURIED = 3
    DELAYED = 4


class BinlogRecord(NamedTuple):
    """One record. Times in microseconds, in both versions."""

    offset: int
    end: int
    tube: bytes
    """Empty: a short record."""
    id: int
    pri: int
    delay_us: int
    ttr_us: int
    body_bytes: int
    """With the final CR LF."""
    created_us: int
    deadline_us: int
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int
    state: int
    body_at: int


class BrokenBinlogError(Exception):
    """Bytes that are no record.

    Attributes:
        torn: The file ends in the middle of the record.
    """

    def __init__(self, message: str, *, torn: bool = False) -> None:
        super().__init__(message)
        self.torn = torn


def read_version(file: WindowedFile) -> BinlogVersion:
    """Return the version of a binlog.

    Raises:
        BrokenBinlogError: It is none that can be read.
    """
    data = file.read(0, VERSION_BYTES)
    if len(data) < VERSION_BYTES:
        raise BrokenBinlogError("the file ends before its version", torn=True)
    version = int.from_bytes(data, "little")
    for known in _LAYOUTS:
        if version == known:
            return known
    raise BrokenBinlogError(f"version {version} is none of 7 and 5")


def read_record(file: WindowedFile, offset: int, version: BinlogVersion) -> BinlogRecord | None:
    """Return the record at an offset before the end of a file; None: the file has no more.

    Raises:
        BrokenBinlogError: There is none.
    """
    name_size, job, units = _LAYOUTS[version]
    (tube_bytes,) = name_size.unpack(_read(file, offset, name_size.size))
    if not 0 <= tube_bytes <= TUBE_BYTES_MAX:
        raise BrokenBinlogError(f"a tube name of {tube_bytes} bytes; 200 at most")
    at = offset + name_size.size
    tube = _read(file, at, tube_bytes)
    at += tube_bytes
    fields = job.unpack(_read(file, at, job.size))
    at += job.size
    if fields[0] == 0:
        return None
    number, pri, delay, ttr, body_bytes, created, deadline, *counts, state = fields
    delay, ttr, created, deadline = (time // units for time in (delay, ttr, created, deadline))
    if not JobState.DELETED <= state <= JobState.DELAYED:
        raise BrokenBinlogError(f"job {number} has the state {state}, which no file holds")
    end = at
    if tube and state != JobState.DELETED:
        if not len(BODY_END) <= body_bytes <= BODY_BYTES_MAX + len(BODY_END):
            raise BrokenBinlogError(f"job {number} has a body of {body_bytes} bytes")
        end = at + body_bytes
        if end > file.size:
            raise BrokenBinlogError(f"the file ends in the body of job {number}", torn=True)
    head = (offset, end, tube, number, pri, delay, ttr, body_bytes, created, deadline)
    return BinlogRecord._make((*head, *counts, state, at))


def encode_version(version: BinlogVersion) -> bytes:
    """Return the begin of a file."""
    return version.to_bytes(VERSION_BYTES, "little")


def encode_end(version: BinlogVersion) -> bytes:
    """Return the record that ends a file."""
    return bytes(_LAYOUTS[version].name_size.size + _LAYOUTS[version].job.size)


def encode_job(record: BinlogRecord, body: bytes, version: BinlogVersion) -> bytes:
    """Return a full record; ``body`` has no CR LF, and the size in ``record`` does not count."""
    size = len(body) + len(BODY_END)
    head = _encode_head(record.tube, record._replace(body_bytes=size), version)
    return b"".join((head, body, BODY_END))


def encode_change(record: BinlogRecord, version: BinlogVersion) -> bytes:
    """Return a short record; the tube in ``record`` does not count, but the size of the body."""
    return _encode_head(b"", record, version)


def _encode_head(tube: bytes, record: BinlogRecord, version: BinlogVersion) -> bytes:
    name_size, job, units = _LAYOUTS[version]
    fields = job.pack(
        record.id,
        record.pri,
        record.delay_us * units,
        record.ttr_us * units,
        record.body_bytes,
        record.created_us * units,
        record.deadline_us * units,
        record.reserves,
        record.timeouts,
        record.releases,
        record.buries,
        record.kicks,
        record.state,
    )
    return b"".join((name_size.pack(len(tube)), tube, fields))


def _read(file: WindowedFile, offset: int, size: int) -> bytes:
    data = file.read(offset, size)
    if len(data) < size:
        raise BrokenBinlogError("the file ends in the middle of a record", torn=True)
    return data


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


FILE_BYTES = 10 * 1024 * 1024
"""beanstalkd's default of the option -s. A larger record is alone in its file."""
BODY_BYTES_DEFAULT = 65_535
"""beanstalkd's default of the option -z."""
_SPAN_US_MAX = (2**32 - 1) * 1_000_000
"""Longest delay and time to run of the put command, 136 years. The end of a lease of 250 years is
beyond beanstalkd's 64 bits of nanoseconds: it answers DEADLINE_SOON to the worker at once."""
_COUNT_MAX = 2**32 - 1
_NOT_ALLOWED = re.compile(rb"\A-|[^A-Za-z0-9+/;.$_()-]")
_EMPTY = BinlogRecord._make(0 for _ in BinlogRecord._fields)


def _fit(domain: bytes) -> FittedName:
    return fit_name(domain, _NOT_ALLOWED, TUBE_BYTES_MAX)


class BeanstalkdWriter:
    """Writes entries as jobs.

    A job that is due has its instant as the time at which it was put; attempts are timeouts.
    """

    def __init__(
        self,
        files: JournalFiles,
        now_us: int,
        not_carried: Counter[str],
        version: BinlogVersion = VERSION,
    ) -> None:
        self._version = version
        self._end = encode_end(version)
        self._files = files
        self._now_us = now_us
        self._not_carried = not_carried
        self._tubes = QueueNames(_fit, not_carried)
        self._id = 0
        self._largest = 0

    def leaves_out(self, entry: SnapshotEntry) -> str | None:
        """Return the kind of entries that are left out and that this is one of; None: it is not."""
        too_large = len(entry.value) + len(BODY_END) > BODY_BYTES_MAX
        return "values_too_large" if too_large else None

    def add(self, entry: SnapshotEntry) -> None:
        """Write an entry."""
        self._tubes.enter(entry.domain)
        self._not_carried["expiries"] += entry.expires > 0
        self._not_carried["reasons"] += bool(entry.reason)
        self._largest = max(self._largest, len(entry.value))
        self._id += 1
        self._write(self._records(entry))

    def finish(self) -> None:
        """End the journal."""
        if self._files.files == 0:
            self._begin()
        self._files.write(self._end)
        self._files.end()

    def advice(self) -> str | None:
        """Return an option that the server needs; None: there is none."""
        if self._largest + len(BODY_END) <= BODY_BYTES_DEFAULT:
            return None
        server = "beanstalkd" if self._version == VERSION else "beanstalkd 1.5 or later"
        return f"start {server} with -z {self._largest + len(BODY_END)}, or it drops large jobs"

    def _records(self, entry: SnapshotEntry) -> bytes:
        """Return the records of an entry, which are in one file."""
        job = self._job(entry)
        if self._version == VERSION or job.state != JobState.BURIED:
            return encode_job(job, entry.value, self._version)
        # release 1.4.6 loses the rest of a file at a full record of a buried job
        ready = job._replace(state=JobState.READY, buries=0)
        buried = job._replace(body_bytes=len(entry.value) + len(BODY_END))
        return encode_job(ready, entry.value, VERSION_OLD) + encode_change(buried, VERSION_OLD)

    def _job(self, entry: SnapshotEntry) -> BinlogRecord:
        latest = self._now_us + _SPAN_US_MAX
        self._not_carried["delays_cut_to_136_years"] += entry.not_before > latest
        self._not_carried["leases_cut_to_136_years"] += entry.lease_us > _SPAN_US_MAX
        due = min(entry.not_before, latest)
        delayed = due > self._now_us
        state = JobState.DELAYED if delayed else JobState.READY
        return _EMPTY._replace(
            tube=self._tubes.name,
            id=self._id,
            pri=entry.priority,
            delay_us=due - self._now_us if delayed else 0,
            ttr_us=min(max(entry.lease_us, TTR_US_MIN), _SPAN_US_MAX),
            created_us=min(entry.timestamp, self._now_us) if delayed else due,
            deadline_us=due if delayed else 0,
            timeouts=min(entry.attempts, _COUNT_MAX),
            buries=int(entry.reason is not None),
            state=state if entry.reason is None else JobState.BURIED,
        )

    def _write(self, records: bytes) -> None:
        size = self._files.file_bytes + len(records) + len(self._end)
        if self._files.files == 0 or (size > FILE_BYTES and self._files.file_bytes > VERSION_BYTES):
            self._begin()
        self._files.write(records)

    def _begin(self) -> None:
        if self._files.files:
            self._files.write(self._end)
        self._files.begin(f"binlog.{self._files.files + 1}")
        self._files.write(encode_version(self._version))
