"""Records of a Kestrel journal: decoder and encoder. Little endian.

A record is an opcode byte and its body; ``docs/migrating.md`` has the table. Opcode 8 has two
meanings, a *continue*, which ``read_record`` takes, and a *state dump* (``kestrel_opcode8``).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from fastjournal.foreign.windowed_file import WindowedFile


class Opcode(IntEnum):
    """First byte of a record; STATE_DUMP is 8 in a file."""

    ADD = 0
    REMOVE = 1
    ADDX = 2
    REMOVE_TENTATIVE = 3
    SAVE_XID = 4
    UNREMOVE = 5
    CONFIRM_REMOVE = 6
    ADD_XID = 7
    CONTINUE = 8
    REMOVE_TENTATIVE_XID = 9
    STATE_DUMP = 256


_XID = struct.Struct("<I")
_ADD = struct.Struct("<ii")
_ADDX = struct.Struct("<iqq")
_ADD_XID = struct.Struct("<Iiqq")
_ADDX_HEAD = struct.Struct("<Biqq")
_TIMES_BYTES = 16
_EXPIRY_BYTES = 4
WITH_VALUE = (Opcode.ADD, Opcode.ADDX, Opcode.ADD_XID, Opcode.CONTINUE)
_XID_ALONE = (
    Opcode.SAVE_XID,
    Opcode.UNREMOVE,
    Opcode.CONFIRM_REMOVE,
    Opcode.REMOVE_TENTATIVE_XID,
)
WITH_XID = (*_XID_ALONE, Opcode.ADD_XID, Opcode.CONTINUE, Opcode.STATE_DUMP)
_ALONE = (Opcode.REMOVE, Opcode.REMOVE_TENTATIVE)
VALUE_BYTES_MAX = 2**31 - 1 - _TIMES_BYTES
"""The size is an i32 and counts both times."""


class KestrelRecord(NamedTuple):
    """One record. Times in milliseconds as in the file."""

    opcode: Opcode
    offset: int
    end: int
    xid: int = 0
    added_ms: int = 0
    """0: the record has no time."""
    expiry_ms: int = 0
    """0: never."""
    value_at: int = 0
    value_bytes: int = 0
    open_count: int = 0
    """Open transactions that a state dump names."""


class BrokenRecordError(Exception):
    """Bytes that are no record.

    Attributes:
        torn: The record is cut short by the end of the file.
    """

    def __init__(self, message: str, *, torn: bool) -> None:
        super().__init__(message)
        self.torn = torn


def read_record(file: WindowedFile, offset: int) -> KestrelRecord:
    """Return the record at an offset before the end of a file; opcode 8 is a continue.

    Raises:
        BrokenRecordError: There is none.
    """
    opcode = file.read(offset, 1)[0]
    body = offset + 1
    if opcode in _ALONE:
        return KestrelRecord(Opcode(opcode), offset, body)
    if opcode in _XID_ALONE:
        (xid,) = _XID.unpack(read_fields(file, body, _XID.size))
        return KestrelRecord(Opcode(opcode), offset, body + _XID.size, xid)
    if opcode == Opcode.ADD:
        size, expiry = _ADD.unpack(read_fields(file, body, _ADD.size))
        at, size = _value(file, body + _ADD.size, size - _EXPIRY_BYTES)
        return KestrelRecord(Opcode.ADD, offset, at + size, 0, 0, expiry * 1000, at, size)
    if opcode == Opcode.ADDX:
        size, added, expiry = _ADDX.unpack(read_fields(file, body, _ADDX.size))
        at, size = _value(file, body + _ADDX.size, size - _TIMES_BYTES)
        return KestrelRecord(Opcode.ADDX, offset, at + size, 0, added, expiry, at, size)
    if opcode in (Opcode.ADD_XID, Opcode.CONTINUE):
        xid, size, added, expiry = _ADD_XID.unpack(read_fields(file, body, _ADD_XID.size))
        at, size = _value(file, body + _ADD_XID.size, size - _TIMES_BYTES)
        return KestrelRecord(Opcode(opcode), offset, at + size, xid, added, expiry, at, size)
    raise BrokenRecordError(f"{opcode} is no opcode of Kestrel", torn=False)


def encode_addx(value: bytes, added_ms: int, expiry_ms: int) -> bytes:
    """Return a record that adds an item."""
    size = len(value) + _TIMES_BYTES
    return _ADDX_HEAD.pack(Opcode.ADDX, size, added_ms, expiry_ms) + value


def read_fields(file: WindowedFile, offset: int, size: int) -> bytes:
    """Return the bytes of fixed fields.

    Raises:
        BrokenRecordError: The file ends before them.
    """
    data = file.read(offset, size)
    if len(data) < size:
        raise BrokenRecordError("the record is cut short by the end of the file", torn=True)
    return data


def _value(file: WindowedFile, offset: int, size: int) -> tuple[int, int]:
    """Check where a value stands; return that and its size."""
    if size < 0:
        raise BrokenRecordError("the size of the item is less than its times take", torn=False)
    if offset + size > file.size:
        raise BrokenRecordError(
            f"an item of {size} bytes is cut short by the end of the file", torn=True
        )
    return offset, size
