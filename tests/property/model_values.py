"""The naive model's ADD, NOT and TRUNCATE. See model.py."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable

import msgspec

from fastjournal.keys import parse_journal_key
from fastjournal.protocol.constants import ValueType
from fastjournal.protocol.messages import Reply, Request
from tests.property.model_parts import Bit, Entry, RefusedError, check_key, refuse
from tests.property.model_state import State

NUMBERS = (ValueType.INTEGER, ValueType.FLOAT)
TEXTS = (ValueType.BUFFER, ValueType.STRING)


def number_of(kind: int | None, data: bytes) -> int | float:
    """The number that the data of a value are."""
    if kind == ValueType.INTEGER:
        refuse("bad-value", len(data) not in (1, 2, 4, 8))
        return int.from_bytes(data, "big", signed=True)
    refuse("bad-value", kind != ValueType.FLOAT or len(data) not in (4, 8))
    number: float = struct.unpack(">f" if len(data) == 4 else ">d", data)[0]
    return number


def add_integer(stored: bytes, number: int) -> bytes:
    total = int.from_bytes(stored, "big", signed=True) + number
    bits = 8 * len(stored)
    refuse("overflow", not -(2 ** (bits - 1)) <= total < 2 ** (bits - 1))
    return total.to_bytes(len(stored), "big", signed=True)


def add_float(stored: bytes, number: float) -> bytes:
    form = ">f" if len(stored) == 4 else ">d"
    (before,) = struct.unpack(form, stored)
    total = before + number
    are_finite = math.isfinite(before) and math.isfinite(number)
    refuse("overflow", are_finite and not math.isfinite(total))
    try:
        return struct.pack(form, total)
    except OverflowError:
        raise RefusedError("overflow") from None


class Values(State):
    """Functions that change a value in place."""

    def do_add(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        number = number_of(r.value_type, r.value)
        e = self.find(r.key)
        if e is None and not r.flags & Bit.OVERWRITE:
            raise RefusedError("not-found")
        refuse("clock-skew", self.skewed(r))
        if e is None:
            return self.told(self.create(r), r)
        refuse("locked", self.locked(e, session))
        refuse("type-mismatch", e.value_type != r.value_type)
        number_of(e.value_type, e.value)
        if isinstance(number, int):
            data = add_integer(e.value, number)
        else:
            data = add_float(e.value, number)
        self.change(e, r, data)
        return self.told(e, r)

    def create(self, r: Request) -> Entry:
        """The number that ADD with OVERWRITE brings along."""
        stone, _ = self.tombstones.pop(r.key, (0, 0))
        e = Entry(r.key, self.arrivals, self.clock, parse_journal_key(r.key))
        self.arrivals += 1
        self.entries.append(e)
        e.value_type, e.value = r.value_type or 0, r.value
        e.timestamp = max(r.timestamp, stone)
        e.modified = e.accessed = self.clock
        e.persistent = bool(r.flags & (Bit.PERSIST | Bit.PERSIST_ALIAS))
        e.not_before = e.parts.not_before_us if e.parts else 0
        return e

    def do_not(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        e = self.changeable(session, r)
        refuse("type-mismatch", e.value_type != ValueType.BOOLEAN)
        refuse("bad-value", e.value not in (b"\0", b"\1"))
        self.change(e, r, b"\0" if e.value == b"\1" else b"\1")
        return self.told(e, r)

    def do_truncate(self, session: Hashable, r: Request) -> Reply:
        check_key(r.key)
        refuse("bad-value", r.value_type != ValueType.INTEGER)
        size = number_of(r.value_type, r.value)
        refuse("bad-value", size < 0)
        refuse("too-large", size > self.rules.value_bytes_max)
        e = self.changeable(session, r)
        refuse("type-mismatch", e.value_type not in TEXTS)
        self.change(e, r, e.value[: int(size)].ljust(int(size), b"\0"))
        return Reply()

    def changeable(self, session: Hashable, r: Request) -> Entry:
        e = self.found(r.key)
        refuse("clock-skew", self.skewed(r))
        refuse("locked", self.locked(e, session))
        return e

    def change(self, e: Entry, r: Request, data: bytes) -> None:
        e.value = data
        e.writes += 1
        e.timestamp = max(e.timestamp, r.timestamp)
        e.modified = self.clock

    def told(self, e: Entry, r: Request) -> Reply:
        with_data = msgspec.structs.replace(r, flags=r.flags | Bit.DATA)
        return Reply(pairs=[self.pair(e, with_data, r.key)])
