"""Format of a spool file, its bytes: header, records, and how a reader finds its way after damage.

All integers are big endian and unsigned. A file:

    offset size  field
    0      4     magic "fjsp"
    4      4     version, 1
    8            records, one after the other

A record of n + 9 bytes:

    offset size  field
    0      1     state: "P" (0x50) pending, "E" (0x45) erased
    1      4     size n of the frame, at most 64 MiB
    5      n     frame: one FJ request as it goes on the wire
    5+n    4     CRC-32C of size and frame; not of the state, so that erasing flips one byte

A *blank* is an erased record whose frame is n zero bytes. It replaces a run of erased records, and
its frame is a hole in the file. While a blank is being written its CRC is wrong; so an erased
record with a wrong CRC counts as whole if its size leads exactly to the next record or to the end
of the data. Damage that was put aside becomes a blank too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import google_crc32c

from fastjournal.errors import BadRequestError
from fastjournal.limits import SPOOL_FRAME_BYTES_MAX
from fastjournal.spool.shifted_checksums import with_zeros

MAGIC: Final = b"fjsp"
VERSION: Final = 1
FILE_HEADER: Final = MAGIC + VERSION.to_bytes(4)
FILE_HEADER_BYTES: Final = len(FILE_HEADER)

PENDING: Final = 0x50
ERASED: Final = 0x45
ERASED_BYTE: Final = b"E"

HEAD_BYTES: Final = 5
CRC_BYTES: Final = 4
RECORD_OVERHEAD: Final = 9
"""State, size and CRC: a record is this much longer than its frame."""
RECORD_BYTES_MAX: Final = SPOOL_FRAME_BYTES_MAX + RECORD_OVERHEAD

FRAME_HEAD_BYTES: Final = 18
"""Bytes of a frame up to the end of the timestamp of its request (docs/protocol.md)."""

INCOMPLETE: Final = 0
DAMAGED: Final = -1

LONG_BYTES: Final = 16 * 1024
"""A frame longer than this is worth ``RangeChecksums`` where many may overlap."""

CheckRange: TypeAlias = Callable[[bytes, int, int], bool]
"""Takes bytes, start and end of a record in them, and returns whether its checksum is right."""

_FRAME_MAGIC: Final = b"FJ"
_FRAME_TIMESTAMP: Final = slice(10, FRAME_HEAD_BYTES)
_HEAD: Final = Struct(">BI")
_U32: Final = Struct(">I")
_crc: Final = google_crc32c.value

# The first byte of a size of at most 64 MiB is 0 to 4.
_CANDIDATE: Final = re.compile(rb"[PE](?:[\x00-\x04]|\Z)")


def encode_record(frame: bytes) -> bytes:
    """Return the pending record that holds ``frame``.

    Raises:
        BadRequestError: The frame has over 64 MiB.
    """
    size = len(frame)
    if size > SPOOL_FRAME_BYTES_MAX:
        raise BadRequestError(
            f"a request of {size} bytes, over {SPOOL_FRAME_BYTES_MAX}", code="too-large"
        )
    body = _U32.pack(size) + frame
    return b"P" + body + _U32.pack(_crc(body))


def frame_timestamp(frame: bytes) -> int | None:
    """Return the timestamp of the request in a frame; its first FRAME_HEAD_BYTES bytes suffice.

    None: it is no request.
    """
    if len(frame) < FRAME_HEAD_BYTES or not frame.startswith(_FRAME_MAGIC):
        return None
    return int.from_bytes(frame[_FRAME_TIMESTAMP])


def erased_ends(frame: bytes) -> tuple[bytes, bytes]:
    """Return the first 5 and the last 4 bytes that make ``frame`` an erased record."""
    head = _HEAD.pack(ERASED, len(frame))
    return head, _U32.pack(_crc(head[1:] + frame))


def blank_ends(record_bytes: int) -> tuple[bytes, bytes]:
    """Return the first 5 and the last 4 bytes of a blank of ``record_bytes`` (at least 9) bytes."""
    size = record_bytes - RECORD_OVERHEAD
    head = _HEAD.pack(ERASED, size)
    return head, _U32.pack(with_zeros(_crc(head[1:]), size))


def record_end(data: bytes, at: int, is_right: CheckRange | None = None) -> int:
    """Return where the whole and valid record at ``at`` ends.

    Args:
        data: Bytes of the file.
        at: Where the record begins in them.
        is_right: Checks the checksum of a record of over LONG_BYTES; None: by its bytes.

    Returns:
        Its end; ``INCOMPLETE`` where the data end before it does; ``DAMAGED`` where none is.
    """
    left = len(data) - at
    if left < HEAD_BYTES:
        start = _CANDIDATE.match(data, at) if left else None
        return INCOMPLETE if start or not left else DAMAGED
    state: int
    size: int
    state, size = _HEAD.unpack_from(data, at)
    if state not in (PENDING, ERASED) or size > SPOOL_FRAME_BYTES_MAX:
        return DAMAGED
    end = at + size + RECORD_OVERHEAD
    if end > len(data):
        return INCOMPLETE
    if size <= LONG_BYTES or is_right is None:
        if _has_crc(data, at, end):
            return end
    elif is_right(data, at, end):
        return end
    return end if state == ERASED and _leads_on(data, end, is_right) else DAMAGED


class SearchResult(NamedTuple):
    """Result of a search."""

    found: int
    """Where the first whole and valid record starts; -1: nowhere."""
    incomplete: int
    """Where the first record starts that the data end in; -1: nowhere."""
    searched_to: int
    """No other record starts before this byte."""
    candidates: int
    """Places that looked like a record."""


def search_record(
    data: bytes,
    at: int,
    to: int,
    is_right: CheckRange,
    *,
    candidates_max: int,
    passes_incomplete: bool,
) -> SearchResult:
    """Search for the first whole and valid record that starts at ``at`` to ``to``.

    Args:
        data: Bytes of the file.
        at: Where to begin.
        to: Where to stop.
        is_right: Checks the checksum of a long record.
        candidates_max: Stop at the next place after so many that looked like a record.
        passes_incomplete: Continue after a record that is cut by the end of the data. Else it ends
            the search: with more data that record is the first one.
    """
    incomplete, count = -1, 0
    for candidate in _CANDIDATE.finditer(data, at, to):
        start = candidate.start()
        if count == candidates_max:
            return SearchResult(-1, incomplete, start, count)
        count += 1
        end = record_end(data, start, is_right)
        if end > 0:
            return SearchResult(start, incomplete, start, count)
        if end == INCOMPLETE and incomplete < 0:
            incomplete = start
            if not passes_incomplete:
                return SearchResult(-1, incomplete, start, count)
    return SearchResult(-1, incomplete, to, count)


def _has_crc(data: bytes, at: int, end: int) -> bool:
    return bool(_U32.unpack_from(data, end - CRC_BYTES)[0] == _crc(data[at + 1 : end - CRC_BYTES]))


def _leads_on(data: bytes, at: int, is_right: CheckRange | None) -> bool:
    """Whether a record that passes its CRC, or the end of the data, is at ``at``."""
    left = len(data) - at
    if left < RECORD_OVERHEAD:
        return left == 0
    state, size = _HEAD.unpack_from(data, at)
    end: int = at + size + RECORD_OVERHEAD
    if state not in (PENDING, ERASED) or end > len(data):
        return False
    check = _has_crc if size <= LONG_BYTES or is_right is None else is_right
    return check(data, at, end)
