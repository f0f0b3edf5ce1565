"""Lease tokens: a free one is always found, in bounded work, and never before the asked end."""

from __future__ import annotations

import pytest

from fastjournal.limits import INSTANT_MAX, SCAN_LEASES_MAX
from fastjournal.protocol import Flag, Function, Reply, Request, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Query
from fastjournald.engine.engine import Engine, Scan
from tests.property.subject import Subject
from tests.unit.lines import lines_of

NOW = 1_790_000_000_000_000
FOREVER = INSTANT_MAX
JOBS = 1000
"""As many as there are tokens with the same millisecond."""

LINES_AN_ENTRY = 250


def ask(engine: Engine, function: Function, key: bytes = b"", **fields: object) -> Reply:
    request = Request(function, timestamp=NOW, key=key, **fields)
    answer = engine.handle("s", request, NOW)
    while isinstance(answer, Scan):
        answer = engine.step(answer, NOW) or answer
    assert isinstance(answer, bytes)
    reply = decode_reply(answer)
    assert reply.error == ""
    return reply


def key_of(number: int) -> bytes:
    return b"d:1:0:%04d" % number


def leased_for_ever(number: int) -> Engine:
    """An engine whose jobs have used up all tokens of the last millisecond, one after the other."""
    engine = Engine()
    for at in range(number):
        ask(engine, Function.SET, key_of(at), value_type=0)
        token = ask(engine, Function.GET, key_of(at), timeout=FOREVER).timeout
        ask(engine, Function.RELEASE, key_of(at), flags=Flag.WORKED_ON, timeout=token)
    return engine


def test_token_search_ends_where_entries_hold_all_of_the_saturated_millisecond() -> None:
    engine = leased_for_ever(JOBS)
    before = {entry.extra.token_before for entry in engine.store}
    assert len(before) == JOBS
    # there is no such microsecond in what is left behind the last whole millisecond
    engine.context.tokens.count = 998
    flags = Query.RANGE << QUERY_SHIFT
    fields = {"key": b"d", "second_key": b"e", "flags": flags, "timeout": FOREVER, "count": 0}
    with lines_of(LINES_AN_ENTRY * SCAN_LEASES_MAX):
        reply = ask(engine, Function.GET, **fields)
    assert len(reply.pairs or ()) == JOBS
    assert reply.timeout not in before
    assert 0 < (reply.timeout or 0) <= INSTANT_MAX
    engine.check()


def test_token_search_ends_where_entries_hold_all_of_a_usual_millisecond() -> None:
    engine = leased_for_ever(JOBS)
    base = (NOW // 1000 + 5) * 1000
    for at, entry in enumerate(engine.store):
        entry.own().token_before = base + at
    entries = list(engine.store)
    with lines_of(LINES_AN_ENTRY * JOBS):
        token = engine.context.tokens.issue(entries, base)
    assert token // 1000 == base // 1000 + 1, "never earlier than asked for"


def test_saturated_lease_differs_from_the_two_before_it(s: Subject) -> None:
    s.set(b"a:1:0:x")
    token = s.lease(timeout=FOREVER)
    seen = {token}
    for _ in range(1100):
        reply = s.touch(b"a:1:0:x", token, ttl=FOREVER)
        assert reply.timeout is not None
        assert reply.timeout != token
        assert s.release(b"a:1:0:x", token) == "lease-lost"
        token = reply.timeout
        seen.add(token)
        assert s.meta(b"a:1:0:x").worked_on_until_us == token <= INSTANT_MAX
    assert len(seen) == 1000


@pytest.mark.rule("Functions: Lease tokens (fencing tokens)")
@pytest.mark.parametrize("odd_us", [0, 1, 499, 999])
@pytest.mark.parametrize("asked_us", [1, 2, 999, 1000, 1001, 5_000_001])
def test_lease_end_is_rounded_up_to_milliseconds(s: Subject, odd_us: int, asked_us: int) -> None:
    s.now += odd_us
    s.set(b"a:1:0:x")
    token = s.lease(timeout=asked_us)
    assert s.now + asked_us <= token < s.now + asked_us + 2000
    longer = s.touch(b"a:1:0:x", token, ttl=asked_us).timeout
    assert longer is not None
    assert s.now + asked_us <= longer < s.now + asked_us + 2000
