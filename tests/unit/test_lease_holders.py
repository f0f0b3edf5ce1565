"""Holders of leases: which connection works on an entry, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.limits import INSTANT_MAX, SCAN_LEASES_MAX, WORKERS_MAX
from fastjournal.protocol import Reply, Request, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournald.engine.engine import Engine, Scan
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.lines import lines_of

KEYS = [b"a:1:0:x", b"a:1:0:y", b"b:1:0:x"]
LEASE = 60 * SECOND


@pytest.fixture
def s() -> Subject:
    subject = Subject(EngineSubject(Rules()))
    for key in KEYS:
        subject.set(key)
    leases_of(subject).name_of = lambda session: f"peer of {session}"
    return subject


def leases_of(s: Subject) -> Any:
    return s.target.engine.store.leases


def check(s: Subject) -> None:
    s.target.engine.check()


def end_session(s: Subject, session: str) -> None:
    s.target.engine.end_session(session)


def lease(s: Subject, session: str, domain: bytes = b"", count: int = 1) -> int:
    reply = s.ask(request(Function.NEXT, domain, timeout=LEASE, count=count), session)
    assert len(reply.pairs) == count
    assert reply.timeout is not None
    return reply.timeout


def holder(s: Subject, key: bytes) -> tuple[int, str, int]:
    facts = s.stats(key, flags=Flag.DATA | Flag.META)
    since = facts["worked_on_since_us"]
    return since and since - START, facts["worked_on_by"], facts["worker_connected"]


def workers(s: Subject) -> list[tuple[str, int, int, int, str, int]]:
    return [
        (
            about["name"],
            about["connected"],
            about["worked_on"],
            about["since_us"] and about["since_us"] - START,
            about["domain"],
            about["waiting"],
        )
        for about in s.stats(b"", flags=Flag.META)["workers"]
    ]


def test_lease_tells_who_took_it_and_since_when_until_it_ends(s: Subject) -> None:
    assert holder(s, KEYS[0]) == (0, "", 0)
    s.later(SECOND)
    token = lease(s, "one", b"a", 2)
    s.later(SECOND)
    assert holder(s, KEYS[0]) == holder(s, KEYS[1]) == (SECOND, "peer of one", 1)
    # a read is no begin of a lease
    s.get(KEYS[0])
    assert holder(s, KEYS[0])[0] == SECOND
    touch = request(Function.TOUCH, KEYS[0], flags=Flag.WORKED_ON, timeout=token, ttl=LEASE)
    assert not s.ask(touch, "two").error
    assert holder(s, KEYS[0]) == (SECOND, "peer of two", 1)
    end_session(s, "one")
    assert holder(s, KEYS[1]) == (SECOND, "peer of one", 0)
    assert not s.delete(KEYS[1], token=token)
    assert len(workers(s)) == 1
    s.later(2 * LEASE)
    s.ask(request(Function.NOP))
    assert holder(s, KEYS[0]) == (0, "", 0)
    assert not leases_of(s).holding
    check(s)


def test_stats_lists_workers_that_lease_or_wait(s: Subject) -> None:
    assert "workers" not in s.stats(b"")
    assert workers(s) == []
    lease(s, "one", count=2)
    s.later(SECOND)
    lease(s, "two", b"a")
    wait = request(Function.NEXT, b"none", flags=Flag.LISTEN)
    for session in ("two", "three"):
        assert s.target.engine.handle(session, wait, s.target.engine.now) is None
    end_session(s, "one")
    assert sorted(workers(s)) == [
        ("peer of one", 0, 2, 0, "a", 0),
        ("peer of three", 1, 0, 0, "", 1),
        ("peer of two", 1, 1, SECOND, "a", 1),
    ]


def test_stats_tell_for_which_domains_a_worker_waits(s: Subject) -> None:
    for key in KEYS:
        s.delete(key)
    handle = s.target.engine.handle
    for session, key, options in (
        ("any", b"", None),
        ("one", b"none", None),
        ("some", b"", b'{"domains":["b","a\\u00e9"]}'),
        ("prefix", b"", b'{"prefix":"no"}'),
        ("long", b"", b'{"prefix":"nones"}'),
    ):
        asked = request(Function.NEXT, key, options, flags=Flag.LISTEN, kind=ValueType.STRING)
        assert handle(session, asked, s.target.engine.now) is None
    rows = s.stats(b"", flags=Flag.META)["workers"]
    assert {row["name"].removeprefix("peer of "): row["waits_for"] for row in rows} == {
        "any": [""],
        "one": ["none"],
        "some": ["a\u00e9", "b"],
        "prefix": ["no:"],
        "long": ["nones:"],
    }
    waiting = {name: s.stats(name)["next_waiting"] for name in (b"none", b"b", b"n", b"nonesuch")}
    assert waiting == {b"none": 3, b"b": 2, b"n": 1, b"nonesuch": 3}
    for session in ("any", "one", "some", "prefix", "long"):
        end_session(s, session)
    assert s.stats(b"none")["next_waiting"] == 0


@pytest.mark.parametrize(
    ("key", "options", "taken"),
    [
        (b"a", None, {b"a"}),
        (b"", None, {b"a", b"an", b"c", b"none"}),
        (b"", b'{"domains":["a","c"]}', {b"a", b"c"}),
        (b"", b'{"prefix":"a"}', {b"a", b"an"}),
    ],
)
def test_busy_worker_is_counted_for_the_domains_that_its_last_next_asked_for(
    s: Subject, key: bytes, options: bytes | None, taken: set[bytes]
) -> None:
    s.set(b"an:1:0:x")

    def counted() -> set[bytes]:
        return {name for name in (b"a", b"an", b"c", b"none") if s.stats(name)["workers_busy"] == 1}

    assert counted() == set()
    asked = request(Function.NEXT, key, options, timeout=LEASE, kind=ValueType.STRING)
    token = s.ask(asked, "one").timeout
    assert counted() == taken
    explained = s.stats(b"an:1:0:x", flags=Flag.DATA | Flag.META)
    assert explained["domain_workers_busy"] == (b"an" in taken)
    assert explained["domain_next_waiting"] == 0
    [row] = s.stats(b"", flags=Flag.META)["workers"]
    assert bool(row["takes"])
    # its leases go on, but it takes nothing more
    end_session(s, "one")
    assert counted() == set()
    assert not s.delete(KEYS[0], token=token)
    s.ask(asked, "two")
    assert counted() == taken
    s.later(2 * LEASE)
    s.ask(request(Function.NOP))
    assert counted() == set()
    check(s)


def wait(s: Subject, session: str, number: int = 1) -> None:
    asked = request(Function.NEXT, b"none", flags=Flag.LISTEN)
    for _ in range(number):
        assert s.target.engine.handle(session, asked, s.target.engine.now) is None


def is_cut(s: Subject) -> int:
    cut: int = s.stats(b"", flags=Flag.META)["workers_cut"]
    return cut


@pytest.mark.parametrize("leasing", [0, 60, WORKERS_MAX - 1, WORKERS_MAX, WORKERS_MAX + 5])
def test_stats_of_workers_is_bounded_and_says_so(s: Subject, leasing: int) -> None:
    for number in range(leasing):
        s.set(b"c:1:0:%d" % number)
        lease(s, f"w{number}", b"c")
        wait(s, f"w{number}", 2)
    assert [row[2:3] + row[5:] for row in workers(s)] == [(1, 2)] * min(leasing, WORKERS_MAX)
    assert is_cut(s) == (leasing > WORKERS_MAX)
    for number in range(WORKERS_MAX - leasing):
        wait(s, f"x{number}")
    assert len(workers(s)) == WORKERS_MAX
    assert is_cut(s) == (leasing > WORKERS_MAX)
    wait(s, "one more")
    assert len(workers(s)) == WORKERS_MAX
    assert is_cut(s)
    assert {row[5] for row in workers(s) if row[2]} <= {2}


def test_holder_shows_the_begin_of_its_oldest_lease_in_whatever_order_it_got_them(
    s: Subject,
) -> None:
    """A worker that connects anew renews its leases by the new connection."""
    tokens, keys = {}, [b"c:1:0:%d" % number for number in range(6)]
    for key in keys:
        s.set(key)
        s.later(SECOND)
        tokens[key] = lease(s, "old", b"c")
    s.later(SECOND)
    s.set(b"d:1:0:x")
    lease(s, "new", b"d")
    begins = {key: number + 1 for number, key in enumerate(keys)}
    renewed = []
    for key in (keys[3], keys[1], keys[1], keys[5], keys[4]):
        touch = request(
            Function.TOUCH, key, flags=Flag.WORKED_ON, timeout=tokens[key], ttl=2 * LEASE
        )
        reply = s.ask(touch, "new")
        assert not reply.error
        assert reply.timeout is not None
        tokens[key] = reply.timeout
        renewed = sorted({*renewed, begins[key]})
        assert holder(s, key) == (begins[key] * SECOND, "peer of new", 1)
        assert [row[2:4] for row in workers(s)] == [
            (6 - len(renewed), SECOND),
            (1 + len(renewed), renewed[0] * SECOND),
        ]
        check(s)
    for key in (keys[1], keys[4], keys[3], keys[0], keys[5], keys[2]):
        assert not s.delete(key, token=tokens[key])
        check(s)
    assert [row[:5] for row in workers(s)] == [("peer of new", 1, 1, 7 * SECOND, "d")]


def test_lease_of_several_domains_keeps_its_holder_until_the_last_ends(s: Subject) -> None:
    token = lease(s, "one", count=3)
    assert workers(s) == [("peer of one", 1, 3, 0, "a", 0)]
    for key in KEYS[:2]:
        assert not s.delete(key, token=token)
    assert workers(s) == [("peer of one", 1, 1, 0, "b", 0)]
    assert not s.delete(KEYS[2], token=token)
    assert workers(s) == []


def test_repeat_of_a_touch_makes_no_token_for_a_client_that_has_hung_up(s: Subject) -> None:
    s.target.engine.context.has_hung_up = lambda session: session == "gone"
    first = lease(s, "gone")
    touch = request(Function.TOUCH, KEYS[0], flags=Flag.WORKED_ON, timeout=first, ttl=LEASE)
    second = s.ask(touch, "here").timeout
    s.later(SECOND)
    # the first one, which the daemon read late: the client has the answer to its repeat
    assert s.ask(touch, "gone").timeout == second
    assert s.ask(touch, "here").timeout == s.meta(KEYS[0]).worked_on_until_us != second


# --- lease tokens ---------------------------------------------------------------------------------
# Lease tokens: a free one is always found, in bounded work, and never before the asked end.


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
