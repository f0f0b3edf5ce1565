"""Records of a beanstalkd binlog, versions 7 and 5: decoder and encoder. Little endian.

A file begins with its version, i32. Records follow, up to one with job id 0 or the end of the file:
beanstalkd allocates a file in advance, so zeros stand behind its records, also fewer than a record
takes, and a killed one may leave a last file of zeros only. *n* is the length of the
tube name, at most 200.

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
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from fastjournal.foreign.windowed_file import WindowedFile

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
"""The end of the put command, which stands in the file and counts in the size."""


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
    """One record. Times in microseconds, whatever the version."""

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
