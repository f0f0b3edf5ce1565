"""BURY: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import json
from functools import partial

import pytest

from fastjournal.limits import REASON_BYTES_MAX, TURN_WORK
from fastjournal.protocol import Function, Reply, decode_reply
from fastjournal.protocol.constants import Flag, State
from fastjournald.engine.handlers.scan.page import DEAD_LETTERS, Cursor, encode_cursor
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.engine_work import Daemon, do_bounded

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


def reason(s: Subject, key: bytes) -> str | None:
    found = s.stats(key, flags=Flag.DATA)["buried_reason"]
    assert found is None or isinstance(found, str)
    return found


def is_buried(s: Subject, key: bytes) -> bool:
    return bool(s.meta(key).state & State.BURIED)


def test_buried_entry_is_not_handed_out_and_a_get_finds_it(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB)
    assert s.jobs() == []
    assert s.next().timeout is None
    assert s.value(JOB) == b"v"
    assert s.get(JOB, timeout=SECOND).code == "not-found"


def test_bury_of_a_buried_entry_takes_the_new_reason(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB, reason=b"one")
    assert s.bury(JOB, reason=b"two") == ""
    assert reason(s, JOB) == "two"
    assert s.stats()["buried"] == 1


def test_bury_of_an_entry_that_outlived_its_life_under_a_lease_removes_it(s: Subject) -> None:
    s.set(JOB, timeout=START + SECOND)
    token = s.lease(timeout=10 * SECOND)
    s.later(2 * SECOND)
    assert s.bury(JOB, token) == ""
    assert s.value(JOB) is None


def test_token_that_is_not_that_of_the_lease_is_lease_lost(s: Subject) -> None:
    s.set(JOB)
    assert s.bury(JOB, 1) == "lease-lost"
    assert s.bury(JOB, s.lease() + 1) == "lease-lost"
    assert not is_buried(s, JOB)


def test_reason_over_its_limit_is_too_large(s: Subject) -> None:
    s.set(JOB)
    assert s.bury(JOB, reason=b"r" * (REASON_BYTES_MAX + 1)) == "too-large"
    assert not is_buried(s, JOB)
    assert s.bury(JOB, reason=b"r" * REASON_BYTES_MAX) == ""


# --- KICK -----------------------------------------------------------------------------------------
# KICK: every sentence of docs/protocol.md about it, by example.


def buried(s: Subject, *keys: bytes) -> None:
    for key in keys:
        assert s.set(key) == ""
        assert s.bury(key, reason=b"why") == ""


@pytest.mark.parametrize("by", [JOB, URI])
def test_kick_by_any_key_makes_a_buried_entry_ready_again(s: Subject, by: bytes) -> None:
    s.set(JOB, uri=URI)
    s.bury(JOB, reason=b"why")
    assert s.kick(by) == 1
    assert not s.meta(JOB).state & State.BURIED
    assert s.stats(JOB, flags=Flag.DATA)["buried_reason"] is None
    assert s.jobs() == [JOB]


def test_plain_entry_is_kicked_by_its_key_only(s: Subject) -> None:
    buried(s, b"p")
    assert s.kick_domain(b"p") == 0
    assert s.kick(b"p") == 1
    assert s.get(b"p", timeout=SECOND).code == ""


def test_kick_of_one_priority_and_instant_takes_the_oldest_first(s: Subject) -> None:
    buried(s, OTHER, JOB)
    s.kick_domain(b"a")
    assert s.jobs() == [OTHER]


@pytest.mark.warm_only
def test_unknown_domain_has_nothing_to_kick(s: Subject) -> None:
    assert s.kick_domain(b"none", 9) == 0


@pytest.fixture
def e() -> Subject:
    """Only the engine: the model has all dead letters in one page."""
    return Subject(EngineSubject(Rules()))


def dead(s: Subject, count: int, cursor: bytes | None = None, domain: bytes = b"a") -> Reply:
    """Ask for a page of the dead letters of a domain."""
    return s.ask(request(Function.STATS, domain, uri=cursor, count=count))


def keys(reply: Reply) -> list[bytes]:
    return [pair.key for pair in reply.pairs or ()]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 65_535])
def test_dead_letters_of_a_domain_come_in_the_order_of_work(e: Subject, count: int) -> None:
    names = [b"a:%d:0:%d" % (priority, at) for priority in (3, 1, 2) for at in (0, 1)]
    for key in (*names, b"b:1:0:x", b"a:1:0:waits", b"plain"):
        e.set(key, uri=b"uri-of-%s" % key)
    for key in (*names, b"b:1:0:x", b"plain"):
        e.bury(key, reason=b"no " + key)
    found: list[bytes] = []
    reply = dead(e, count)
    while True:
        assert len(keys(reply)) <= (count or len(names))
        for pair in reply.pairs or ():
            assert json.loads(pair.value).items() >= e.stats(pair.key, flags=Flag.DATA).items()
            assert pair.second_key == b"uri-of-%s" % pair.key
        found += keys(reply)
        if reply.cursor is None:
            break
        reply = dead(e, count, reply.cursor)
    by_priority = sorted(names, key=lambda key: key[:3])
    assert found == by_priority
    assert keys(dead(e, 0, domain=b"none")) == []


def test_page_of_dead_letters_goes_on_behind_its_last_whatever_came_and_went(e: Subject) -> None:
    names = [b"a:1:0:%d" % at for at in range(6)]
    for key in names:
        e.set(key)
        e.bury(key)
    reply = dead(e, 2)
    assert keys(reply) == names[:2]
    e.kick(names[1])
    e.kick(names[2])
    e.delete(names[3])
    assert keys(dead(e, 2, reply.cursor)) == names[4:]
    e.bury(names[1])
    assert keys(dead(e, 2, reply.cursor)) == names[4:]


def test_cursor_of_dead_letters_is_for_its_domain(e: Subject) -> None:
    for at in range(2):
        e.set(b"a:1:0:%d" % at)
        e.bury(b"a:1:0:%d" % at)
    cursor = dead(e, 1).cursor
    assert cursor is not None
    assert dead(e, 1, cursor, b"b").code == "bad-cursor"
    of_domains = e.ask(request(Function.DOMAINS, b"", count=1)).cursor or b"x"
    short = encode_cursor(Cursor(DEAD_LETTERS, 1, b"", b"a"))
    for wrong in (cursor[:-1], b"x" + cursor[1:], of_domains, short):
        assert dead(e, 1, wrong).code == "bad-cursor"
    assert dead(e, 1, domain=b"a:b").code == "bad-key"


@pytest.mark.warm_only
def test_page_of_very_many_dead_letters_does_bounded_work() -> None:
    daemon = Daemon()
    for at in range(2000):
        daemon.set(b"a:1:0:%d" % at)
        daemon.ask(Function.BURY, b"a:1:0:%d" % at, value=b"r" * 4000)
    found = 0
    cursor: bytes | None = None
    while True:
        page = partial(daemon.ask, Function.STATS, b"a", cursor, count=0)
        data = do_bounded(daemon, page, 2 * TURN_WORK)
        assert isinstance(data, bytes)
        reply = decode_reply(data)
        found += len(reply.pairs or ())
        cursor = reply.cursor
        if cursor is None:
            break
    assert found == 2000
