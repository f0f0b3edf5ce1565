"""Random requests for daemons that crash or are replayed: few keys, so that they collide."""

from __future__ import annotations

from random import Random

from fastjournal.protocol import Flag, Function, ValueType
from fastjournal.protocol.messages import Request
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
CHANGES = (Function.ADD, Function.NOT, Function.TRUNCATE, Function.LINK, Function.RENAME)
CHANGE_WEIGHTS = (2, 1, 2, 3, 4)
LINKS = (b"l", b"m", b"u", b"v")
"""Some of them are URIs too."""
TYPES = (ValueType.BUFFER, ValueType.BUFFER, ValueType.INTEGER, ValueType.BOOLEAN)
LIMITS = (
    *(b'{"jobs":1}', b'{"jobs":2}', b'{"interval_us":1000000}', b'{"attempts":2}', b'{"jobs":0}'),
    *(b'{"interval_us":0,"jobs":0,"lease_us":0,"attempts":0}', b'{"lease_us":2000000}'),
)
DEAD_LETTER = (Function.BURY, Function.KICK, Function.PAUSE, Function.LIMIT)


def draw_request(
    draw: Random,
    now: int,
    tokens: list[tuple[bytes, int]],
    *,
    exact: bool,
    keys: list[bytes] = KEYS,
) -> Request:
    """Draw a request.

    Args:
        draw: Chance.
        now: The present.
        tokens: Keys and tokens of leases; some have ended.
        exact: It is persistent; else perhaps.
        keys: It is about one of these.
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
        key, uri = draw.choice(keys), draw.choice(URIS)
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
    key, token = draw.choice(keys), None
    if function == Function.GET:
        token = draw.choice((None, 4 * SECOND))
        flags = draw.choice((Flag(0), Flag.UPDATE_TIMEOUT))
        if token is not None and flags:
            token += now
    elif tokens and draw.random() < 0.7:
        key, token = draw.choice(tokens)
        flags |= Flag.WORKED_ON
    if function in CHANGES:
        return change_request(draw, function, key, keys, flags, at)
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


def any_value(draw: Random) -> tuple[int, bytes]:
    """Draw type and data, of which those functions can change some."""
    kind = draw.choice(TYPES)
    if kind == ValueType.BUFFER:
        return kind, draw.randbytes(draw.choice((0, 5, 300)))
    return kind, draw.choice((b"\0", b"\1", b"\1"))


def change_request(
    draw: Random, function: int, key: bytes, keys: list[bytes], flags: int, at: int
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


def dead_letter_request(
    draw: Random, function: int, key: bytes, token: int | None, at: int
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
