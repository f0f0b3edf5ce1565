"""Holders of leases: which connection works on an entry, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.limits import WORKERS_MAX
from fastjournal.protocol.constants import Flag, Function
from tests.door.places import patch_module
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


def forget(s: Subject, session: str) -> None:
    assert isinstance(s.target, EngineSubject)
    s.target.engine.forget(session)


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
    forget(s, "one")
    assert holder(s, KEYS[1]) == (SECOND, "peer of one", 0)
    assert not s.delete(KEYS[1], token=token)
    assert len(leases_of(s).holders) == 1
    s.later(2 * LEASE)
    s.ask(request(Function.NOP))
    assert holder(s, KEYS[0]) == (0, "", 0)
    assert not leases_of(s).holders


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
    forget(s, "one")
    assert sorted(workers(s)) == [
        ("peer of one", 0, 2, 0, "a", 0),
        ("peer of three", 1, 0, 0, "", 1),
        ("peer of two", 1, 1, SECOND, "a", 1),
    ]


def test_stats_of_workers_is_bounded(s: Subject) -> None:
    for number in range(WORKERS_MAX + 5):
        s.set(b"c:1:0:%d" % number)
        lease(s, f"w{number}", b"c")
    assert len(workers(s)) == WORKERS_MAX


def test_stats_of_workers_counts_its_work_by_domains(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_module(monkeypatch, "WORKER_LEASES_MAX", 5)
    for number in range(10):
        s.set(b"d%d:1:0:" % number)
    lease(s, "one", count=4)
    lease(s, "two", count=4)
    lease(s, "three", count=4)
    assert [row[:3] for row in workers(s)] == [("peer of one", 1, 4)]


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
    assert not leases_of(s).holders
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
    assert not leases_of(s).holders


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
