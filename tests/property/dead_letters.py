"""Dead-letter helpers: random BURY, KICK, PAUSE and LIMIT requests, for tests that draw them."""

from __future__ import annotations

import random

from fastjournal.protocol import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from tests.property.subject import SECOND, request

LIMITS = (
    *(b'{"jobs":1}', b'{"jobs":2}', b'{"interval_us":1000000}', b'{"attempts":2}', b'{"jobs":0}'),
    *(b'{"interval_us":0,"jobs":0,"lease_us":0,"attempts":0}', b'{"lease_us":2000000}'),
)
DEAD_LETTER = (Function.BURY, Function.KICK, Function.PAUSE, Function.LIMIT)


def dead_letter_request(
    draw: random.Random, function: int, key: bytes, token: int | None, at: int
) -> Request:
    """Draw the rest of a request; with a token it is that of a lease under the key."""
    if function == Function.BURY:
        flags = 0 if token is None else Flag.WORKED_ON
        reason = draw.choice((None, b"", b"why", b"other"))
        return request(function, key, reason, flags=flags, timeout=token, at=at)
    if function == Function.KICK:
        if draw.random() < 0.5:
            return request(function, key, at=at)
        domain = draw.choice((b"a", b"b", b"none"))
        return request(function, b"", uri=domain, count=draw.choice((None, 3, 0)), at=at)
    if function == Function.LIMIT:
        domain, value = draw.choice((b"a", b"b", b"none")), draw.choice(LIMITS)
        return request(function, domain, value, kind=ValueType.STRING, at=at)
    ttl = draw.choice((0, 0, SECOND, 20 * SECOND))
    return request(function, draw.choice((b"a", b"b", b"none")), ttl=ttl, at=at)
