"""Random requests that change values and keys, for the tests that draw requests themselves."""

from __future__ import annotations

import random

from fastjournal.protocol import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from tests.property.subject import request

CHANGES = (Function.ADD, Function.NOT, Function.TRUNCATE, Function.LINK, Function.RENAME)
CHANGE_WEIGHTS = (2, 1, 2, 3, 4)
LINKS = (b"l", b"m", b"u", b"v")
"""Some of them are URIs too."""
TYPES = (ValueType.BUFFER, ValueType.BUFFER, ValueType.INTEGER, ValueType.BOOLEAN)


def any_value(draw: random.Random) -> tuple[int, bytes]:
    """Draw type and data, of which those functions can change some."""
    kind = draw.choice(TYPES)
    if kind == ValueType.BUFFER:
        return kind, draw.randbytes(draw.choice((0, 5, 300)))
    return kind, draw.choice((b"\0", b"\1", b"\1"))


def change_request(
    draw: random.Random, function: int, key: bytes, keys: list[bytes], flags: int, at: int
) -> Request:
    """Draw the rest of a request; a RENAME goes to one of the keys."""
    if function in (Function.LINK, Function.RENAME):
        to = draw.choice(LINKS if function == Function.LINK else keys)
        return request(function, key, uri=to, flags=flags, at=at)
    size = draw.choice((0, 1, 3, 300)).to_bytes(2)
    number = size if function == Function.TRUNCATE else draw.choice((b"\1", b"\x7f", b"\0\5"))
    if function == Function.ADD and draw.random() < 0.8:
        flags &= ~Flag.OVERWRITE
    return request(function, key, number, kind=ValueType.INTEGER, flags=flags, at=at)
