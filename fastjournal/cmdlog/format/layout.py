"""Record layout of the command log, as workq defines it: bytes, and names for their offsets.

Segment header: ``77 71 77 71 00 00 00 01`` (``wqwq``, version 1), then records.

Record: ``TIME(15) SIZE(uvarint) BODY(SIZE bytes) CRC(4)``. CRC is CRC-32C (Castagnoli), big endian,
over TIME, SIZE and BODY.

Time (Go's ``time.Time`` in binary form), all big endian::

    u8   version, 01
    i64  seconds since 0001-01-01T00:00:00Z (Unix + 62135596800)
    i32  nanoseconds
    i16  zone offset in minutes; -1 means UTC and is written

No time at all: ``01``, twelve zero bytes, and any offset; ``ff ff`` is written. It is the time for
which Go's ``IsZero`` is true, in any zone.

Body: u8 command, 16 bytes job id (UUIDv4), then by command::

    add 1, schedule 2     uvarint name length, name
                          uvarint ttr ms, uvarint ttl ms, zig-zag varint priority
                          uvarint max attempts, uvarint max fails      (up to here: the head)
                          uvarint payload length, payload
                          time(15) not before, time(15) created
    complete 3, fail 4    uvarint result length, result
    delete 5, expire 6, start-attempt 7, timeout-attempt 8    nothing

Encoder and decoder: ``cmdlog.format.records``. Code that reads a record in place uses the offsets
named here and functions of ``records``: no module has them as numbers.

Varints: numbers of 7 bits a byte, least significant first. Bit 7 is set but in the last byte. A
signed number is zig-zag encoded first.

Segments: a log directory holds segments named by a 9 digit decimal number, ``000000001.log``; the
first number is any, gaps are allowed, other names are ignored.

The location of a record, its position, is one integer: the segment's number shifted left by 40
bits, plus the offset of the record's first byte. Positions of one log sort in the order of writing.
"""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec

from fastjournal.errors import LogCorruptError

_UVARINT_BYTES_MAX = 10


def encode_uvarint(number: int) -> bytes:
    """Return an unsigned varint: 7 bits a byte, least significant first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_varint(number: int) -> bytes:
    """Return a signed (zig-zag) varint."""
    return encode_uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


def decode_uvarint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """Return the unsigned varint at ``offset`` and the offset after it.

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


SEGMENT_HEADER = b"wqwq\x00\x00\x00\x01"
TIME_BYTES = 15
TIME_VERSION = 1
UNIX_SECONDS = 62_135_596_800
"""The Unix epoch in seconds since the year 1."""
NO_TIME = bytes((TIME_VERSION,)) + bytes(12) + b"\xff\xff"
"""The absence of a time, as it is written. Read it with ``records.decode_time``: other bytes mean
it too."""
CRC_BYTES = 4
JOB_ID_BYTES = 16
RUN_BYTES = 8
"""Length of the first half of the ids that fastjournald gives: it is the same in one run of the
daemon; the second half ascends."""

# --- layout -------------------------------------------------------------------------------------

SHORT_BODY_AT = TIME_BYTES + 1
"""From the start of a record to its body, where SIZE takes one byte."""

# From the start of a body, which is that of the command:
JOB_ID_AT = 1
FIELDS_AT = JOB_ID_AT + JOB_ID_BYTES
"""The length of the name (add, schedule) or result (complete, fail); a simple body ends here."""
SHORT_FIELD_AT = FIELDS_AT + 1
"""The name or result itself, where its length takes one byte."""
SHORT_MAX = 0x7F
"""The largest number, such as a length, that takes one byte."""

SIMPLE_BODY_BYTES = FIELDS_AT
"""Length of the body of a delete, expire, start-attempt or timeout-attempt record."""
SIMPLE_TAIL_BYTES = SIMPLE_BODY_BYTES + CRC_BYTES
"""From the start of such a body to the end of its record."""
JOB_TAIL_BYTES = 2 * TIME_BYTES + CRC_BYTES
"""From the end of the payload of an add or schedule record to the end of the record."""
RESULT_BESIDES_BYTES = SHORT_FIELD_AT + CRC_BYTES
"""From the start of a body to the end of its record, without a result of up to 127 bytes."""
RECORD_BYTES_MIN = SHORT_BODY_AT + SIMPLE_TAIL_BYTES
"""Length of the record of a simple command: 37 bytes."""


class Command(IntEnum):
    """Command of a record: the event of its job."""

    ADD = 1
    SCHEDULE = 2
    COMPLETE = 3
    FAIL = 4
    DELETE = 5
    EXPIRE = 6
    START_ATTEMPT = 7
    TIMEOUT_ATTEMPT = 8


OFFSET_BITS = 40
"""A segment has at most 1 TiB: far above any segment size in use."""
OFFSET_MASK = (1 << OFFSET_BITS) - 1
SEGMENT_NUMBER_MAX = 999_999_999
"""The largest number of 9 digits."""

_NAME = re.compile(r"([0-9]{9})\.log")


class SegmentInfo(msgspec.Struct, frozen=True, gc=False):
    """Facts about one segment."""

    number: int
    bytes: int
    crc32c: int
    """CRC-32C of the whole file."""
    first_us: int | None
    """Time of the first record, in microseconds since the Unix epoch; None without records."""
    last_us: int | None
    """Time of the last record."""
    records: int
    min_us: int | None = None
    """Earliest time of a record, wherever a clock was set back; None: there is no record, or one
    without a time."""
    max_us: int | None = None
    """Latest time of a record; None: as above."""

    @property
    def name(self) -> str:
        """File name in the log directory."""
        return segment_name(self.number)


def segment_name(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:09d}.log"


def segment_number(name: str) -> int | None:
    """Return the number in a file name, or None where it is not a segment's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def pack_position(segment: int, offset: int) -> int:
    """Return the position of the record that starts at ``offset`` of a segment."""
    return segment << OFFSET_BITS | offset


def unpack_position(position: int) -> tuple[int, int]:
    """Return the segment's number and the offset in it."""
    return position >> OFFSET_BITS, position & OFFSET_MASK
