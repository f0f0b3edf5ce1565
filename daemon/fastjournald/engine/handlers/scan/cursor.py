"""Cursors: continuation tokens of scans. A cursor has all that a scan needs to go on.

Byte layout, integers big endian and unsigned:

    offset size  field
    0      1     version, 1
    1      1     kind: 1 range, 2 expression, 3 domains
    2      2     count of the first request, 0: as many as fit a reply
    4      2     size of the next key
    6      n     next key, or name of a domain: the first that may be returned
           2     size of the text
           n     kind 1: the last key of the range, empty: no upper end; kind 2: the expression;
                 kind 3: the prefix of the names
           4     CRC-32C of all before

The checksum tells damage, not forgery: a cursor shows its bearer nothing that a range or an
expression would not show. Another version is another daemon's: the scan has to begin anew.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import google_crc32c
import msgspec

from fastjournal.protocol.framing import StructError

_VERSION: Final = 1
_HEAD: Final = Struct(">BBHH")
_SIZE: Final = Struct(">H")
_CHECK: Final = Struct(">I")

RANGE: Final = 1
EXPRESSION: Final = 2
DOMAINS: Final = 3

CURSOR_BYTES: Final = _HEAD.size + _SIZE.size + _CHECK.size
"""Size of a cursor without its next key and its text."""


class Cursor(msgspec.Struct, gc=False):
    """Continuation token of a scan, decoded: its query, its bounds and its progress."""

    kind: int
    count: int
    next_key: bytes
    text: bytes
    """The last key of the range, the expression, or the prefix."""


def encode_cursor(cursor: Cursor) -> bytes:
    """Return the bytes of a cursor."""
    body = (
        _HEAD.pack(_VERSION, cursor.kind, cursor.count, len(cursor.next_key))
        + cursor.next_key
        + _SIZE.pack(len(cursor.text))
        + cursor.text
    )
    return body + _CHECK.pack(google_crc32c.value(body))


def decode_cursor(data: bytes, *kinds: int) -> Cursor | None:
    """Return the cursor of one of these kinds that the bytes are.

    None: they are none of this version, or damaged, or of another kind.
    """
    body = data[: -_CHECK.size]
    try:
        version, kind, count, size = _HEAD.unpack_from(body)
        at = _HEAD.size + size
        (text_size,) = _SIZE.unpack_from(body, at)
        (check,) = _CHECK.unpack(data[-_CHECK.size :])
    except StructError:
        return None
    text = body[at + _SIZE.size :]
    if (
        version != _VERSION
        or kind not in kinds
        or len(text) != text_size
        or check != google_crc32c.value(body)
    ):
        return None
    return Cursor(kind, count, body[_HEAD.size : at], text)
