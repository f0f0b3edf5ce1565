"""Records of the command log: encoder and decoder of single ones. Layout: ``cmdlog.format.layout``.

The encoders build what they are given: that workq takes the values is ``cmdlog.format.workq``'s
part. A record is decoded as a whole, or read in place: replay and compaction look at every record
of a log; most of them are entries, and of those only the place of the payload and the primary key
are wanted. ``operation_records.unpack_content`` decodes what fastjournald wrote into a record.

Two other decoders read many records at once: ``cmdlog.recovery.entry_blocks`` for replay, and
``fastjournal.spark.decoding.vectorised``. Tests compare all three
(``tests/property/test_decoders.py``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

import google_crc32c
import msgspec

from fastjournal.cmdlog.format.envelope import MAGIC, MAGIC_BYTES, OPERATION_NAME
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    FIELDS_AT,
    JOB_ID_AT,
    JOB_ID_BYTES,
    NO_TIME,
    RECORD_BYTES_MIN,
    RESULT_BESIDES_BYTES,
    SHORT_FIELD_AT,
    SHORT_MAX,
    SIMPLE_BODY_BYTES,
    TIME_BYTES,
    TIME_VERSION,
    UNIX_SECONDS,
    Command,
    decode_uvarint,
    encode_uvarint,
    encode_varint,
)
from fastjournal.errors import LogCorruptError
from fastjournal.limits import INSTANT_MAX

_JOB_BESIDES_BYTES = FIELDS_AT + 2 * TIME_BYTES
_TIME = struct.Struct(">Bqih")
_pack_time = _TIME.pack
_instant_at = struct.Struct(">xqi").unpack_from
_CRC = struct.Struct(">I")
_pack_crc = _CRC.pack
crc_at = _CRC.unpack_from
"""Returns the checksum at an offset, as the one item of a tuple."""
_crc32c = google_crc32c.value


_COMMANDS = {command.value: command for command in Command}
_COMMAND_BYTES = [bytes((number,)) for number in range(len(Command) + 1)]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One decoded record. Times stay as their 15 bytes, so that it encodes to the same bytes."""

    command: Command
    job_id: bytes
    time: bytes
    """When the record was written."""
    name: str = ""
    ttr_ms: int = 0
    ttl_ms: int = 0
    priority: int = 0
    """workq's: larger runs first."""
    max_attempts: int = 0
    max_fails: int = 0
    payload: bytes = b""
    not_before: bytes = NO_TIME
    created: bytes = NO_TIME
    result: bytes = b""

    @property
    def time_us(self) -> int | None:
        """When the record was written, in microseconds since the Unix epoch."""
        return decode_time(self.time)

    @property
    def not_before_us(self) -> int | None:
        """Instant before which a scheduled job must not start; None where none is given."""
        return decode_time(self.not_before)

    @property
    def created_us(self) -> int | None:
        """When the job was created; None where not given."""
        return decode_time(self.created)


# --- encoding -----------------------------------------------------------------------------------


_UVARINTS = [encode_uvarint(number) for number in range(4096)]
_UVARINTS_KNOWN = len(_UVARINTS)
_SIMPLE_SIZE = encode_uvarint(SIMPLE_BODY_BYTES)


def encode_time(us: int, nanoseconds: int = 0) -> bytes:
    """Return the 15 bytes of an instant: microseconds since the Unix epoch, and nanoseconds."""
    seconds, rest = divmod(us, 1_000_000)
    return _pack_time(TIME_VERSION, seconds + UNIX_SECONDS, rest * 1000 + nanoseconds, -1)


def encode_head(
    name: bytes, ttr_ms: int, ttl_ms: int, priority: int, max_attempts: int, max_fails: int
) -> bytes:
    """Return the fields of a job before its payload; the same bytes serve all jobs alike."""
    return b"".join(
        (
            encode_uvarint(len(name)),
            name,
            encode_uvarint(ttr_ms),
            encode_uvarint(ttl_ms),
            encode_varint(priority),
            encode_uvarint(max_attempts),
            encode_uvarint(max_fails),
        )
    )


def encode_job(
    command: int,
    time: bytes,
    job_id: bytes,
    head: bytes,
    payload: bytes,
    not_before: bytes,
    created: bytes,
) -> bytes:
    """Return an add or schedule record.

    Args:
        command: ``Command.ADD`` or ``Command.SCHEDULE``.
        time: When the record is written, from ``encode_time``, as are the other times.
        job_id: The 16 bytes of a UUIDv4.
        head: From ``encode_head``.
        payload: At most 1 MiB for workq.
        not_before: Instant of a scheduled job, or ``NO_TIME``.
        created: When the job was created.
    """
    length = len(payload)
    length_bytes = _UVARINTS[length] if length < _UVARINTS_KNOWN else encode_uvarint(length)
    size = _JOB_BESIDES_BYTES + len(head) + len(length_bytes) + length
    data = b"".join(
        (
            time,
            _UVARINTS[size] if size < _UVARINTS_KNOWN else encode_uvarint(size),
            _COMMAND_BYTES[command],
            job_id,
            head,
            length_bytes,
            payload,
            not_before,
            created,
        )
    )
    return data + _pack_crc(_crc32c(data))


def encode_result(command: int, time: bytes, job_id: bytes, result: bytes = b"") -> bytes:
    """Return a complete or fail record.

    Args:
        command: ``Command.COMPLETE`` or ``Command.FAIL``.
        time: When the record is written, from ``encode_time``.
        job_id: The 16 bytes of a UUIDv4.
        result: At most 1 MiB for workq.
    """
    length = len(result)
    length_bytes = _UVARINTS[length] if length < _UVARINTS_KNOWN else encode_uvarint(length)
    size = FIELDS_AT + len(length_bytes) + length
    size_bytes = _UVARINTS[size] if size < _UVARINTS_KNOWN else encode_uvarint(size)
    data = b"".join((time, size_bytes, _COMMAND_BYTES[command], job_id, length_bytes, result))
    return data + _pack_crc(_crc32c(data))


def encode_simple(command: int, time: bytes, job_id: bytes) -> bytes:
    """Return a delete, expire, start-attempt or timeout-attempt record.

    Args:
        command: One of these four.
        time: When the record is written, from ``encode_time``.
        job_id: The 16 bytes of a UUIDv4.
    """
    data = b"".join((time, _SIMPLE_SIZE, _COMMAND_BYTES[command], job_id))
    return data + _pack_crc(_crc32c(data))


def encode_simples(command: int, time: bytes, job_ids: Iterable[bytes]) -> list[bytes]:
    """Return the records that ``encode_simple`` makes of these jobs."""
    head = b"".join((time, _SIMPLE_SIZE, _COMMAND_BYTES[command]))
    crc32c, pack_crc = _crc32c, _pack_crc
    return [data + pack_crc(crc32c(data)) for data in [head + job_id for job_id in job_ids]]


def encode_record(record: Record) -> bytes:
    """Return the bytes of any record; the slow way round, for tools and tests."""
    command = record.command
    if command <= Command.SCHEDULE:
        head = encode_head(
            record.name.encode("latin-1"),
            record.ttr_ms,
            record.ttl_ms,
            record.priority,
            record.max_attempts,
            record.max_fails,
        )
        return encode_job(
            command,
            record.time,
            record.job_id,
            head,
            record.payload,
            record.not_before,
            record.created,
        )
    if command <= Command.FAIL:
        return encode_result(command, record.time, record.job_id, record.result)
    return encode_simple(command, record.time, record.job_id)


# --- decoding -----------------------------------------------------------------------------------


def decode_time(data: bytes) -> int | None:
    """Return the instant in microseconds since the Unix epoch, or None for no time.

    Raises:
        LogCorruptError: These are not 15 bytes of version 1.
    """
    if len(data) != TIME_BYTES or data[0] != TIME_VERSION:
        raise LogCorruptError(f"{data.hex()} is not a time")
    _, seconds, nanoseconds, _ = _TIME.unpack(data)
    if seconds == 0 and nanoseconds == 0:
        return None
    return int((seconds - UNIX_SECONDS) * 1_000_000 + nanoseconds // 1000)


def outer_stamps(stamps: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Return the first and the last of times in the order of their bytes; none: twice no time."""
    stamps = iter(stamps)
    low = high = before = next(stamps, NO_TIME)
    for stamp in stamps:
        # most records have the time of the one before them
        if stamp != before:
            before = stamp
            if stamp < low:
                low = stamp
            elif stamp > high:
                high = stamp
    return low, high


def decode_bounds(low: bytes, high: bytes) -> tuple[int | None, int | None]:
    """Return the earliest and the latest instant, in microseconds, of times that were compared.

    Args:
        low: The first in the order of bytes (``outer_stamps``).
        high: The last.

    Returns:
        None and None where one of them is the absence of a time, or is before the year 1: the
        order of bytes is not that of time then.
    """
    first, last = decode_time(low), decode_time(high)
    return (None, None) if first is None or last is None or last < first else (first, last)


def instant_at(data: bytes, offset: int) -> int:
    """Return the time at ``offset`` as an instant in microseconds; 0 where there is none.

    It is cut to the instants that the protocol knows.
    """
    seconds, nanoseconds = _instant_at(data, offset)
    us = int((seconds - UNIX_SECONDS) * 1_000_000 + nanoseconds // 1000)
    return min(max(us, 0), INSTANT_MAX)


def decode_record(data: bytes, offset: int = 0) -> tuple[Record, int]:
    """Return the record that starts at ``offset`` and the offset after it.

    Args:
        data: A segment, or any part of one.
        offset: Offset of the first byte of the record's time.

    Raises:
        LogCorruptError: There is no whole, valid record; ``offset`` is that of the wrong field.
    """
    if len(data) - offset < RECORD_BYTES_MIN:
        raise LogCorruptError("a record is cut", offset=offset)
    size, start = decode_uvarint(data, offset + TIME_BYTES, len(data))
    end = start + size
    if end + CRC_BYTES > len(data):
        raise LogCorruptError(f"a record of {size} bytes is cut", offset=offset)
    crc = _crc32c(bytes(data[offset:end]))
    if _pack_crc(crc) != data[end : end + CRC_BYTES]:
        raise LogCorruptError("a record's checksum is wrong", offset=offset)
    return decode_body(data, offset, start, end), end + CRC_BYTES


def decode_body(data: bytes, time_offset: int, start: int, end: int) -> Record:
    """Return the record whose body is ``data[start:end]``; its frame has been checked before.

    Raises:
        LogCorruptError: The command is unknown, a field is cut, or bytes follow the last field.
    """
    time = _take(data, time_offset, TIME_BYTES, end, "time")
    decode_time(time)
    job_id = _take(data, start + JOB_ID_AT, JOB_ID_BYTES, end, "job id")
    command = _COMMANDS.get(data[start])
    if command is None:
        raise LogCorruptError(f"command {data[start]} is unknown", offset=start)
    at = start + FIELDS_AT
    if command <= Command.SCHEDULE:
        record, at = _decode_job(data, at, end, command, job_id, time)
    elif command <= Command.FAIL:
        length, at = decode_uvarint(data, at, end)
        result = _take(data, at, length, end, "result")
        record, at = Record(command, job_id, time, result=result), at + length
    else:
        record = Record(command, job_id, time)
    if at != end:
        raise LogCorruptError(f"{end - at} bytes follow the last field", offset=at)
    return record


def _decode_job(
    data: bytes, at: int, end: int, command: Command, job_id: bytes, time: bytes
) -> tuple[Record, int]:
    length, at = decode_uvarint(data, at, end)
    # latin-1 takes every byte; workq's own names are ASCII
    name = _take(data, at, length, end, "name").decode("latin-1")
    ttr_ms, at = decode_uvarint(data, at + length, end)
    ttl_ms, at = decode_uvarint(data, at, end)
    zigzag, at = decode_uvarint(data, at, end)
    max_attempts, at = decode_uvarint(data, at, end)
    max_fails, at = decode_uvarint(data, at, end)
    length, at = decode_uvarint(data, at, end)
    payload = _take(data, at, length, end, "payload")
    at += length
    not_before = _take(data, at, TIME_BYTES, end, "time")
    created = _take(data, at + TIME_BYTES, TIME_BYTES, end, "time of creation")
    decode_time(not_before)
    decode_time(created)
    record = Record(
        command,
        job_id,
        time,
        name,
        ttr_ms,
        ttl_ms,
        zigzag >> 1 ^ -(zigzag & 1),
        max_attempts,
        max_fails,
        payload,
        not_before,
        created,
    )
    return record, at + 2 * TIME_BYTES


def _take(data: bytes, at: int, length: int, end: int, what: str) -> bytes:
    if at + length > end:
        raise LogCorruptError(f"the {what} is cut", offset=at)
    return bytes(data[at : at + length])


# --- reading in place ---------------------------------------------------------------------------


_u16_at = struct.Struct(">H").unpack_from
skip_head = re.compile(rb"(?:[\x80-\xff]{0,9}[\x00-\x7f]){6}").match
"""From a job's name to its payload: ttr, ttl, priority, attempts, fails and a length."""
_key_head = re.compile(
    rb"(?:[\x80-\xff]{0,9}[\x00-\x7f]){6}" + re.escape(MAGIC) + rb"(?:[\x90-\x9f]|\xdc..)\xc4.",
    re.DOTALL,
).match
"""The same, and on to a primary key of up to 255 bytes, whose length is the last byte."""
OPERATION_HEAD = bytes((len(OPERATION_NAME),)) + OPERATION_NAME.encode()
"""The name of an operation, with its length."""


def body_offset(data: bytes, start: int) -> int:
    """Return where the body of the valid record at ``start`` begins."""
    at = start + TIME_BYTES
    while data[at] > SHORT_MAX:
        at += 1
    return at + 1


def job_id_at(data: bytes, body: int) -> bytes:
    """Return the job id in a record."""
    return data[body + JOB_ID_AT : body + FIELDS_AT]


def result_at(data: bytes, body: int, end: int) -> bytes:
    """Return the result in a complete or fail record.

    Args:
        data: A segment.
        body: Offset of the record's command.
        end: Offset after the record.

    Raises:
        LogCorruptError: Its length is not that of the record.
    """
    if data[body + FIELDS_AT] == end - body - RESULT_BESIDES_BYTES:
        return data[body + SHORT_FIELD_AT : end - CRC_BYTES]
    length, at = decode_uvarint(data, body + FIELDS_AT, end - CRC_BYTES)
    if at + length != end - CRC_BYTES:
        raise LogCorruptError(f"a result of {length} bytes does not fit its record")
    return data[at : at + length]


def payload_offset(data: bytes, body: int) -> int:
    """Return where the payload of an add or schedule record starts.

    Args:
        data: A segment.
        body: Offset of the record's command.

    Returns:
        The offset; 0 where the name is longer than any that is usual: decode the record.
    """
    name = data[body + FIELDS_AT]
    head = skip_head(data, body + SHORT_FIELD_AT + name) if name <= SHORT_MAX else None
    return 0 if head is None else head.end()


def is_operation(data: bytes, body: int) -> bool:
    """Whether an add record is an operation."""
    return data.startswith(OPERATION_HEAD, body + FIELDS_AT)


def entry_key(data: bytes, start: int, body: int, end: int) -> bytes | None:
    """Return the primary key in an add or schedule record that carries an envelope.

    Args:
        data: A segment.
        start: Offset of the record.
        body: Offset of its command.
        end: Offset of its checksum.

    Returns:
        The key; None: the job is another program's.

    Raises:
        LogCorruptError: The record cannot be understood.
    """
    name = data[body + FIELDS_AT]
    head = _key_head(data, body + SHORT_FIELD_AT + name) if name <= SHORT_MAX else None
    if head is not None:
        at = head.end()
        behind = at + data[at - 1]
        if behind > end:
            raise LogCorruptError("the key of an entry is cut", offset=start)
        return data[at:behind]
    at = payload_offset(data, body)
    if not at:
        payload = decode_body(data, start, body, end).payload
        data, at, end = payload, 0, len(payload)
    if not data.startswith(MAGIC, at):
        return None
    at += MAGIC_BYTES
    # an array of up to 15 fields, or with its number of fields in two bytes
    at += 3 if data[at] == 0xDC else 1
    kind = data[at]
    if kind == 0xC4:
        size, at = data[at + 1], at + 2
    elif kind == 0xC5:
        size, at = _u16_at(data, at + 1)[0], at + 3
    else:
        raise LogCorruptError("an entry does not begin with its key", offset=start)
    if at + size > end:
        raise LogCorruptError("the key of an entry is cut", offset=start)
    return data[at : at + size]
