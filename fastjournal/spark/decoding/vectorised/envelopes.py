"""Vectorised decoder of envelopes: the fields of many entries, one field of all after the other.

Layout: ``cmdlog.format.envelope``.
"""

from __future__ import annotations

import numpy as np

from fastjournal.cmdlog.format.endings import SERIAL_MAX
from fastjournal.cmdlog.format.envelope import Envelope
from fastjournal.spark.decoding.byte_arrays import (
    NIL,
    ByteStrings,
    Integers,
    Mask,
    Offsets,
    SegmentBytes,
)
from fastjournal.spark.decoding.vectorised.fields import EntryFields, Links

INT32_MAX = 2**31 - 1
_EMPTY_ARRAY = 0x90
_SHORT_ARRAY_MAX = 15
_FALSE, _TRUE = 0xC2, 0xC3

ENVELOPE_FIELDS = Envelope.__struct_fields__
_FIELDS_MIN = len(ENVELOPE_FIELDS) - len(Envelope.__struct_defaults__)
"""Fields of the shortest envelope: those without a default."""
_BYTES, _OPTIONAL, _NONE_YET, _LIST, _BYTE, _NUMBER, _FLAG = range(7)
_KINDS = {
    "key": _BYTES, "uri": _OPTIONAL, "links": _LIST, "value_type": _BYTE, "value": _BYTES,
    "reason": _OPTIONAL, "taken": _NONE_YET, "erases": _FLAG, "error": _OPTIONAL,
}  # fmt: skip
"""Forms of the fields of an envelope; the others are numbers. ``_NONE_YET``: an empty array.
``_LIST``: an array of up to 15 byte strings."""


def decode_envelopes(
    segment: SegmentBytes, rows: Offsets, at: Offsets, stop: Offsets, last_field: int
) -> EntryFields:
    """Return the fields of envelopes.

    Args:
        segment: Bytes of the segment.
        rows: Where their records stand among the records.
        at: Where their arrays begin.
        stop: Offsets behind them.
        last_field: Number of the last field that is asked for; all: the length is checked, too.
    """
    first = segment.byte(at)
    is_long = first == 0xDC
    count = np.where(is_long, segment.byte(at + 2), first.astype(np.int64) - _EMPTY_ARRAY)
    valid = np.where(is_long, segment.byte(at + 1) == 0, count <= _SHORT_ARRAY_MAX)
    valid &= (count >= _FIELDS_MIN) & (count <= len(ENVELOPE_FIELDS))
    at = at + np.where(is_long, 3, 1)
    fields: dict[str, Integers | ByteStrings] = {}
    links = _NO_LINKS
    for index, name in enumerate(ENVELOPE_FIELDS[: last_field + 1]):
        there = count > index
        if index >= _FIELDS_MIN and not there.any():
            break
        field: Integers | ByteStrings
        if _KINDS.get(name) == _LIST:
            # those of all envelopes, one after the other
            links, field = _decode_lists(segment, at)
            right = field.valid
        else:
            field, right = _decode_field(segment, name, at)
        if not there.all():
            right = right | ~there
            field = _defaulted(field, there, at)
        valid &= right
        at = field.end
        fields[name] = field
    valid &= at == stop if last_field >= len(ENVELOPE_FIELDS) else at <= stop
    return EntryFields(rows, fields, links, valid)


_NO_LINKS = Links(*(np.zeros(0, np.int64) for _ in range(3)))


def _decode_lists(segment: SegmentBytes, at: Offsets) -> tuple[Links, ByteStrings]:
    """Return the byte strings in the lists of all envelopes, and the places of these lists."""
    count = segment.byte(at).astype(np.int64) - _EMPTY_ARRAY
    right = (count >= 0) & (count <= _SHORT_ARRAY_MAX)
    end = at + 1
    found = []
    for index in range(int(count[right].max(initial=0))):
        rows = np.flatnonzero(right & (count > index))
        one = segment.msgpack_bytes(end[rows])
        right[rows] &= one.valid & ~one.nils
        found.append((rows, one.start, one.end))
        end[rows] = one.end
    place = ByteStrings(at, end, right)
    if not found:
        return _NO_LINKS, place
    of, start, behind = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((start, of))
    # without those of lists that turned out to have another form
    order = order[right[of[order]]]
    return Links(of[order], start[order], behind[order]), place


def _decode_field(
    segment: SegmentBytes, name: str, at: Offsets
) -> tuple[Integers | ByteStrings, Mask]:
    """Return a field of all envelopes, and where it has the usual form."""
    kind = _KINDS.get(name, _NUMBER)
    first = segment.byte(at)
    if kind in (_BYTES, _OPTIONAL):
        found = segment.msgpack_bytes(at)
        return found, found.valid if kind == _OPTIONAL else found.valid & (first != NIL)
    if kind == _NONE_YET:
        return ByteStrings(at + 1, at + 1, first == _EMPTY_ARRAY), first == _EMPTY_ARRAY
    if kind == _FLAG:
        return ByteStrings(at + 1, at + 1, first <= _TRUE), (first == _FALSE) | (first == _TRUE)
    number = segment.msgpack_integers(at)
    bounds = {"value_type": 255, "arrival": SERIAL_MAX, "attempts": INT32_MAX, "origin": 255}
    right = number.valid
    if name in bounds:
        right = right & (number.numbers <= bounds[name])
    return number, right


def _defaulted(field: Integers | ByteStrings, there: Mask, at: Offsets) -> Integers | ByteStrings:
    """Return a field with its default, which is 0, empty or none, where it is not there."""
    if isinstance(field, Integers):
        return Integers(
            np.where(there, field.numbers, 0).astype(np.uint64),
            np.where(there, field.end, at),
            field.valid | ~there,
        )
    return ByteStrings(
        np.where(there, field.start, at),
        np.where(there, field.end, at),
        field.valid | ~there,
        ~there if field.none is None else field.none | ~there,
    )
