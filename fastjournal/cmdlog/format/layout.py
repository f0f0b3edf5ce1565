"""Record layout of the command log, as workq defines it: bytes, and names for their offsets.

Segment header: ``77 71 77 71 00 00 00 01`` (``wqwq``, version 1), then records.

Record: ``TIME(15) SIZE(uvarint) BODY(SIZE bytes) CRC(4)``. CRC is CRC-32C (Castagnoli), big endian,
over TIME, SIZE and BODY. Varints: ``cmdlog.format.varints``.

Time (Go's ``time.Time`` in binary form), all big endian::

    u8   version, 01
    i64  seconds since 0001-01-01T00:00:00Z (Unix + 62135596800)
    i32  nanoseconds
    i16  zone offset in minutes; -1 stands for UTC and is what is written

No time at all: ``01``, twelve zero bytes, and any offset; ``ff ff`` is what is written. It is the
time for which Go's ``IsZero`` is true, whatever its zone.

Body: u8 command, 16 bytes job id (UUIDv4), then by command::

    add 1, schedule 2     uvarint name length, name
                          uvarint ttr ms, uvarint ttl ms, zig-zag varint priority
                          uvarint max attempts, uvarint max fails      (up to here: the head)
                          uvarint payload length, payload
                          time(15) not before, time(15) created
    complete 3, fail 4    uvarint result length, result
    delete 5, expire 6, start-attempt 7, timeout-attempt 8    nothing

Encoder and decoder: ``cmdlog.format.records``. Where a record is read in place, its offsets are
those named here, and ``records`` leads to the rest: no module knows them by numbers.
"""

from __future__ import annotations

from enum import IntEnum

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
"""From the start of a body to the end of its record, besides a result of up to 127 bytes."""
RECORD_BYTES_MIN = SHORT_BODY_AT + SIMPLE_TAIL_BYTES
"""Length of the record of a simple command: 37 bytes."""


class Command(IntEnum):
    """Command of a record: the event that it tells of its job."""

    ADD = 1
    SCHEDULE = 2
    COMPLETE = 3
    FAIL = 4
    DELETE = 5
    EXPIRE = 6
    START_ATTEMPT = 7
    TIMEOUT_ATTEMPT = 8
