"""Random requests of the soak: one line a function, with the errors that it may get."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from fastjournal.clock import unique_timestamp
from fastjournal.protocol.constants import QUERY_SHIFT, ErrorCode, Flag, Function, Query
from fastjournal.protocol.messages import Request
from tests.functions import OF_DOMAINS

KEYS = 300
"""Keys of each kind: so few that they collide, and that memory has a bound."""
SECOND = 1_000_000

D, M, W, P, O, L, U = (  # noqa: E741 - a line of the table below has many
    int(Flag.DATA),
    int(Flag.META),
    int(Flag.WORKED_ON),
    int(Flag.PERSIST),
    int(Flag.OVERWRITE),
    int(Flag.LISTEN),
    int(Flag.UPDATE_TIMEOUT),
)
F = Function
REGEX = Query.REGEX << QUERY_SHIFT
CURSOR = Query.CURSOR << QUERY_SHIFT

ALWAYS = {"", ErrorCode.BUSY}
"""Replies that every request may get: success, or no room."""
GONE = {ErrorCode.NOT_FOUND}
TOKEN = {ErrorCode.NOT_FOUND, ErrorCode.LEASE_LOST, ErrorCode.LOCKED}
WRITE = {ErrorCode.STALE, ErrorCode.LOCKED, ErrorCode.WORKED_ON}
KIND = {ErrorCode.TYPE_MISMATCH, ErrorCode.BAD_VALUE}


class Operation(NamedTuple):
    """One kind of request."""

    weight: int
    function: Function
    fields: Callable[[Random], dict[str, Any]]
    codes: set[str]
    """Errors that it may get, beside success and busy."""


def plain(chance: Random) -> bytes:
    return b"soak-%03d" % chance.randrange(KEYS)


def job(chance: Random) -> bytes:
    return b"churn-%d:128:0:%03d" % (chance.randrange(5), chance.randrange(KEYS))


def uri(chance: Random) -> bytes:
    return b"https://example.org/%03d" % chance.randrange(KEYS)


def any_key(chance: Random) -> bytes:
    return chance.choice((plain, job, uri))(chance)


def domain(chance: Random) -> bytes:
    return b"churn-%d" % chance.randrange(5)


def data(chance: Random) -> bytes:
    """Mostly short; now and then as large as a page."""
    return chance.randbytes(chance.choice((0, 10, 100, 1000, 20_000)))


def value(chance: Random) -> dict[str, Any]:
    kind = chance.choice((1, 1, 1, 2, 3, 3, 4, 5))
    fixed = {3: (7).to_bytes(8), 4: bytes(8), 5: b"\x01"}
    return {"value_type": kind, "value": fixed.get(kind) or data(chance)}


LIMITS = (b'{"jobs":3}', b'{"jobs":0}', b'{"interval_us":1000}', b'{"interval_us":0}')
"""Values of LIMIT; each takes back what another one set."""

OPERATIONS = [
    Operation(1, F.NOP, lambda c: {}, set()),
    Operation(
        10,
        F.SET,
        lambda c: {"key": plain(c), "flags": c.choice((0, P, P | O, O | L)), **value(c)},
        WRITE | {ErrorCode.EXISTS},
    ),
    Operation(
        10,
        F.SET,
        lambda c: {"key": job(c), "second_key": uri(c), "flags": P | O, **value(c)},
        WRITE | {ErrorCode.EXISTS},
    ),
    Operation(
        3,
        F.SET,
        lambda c: {"key": plain(c), "flags": O, "ttl": SECOND, **value(c)},
        WRITE | {ErrorCode.EXISTS},
    ),
    Operation(
        10, F.GET, lambda c: {"key": any_key(c), "flags": c.choice((0, D, D | M, D | L))}, GONE
    ),
    Operation(
        2,
        F.GET,
        lambda c: {"key": any_key(c), "flags": D, "timeout": SECOND},
        GONE | {ErrorCode.WORKED_ON, ErrorCode.LOCKED, ErrorCode.BUSY},
    ),
    Operation(
        2,
        F.GET,
        lambda c: {"key": plain(c), "second_key": b"t", "flags": D | M, "count": 20},
        set(),
    ),
    Operation(
        1,
        F.GET,
        lambda c: {"key": b"soak-.*%d$" % c.randrange(10), "flags": REGEX | L, "count": 9},
        set(),
    ),
    Operation(
        1,
        F.GET,
        lambda c: {"key": b"", "second_key": b"", "flags": W, "count": 3, "timeout": SECOND // 9},
        set(),
    ),
    Operation(1, F.GET, lambda c: {"key": c.randbytes(9), "flags": REGEX}, {ErrorCode.BAD_REGEX}),
    Operation(
        1, F.GET, lambda c: {"key": c.randbytes(20), "flags": CURSOR}, {ErrorCode.BAD_CURSOR}
    ),
    Operation(5, F.DELETE, lambda c: {"key": any_key(c)}, GONE | WRITE),
    Operation(
        5,
        F.ADD,
        lambda c: {"key": plain(c), "value_type": 3, "value": b"\x01", "flags": c.choice((0, O))},
        GONE | KIND | {ErrorCode.LOCKED, ErrorCode.OVERFLOW},
    ),
    Operation(3, F.NOT, lambda c: {"key": plain(c)}, GONE | KIND | {ErrorCode.LOCKED}),
    Operation(
        3,
        F.TRUNCATE,
        lambda c: {"key": plain(c), "value_type": 3, "value": b"\x40"},
        GONE | KIND | {ErrorCode.LOCKED},
    ),
    Operation(
        3, F.LOCK, lambda c: {"key": any_key(c), "timeout": SECOND}, GONE | {ErrorCode.LOCKED}
    ),
    Operation(3, F.UNLOCK, lambda c: {"key": any_key(c)}, GONE | {ErrorCode.NOT_OWNER}),
    Operation(
        3,
        F.RENAME,
        lambda c: {"key": any_key(c), "second_key": plain(c), "flags": c.choice((0, O))},
        GONE | WRITE | {ErrorCode.EXISTS, ErrorCode.BAD_KEY},
    ),
    Operation(
        3,
        F.LINK,
        lambda c: {"key": any_key(c), "second_key": uri(c)},
        GONE | {ErrorCode.EXISTS, ErrorCode.LOCKED, ErrorCode.TOO_LARGE, ErrorCode.WORKED_ON},
    ),
    Operation(
        10,
        F.NEXT,
        lambda c: {"key": domain(c), "flags": D | M, "count": c.choice((1, 5)), "timeout": SECOND},
        set(),
    ),
    Operation(2, F.NEXT, lambda c: {"key": domain(c), "flags": O, "count": 5}, set()),
    Operation(
        1, F.NEXT, lambda c: {"key": b"never", "flags": L, "ttl": c.randrange(SECOND)}, set()
    ),
    Operation(2, F.RELEASE, lambda c: {"key": job(c), "flags": W, "timeout": SECOND}, TOKEN),
    Operation(
        1,
        F.RELEASE,
        lambda c: {
            **{"key": job(c), "flags": W, "timeout": SECOND},
            **{"value_type": 2, "value": b"failed"},
        },
        TOKEN,
    ),
    Operation(2, F.TOUCH, lambda c: {"key": any_key(c), "ttl": 9 * SECOND}, TOKEN),
    Operation(1, F.BURY, lambda c: {"key": any_key(c), "value_type": 2, "value": b"why"}, TOKEN),
    Operation(1, F.KICK, lambda c: {"key": b"", "second_key": domain(c), "count": 50}, set()),
    Operation(1, F.KICK, lambda c: {"key": any_key(c)}, GONE | {ErrorCode.LOCKED}),
    Operation(1, F.PAUSE, lambda c: {"key": domain(c), "ttl": SECOND // 10}, set()),
    Operation(
        1, F.LIMIT, lambda c: {"key": domain(c), "value_type": 2, "value": c.choice(LIMITS)}, set()
    ),
    Operation(1, F.STATS, lambda c: {"key": c.choice((b"", b"churn-1"))}, set()),
    Operation(1, F.STATS, lambda c: {"key": any_key(c), "flags": D}, GONE),
    Operation(2, F.CANCEL, lambda c: {"count": c.randrange(1 << 16)}, GONE),
    Operation(1, F.AUTH, lambda c: {"value_type": 1, "value": b"any"}, set()),
]


OPERATIONS += [
    Operation(1, function, lambda c: {"key": domain(c), "count": c.choice((1, 50))}, set())
    for function in set(OF_DOMAINS) - {operation.function for operation in OPERATIONS}
]


def build(operation: Operation, chance: Random, identifier: int) -> Request:
    """Return one request of this kind."""
    return Request(
        function=operation.function,
        identifier=identifier,
        timestamp=unique_timestamp(),
        **operation.fields(chance),
    )
