"""Varints of log records: numbers of 7 bits a byte, least significant first.

Bit 7 is set but in the last byte. A signed number is zig-zag encoded first.
"""

from __future__ import annotations

from fastjournal.errors import LogCorruptError

_UVARINT_BYTES_MAX = 10


def encode_uvarint(number: int) -> bytes:
    """Return an unsigned varint: 7 bits a byte, least significant first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_varint(number: int) -> bytes:
    """Return a signed (zig-zag) varint."""
    return encode_uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


def decode_uvarint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """Return the unsigned varint at ``offset`` and the offset behind it.

    Raises:
        LogCorruptError: It does not end before ``end``, or does not fit into 64 bits.
    """
    number = shift = 0
    for at in range(offset, min(end, offset + _UVARINT_BYTES_MAX)):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return number, at + 1
        shift += 7
    raise LogCorruptError("a number is cut or over 64 bits", offset=offset)
