"""Random sessions: requests drawn from a seed, asked of a subject and of the naive model.

A step holds no instant and no token, only how far off they are, so steps can be left out: a
session that fails is shrunk to the steps that it needs, and printed as code.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields

from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournal.protocol.messages import Request
from tests.functions import OF_DOMAINS
from tests.property.side_by_side import PAGES_MAX, SideBySide
from tests.property.subject import SECOND

SESSIONS = ("one", "two")
RESTART, STEP_CLOCK, END = -1, -2, -3
"""Stand for functions: the subject is killed, and recovers what is persistent; its clock is set by
``ttl``; a connection ends. The clock of one that is killed is set meanwhile."""

EVENTS = {RESTART: "RESTART", STEP_CLOCK: "STEP_CLOCK", END: "END"}


@dataclass(frozen=True)
class Step:
    """One request of a session, or a restart; times in microseconds."""

    function: int
    key: bytes = b""
    second_key: bytes | None = None
    value: bytes | None = None
    kind: int = ValueType.BUFFER
    flags: int = 0
    age: int = 0
    """How long ago the command was issued."""
    timeout: int | None = None
    """A duration; where the request takes an instant, from now on."""
    token: int | None = None
    """Instead of a timeout: the token of the so manieth last lease."""
    leased: bool = False
    """And the key that this lease was of."""
    ttl: int | None = None
    count: int | None = None
    identifier: int = 1
    session: str = SESSIONS[0]
    wait: int = 0
    """How much time passes before it."""

    def __repr__(self) -> str:
        given = [f.name for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        told = {name: getattr(self, name) for name in given}
        name = EVENTS.get(self.function) or f"Function.{Function(self.function).name}"
        code = [f"{k}={int(v) if isinstance(v, int) else v!r}" for k, v in told.items()]
        return f"Step({', '.join([name, *code])})"

    def request(self, now: int, leases: Sequence[tuple[int, bytes]]) -> Request:
        timeout, key = self.timeout, self.key
        updates = self.function == Function.GET and self.flags & UPDATE_TIMEOUT
        takes_instant = self.function == Function.SET or updates
        if timeout and takes_instant:
            timeout += now
        if self.token is not None:
            timeout, of = leases[-1 - self.token % len(leases)] if leases else (1, key)
            key = of if self.leased else key
        return Request(
            function=self.function,
            identifier=self.identifier,
            flags=self.flags | (Query.RANGE << QUERY_SHIFT if self.second_key is not None else 0),
            timestamp=now - self.age,
            key=key,
            second_key=self.second_key,
            value_type=None if self.value is None else self.kind,
            value=self.value or b"",
            timeout=timeout,
            ttl=self.ttl,
            count=self.count,
        )


@dataclass(frozen=True)
class Choices:
    """Values that steps are drawn from."""

    start: int
    """An instant: keys lie a little before and behind it."""
    durations: tuple[int, ...] = (1000, SECOND, 5 * SECOND, 60 * SECOND, 60 * SECOND)
    """Durations of leases, locks, pauses, delays and lives."""
    waits: tuple[int, ...] = (1,) * 20 + (2, 500, SECOND, SECOND, 2 * SECOND, 70 * SECOND)
    queries: tuple[Query, ...] = (Query.KEY, Query.KEY, Query.RANGE, Query.REGEX)
    listens: bool = True
    restarts: bool = False
    """And all requests are persistent."""
    events: bool = False
    """Whether the clock is set, connections end, and NEXTs wait."""
    functions: tuple[Function, ...] = tuple(f for f in Function if f.declared.by_engine)

    def keys(self) -> list[bytes]:
        ahead = self.start + 4 * max(self.durations[-2:])
        return [
            *(b"a:1:0:x", b"a:1:0:y", b"a:2:0:x", b"b:1:0:x", b"a:1:%d:x" % ahead),
            *(b"b:7:%d:x" % ahead, b"p", b"q"),
        ]


WEIGHTS = {
    Function.NOP: 1,
    Function.QUIT: 1,
    Function.AUTH: 1,
    Function.SET: 50,
    Function.GET: 25,
    Function.NEXT: 20,
}
"""Weight of a function in the draw of the next request; all others: 8."""

FURTHER = (b"u", b"v", b"l")
VALUES: tuple[tuple[int, bytes], ...] = (
    *((ValueType.BUFFER, b"x"), (ValueType.STRING, b"y" * 40), (ValueType.VOID, b"")),
    *((ValueType.INTEGER, b"\x01"), (ValueType.INTEGER, b"\x7f\xff")),
    *((ValueType.BOOLEAN, b"\1"), (ValueType.BOOLEAN, b"\0"), (ValueType.BOOLEAN, b"\1")),
    *((ValueType.FLOAT, struct.pack(">d", 1e308)), (ValueType.FLOAT, struct.pack(">f", 0.5))),
)
ODD_VALUES: tuple[tuple[int, bytes], ...] = (
    *((ValueType.INTEGER, number.to_bytes(8, signed=True)) for number in (2**63 - 1, -128)),
    *((ValueType.FLOAT, struct.pack(">d", float(name))) for name in ("inf", "-inf", "nan")),
    *((ValueType.INTEGER, b""), (ValueType.INTEGER, b"abc"), (ValueType.FLOAT, b"ab")),
    *((ValueType.BOOLEAN, b"\7"), (ValueType.VOID, b"x"), (6, b"x")),
)
NEXT_OPTIONS = (
    *(b'{"attempts":1}', b'{"attempts":2}', b'{"attempts":3}', b"{}", b'{"x":1}'),
    *(b'{"domains":["a","b"]}', b'{"domains":["b","c","a"]}', b'{"domains":["b","b"]}'),
    *(b'{"domains":["b","a"],"ordered":true}', b'{"prefix":"a"}', b'{"prefix":"b","attempts":2}'),
    *(b'{"domains":[]}', b'{"domains":["a"],"prefix":"a"}', b'{"domains":["a:"]}'),
    *(b'{"prefix":""}', b'{"ordered":true}', b'{"domains":"a"}', b'{"ordered":1}'),
)
"""Values of NEXT."""

LIMITS = (
    *(b'{"jobs":1}', b'{"jobs":2}', b'{"jobs":0}', b'{"interval_us":1000000}', b"{}", b"no JSON"),
    *(
        b'{"interval_us":0,"jobs":0,"attempts":0}',
        b'{"attempts":1}',
        b'{"attempts":-1}',
        b'{"lease_us":2000000}',
    ),
    *(b'{"interval_us":3000000,"jobs":2,"lease_us":0,"attempts":2}', b'{"unknown":1}'),
)
EXPRESSIONS = (b"^a:", b"x$", b"u|v|l", b".", b"(")


def draw_session(seed: int, length: int, choices: Choices) -> list[Step]:
    """The session that this seed stands for."""
    draw = random.Random(seed)
    functions: list[int] = list(choices.functions)
    weights = [WEIGHTS.get(function, 8) for function in functions]
    keys = choices.keys()
    if choices.restarts:
        functions.append(RESTART)
        weights.append(3)
    if choices.events:
        functions += [STEP_CLOCK, END]
        weights += [3, 3]
        keys += [b"", b"k" * 4097]
    return [
        draw_step(draw, draw.choices(functions, weights)[0], keys, choices) for _ in range(length)
    ]


# as numbers: of a Flag each `|` and `&` is a call of Python
LISTEN, PERSIST, WORKED_ON = int(Flag.LISTEN), int(Flag.PERSIST), int(Flag.WORKED_ON)
DATA, UPDATE_TIMEOUT = int(Flag.DATA), int(Flag.UPDATE_TIMEOUT)
OVERWRITES = (0, 0, 0, int(Flag.OVERWRITE))
SHOWS = (0, DATA, DATA | int(Flag.META), int(Flag.META))
LEASES = (0, 0, WORKED_ON, UPDATE_TIMEOUT)
SET_BACK = (0, 0, 0, 2 * SECOND, 10 * SECOND, 100 * SECOND)
"""By how much the clock of a daemon is set back while it does not run."""
CLOCK_STEPS = tuple(seconds * SECOND for seconds in (2, 10, 100, -2, -2, -10, -100))


def draw_step(draw: random.Random, function: int, keys: list[bytes], choices: Choices) -> Step:
    if function in EVENTS:
        step = {RESTART: -draw.choice(SET_BACK), STEP_CLOCK: draw.choice(CLOCK_STEPS)}.get(function)
        session, wait = draw.choice(SESSIONS), draw.choice(choices.waits)
        return Step(function, session=session, ttl=step, wait=wait)
    key = draw.choice(keys[:3] + keys)
    if function != Function.SET and draw.random() < 0.25:
        key = draw.choice(FURTHER)
    flags = draw.choice(OVERWRITES) | draw.choice((choices.restarts, 1)) * PERSIST
    flags |= draw.choice(SHOWS)
    kind, value = draw.choice(VALUES + ODD_VALUES if choices.events else VALUES)
    duration = draw.choice((None, 0, *choices.durations))
    ttl = draw.choice((None, None, *choices.durations))
    second = timeout = token = count = None
    leased = draw.random() < 0.7
    is_valued = True
    match function:
        case Function.SET:
            second = draw.choice((None, None, *FURTHER))
            timeout = draw.choice((None,) * 5 + choices.durations)
            ttl = draw.choice((None,) * 5 + choices.durations)
            flags |= draw.choice((0, 0, WORKED_ON))
        case Function.GET:
            timeout = draw.choice((None, None, None, duration))
            flags |= draw.choice(LEASES)
            if choices.listens and draw.random() < 0.2:
                flags |= LISTEN
            query = draw.choice(choices.queries)
            count = draw.choice((0, 1, 3)) if query else None
            if query is Query.RANGE:
                second = draw.choice((b"", b"b", b"z"))
            elif query is Query.REGEX:
                key = draw.choice(EXPRESSIONS)
                flags |= query << QUERY_SHIFT
        case Function.NEXT:
            key = draw.choice((b"", b"", b"a", b"b"))
            count, timeout = draw.choice((None, 1, 3)), duration
            kind, value = ValueType.STRING, draw.choice(NEXT_OPTIONS)
            is_valued = draw.random() < 0.3
            if choices.events and draw.random() < 0.3:
                flags |= LISTEN
        case Function.DELETE | Function.RELEASE | Function.TOUCH | Function.BURY:
            if function == Function.RELEASE or draw.random() < 0.6:
                flags |= WORKED_ON
                token = draw.choice((0, 0, 0, 1, 2))
        case Function.LOCK:
            timeout = duration
            flags |= draw.choice((0, 0, UPDATE_TIMEOUT))
        case Function.CANCEL:
            count = draw.choice((None, *range(3)))
        case Function.RENAME | Function.LINK:
            second = draw.choice((*keys, *FURTHER))
        case Function.ADD:
            kind, value = draw.choice(VALUES[3:5] * 3 + VALUES + ODD_VALUES * choices.events)
        case Function.TRUNCATE:
            kind, value = ValueType.INTEGER, draw.choice((b"\0", b"\3", b"\1\0", b"\xff"))
        case Function.KICK:
            if draw.random() < 0.5:
                key, second, count = b"", draw.choice((b"a", b"b")), draw.choice((None, 2))
        case Function.LIMIT:
            key, kind, value = draw.choice((b"a", b"b")), ValueType.STRING, draw.choice(LIMITS)
        case Function.PAUSE | Function.STATS:
            key = draw.choice((b"a", b"b"))
            if function == Function.PAUSE and duration in (0, SECOND):
                key = b""
            flags &= ~DATA
            ttl = draw.choice((0, 0, *choices.durations))
        case _ if function in OF_DOMAINS:
            key, count = draw.choice((b"", b"a", b"b")), draw.choice((None, 1, 3))
        case _:
            is_valued = draw.random() < 0.5
    return Step(
        function,
        key,
        second,
        value if is_valued else None,
        kind,
        flags,
        draw.choice((0, 0, 0, 1, 5, SECOND)),
        timeout,
        token,
        leased and token is not None,
        ttl,
        count,
        draw.randrange(3),
        draw.choice(SESSIONS),
        draw.choice(choices.waits),
    )


def play(
    steps: Sequence[Step],
    both: SideBySide,
    clock: Callable[[int], int],
    happens: Callable[[Step], None] | None = None,
) -> None:
    """Ask both for each step, and compare.

    Args:
        steps: In order.
        both: Fresh.
        clock: Lets so much time pass and returns the instant.
        happens: Lets an event happen to both that is no request.

    Raises:
        AssertionError: They differ.
    """
    for step in steps:
        now = clock(step.wait)
        if step.function in EVENTS:
            assert happens is not None
            happens(step)
            continue
        request = step.request(now, both.leases)
        if request.function == Function.GET and request.query != Query.KEY:
            both.scan(step.session, request, now, pages=PAGES_MAX)
        else:
            both.ask(step.session, request, now)


def shrink(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """Leave out steps, as long as it still fails."""
    left = list(steps)
    size = len(left)
    while size:
        at = 0
        while at < len(left):
            shorter = left[:at] + left[at + size :]
            if fails(shorter):
                left = shorter
            else:
                at += size
        size //= 2
    return left


def as_code(steps: Sequence[Step], start: int) -> str:
    """The session as a list to paste into a test."""
    return "\n".join([f"start={start}", "[", *(f"    {step!r}," for step in steps), "]"])


def check_session(
    steps: Sequence[Step], run: Callable[[Sequence[Step]], None], start: int, about: Hashable
) -> None:
    """Run it; where it fails, fail with the shortest session that does."""

    def fails(shorter: Sequence[Step]) -> bool:
        try:
            run(shorter)
        except AssertionError:
            return True
        return False

    try:
        run(steps)
    except AssertionError:
        shortest = shrink(steps, fails)
        try:
            run(shortest)
        except AssertionError as last:
            error = last
        raise AssertionError(f"session {about}: {error}\n{as_code(shortest, start)}") from error
