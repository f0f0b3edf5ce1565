"""Records of a Kestrel journal: decoder and encoder. Little endian.

A record is an opcode byte and its body; ``docs/migrating.md`` has the table. Opcode 8 has two
meanings: the last program writes a *continue* (confirms a transaction and adds an item), the
format's description has a *state dump* (how many open transactions follow as pairs of ADD_XID and
REMOVE_TENTATIVE), which ends its file: the pairs behind it say again what is open.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from fastjournal.foreign.windowed_file import WindowedFile

Opcode8: TypeAlias = Literal["auto", "continue", "state-dump"]
"""Meaning of opcode 8; auto: the one with which the rest of the file is records."""


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
_STATE_DUMP = struct.Struct("<Ii")
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


def read_record(file: WindowedFile, offset: int, opcode8: Opcode8 = "auto") -> KestrelRecord:
    """Return the record at an offset before the end of a file.

    Raises:
        BrokenRecordError: There is none.
    """
    opcode = file.read(offset, 1)[0]
    body = offset + 1
    if opcode in _ALONE:
        return KestrelRecord(Opcode(opcode), offset, body)
    if opcode in _XID_ALONE:
        (xid,) = _XID.unpack(_read(file, body, _XID.size))
        return KestrelRecord(Opcode(opcode), offset, body + _XID.size, xid)
    if opcode == Opcode.ADD:
        size, expiry = _ADD.unpack(_read(file, body, _ADD.size))
        at, size = _value(file, body + _ADD.size, size - _EXPIRY_BYTES)
        return KestrelRecord(Opcode.ADD, offset, at + size, 0, 0, expiry * 1000, at, size)
    if opcode == Opcode.ADDX:
        size, added, expiry = _ADDX.unpack(_read(file, body, _ADDX.size))
        at, size = _value(file, body + _ADDX.size, size - _TIMES_BYTES)
        return KestrelRecord(Opcode.ADDX, offset, at + size, 0, added, expiry, at, size)
    if opcode == Opcode.ADD_XID:
        return _add_with_xid(file, offset, Opcode.ADD_XID)
    if opcode == Opcode.CONTINUE:
        return _opcode_8(file, offset, opcode8)
    raise BrokenRecordError(f"{opcode} is no opcode of Kestrel", torn=False)


def encode_addx(value: bytes, added_ms: int, expiry_ms: int) -> bytes:
    """Return a record that adds an item."""
    size = len(value) + _TIMES_BYTES
    return _ADDX_HEAD.pack(Opcode.ADDX, size, added_ms, expiry_ms) + value


def _read(file: WindowedFile, offset: int, size: int) -> bytes:
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


def _add_with_xid(file: WindowedFile, offset: int, opcode: Opcode) -> KestrelRecord:
    body = offset + 1
    xid, size, added, expiry = _ADD_XID.unpack(_read(file, body, _ADD_XID.size))
    at, size = _value(file, body + _ADD_XID.size, size - _TIMES_BYTES)
    return KestrelRecord(opcode, offset, at + size, xid, added, expiry, at, size)


def _opcode_8(file: WindowedFile, offset: int, opcode8: Opcode8) -> KestrelRecord:
    if opcode8 == "continue":
        return _add_with_xid(file, offset, Opcode.CONTINUE)
    xid, count = _STATE_DUMP.unpack(_read(file, offset + 1, _STATE_DUMP.size))
    dump = KestrelRecord(Opcode.STATE_DUMP, offset, file.size, xid, open_count=count)
    if opcode8 == "state-dump":
        if count < 0:
            raise BrokenRecordError(f"a state dump of {count} transactions", torn=False)
        return dump
    pairs = _follow_pairs(file, offset + 1 + _STATE_DUMP.size, count)
    if pairs == "whole":
        return dump
    try:
        record = _add_with_xid(file, offset, Opcode.CONTINUE)
    except BrokenRecordError:
        if pairs == "torn":
            return dump
        raise
    return dump if pairs == "torn" and _breaks(file, record.end) else record


def _follow_pairs(file: WindowedFile, offset: int, count: int) -> Literal["whole", "torn", "not"]:
    """Return whether so many pairs stand there, and nothing else up to the end of the file."""
    if count < 0:
        return "not"
    try:
        for _ in range(count):
            if offset == file.size:
                return "torn"
            record = read_record(file, offset, "continue")
            if record.opcode is not Opcode.ADD_XID:
                return "not"
            offset = record.end
            if offset == file.size:
                return "torn"
            follower = read_record(file, offset, "continue")
            if follower.opcode in (Opcode.REMOVE_TENTATIVE, Opcode.REMOVE_TENTATIVE_XID):
                offset = follower.end
    except BrokenRecordError as error:
        return "torn" if error.torn and file.read(offset, 1)[0] == Opcode.ADD_XID else "not"
    return "whole" if offset == file.size else "not"


def _breaks(file: WindowedFile, offset: int) -> bool:
    """Whether the rest of a file is no records, where opcode 8 is a continue."""
    try:
        while offset < file.size:
            offset = read_record(file, offset, "continue").end
    except BrokenRecordError:
        return True
    return False
