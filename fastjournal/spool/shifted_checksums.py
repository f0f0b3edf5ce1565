"""Shifted checksums: the CRC-32C of some bytes with zero bytes appended.

A CRC is linear, so that takes a few steps for any number of zero bytes.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78
"""CRC-32C, reflected."""
_BYTE: Final = 256
_DIGIT: Final = 16
_INVERSION: Final = 0xFFFFFFFF
"""A CRC-32C begins with all bits set, and ends with all of them inverted."""


def with_zeros(checksum: int, zeros: int) -> int:
    """Return the CRC-32C of bytes with so many zero bytes appended.

    Args:
        checksum: CRC-32C of the bytes alone.
        zeros: Zero bytes, at most 64 MiB.
    """
    return shifted(checksum ^ _INVERSION, zeros) ^ _INVERSION


def shifted(checksum: int, zeros: int) -> int:
    """Return the part of a checksum in that of the bytes with ``zeros`` more bytes after them."""
    place = 0
    while zeros:
        digit = zeros % _DIGIT
        if digit:
            table = _table(place, digit)
            checksum = (
                table[checksum & 0xFF]
                ^ table[0x100 | checksum >> 8 & 0xFF]
                ^ table[0x200 | checksum >> 16 & 0xFF]
                ^ table[0x300 | checksum >> 24]
            )
        zeros //= _DIGIT
        place += 1
    return checksum


@cache
def _table(place: int, digit: int) -> array[int]:
    """Return the effect of ``digit * 16 ** place`` zero bytes on each byte of a checksum, 4 KiB.

    There is one for each digit of a length of up to 64 MiB: 420 KiB, if all are needed.
    """
    bits = [1 << bit for bit in range(32)]
    if digit > 1:
        bits = [_applied(_table(place, 1), _applied(_table(place, digit - 1), bit)) for bit in bits]
    elif place:
        bits = [
            _applied(_table(place - 1, 1), _applied(_table(place - 1, _DIGIT - 1), b)) for b in bits
        ]
    else:
        for _ in range(8):
            bits = [bit >> 1 ^ (_POLYNOMIAL if bit & 1 else 0) for bit in bits]
    table = array("I", bytes(4 * 4 * _BYTE))
    for byte in range(4):
        for value in range(1, _BYTE):
            low = value & -value
            known = table[byte * _BYTE + (value ^ low)]
            table[byte * _BYTE + value] = known ^ bits[byte * 8 + low.bit_length() - 1]
    return table


def _applied(table: array[int], checksum: int) -> int:
    found = 0
    for byte in range(4):
        found ^= table[byte * _BYTE + (checksum >> 8 * byte & 0xFF)]
    return found
