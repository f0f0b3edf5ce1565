"""Requests for daemons that crash: few keys and URIs, so that they collide."""

from __future__ import annotations

from random import Random

from fastjournal.protocol import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
from tests.property.changes import CHANGE_WEIGHTS, CHANGES, any_value, change_request
from tests.property.dead_letters import DEAD_LETTER, dead_letter_request
from tests.property.subject import SECOND, START, request

KEYS = [
    *(b"a:1:0:x", b"a:1:0:y", b"a:0:%d:later" % (START + 30 * SECOND)),
    *(b"b:9:0:x", b"b:9:0:long" + b"k" * 90, b"plain"),
]
URIS = [None, b"u", b"v"]
VOLATILE_KEYS = [b"a:1:0:v", b"b:1:0:v"]
VOLATILE_URI = b"volatile"
"""Only for entries that are not persistent, and only these take a URI of theirs from another: where
one takes the URI of a persistent entry, which a SET without a URI made of such a one, that one
rightly waits again after a crash."""


def draw_request(
    draw: Random, now: int, tokens: list[tuple[bytes, int]], *, exact: bool
) -> Request:
    """Draw a request.

    Args:
        draw: Chance.
        now: The present.
        tokens: Keys and tokens of leases; some have ended.
        exact: It is persistent; else perhaps.
    """
    function = draw.choices(
        [
            *(Function.SET, Function.GET, Function.DELETE, Function.NEXT),
            *(Function.RELEASE, Function.TOUCH, Function.PURGE),
            *(*DEAD_LETTER, *CHANGES),
        ],
        (20, 2, 2, 6, 3, 2, 1, 2, 2, 1, 1, *CHANGE_WEIGHTS),
    )[0]
    kept = exact or draw.random() < 0.6
    flags = (Flag.PERSIST if kept else Flag(0)) | draw.choice((Flag(0), Flag.OVERWRITE))
    at = now - draw.choice((0, 0, 5, SECOND))
    if function == Function.SET:
        key, uri = draw.choice(KEYS), draw.choice(URIS)
        if not kept:
            key, uri = draw.choice(((key, None), (draw.choice(VOLATILE_KEYS), VOLATILE_URI)))
        kind, value = any_value(draw)
        return request(
            function,
            key,
            value,
            kind=kind,
            uri=uri,
            flags=flags,
            at=at,
            timeout=draw.choice((None, None, now + 30 * SECOND)),
            ttl=draw.choice((None, None, 15 * SECOND)),
        )
    if function == Function.NEXT:
        return request(
            function,
            draw.choice((b"", b"a")),
            draw.choice((None, b'{"attempts":1}', b'{"attempts":2}')),
            kind=ValueType.STRING,
            flags=draw.choice((0, 0, 0, Flag.OVERWRITE)),
            at=at,
            count=draw.choice((None, 2, 5)),
            timeout=draw.choice((None, 3 * SECOND)),
        )
    if function == Function.PURGE:
        domain = draw.choice((b"a", b"b"))
        return request(function, domain, flags=flags, at=at, count=draw.choice((None, 2)))
    key, token = draw.choice(KEYS), None
    if function == Function.GET:
        token = draw.choice((None, 4 * SECOND))
        flags = draw.choice((Flag(0), Flag.UPDATE_TIMEOUT))
        if token is not None and flags:
            token += now
    elif tokens and draw.random() < 0.7:
        key, token = draw.choice(tokens)
        flags |= Flag.WORKED_ON
    if function in CHANGES:
        return change_request(draw, function, key, KEYS, flags, at)
    if function in DEAD_LETTER:
        return dead_letter_request(draw, function, key, token, at)
    ttl = draw.choice((None, SECOND, 20 * SECOND))
    error = draw.choice((None, b"boom", b"")) if function == Function.RELEASE else None
    return request(
        function,
        key,
        error,
        kind=ValueType.STRING,
        flags=flags,
        at=at,
        timeout=token,
        ttl=ttl,
    )
