"""CRC-32C of many records at once: the checksums of a block of records make that of its bytes.

A CRC is linear. From the checksums that the records of a block carry follows, without their bytes,
the checksum that the whole block has if each one is right. So one call for a block, and arithmetic
over arrays, takes the place of a call for each record. One wrong record in a block is found for
certain. Several are missed if their errors cancel each other out, one time in 2**32: this is also
how often a checksum of 32 bits misses damage of one record, or a manifest that of a segment.

*State* below is the register of the CRC: the checksum, all bits turned over.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastjournal.cmdlog.format.layout import CRC_BYTES
from fastjournal.spark.decoding.byte_arrays import Offsets, SegmentBytes
from fastjournal.spark.decoding.vectorised.frames import Frames

_States: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
"""CRC-32C, reflected."""
_START = np.uint32(0xFFFFFFFF)
"""State before the first byte."""
_BLOCK_BITS = 15
_LONG_BYTES = 1 << 14
"""A longer record has a call of its own."""
_BYTES_MAX = 1 << 16
"""Above the bytes of any block: two digits of the shifts below."""
_PART_RECORDS = 32_768
"""Records that are looked at together: their arrays stay in the cache."""
_DIGIT = 256


class _Shifts(NamedTuple):
    """States behind zero bytes, which is all that a place in a block does to a state."""

    of_start: _States
    """State behind so many zero bytes, from ``_START``."""
    low: _States
    """For each number of zero bytes below ``_DIGIT``, place of a byte in a state, and byte."""
    high: _States
    """The same for each number of ``_DIGIT`` zero bytes."""


def checksums_are_right(data: bytes, segment: SegmentBytes, frames: Frames) -> bool:
    """Return whether the checksum of each record is right.

    Args:
        data: The segment.
        segment: The same bytes.
        frames: Records, one directly behind the other.
    """
    for first in range(0, len(frames.start), _PART_RECORDS):
        part = slice(first, first + _PART_RECORDS)
        if not _are_right(data, segment, frames.start[part], frames.end[part]):
            return False
    return True


def _are_right(data: bytes, segment: SegmentBytes, start: Offsets, end: Offsets) -> bool:
    crc32c = google_crc32c.value
    length = end - start
    is_long = length > _LONG_BYTES
    for index in np.flatnonzero(is_long).tolist():
        if crc32c(data[start[index] : end[index]]) != int.from_bytes(
            data[end[index] : end[index] + CRC_BYTES]
        ):
            return False
    begins = np.ones(len(start), np.bool_)
    begins[1:] = (start[1:] ^ start[:-1]) >> _BLOCK_BITS != 0
    begins[1:] |= is_long[1:] | is_long[:-1]
    first = np.flatnonzero(begins)
    behind = np.append(start[first[1:]], end[-1] + CRC_BYTES)
    told = segment.unsigned32(end)
    shifts = _shifts()
    states = told ^ told.byteswap() ^ _START ^ shifts.of_start[np.minimum(length, _LONG_BYTES)]
    zeros = np.repeat(behind, np.diff(first, append=len(start))) - end
    states = _shifted(states, np.minimum(zeros, _BYTES_MAX - 1), shifts)
    wanted = np.bitwise_xor.reduceat(states, first)
    short = ~is_long[first]
    begin, stop = start[first[short]], behind[short]
    spans = zip(begin.tolist(), stop.tolist(), strict=True)
    found = np.array([crc32c(data[one:other]) for one, other in spans], np.uint32)
    found ^= _START ^ shifts.of_start[stop - begin]
    return bool((found == wanted[short]).all())


def _shifted(states: _States, zeros: Offsets, shifts: _Shifts) -> _States:
    """Return the states behind so many zero bytes, less than ``_BYTES_MAX``."""
    for table, digit in ((shifts.low, zeros % _DIGIT), (shifts.high, zeros // _DIGIT)):
        states = _looked_up(states, table, digit * (4 * _DIGIT))
    return states


def _looked_up(states: _States, table: _States, base: Offsets | int) -> _States:
    found = np.zeros_like(states)
    for place in range(4):
        byte = (states >> np.uint32(8 * place) & np.uint32(0xFF)).astype(np.int64)
        found ^= table.take(byte + (base + place * _DIGIT))
    return found


@cache
def _shifts() -> _Shifts:
    """Return the tables, 2 MiB; they take some milliseconds once in a process."""
    by_byte: _States = np.arange(_DIGIT, dtype=np.uint32)
    for _ in range(8):
        by_byte = (by_byte >> np.uint32(1)) ^ (by_byte & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    places = np.arange(4, dtype=np.uint32) * np.uint32(8)
    none: _States = (np.arange(_DIGIT, dtype=np.uint32) << places[:, np.newaxis]).reshape(-1)
    by_zeros = [none]
    for _ in range(_DIGIT):
        by_zeros.append((by_zeros[-1] >> np.uint32(8)) ^ by_byte[by_zeros[-1] & np.uint32(0xFF)])
    low, digit = np.concatenate(by_zeros[:_DIGIT]), by_zeros[_DIGIT]
    high = [none]
    starts = np.full(_DIGIT, _START)
    of_start = [_looked_up(starts, low, np.arange(_DIGIT) * (4 * _DIGIT))]
    for _ in range(_DIGIT - 1):
        high.append(_looked_up(high[-1], digit, 0))
        of_start.append(_looked_up(of_start[-1], digit, 0))
    return _Shifts(np.concatenate(of_start), low, np.concatenate(high))
