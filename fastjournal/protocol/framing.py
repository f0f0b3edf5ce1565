"""Framing common to requests and replies: integer widths, and how a message starts.

Both start with two bytes of magic and a u16 version, then come their own fields.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final

from fastjournal.errors import ProtocolError
from fastjournal.protocol.constants import VERSION

U8: Final = Struct(">B")
U16: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")

U8_MAX: Final = 0xFF
U16_MAX: Final = 0xFFFF
U32_MAX: Final = 0xFFFF_FFFF
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF


StructError = struct.error
"""Raised where bytes end inside a field, or where a number does not fit its field."""


def magic_word(magic: bytes, version: int) -> int:
    """Return magic and version as one u32, for one comparison in the hot path."""
    return int.from_bytes(magic + U16.pack(version))


def check_start(data: bytes, start: int, magic: bytes, *, identifier_at: int) -> int:
    """Check as much of magic and version as has arrived of the message at ``start``.

    A wrong magic is refused at the first byte that is wrong, with the identifier if that arrived
    with it. A version is judged when the identifier is there too, so that the answer can name it.

    Returns:
        How many bytes of the message are needed to judge its start; 0: they are there and right.

    Raises:
        ProtocolError: ``bad-request`` or ``unsupported-version``.
    """
    identifier_end = identifier_at + 2
    head = data[start : start + identifier_end]
    whole = len(head) == identifier_end
    identifier = int.from_bytes(head[identifier_at:]) if whole else 0
    if head[:2] != magic[: len(head)]:
        raise ProtocolError(
            f"a message starts with {magic!r}, not {head[:2]!r}", identifier=identifier
        )
    if not whole:
        return identifier_end if len(head) >= len(magic) else len(magic)
    version = int.from_bytes(head[2:4])
    if version != VERSION:
        raise ProtocolError(
            f"version {version} is not spoken here, only {VERSION}",
            code="unsupported-version",
            identifier=identifier,
        )
    return 0
