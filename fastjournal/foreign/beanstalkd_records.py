"""Records of a beanstalkd binlog, versions 7 and 5: decoder and encoder. Little endian.

A record is the length of a tube name, the name, the job record, and the body. A short record has
no name and no body: it changes a job that has a full record. A record with job id 0 ends its file.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from fastjournal.foreign.windowed_file import WindowedFile

VERSION = 7
VERSION_OLD = 5
VERSION_BYTES = 4
TUBE_BYTES_MAX = 200
BODY_BYTES_MAX = 1 << 30
"""The largest that beanstalkd's option -z allows."""
BODY_END = b"\r\n"
"""The end of the put command, which stands in the file and counts in the size."""

_FIELDS = "QI4xQQi4xQQIIIIIB"
_JOB = struct.Struct(f"<{_FIELDS}3x")
_JOB_OLD = struct.Struct(f"<{_FIELDS}")
_NAME_SIZE = struct.Struct("<i")
_NAME_SIZE_OLD = struct.Struct("<Q")
END = bytes(_NAME_SIZE.size + _JOB.size)
"""Record that ends a file."""


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


def read_version(file: WindowedFile) -> int:
    """Return the version of a binlog.

    Raises:
        BrokenBinlogError: It is none that can be read.
    """
    data = file.read(0, VERSION_BYTES)
    if len(data) < VERSION_BYTES:
        raise BrokenBinlogError("the file ends before its version", torn=True)
    version = int.from_bytes(data, "little")
    if version not in (VERSION, VERSION_OLD):
        raise BrokenBinlogError(f"version {version} is none of 7 and 5")
    return version


def read_record(file: WindowedFile, offset: int, version: int) -> BinlogRecord | None:
    """Return the record at an offset before the end of a file; None: the file has no more.

    Raises:
        BrokenBinlogError: There is none.
    """
    name_size, job = (_NAME_SIZE, _JOB) if version == VERSION else (_NAME_SIZE_OLD, _JOB_OLD)
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
    if version == VERSION:
        delay, ttr, created, deadline = (time // 1000 for time in (delay, ttr, created, deadline))
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


def encode_job(record: BinlogRecord, body: bytes) -> bytes:
    """Return a full record of version 7; the sizes in ``record`` do not count."""
    job = _JOB.pack(
        record.id,
        record.pri,
        record.delay_us * 1000,
        record.ttr_us * 1000,
        len(body) + len(BODY_END),
        record.created_us * 1000,
        record.deadline_us * 1000,
        record.reserves,
        record.timeouts,
        record.releases,
        record.buries,
        record.kicks,
        record.state,
    )
    return b"".join((_NAME_SIZE.pack(len(record.tube)), record.tube, job, body, BODY_END))


def _read(file: WindowedFile, offset: int, size: int) -> bytes:
    data = file.read(offset, size)
    if len(data) < size:
        raise BrokenBinlogError("the file ends in the middle of a record", torn=True)
    return data
