"""Partial decoding: what a record is about, read in place.

Replay and compaction look at every record of a log; most of them are entries, and of those only the
place of the payload and the primary key are wanted. The layouts are those of
``cmdlog.format.layout`` and ``cmdlog.format.envelope``.
"""

from __future__ import annotations

import re
from struct import Struct

from fastjournal.cmdlog.format.envelope import MAGIC, MAGIC_BYTES
from fastjournal.cmdlog.format.layout import (
    CRC_BYTES,
    FIELDS_AT,
    JOB_ID_AT,
    RESULT_BESIDES_BYTES,
    SHORT_FIELD_AT,
    SHORT_MAX,
    TIME_BYTES,
)
from fastjournal.cmdlog.format.operation_records import OPERATION_NAME
from fastjournal.cmdlog.format.records import decode_body
from fastjournal.cmdlog.format.varints import decode_uvarint
from fastjournal.errors import LogCorruptError

_u16_at = Struct(">H").unpack_from
skip_head = re.compile(rb"(?:[\x80-\xff]{0,9}[\x00-\x7f]){6}").match
"""From a job's name to its payload: ttr, ttl, priority, attempts, fails and a length."""
_KEY_HEAD = rb"(?:[\x80-\xff]{0,9}[\x00-\x7f]){6}" + re.escape(MAGIC) + rb"%b\xc4."
_key_head = re.compile(_KEY_HEAD % rb"(?:[\x90-\x9f]|\xdc..)", re.DOTALL).match
"""The same, and on to a primary key of up to 255 bytes, whose length is the last byte."""
plain_head = re.compile(_KEY_HEAD % rb"(?:[\x90-\x9f]|\xdc\x00[\x10-\x12])", re.DOTALL).match
"""The same, of an envelope without the field ``erases``, the 19th: most are."""
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
        end: Offset behind the record.

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
