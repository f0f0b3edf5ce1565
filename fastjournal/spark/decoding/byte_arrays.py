"""Byte arrays: numbers and byte strings of many records, decoded at once by their offsets.

The methods of ``SegmentBytes`` take an array of offsets and return arrays of the same length. A
place without the expected form has ``False`` in the array ``valid`` that they return; its number
means nothing. A number is read as part of a word of up to 8 bytes: nearer to the end of the segment
than ``END_BYTES`` nothing is valid.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fastjournal.cmdlog.format.layout import TIME_VERSION, UNIX_SECONDS
from fastjournal.cmdlog.format.records import OPERATION_HEAD
from fastjournal.errors import BadRequestError

Offsets: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]
Unsigned: TypeAlias = npt.NDArray[np.uint64]

END_BYTES = 64
OFFSET_MAX = 2**31 - 1
"""Bytes of a column of byte strings in an Arrow array, at most."""
_HIGH_BITS = np.uint64(0x8080808080808080)
_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_SECONDS_FITTING = 9_000_000_000_000
"""Seconds whose microseconds fit into 63 bits, on both sides of the Unix epoch."""

# msgpack: bytes of the number that follow the first byte of an unsigned integer; 9: it is none.
_UINT_BYTES = np.full(256, 9, np.uint8)
_UINT_BYTES[:0x80] = 0
_UINT_BYTES[[0xCC, 0xCD, 0xCE, 0xCF]] = [1, 2, 4, 8]
# msgpack: bytes of the length of a byte string; 0: nil; 9: neither.
_BIN_BYTES = np.full(256, 9, np.uint8)
_BIN_BYTES[[0xC0, 0xC4, 0xC5, 0xC6]] = [0, 1, 2, 4]
NIL = 0xC0

_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
"""The two digits of each byte."""


_OPERATION_HEAD = np.uint64(int.from_bytes(OPERATION_HEAD, "big"))


class Integers(NamedTuple):
    """Unsigned integers, and the offsets after them."""

    numbers: Unsigned
    end: Offsets
    valid: Mask


class ByteStrings(NamedTuple):
    """Byte strings in a buffer: offsets of their first byte and after their last one."""

    start: Offsets
    end: Offsets
    valid: Mask
    none: Mask | None = None
    """Which are nil; None: no one."""

    @property
    def nils(self) -> Mask:
        """Which are nil."""
        return np.zeros(len(self.start), np.bool_) if self.none is None else self.none


class Instants(NamedTuple):
    """Instants in microseconds since the Unix epoch."""

    instants: Numbers
    there: Mask
    """Which are given."""
    valid: Mask


class SegmentBytes:
    """Bytes of a segment, as arrays.

    Args:
        data: The segment.
    """

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.arrow = pa.py_buffer(data)
        self._last = max(len(data) - 8, 0)
        self._last32 = max(len(data) - 4, 0)
        self._big64 = self._words(">u8")
        self._little64 = self._words("<u8")
        self._big32 = self._words(">u4")

    def _words(self, kind: str) -> npt.NDArray[Any]:
        """Return the words that start at each byte; they overlap."""
        dtype = np.dtype(kind)
        count = max(self.size - dtype.itemsize + 1, 0)
        return np.ndarray((count,), dtype, self.bytes.data, 0, (1,))

    def byte(self, at: Offsets) -> npt.NDArray[np.uint8]:
        """Return the bytes at these offsets."""
        found: npt.NDArray[np.uint8] = self.bytes[np.minimum(at, self._last)]
        return found

    def unsigned64(self, at: Offsets) -> Unsigned:
        """Return the 64-bit big endian numbers at these offsets."""
        return self._big64[np.minimum(at, self._last)].astype(np.uint64)

    def unsigned32(self, at: Offsets) -> npt.NDArray[np.uint32]:
        """Return the 32-bit big endian numbers at these offsets."""
        return self._big32[np.minimum(at, self._last32)].astype(np.uint32)

    def are_operations(self, at: Offsets) -> Mask:
        """Return which of the names at these offsets, with their lengths, are operations'."""
        found: Mask = (self.unsigned64(at) >> np.uint64(16)) == _OPERATION_HEAD
        return found

    def times(self, at: Offsets) -> Instants:
        """Return the times of the format; no time is valid."""
        seconds = self.unsigned64(at + 1).astype(np.int64)
        nanoseconds = self.unsigned32(at + 9).astype(np.int32).astype(np.int64)
        there = (seconds != 0) | (nanoseconds != 0)
        seconds -= UNIX_SECONDS
        # the least number has no absolute value
        valid = (seconds < _SECONDS_FITTING) & (seconds > -_SECONDS_FITTING)
        valid &= self.byte(at) == TIME_VERSION
        return Instants(seconds * 1_000_000 + nanoseconds // 1000, there, valid)

    def uvarints(self, at: Offsets) -> Integers:
        """Return unsigned varints of up to 8 bytes; longer ones are not valid."""
        words = self._little64[np.minimum(at, self._last)].astype(np.uint64)
        ends = ~words & _HIGH_BITS
        last = ends & (~ends + _ONE)
        mask = last | (last - _ONE)
        words &= mask
        numbers = words & np.uint64(0x7F)
        for index in range(1, 8):
            part = words & np.uint64(0x7F << 8 * index)
            if not part.any():
                if not (mask >> np.uint64(8 * index)).any():
                    break
                continue
            numbers |= part >> np.uint64(index)
        length = (np.bitwise_count(mask) >> 3).astype(np.int64)
        return Integers(numbers, at + length, ends != 0)

    def msgpack_integers(self, at: Offsets) -> Integers:
        """Return the unsigned integers in msgpack."""
        first = self.byte(at)
        width = _UINT_BYTES[first]
        valid = width < 9
        if not width.any():
            return Integers(first.astype(np.uint64), at + 1, valid)
        width = width.astype(np.uint64)
        # a shift by 64 bits is not defined: the first byte says all there
        shift = np.minimum((np.uint64(8) - (width & np.uint64(15))) << np.uint64(3), 63)
        numbers = self.unsigned64(at + 1) >> shift
        numbers = np.where(width == 0, first, numbers)
        return Integers(numbers, at + 1 + width.astype(np.int64), valid)

    def msgpack_bytes(self, at: Offsets) -> ByteStrings:
        """Return the byte strings in msgpack; nil is an empty one that is valid."""
        first = self.byte(at)
        width = _BIN_BYTES[first]
        valid = width < 9
        wide = width.astype(np.int64)
        shift = np.minimum(
            (np.uint64(4) - np.minimum(width, 4).astype(np.uint64)) * np.uint64(8), 31
        )
        length = self.unsigned32(at + 1).astype(np.uint64) >> shift
        length = np.where(width == 0, 0, length).astype(np.int64)
        start = at + 1 + wide
        return ByteStrings(start, np.minimum(start + length, self.size), valid, width == 0)

    # --- Arrow arrays ---------------------------------------------------------------------------

    def binary(self, start: Offsets, end: Offsets, missing: Mask | None = None) -> pa.Array:
        """Return byte strings as one Arrow array; ascending, in the order of the segment.

        Args:
            start: Offsets of their first bytes.
            end: Offsets after them.
            missing: Which of them are null; their offsets are in the order of the others, too.

        Raises:
            BadRequestError: They have more bytes than an Arrow array holds.
        """
        if not len(start):
            return pa.array([], pa.binary())
        base = int(start[0])
        if int(end[-1]) - base > OFFSET_MAX:
            return self._copied(start, end, missing)
        offsets = np.empty(2 * len(start), np.int32)
        offsets[0::2] = start - base
        offsets[1::2] = end - base
        # the odd ones are the bytes between
        length = 2 * len(start) - 1
        between = pa.Array.from_buffers(
            pa.binary(), length, [None, pa.py_buffer(offsets), self.arrow.slice(base)]
        )
        indices = np.arange(0, length, 2, dtype=np.int32)
        return between.take(pa.array(indices, mask=missing))

    def _copied(self, start: Offsets, end: Offsets, missing: Mask | None) -> pa.Array:
        """Return byte strings that lie farther from each other than Arrow's offsets reach."""
        there = np.ones(len(start), np.bool_) if missing is None else ~missing
        length = int((end - start)[there].sum())
        if length > OFFSET_MAX:
            raise BadRequestError(
                f"a column of {length} bytes of one record, or of some: Arrow has {OFFSET_MAX}",
                hint="leave the column with the value out",
            )
        slices = zip(start.tolist(), end.tolist(), there.tolist(), strict=True)
        found = [self.bytes[at:stop].tobytes() if one else None for at, stop, one in slices]
        return pa.array(found, pa.binary())

    def hexadecimal(self, at: Offsets, words: int) -> pa.Array:
        """Return strings of ``words`` times 8 bytes as hexadecimal text."""
        rows = np.empty((len(at), words), ">u8")
        for index in range(words):
            rows[:, index] = self.unsigned64(at + 8 * index)
        digits = _HEX[rows.view(np.uint8).reshape(-1)]
        offsets = np.arange(0, 16 * words * (len(at) + 1), 16 * words, dtype=np.int32)
        return pa.Array.from_buffers(
            pa.string(), len(at), [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
        )


def as_text(array: pa.Array) -> pa.Array:
    """Return byte strings as text: UTF-8, other bytes as ``\\\\xNN``."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if one is None else one.decode("utf-8", "backslashreplace") for one in
             array.to_pylist()], pa.string())  # fmt: skip


def as_latin1(array: pa.Array) -> pa.Array:
    """Return byte strings as text, each byte a character."""
    try:
        found = array.cast(pa.string())
        if pc.all(pc.string_is_ascii(found)).as_py() in (True, None):
            return found
    except pa.ArrowInvalid:
        # some are no UTF-8, so that they are not ASCII either
        pass
    names = [None if one is None else one.decode("latin-1") for one in array.to_pylist()]
    return pa.array(names, pa.string())
