"""Holders of leases: which connection works on an entry, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.limits import WORKERS_MAX
from fastjournal.protocol.constants import Flag, Function
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

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
    assert isinstance(s.target, EngineSubject)
    return s.target.engine.store.leases


def check(s: Subject) -> None:
    assert isinstance(s.target, EngineSubject)
    s.target.engine.check()


def unchecked(s: Subject) -> None:
    """Check no invariants: it would take most of the time of a test with thousands of requests."""
    assert isinstance(s.target, EngineSubject)
    s.target.checks = False


def end_session(s: Subject, session: str) -> None:
    assert isinstance(s.target, EngineSubject)
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


@pytest.mark.rule(
    "Delivery state of an entry: `worked_on_since_us`, `worked_on_by`, `worker_connected`"
)
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


@pytest.mark.rule("STATS: `workers`")
def test_stats_lists_workers_that_lease_or_wait(s: Subject) -> None:
    assert "workers" not in s.stats(b"")
    assert workers(s) == []
    lease(s, "one", count=2)
    s.later(SECOND)
    lease(s, "two", b"a")
    wait = request(Function.NEXT, b"none", flags=Flag.LISTEN)
    for session in ("two", "three"):
        assert isinstance(s.target, EngineSubject)
        assert s.target.engine.handle(session, wait, s.target.engine.now) is None
    end_session(s, "one")
    assert sorted(workers(s)) == [
        ("peer of one", 0, 2, 0, "a", 0),
        ("peer of three", 1, 0, 0, "", 1),
        ("peer of two", 1, 1, SECOND, "a", 1),
    ]


def wait(s: Subject, session: str, number: int = 1) -> None:
    assert isinstance(s.target, EngineSubject)
    asked = request(Function.NEXT, b"none", flags=Flag.LISTEN)
    for _ in range(number):
        assert s.target.engine.handle(session, asked, s.target.engine.now) is None


def is_cut(s: Subject) -> int:
    cut: int = s.stats(b"", flags=Flag.META)["workers_cut"]
    return cut


@pytest.mark.rule("STATS: `workers_cut`")
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


def test_stats_of_workers_counts_all_leases_of_each(s: Subject) -> None:
    unchecked(s)
    for number in range(3000):
        s.set(b"c:1:0:%d" % number)
    for session in ("one", "two"):
        for _ in range(1500):
            lease(s, session, b"c")
    assert [row[:3] for row in workers(s)] == [("peer of one", 1, 1500), ("peer of two", 1, 1500)]
    assert not is_cut(s)


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


def test_renewal_of_the_last_lease_of_several_is_counted(s: Subject) -> None:
    token = lease(s, "one", b"a", 2)
    assert not s.delete(KEYS[1], token=token)
    touch = request(Function.TOUCH, KEYS[0], flags=Flag.WORKED_ON, timeout=token, ttl=2 * LEASE)
    assert not s.ask(touch, "one").error
    check(s)
    assert workers(s) == [("peer of one", 1, 1, 0, "a", 0)]


def test_lease_from_before_the_start_has_no_begin_when_it_is_renewed(s: Subject) -> None:
    assert isinstance(s.target, EngineSubject)
    s.set(b"p:1:0:x", flags=Flag.PERSIST)
    token = lease(s, "one", b"p")
    s.target.restart(s.now)
    leases_of(s).name_of = lambda session: f"peer of {session}"
    assert holder(s, b"p:1:0:x") == (0, "", 0)
    s.later(SECOND)
    s.get(b"p:1:0:x")
    touch = request(Function.TOUCH, b"p:1:0:x", flags=Flag.WORKED_ON, timeout=token, ttl=LEASE)
    assert not s.ask(touch, "two").error
    assert holder(s, b"p:1:0:x") == (0, "peer of two", 1)
    assert workers(s) == [("peer of two", 1, 1, 0, "p", 0)]
    check(s)


def collide(s: Subject) -> None:
    """Let all leases have one token: their counter repeats after a thousand lease operations."""
    assert isinstance(s.target, EngineSubject)
    tokens = s.target.engine.context.tokens
    tokens.count = 0


@pytest.mark.parametrize("second", ["one", "two"])
def test_lease_operations_of_one_token_are_counted_apart(s: Subject, second: str) -> None:
    s.set(b"b:1:0:y")
    first = lease(s, "one", b"a", 2)
    s.later(1)
    collide(s)
    reply = s.ask(request(Function.NEXT, b"", timeout=LEASE - 1, count=2), second)
    assert reply.timeout == first
    check(s)
    assert holder(s, KEYS[0]) == (0, "peer of one", 1)
    assert holder(s, KEYS[2]) == (1, f"peer of {second}", 1)
    expected = (
        [("peer of one", 4, 0)]
        if second == "one"
        else [("peer of one", 2, 0), ("peer of two", 2, 1)]
    )
    assert [(row[0], *row[2:4]) for row in workers(s)] == expected
    # each of them can be renewed, and that again
    for key in (KEYS[0], KEYS[2]):
        touch = request(Function.TOUCH, key, flags=Flag.WORKED_ON, timeout=first, ttl=LEASE)
        renewed = s.ask(touch, second).timeout
        assert s.ask(touch, second).timeout == renewed == s.meta(key).worked_on_until_us
        check(s)
    for key in (KEYS[1], b"b:1:0:y"):
        assert not s.delete(key, token=first)
        check(s)
    s.later(2 * LEASE)
    s.ask(request(Function.NOP))
    assert workers(s) == []
    check(s)


def test_lease_of_many_domains_ends_in_constant_time_each(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Domains of one token, by equal deadlines and a counter that repeats, are as many as leases.

    No list of them is searched: what counts a lease operation has hashed domains only.
    """
    unchecked(s)
    # leases end by the names of domains: the opposite of the order in which they begin here
    names = [b"m%04d" % number for number in reversed(range(2000))]
    for name in names:
        s.set(name + b":1:0:x")
    for key in KEYS:
        s.delete(key)
    for _ in range(len(names) // 500):
        collide(s)
        lease(s, "one", count=500)
    asked = 0
    kind = type(leases_of(s)._plain)

    def counted(one: object, other: object) -> bool:
        nonlocal asked
        asked += 1
        return one is other

    monkeypatch.setattr(kind, "__eq__", counted, raising=False)
    monkeypatch.setattr(kind, "__hash__", object.__hash__, raising=False)
    s.later(2 * LEASE)
    assert isinstance(s.target, EngineSubject)
    while s.stats(b"")["worked_on"]:
        s.target.advance(s.now)
    assert workers(s) == []
    assert asked < len(names)


def test_lease_of_several_domains_keeps_its_holder_until_the_last_ends(s: Subject) -> None:
    token = lease(s, "one", count=3)
    assert workers(s) == [("peer of one", 1, 3, 0, "a", 0)]
    for key in KEYS[:2]:
        assert not s.delete(key, token=token)
    assert workers(s) == [("peer of one", 1, 1, 0, "b", 0)]
    assert not s.delete(KEYS[2], token=token)
    assert workers(s) == []


def test_holder_ends_where_entries_of_two_domains_were_renamed_into_one(s: Subject) -> None:
    token = lease(s, "one", count=3)
    assert not s.rename(KEYS[2], b"a:1:0:z")
    assert workers(s) == [("peer of one", 1, 3, 0, "a", 0)]
    for key in (*KEYS[:2], b"a:1:0:z"):
        assert not s.delete(key, token=token)
    assert not leases_of(s).holding
    check(s)
    assert workers(s) == []


@pytest.mark.parametrize("number", [1, 2, 3])
def test_holder_stays_until_the_last_lease_of_superseded_entries_ends(
    s: Subject, number: int
) -> None:
    for key in KEYS:
        assert not s.set(key, flags=Flag.OVERWRITE, uri=b"uri of " + key, at=START + 1)
    token = lease(s, "one", count=3)
    for place, key in enumerate(KEYS[:number]):
        assert not s.set(b"c:1:0:%d" % place, uri=b"uri of " + key, at=START + 2)
    for left, key in zip((3, 2, 1), reversed(KEYS), strict=True):
        assert holder(s, key) == (0, "peer of one", 1)
        assert [row[:3] for row in workers(s)] == [("peer of one", 1, left)]
        assert not s.delete(key, token=token)
    assert not leases_of(s).holding
    check(s)


def test_repeat_of_a_touch_makes_no_token_for_a_client_that_has_hung_up(s: Subject) -> None:
    assert isinstance(s.target, EngineSubject)
    s.target.engine.context.has_hung_up = lambda session: session == "gone"
    first = lease(s, "gone")
    touch = request(Function.TOUCH, KEYS[0], flags=Flag.WORKED_ON, timeout=first, ttl=LEASE)
    second = s.ask(touch, "here").timeout
    s.later(SECOND)
    # the first one, which the daemon read late: the client has the answer to its repeat
    assert s.ask(touch, "gone").timeout == second
    third = s.ask(touch, "here").timeout
    assert third == s.meta(KEYS[0]).worked_on_until_us != second
