"""Chunk of records that becomes one Arrow batch: scattered numbers and byte strings, keys, tokens.

A field that only some records have is placed among all of them, with null for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fastjournal.cmdlog.format.layout import JOB_ID_AT, JOB_ID_BYTES, Command
from fastjournal.keys import split_journal_key
from fastjournal.limits import PRIORITY_MAX
from fastjournal.spark.decoding.byte_arrays import ByteStrings, Mask, Numbers, Offsets, Unsigned
from fastjournal.spark.decoding.vectorised.decode import RecordArrays
from fastjournal.spark.decoding.view_columns import ARROW_TYPES, MICROSECONDS_MAX

CHUNK_RECORDS = 32_768
CHUNK_BYTES = 8 * 1024 * 1024
"""A chunk ends at either: memory stays small, with values of any size."""
_COLON, _ZERO, _NINE = b":09"
_TIMESTAMP_DIGITS_MAX = 20
_CERTAIN_DIGITS = 19
"""Digits of numbers that all fit into 64 bits."""


class Places(NamedTuple):
    """Places of byte strings in the segment, one for each record, in their order."""

    start: Offsets
    end: Offsets
    missing: Mask


class KeyParts(NamedTuple):
    """Parts of the keys of entries and completions that are journal keys."""

    is_journal: Mask
    colons: tuple[Offsets, Offsets, Offsets]
    priority: Numbers


class Chunk:
    """Record arrays of a segment with the data between records: tokens of leases.

    Args:
        arrays: The records.
        segment: Number of the segment.
    """

    def __init__(self, arrays: RecordArrays, segment: int) -> None:
        self.arrays = arrays
        self.segment = segment
        self.token = np.zeros(len(arrays), np.uint64)
        """Tokens of leases and of the start-attempts that belong to them."""
        self.is_leased = np.zeros(len(arrays), np.bool_)
        """Whether a start-attempt or a lease has a token."""

    def numbers(
        self, rows: Offsets, values: Numbers | Unsigned, valid: Mask, kind: str
    ) -> pa.Array:
        """Return numbers of some of the records as an Arrow array; null for all others."""
        found = np.zeros(len(self.arrays), np.int64)
        missing = np.ones(len(self.arrays), np.bool_)
        if values.dtype == np.uint64:
            values = np.minimum(values, np.uint64(MICROSECONDS_MAX)).astype(np.int64)
        found[rows] = values
        missing[rows] = ~valid
        if kind == "int":
            found = found.astype(np.int32)
        return pa.array(found, ARROW_TYPES[kind], mask=missing)

    def slices(self, rows: Offsets, slices: ByteStrings) -> pa.Array:
        """Return byte strings of some of the records as an Arrow array; null for all others."""
        there = slices.valid if slices.none is None else slices.valid & ~slices.none
        places = self._places()
        _put(places, rows, slices, there)
        return self.arrays.segment.binary(*places)

    def _places(self) -> Places:
        """Return places of byte strings, all missing."""
        start = self.arrays.start
        return Places(start.copy(), start.copy(), np.ones(len(start), np.bool_))

    @cached_property
    def job_id(self) -> pa.Array:
        """Job ids as text."""
        at = self.arrays.body + JOB_ID_AT
        return self.arrays.segment.hexadecimal(at, JOB_ID_BYTES // 8)

    @cached_property
    def target(self) -> pa.Array:
        """Ids of the jobs that the records concern, as text."""
        if not len(self.arrays.link_operations.rows):
            return self.job_id
        return self.arrays.segment.hexadecimal(self.arrays.target, JOB_ID_BYTES // 8)

    @cached_property
    def keys(self) -> Places:
        """Keys of entries and of completions, and those that links give."""
        arrays = self.arrays
        places = self._places()
        key = arrays.entries.fields["key"]
        assert isinstance(key, ByteStrings)
        _put(places, arrays.entries.rows, key, arrays.entries.valid)
        results = arrays.results
        _put(places, results.rows, results.content, results.tombstone)
        links = arrays.link_operations
        _put(places, links.rows, links.key, links.key.valid)
        return places

    @property
    def domains(self) -> Mask:
        """Which of the results are completions that leave no tombstone, and name a domain."""
        results = self.arrays.results
        is_completion = results.ours & (self.arrays.command[results.rows] == Command.COMPLETE)
        named: Mask = results.content.end > results.content.start
        found: Mask = is_completion & ~results.tombstone & named
        return found

    @cached_property
    def key_parts(self) -> KeyParts:
        """Parts of the keys of entries and completions that are journal keys."""
        start, end, missing = self.keys
        segment = self.arrays.segment
        base, stop = int(start[0]), int(end[-1])
        places = np.flatnonzero(segment.bytes[base:stop] == _COLON) + base
        places = np.concatenate((places, np.full(3, segment.size)))
        first = np.searchsorted(places[:-3], start)
        colons = tuple(places[first + index] for index in range(3))
        one, two, three = colons
        is_journal = ~missing & (three < end) & (one > start)
        # those of links are not decoded
        is_journal[self.arrays.link_operations.rows] = False
        digits = two - one - 1
        is_journal &= (digits >= 1) & (digits <= 3)
        priority = np.zeros(len(start), np.int64)
        for index in range(3):
            priority = _add_digit(
                segment.byte(one + 1 + index), index < digits, priority, is_journal
            )
        is_journal &= priority <= PRIORITY_MAX
        digits = three - two - 1
        is_journal &= (digits >= 1) & (digits <= _TIMESTAMP_DIGITS_MAX)
        longest = int(digits[is_journal].max(initial=0))
        for index in range(longest):
            byte = segment.byte(two + 1 + index)
            is_digit = (byte >= _ZERO) & (byte <= _NINE)
            is_journal &= is_digit | (index >= digits)
        if longest > _CERTAIN_DIGITS:
            for row in np.flatnonzero(is_journal & (digits > _CERTAIN_DIGITS)):
                key = segment.bytes[start[row] : end[row]].tobytes()
                is_journal[row] = split_journal_key(key) is not None
        return KeyParts(is_journal, (one, two, three), priority)


def _put(places: Places, rows: Offsets, slices: ByteStrings, chosen: Mask) -> None:
    there = rows[chosen]
    places.start[there] = slices.start[chosen]
    places.end[there] = slices.end[chosen]
    places.missing[there] = False


def _add_digit(byte: Any, there: Mask, number: Numbers, right: Mask) -> Numbers:
    right &= ((byte >= _ZERO) & (byte <= _NINE)) | ~there
    result: Numbers = np.where(there, number * 10 + byte - _ZERO, number)
    return result


def parts_of(start: Offsets) -> Iterator[slice]:
    """Yield the slices of records, which start at these offsets, that make a chunk each."""
    first, count = 0, len(start)
    while first < count:
        stop = int(np.searchsorted(start, start[first] + CHUNK_BYTES, "left"))
        stop = min(max(stop, first + 1), first + CHUNK_RECORDS, count)
        yield slice(first, stop)
        first = stop
