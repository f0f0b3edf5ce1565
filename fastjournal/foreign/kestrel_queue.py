"""Queue of a Kestrel journal: its waiting items and open transactions, as Kestrel replays them."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from sortedcontainers import SortedList

from fastjournal.foreign.kestrel_records import KestrelRecord, Opcode

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
        """Return the first xid behind ``after`` that is not open; behind the last comes 1."""
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
