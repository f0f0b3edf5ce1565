"""Records of a Kestrel journal: decoder, encoder, and their replay into a queue. Little endian.

A record is an opcode byte and its body:

- 0, add: i32 size, i32 expiry in seconds (0: none), size - 4 bytes
- 1, remove: drops the head
- 2, add with times: i32 size, i64 added, i64 expiry in milliseconds (0: none), size - 16 bytes
- 3, remove tentatively: the head becomes an open transaction, under the xid of its opcode 7, else
  the next free one
- 4, save xid: i32 xid; free ones are counted from here
- 5, unremove: i32 xid, back to the head
- 6, confirm: i32 xid
- 7, add with xid: i32 xid, then as opcode 2
- 8, continue: i32 xid, then as opcode 2; confirms a transaction and adds an item, as the last
  program writes it
- 8, state dump, as a description of the format has it: i32 xid, i32 count, then so many pairs of 7
  and 3, which say again what is open; ends its file
- 9, remove tentatively with xid: i32 xid

Opcode 8 is a continue, which ``read_record`` takes, or a state dump, whichever the rest of the file
allows.

The look-ahead that decides is bounded for a whole file, or a crafted one would be read again and
again: once to its end as records, and for pairs as many bytes as it has.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from sortedcontainers import SortedList

from fastjournal.foreign.journal_files import WINDOW_BYTES, WindowedFile


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
    """Check the position of a value; return it and the size."""
    if size < 0:
        raise BrokenRecordError("the size of the item is less than its times take", torn=False)
    if offset + size > file.size:
        raise BrokenRecordError(
            f"an item of {size} bytes is cut short by the end of the file", torn=True
        )
    return offset, size


WAITING = struct.Struct("<IIQQIqq")
"""A waiting item: xid that its record names, file, number, offset and size of its value, times."""

_XID_MAX = 0xFFFFFFFF


class OpenTransactions:
    """Items of open transactions by xid. Every operation is O(log n), that for a free xid squared.

    A journal can set the counter of xids back again and again, so the next free one is searched
    for, and not counted up to.
    """

    def __init__(self) -> None:
        self._items: dict[int, bytes] = {}
        self._xids = SortedList()

    def put(self, xid: int, item: bytes) -> None:
        """Open a transaction, in place of one that has its xid."""
        if xid not in self._items:
            self._xids.add(xid)
        self._items[xid] = item

    def pop(self, xid: int) -> bytes | None:
        """End a transaction, and return its item; None: it is not open."""
        item = self._items.pop(xid, None)
        if item is not None:
            self._xids.remove(xid)
        return item

    def free_xid(self, after: int) -> int:
        """Return the first xid after ``after`` that is not open; after the last comes 1."""
        xids, xid = self._xids, after + 1
        at = xids.bisect_left(xid)
        if at < len(xids) and xids[at] == xid:
            # in a row of xids without a gap, xid and place differ by the same number
            end = bisect_right(
                range(at, len(xids)), xid - at, key=lambda place: xids[place] - place
            )
            xid += end
        return xid if xid <= _XID_MAX else self.free_xid(0)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._items.values())


class KestrelQueue:
    """State of one queue at some point of its journal."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.open = OpenTransactions()
        self.added = 0
        self._xid = 0

    def apply(self, record: KestrelRecord, file: int) -> None:
        """Apply a record.

        Args:
            record: The record.
            file: Number of its file.
        """
        match record.opcode:
            case Opcode.ADD | Opcode.ADDX | Opcode.ADD_XID:
                self._add(record, file)
            case Opcode.CONTINUE:
                self.open.pop(record.xid)
                self._add(record, file)
            case Opcode.REMOVE if self.waiting:
                self.waiting.popleft()
            case Opcode.REMOVE_TENTATIVE if self.waiting:
                item = self.waiting.popleft()
                self.open.put(WAITING.unpack(item)[0] or self._next_xid(), item)
            case Opcode.REMOVE_TENTATIVE_XID if self.waiting:
                self.open.put(record.xid, self.waiting.popleft())
            case Opcode.SAVE_XID:
                self._xid = record.xid
            case Opcode.UNREMOVE | Opcode.CONFIRM_REMOVE:
                taken = self.open.pop(record.xid)
                if taken is not None and record.opcode is Opcode.UNREMOVE:
                    self.waiting.appendleft(bytes(4) + taken[4:])

    def items(self) -> Iterator[bytes]:
        """Yield the items that are not done."""
        yield from self.open
        yield from self.waiting

    def _add(self, record: KestrelRecord, file: int) -> None:
        self.added += 1
        xid = record.xid if record.opcode is Opcode.ADD_XID else 0
        self.waiting.append(
            WAITING.pack(
                xid,
                file,
                self.added,
                record.offset,
                record.value_bytes,
                record.added_ms,
                record.expiry_ms,
            )
        )

    def _next_xid(self) -> int:
        self._xid = self.open.free_xid(self._xid)
        return self._xid


Opcode8: TypeAlias = Literal["auto", "continue", "state-dump"]
"""Meaning of opcode 8; auto: the one with which the rest of the file is records."""

_STATE_DUMP = struct.Struct("<Ii")
_PAIRS = (Opcode.REMOVE_TENTATIVE, Opcode.REMOVE_TENTATIVE_XID)
_LOOKAHEAD_BYTES_MIN = 4 * WINDOW_BYTES


class RecordReader:
    """Reader of the records of one file, from its begin on.

    Args:
        file: The file.
        opcode8: Meaning of opcode 8.
    """

    def __init__(self, file: WindowedFile, opcode8: Opcode8 = "auto") -> None:
        self._file = file
        self._opcode8 = opcode8
        self._lookahead_bytes = file.size + _LOOKAHEAD_BYTES_MIN
        """Bytes that may still be examined for pairs."""
        self._whole = False
        """With opcode 8 as a continue, all that follows is records."""

    def read(self, offset: int) -> KestrelRecord:
        """Return the record at an offset before the end of the file.

        Args:
            offset: Begin of the file, or the end of the record that was read last.

        Raises:
            BrokenRecordError: There is none, or opcode 8 has no certain meaning.
        """
        file = self._file
        if self._opcode8 == "continue" or file.read(offset, 1)[0] != Opcode.CONTINUE:
            return read_record(file, offset)
        xid, count = _STATE_DUMP.unpack(read_fields(file, offset + 1, _STATE_DUMP.size))
        dump = KestrelRecord(Opcode.STATE_DUMP, offset, file.size, xid, open_count=count)
        if self._opcode8 == "state-dump":
            if count < 0:
                raise BrokenRecordError(f"a state dump of {count} transactions", torn=False)
            return dump
        pairs = self._follow_pairs(offset + 1 + _STATE_DUMP.size, count)
        if pairs == "whole":
            return dump
        try:
            record = read_record(file, offset)
        except BrokenRecordError:
            if pairs == "torn":
                return dump
            raise
        return dump if pairs == "torn" and self._breaks(record.end) else record

    def _follow_pairs(self, offset: int, count: int) -> Literal["whole", "torn", "not"]:
        """Return whether exactly so many pairs are there, up to the end of the file."""
        file = self._file
        if count < 0:
            return "not"
        try:
            for _ in range(count):
                if offset == file.size:
                    return "torn"
                record = read_record(file, offset)
                if record.opcode is not Opcode.ADD_XID:
                    return "not"
                self._charge(record.end - offset)
                offset = record.end
                if offset == file.size:
                    return "torn"
                follower = read_record(file, offset)
                if follower.opcode in _PAIRS:
                    offset = follower.end
        except BrokenRecordError as error:
            if self._lookahead_bytes < 0:
                raise
            return "torn" if error.torn and file.read(offset, 1)[0] == Opcode.ADD_XID else "not"
        return "whole" if offset == file.size else "not"

    def _charge(self, size: int) -> None:
        """Count the cost of examining a record of this size: at most a window that is read."""
        self._lookahead_bytes -= min(size, WINDOW_BYTES)
        if self._lookahead_bytes < 0:
            raise BrokenRecordError(
                "opcode 8 has too often either meaning;"
                " 'fj-cli import kestrel --opcode-8' sets one",
                torn=False,
            )

    def _breaks(self, offset: int) -> bool:
        """Return whether the rest of the file is no records, where opcode 8 is a continue.

        Where it does break, a state dump ends the file: so this reads the rest of a file once.
        """
        try:
            while not self._whole and offset < self._file.size:
                offset = read_record(self._file, offset).end
        except BrokenRecordError:
            return True
        self._whole = True
        return False
