"""ADD, NOT and TRUNCATE: change a value in place."""

from __future__ import annotations

import math
from collections.abc import Hashable
from struct import Struct
from typing import TypeAlias

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.keys import parse_journal_key
from fastjournal.limits import COPIED_BYTES_A_UNIT
from fastjournal.protocol import ErrorCode, Reply, Request, ValueType
from fastjournald.engine.context import (
    BAD_KEY,
    CLOCK_SKEW,
    DATA,
    LOCKED,
    OVERWRITE,
    PERSIST,
    READ_ONLY,
    Context,
    is_key,
)
from fastjournald.tables.entry import Cold, Entry

_INTEGER, _FLOAT = int(ValueType.INTEGER), int(ValueType.FLOAT)
_BOOLEAN = int(ValueType.BOOLEAN)
_RESIZABLE = (int(ValueType.BUFFER), int(ValueType.STRING))
_INTEGER_BYTES = (1, 2, 4, 8)
_FLOATS = {4: Struct(">f"), 8: Struct(">d")}
_FLIPPED = {b"\0": b"\1", b"\1": b"\0"}

_Number: TypeAlias = int | float

_NO_NUMBER = f"{ErrorCode.BAD_VALUE} an integer of 1, 2, 4 or 8 bytes, or a float of 4 or 8"
_NO_SIZE = f"{ErrorCode.BAD_VALUE} the size is an integer of 1, 2, 4 or 8 bytes, not below 0"
_STORED = f"{ErrorCode.BAD_VALUE} the stored value does not have the form of its type"


def add(context: Context, session: Hashable, request: Request, now: int) -> str | Reply:
    """Add a number to the stored one; with OVERWRITE it is created where there is none."""
    if not is_key(request.key):
        return BAD_KEY
    value_type = request.value_type
    number = None if value_type is None else _number(value_type, request.value)
    if number is None:
        return _NO_NUMBER
    entry = context.store.find(request.key)
    if entry is None:
        if not request.flags & OVERWRITE:
            return ErrorCode.NOT_FOUND.value
        if _is_skewed(context, request, now):
            return CLOCK_SKEW
        if context.read_only:
            return READ_ONLY
        entry = _create(context, request, now)
        return context.store.pair_reply(entry, request.key, request.flags | DATA, now)
    refused = _refused(context, entry, session, request, now)
    if refused:
        return refused
    if entry.value_type != value_type:
        return ErrorCode.TYPE_MISMATCH.value
    before = _small(entry)
    stored = _number(entry.value_type, before)
    if stored is None:
        return _STORED
    value = _sum(stored, number, len(before))
    if value is None:
        return ErrorCode.OVERFLOW.value
    return _change(context, entry, value, request, now)


def not_(context: Context, session: Hashable, request: Request, now: int) -> str | Reply:
    """Flip a boolean."""
    if not is_key(request.key):
        return BAD_KEY
    entry = context.store.find(request.key)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    refused = _refused(context, entry, session, request, now)
    if refused:
        return refused
    if entry.value_type != _BOOLEAN:
        return ErrorCode.TYPE_MISMATCH.value
    value = _FLIPPED.get(_small(entry))
    if value is None:
        return _STORED
    return _change(context, entry, value, request, now)


def truncate(context: Context, session: Hashable, request: Request, now: int) -> str:
    """Cut a buffer or string to a size, or fill it up with zero bytes."""
    if not is_key(request.key):
        return BAD_KEY
    if request.value_type != _INTEGER:
        return _NO_SIZE
    size = _number(_INTEGER, request.value)
    if not isinstance(size, int) or size < 0:
        return _NO_SIZE
    size_max = context.settings.value_bytes_max
    if size > size_max:
        return f"{ErrorCode.TOO_LARGE} a value has at most {size_max} bytes"
    entry = context.store.find(request.key)
    if entry is None:
        return ErrorCode.NOT_FOUND.value
    refused = _refused(context, entry, session, request, now)
    if refused:
        return refused
    if entry.value_type not in _RESIZABLE:
        return ErrorCode.TYPE_MISMATCH.value
    if context.read_only:
        return READ_ONLY
    before = entry.value
    context.store.work += max(size, len(before)) // COPIED_BYTES_A_UNIT
    value: bytes | Cold
    if isinstance(before, Cold):
        # bytes on disk stay there: the journal says how many of them count
        value = Cold(size) if size else b""
    else:
        value = before[:size].ljust(size, b"\0")
    context.store.set_value(entry, value)
    _written(context, entry, request, now)
    context.journal.resized(entry, len(before), now)
    return ""


def _is_skewed(context: Context, request: Request, now: int) -> bool:
    return request.timestamp > now + context.settings.clock_skew_us_max


def _refused(context: Context, entry: Entry, session: Hashable, request: Request, now: int) -> str:
    """Return why this session cannot write the value of an entry now; empty: it can."""
    if _is_skewed(context, request, now):
        return CLOCK_SKEW
    if context.store.locks.locked_to(entry.key, session, now):
        return LOCKED
    return ""


def _change(
    context: Context, entry: Entry, value: bytes, request: Request, now: int
) -> str | Reply:
    """Set the new value of an entry, and return it."""
    if context.read_only:
        return READ_ONLY
    context.store.set_value(entry, value)
    _written(context, entry, request, now)
    context.journal.revalued(entry, now)
    return context.store.pair_reply(entry, request.key, request.flags | DATA, now)


def _small(entry: Entry) -> bytes:
    """Return the value that may be a number or a boolean; what is cold is neither."""
    return b"" if isinstance(entry.value, Cold) else entry.value


def _written(context: Context, entry: Entry, request: Request, now: int) -> None:
    context.store.note_value(entry)
    if request.timestamp > entry.timestamp:
        with context.store.scheduler.facts_change(entry):
            entry.timestamp = request.timestamp
    entry.modified = now


def _create(context: Context, request: Request, now: int) -> Entry:
    """Set the key to the value of the request, which wins over any tombstone."""
    store, key = context.store, request.key
    assert request.value_type is not None
    parts = parse_journal_key(key)
    domain, priority, not_before = store.scheduler.plain, 0, 0
    if parts is not None:
        domain = store.scheduler.domain_of(parts.domain)
        priority, not_before = parts.priority, parts.not_before_us
    timestamp = max(request.timestamp, store.tombstones.get(key, now) or 0)
    arrival = context.journal.ids.next_serial()
    facts = pack_facts(priority, not_before, arrival, timestamp, now, request.value_type)
    entry = Entry(facts, key, None, request.value, domain)
    erases = store.tombstones.discard(key)
    if request.flags & PERSIST:
        context.journal.stored(entry, now, erases=erases)
    store.insert(entry, now)
    return entry


def _number(value_type: int, data: bytes) -> _Number | None:
    """Return the number in a value; None: it is not a number."""
    if value_type == _INTEGER and len(data) in _INTEGER_BYTES:
        return int.from_bytes(data, "big", signed=True)
    if value_type == _FLOAT and len(data) in _FLOATS:
        number: float = _FLOATS[len(data)].unpack(data)[0]
        return number
    return None


def _sum(stored: _Number, number: _Number, width: int) -> bytes | None:
    """Return the sum in the stored number's width, in bytes; None: it does not fit.

    Floats are added as doubles, and then rounded to the width.
    """
    total = stored + number
    try:
        if isinstance(total, int):
            return total.to_bytes(width, "big", signed=True)
        if math.isinf(total) and math.isfinite(stored) and math.isfinite(number):
            return None
        return _FLOATS[width].pack(total)
    except OverflowError:
        return None
