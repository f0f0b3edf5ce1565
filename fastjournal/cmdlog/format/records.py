"""Records of the command log: workq's byte layout, encoder and decoder.

Segment header: ``77 71 77 71 00 00 00 01`` (``wqwq``, version 1), then records.

Record: ``TIME(15) SIZE(uvarint) PAYLOAD(SIZE bytes) CRC(4)``. CRC is CRC-32C (Castagnoli), big
endian, over TIME, SIZE and PAYLOAD.

Time (Go's ``time.Time`` in binary form), all big endian::

    u8   version, 01
    i64  seconds since 0001-01-01T00:00:00Z (Unix + 62135596800)
    i32  nanoseconds
    i16  zone offset in minutes; -1 stands for UTC and is what is written

No time at all: ``01``, twelve zero bytes, ``ff ff``.

Payload: u8 command, 16 bytes job id (UUIDv4), then by command::

    add 1, schedule 2     uvarint name length, name
                          uvarint ttr ms, uvarint ttl ms, zig-zag varint priority
                          uvarint max attempts, uvarint max fails      (up to here: the head)
                          uvarint payload length, payload
                          time(15) not before, time(15) created
    complete 3, fail 4    uvarint result length, result
    delete 5, expire 6, start-attempt 7, timeout-attempt 8    nothing

The encoders build what they are given: that workq takes the values is ``cmdlog.format.workq``'s
part.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import google_crc32c
import msgspec

from fastjournal.errors import LogCorruptError

SEGMENT_HEADER = b"wqwq\x00\x00\x00\x01"
TIME_BYTES = 15
CRC_BYTES = 4
JOB_ID_BYTES = 16
RUN_BYTES = 8
"""Of the ids that fastjournald gives: the first half is the same in one run of the daemon, the
second half ascends."""
RECORD_BYTES_MIN = TIME_BYTES + 1 + 1 + JOB_ID_BYTES + CRC_BYTES
"""A record of a simple command: 37 bytes, of which SIZE takes one."""

UNIX_SECONDS = 62_135_596_800
"""The Unix epoch in seconds since the year 1."""
NO_TIME = b"\x01" + bytes(12) + b"\xff\xff"
"""The encoded absence of a time."""

_TIME = struct.Struct(">Bqih")
_CRC = struct.Struct(">I")
_pack_time = _TIME.pack
_pack_crc = _CRC.pack
_crc32c = google_crc32c.value
_UVARINT_BYTES_MAX = 10


class Command(IntEnum):
    """What a record says about its job."""

    ADD = 1
    SCHEDULE = 2
    COMPLETE = 3
    FAIL = 4
    DELETE = 5
    EXPIRE = 6
    START_ATTEMPT = 7
    TIMEOUT_ATTEMPT = 8


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


def encode_uvarint(number: int) -> bytes:
    """Return an unsigned varint: 7 bits a byte, least significant first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_UVARINTS = [encode_uvarint(number) for number in range(4096)]
_UVARINTS_KNOWN = len(_UVARINTS)


def encode_varint(number: int) -> bytes:
    """Return a signed (zig-zag) varint."""
    return encode_uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


def encode_time(us: int, nanoseconds: int = 0) -> bytes:
    """Return the 15 bytes of an instant: microseconds since the Unix epoch, and nanoseconds."""
    seconds, rest = divmod(us, 1_000_000)
    return _pack_time(1, seconds + UNIX_SECONDS, rest * 1000 + nanoseconds, -1)


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
    # 47: command, job id and two times
    size = 47 + len(head) + len(length_bytes) + length
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
    size = 17 + len(length_bytes) + length
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
    # 0x11: SIZE, command and job id
    data = b"".join((time, b"\x11", _COMMAND_BYTES[command], job_id))
    return data + _pack_crc(_crc32c(data))


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
    if len(data) != TIME_BYTES or data[0] != 1:
        raise LogCorruptError(f"{data.hex()} is not a time")
    _, seconds, nanoseconds, _ = _TIME.unpack(data)
    if seconds == 0 and nanoseconds == 0:
        return None
    return int((seconds - UNIX_SECONDS) * 1_000_000 + nanoseconds // 1000)


def decode_uvarint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """Return the unsigned varint at ``offset`` and the offset behind it.

    Raises:
        LogCorruptError: It does not end before ``end``, or does not fit into 64 bits.
    """
    number = shift = 0
    for at in range(offset, min(end, offset + _UVARINT_BYTES_MAX)):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return number, at + 1
        shift += 7
    raise LogCorruptError("a number is cut or over 64 bits", offset=offset)


def decode_record(data: bytes, offset: int = 0) -> tuple[Record, int]:
    """Return the record that starts at ``offset`` and the offset behind it.

    Args:
        data: A segment, or any part of one.
        offset: Of the first byte of the record's time.

    Raises:
        LogCorruptError: There is no whole, valid record; ``offset`` is that of the field at fault.
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
    return decode_payload(data, offset, start, end), end + CRC_BYTES


def decode_payload(data: bytes, time_offset: int, start: int, end: int) -> Record:
    """Return the record whose payload is ``data[start:end]``; its frame has been checked before.

    Raises:
        LogCorruptError: The command is unknown, a field is cut, or bytes follow the last field.
    """
    time = _take(data, time_offset, TIME_BYTES, end, "time")
    decode_time(time)
    job_id = _take(data, start + 1, JOB_ID_BYTES, end, "job id")
    command = _COMMANDS.get(data[start])
    if command is None:
        raise LogCorruptError(f"command {data[start]} is unknown", offset=start)
    at = start + 1 + JOB_ID_BYTES
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
