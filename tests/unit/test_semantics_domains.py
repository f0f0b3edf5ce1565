"""DOMAINS: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from fastjournal import limits
from fastjournal.protocol import Function, Reply, ValueType, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Query
from fastjournal.protocol.declaration import Right
from fastjournald.engine.authorization import Grant, Grants
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.engine_work import Daemon, do_bounded

CURSOR = Query.CURSOR << QUERY_SHIFT
NAMES = [b"a", b"a b", b"a-b", b"ab", b"b", b"\xff", b"\xff\xff"]
"""In byte order; that of the keys is another one."""


@pytest.fixture
def e() -> Subject:
    """Only the engine: the model knows no cursors."""
    return Subject(EngineSubject(Rules()))


def fill(s: Subject) -> Subject:
    for name in reversed(NAMES):
        s.set(name + b":1:0:x")
    return s


def ask(s: Subject, prefix: bytes = b"", count: int | None = None, **fields: Any) -> Reply:
    return s.ask(request(Function.DOMAINS, prefix, count=count, **fields))


def names(reply: Reply) -> list[bytes]:
    assert reply.error == ""
    return [pair.key for pair in reply.pairs or ()]


def pages(s: Subject, prefix: bytes = b"", count: int | None = None) -> list[list[bytes]]:
    """The names of all pages; what is asked with a cursor counts no more."""
    found = []
    reply = ask(s, prefix, count)
    while True:
        found.append(names(reply))
        if reply.cursor is None:
            return found
        reply = ask(s, reply.cursor, 9, flags=CURSOR)


@pytest.mark.rule("Functions: 20 DOMAINS")
def test_domains_come_in_byte_order_those_with_entries_and_those_that_are_paused(
    s: Subject,
) -> None:
    assert names(ask(s)) == []
    fill(s)
    s.set(b"plain")
    s.pause(b"none", SECOND)
    s.pause(b"b", SECOND)
    assert names(ask(s)) == sorted([*NAMES, b"none"])
    s.later(SECOND)
    s.delete(b"a-b:1:0:x")
    s.bury(b"ab:1:0:x")
    assert names(ask(s)) == [name for name in NAMES if name != b"a-b"]


@pytest.mark.warm_only
@pytest.mark.rule("DOMAINS: the prefix of the names")
@pytest.mark.parametrize(
    "prefix", [b"", b"a", b"ab", b"b", b"c", b"\xff", b"\xff\xff", b"a:", b"z" * 4096]
)
def test_key_is_a_prefix_of_the_names(s: Subject, prefix: bytes) -> None:
    assert names(ask(fill(s), prefix)) == [name for name in NAMES if name.startswith(prefix)]


@pytest.mark.warm_only
@pytest.mark.rule("DOMAINS: the prefix of the names")
def test_oversize_prefix_is_bad_key(s: Subject) -> None:
    assert ask(s, b"d" * 4097).code == "bad-key"


@pytest.mark.warm_only
@pytest.mark.rule("DOMAINS: the JSON object of STATS")
def test_domains_have_the_object_of_stats_and_their_pause_and_limits(e: Subject) -> None:
    e.set(b"d:1:0:x")
    e.pause(b"d", SECOND)
    e.pause(b"empty", 2 * SECOND)
    e.later(5)
    for name, until in ((b"d", START + SECOND), (b"empty", START + 2 * SECOND)):
        (pair,) = ask(e, name).pairs or ()
        told = json.loads(pair.value)
        assert told.items() >= e.stats(name).items()
        assert told["paused_until_us"] == told["paused_until"] == until
    limit = request(
        Function.LIMIT, b"limited", b'{"interval_us":7,"jobs":2}', kind=ValueType.STRING
    )
    assert e.ask(limit).error == ""
    (pair,) = ask(e, b"l").pairs or ()
    told = json.loads(pair.value)
    assert (told["interval_us"], told["jobs_max"], told["paused_until_us"]) == (7, 2, 0)


@pytest.mark.warm_only
@pytest.mark.rule(
    "DOMAINS: Count limits the pairs",
    "DOMAINS: It has a cursor exactly if there is one more domain",
)
@pytest.mark.parametrize("count", [None, 0, 1, 2, 3, 7, 8, 65_535])
def test_pages_have_count_domains_and_a_cursor_where_there_is_one_more(
    e: Subject, count: int | None
) -> None:
    size = count or len(NAMES)
    expected = [NAMES[at : at + size] for at in range(0, len(NAMES), size)]
    assert pages(fill(e), b"", count) == expected
    assert pages(e, b"a", 3) == [NAMES[:3], NAMES[3:4]]


@pytest.mark.rule("DOMAINS: A domain that exists throughout is listed exactly once")
def test_cursor_goes_on_behind_its_last_name_whatever_came_and_went(e: Subject) -> None:
    reply = ask(fill(e), b"", 2)
    assert names(reply) == [b"a", b"a b"]
    e.delete(b"a b:1:0:x")
    e.set(b"a c:1:0:x")
    e.set(b"a a:1:0:x")
    e.delete(b"ab:1:0:x")
    following = ask(e, reply.cursor or b"", flags=CURSOR)
    assert names(following) == [b"a c", b"a-b"]
    assert names(ask(e, reply.cursor or b"", flags=CURSOR)) == [b"a c", b"a-b"]


@pytest.mark.rule("DOMAINS: A cursor of GET is `bad-cursor`")
def test_cursors_of_domains_and_of_scans_are_not_those_of_the_other(e: Subject) -> None:
    of_domains = ask(fill(e), b"", 1).cursor
    of_keys = e.get(b"", uri=b"", count=1).cursor if isinstance(e.target, EngineSubject) else None
    assert of_domains is not None
    assert of_keys is not None
    assert ask(e, of_keys, flags=CURSOR).code == "bad-cursor"
    assert e.get(of_domains, flags=CURSOR).code == "bad-cursor"
    for damaged in (b"", of_domains[:-1], b"x" + of_domains[1:]):
        assert ask(e, damaged, flags=CURSOR).code == "bad-cursor"


@pytest.mark.warm_only
@pytest.mark.rule("DOMAINS: a reply ends after as many domains")
def test_reply_ends_at_max_reply_and_one_domain_always_goes(e: Subject) -> None:
    long_names = [b"%04096d" % number for number in range(3)]
    small = fill(e.under(reply_bytes_max=1000))
    found = pages(small)
    assert [name for page in found for name in page] == NAMES
    assert 1 < len(found) < len(NAMES)
    reply = ask(small)
    assert isinstance(small.target, EngineSubject)
    assert small.target.reply_bytes <= 1000
    assert reply.cursor
    for name in long_names:
        small.pause(name, SECOND)
    assert [len(page) for page in pages(small, b"0")] == [1, 1, 1]


@pytest.mark.warm_only
@pytest.mark.rule("DOMAINS: a reply ends after as many domains")
@pytest.mark.bounded_work("DOMAINS")
@pytest.mark.parametrize("priorities", [1, 256])
def test_page_of_many_domains_does_bounded_work(priorities: int) -> None:
    daemon = Daemon()
    number = 1000 if priorities == 1 else 20
    for at in range(number):
        for priority in range(priorities):
            daemon.set(b"d%04d:%d:0:x" % (at, priority))
            if priorities > 1:
                daemon.set(b"d%04d:%d:1:x" % (at, priority))
    found: list[bytes] = []
    reply = Reply(cursor=b"")
    while reply.cursor is not None:
        flags = CURSOR if reply.cursor else 0
        page = partial(daemon.ask, Function.DOMAINS, reply.cursor, flags=flags)
        data = do_bounded(daemon, page, 2 * limits.TURN_WORK)
        assert isinstance(data, bytes)
        reply = decode_reply(data)
        found += names(reply)
    assert found == [b"d%04d" % at for at in range(number)]


@pytest.mark.warm_only
@pytest.mark.rule("DOMAINS: the list has only domains that the token covers")
def test_token_is_shown_the_domains_that_it_covers_at_no_cost_for_the_others() -> None:
    daemon = Daemon()
    for at in range(2000):
        daemon.set(b"other%d:1:0:x" % at)
    for name in (b"crawl", b"crawler", b"in", b"inner"):
        daemon.set(name + b":1:0:x")
    grant = Grant("t", sha256(b"token").digest(), int(Right.READ), (b"zz", b"crawl", b"in:"))
    daemon.engine.context.grants = Grants([grant])
    assert daemon.ask(Function.AUTH, value_type=1, value=b"token")
    before = daemon.store.work
    reply = decode_reply(bytes(daemon.ask(Function.DOMAINS) or b""))
    assert names(reply) == [b"crawl", b"crawler", b"in"]
    assert reply.cursor is None
    assert daemon.store.work - before < 100
    assert names(decode_reply(bytes(daemon.ask(Function.DOMAINS, b"i") or b""))) == [b"in"]
