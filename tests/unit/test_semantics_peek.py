"""PEEK: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal import limits
from fastjournal.protocol import Flag, Function, Pair, Reply, State, ValueType, decode_reply
from fastjournald.engine.engine import Missing
from fastjournald.tables.value_cache import Unreadable
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.engine_work import NEXT, Daemon, do_bounded

JOB = b"a:1:0:x"
LATE = b"a:1:%d:x" % (START + SECOND)
URI = b"http://example.org/"


def peek(s: Subject, domain: bytes = b"", count: int | None = 9, flags: int = 0) -> Reply:
    return s.ask(request(Function.PEEK, domain, count=count, flags=flags))


def keys(reply: Reply) -> list[bytes]:
    assert reply.error == ""
    return [pair.key for pair in reply.pairs or ()]


@pytest.mark.rule("Functions: 24 PEEK")
def test_peek_returns_the_pairs_that_next_does_and_leases_nothing(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI)
    reply = peek(s, flags=Flag.DATA)
    assert reply.pairs == [Pair(JOB, ValueType.BUFFER, b"one", URI)]
    assert (reply.timeout, reply.flags & Flag.WORKED_ON) == (None, 0)
    assert peek(s).pairs == [Pair(JOB, ValueType.BUFFER, b"", URI)]
    assert s.stats()["due"] == 1
    assert s.next(flags=Flag.DATA).pairs == reply.pairs


@pytest.mark.rule("Functions: 24 PEEK", "PEEK: the turns of the scheduler stay")
@pytest.mark.parametrize("domain", [b"", b"a", b"c"])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_peek_shows_again_and_again_what_next_then_gives(
    s: Subject, domain: bytes, count: int
) -> None:
    for key in (b"b:2:0:x", b"a:9:0:x", b"a:1:7:x", b"a:1:5:x", b"c:1:0:x", b"b:1:0:y", LATE):
        s.set(key)
    s.jobs(b"")
    seen = keys(peek(s, domain, count))
    assert keys(peek(s, domain, count)) == seen
    assert s.jobs(domain, count=count) == seen
    assert len(seen) == min(count, {b"": 5, b"a": 3, b"c": 1}[domain])


@pytest.mark.rule("PEEK: accessed and expiry stay")
def test_peek_is_no_read(s: Subject) -> None:
    s.set(JOB, ttl=10 * SECOND)
    s.later(5)
    (pair,) = peek(s, flags=Flag.META).pairs or []
    assert pair.meta is not None
    assert (pair.meta.accessed_us, pair.meta.expires_us) == (START, START + 10 * SECOND)
    assert (peek(s, flags=Flag.META).pairs or [])[0].meta == pair.meta


@pytest.mark.rule("PEEK: Nothing due")
def test_peek_of_nothing_due_tells_when_something_will_be(s: Subject) -> None:
    assert (peek(s).pairs, peek(s).timeout) == ([], None)
    s.set(LATE)
    assert (peek(s, b"a").pairs, peek(s, b"a").timeout) == ([], START + SECOND)
    assert peek(s, b"other").timeout is None
    assert peek(s, count=0).timeout == START + SECOND
    s.later(SECOND)
    assert keys(peek(s)) == [LATE]


@pytest.mark.rule("PEEK: PEEK ends where a NEXT")
@pytest.mark.parametrize("asked", [{}, {"timeout": SECOND}, {"flags": Flag.OVERWRITE}], ids=repr)
@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_peek_ends_where_next_does_before_another_default_lease(
    s: Subject, asked: dict[str, int], count: int
) -> None:
    for name in (b"a", b"b", b"c"):
        s.set(name + b":1:0:x")
        s.set(name + b":1:0:y")
    limit = request(Function.LIMIT, b"b", b'{"lease_us":5000000}', kind=ValueType.STRING)
    assert s.ask(limit).error == ""
    taken: list[bytes] = []
    while len(taken) < 6:
        seen = keys(s.ask(request(Function.PEEK, count=count, **asked)))
        got = keys(s.ask(request(Function.NEXT, count=count, **asked)))
        assert seen == got != []
        if not taken and count > 1:
            assert len(seen) == (min(count, 6) if asked else 1)
        taken += got


@pytest.mark.rule("PEEK: Other flags and fields are ignored")
def test_peek_takes_one_if_there_is_no_count_and_ignores_what_only_next_has(s: Subject) -> None:
    s.set(JOB)
    s.set(b"a:1:0:y")
    asked = request(Function.PEEK, b"a", flags=Flag.OVERWRITE | Flag.LISTEN, timeout=1, ttl=1)
    assert keys(s.ask(asked)) == [JOB]
    assert keys(s.ask(request(Function.PEEK, b"none", flags=Flag.LISTEN))) == []
    assert s.stats()["due"] == 2


@pytest.mark.rule("PEEK: PEEK of a paused domain")
def test_peek_of_a_paused_domain_shows_what_it_would_give(s: Subject) -> None:
    s.set(JOB)
    s.set(b"b:1:0:x")
    s.pause(b"a", SECOND)
    assert keys(peek(s)) == [b"b:1:0:x"]
    (pair,) = peek(s, b"a", flags=Flag.META).pairs or []
    assert pair.meta is not None
    assert pair.meta.state & State.PAUSED
    assert s.jobs(b"a") == []
    s.lock(JOB, timeout=2 * SECOND)
    assert (peek(s, b"a").pairs, peek(s, b"a").timeout) == ([], START + 2 * SECOND)


def test_peek_leaves_out_what_next_does(s: Subject) -> None:
    for name in (b"leased", b"buried", b"locked", b"same-uri"):
        s.set(b"a:1:0:" + name, uri=b"u" if name in (b"leased", b"same-uri") else None)
        if name == b"leased":
            s.lease()
    s.bury(b"a:1:0:buried")
    s.lock(b"a:1:0:locked")
    s.set(b"plain")
    assert keys(peek(s)) == keys(peek(s, b"a")) == []


@pytest.mark.warm_only
@pytest.mark.parametrize("domain", [b"a:", b"d" * 4097])
def test_peek_of_what_is_no_domain_is_bad_key(s: Subject, domain: bytes) -> None:
    assert peek(s, domain).code == "bad-key"


@pytest.mark.rule("PEEK: at most `max-reply` bytes")
def test_peek_has_as_much_as_fits_a_reply(s: Subject) -> None:
    small = s.under(reply_bytes_max=200)
    for number in range(9):
        small.set(b"a:1:0:%d" % number, b"v" * 50)
    assert len(keys(peek(small, flags=Flag.DATA))) == 2
    small.set(b"a:0:0:large", b"v" * 900)
    assert keys(peek(small, flags=Flag.DATA)) == [b"a:0:0:large"]


@pytest.mark.rule("PEEK: PEEK works while the disk is nearly full")
def test_peek_is_answered_while_the_disk_is_nearly_full(cold: bool) -> None:
    target = EngineSubject(Rules())
    full = Subject(target)
    full.set(JOB, b"one", flags=Flag.PERSIST)
    target.engine.context.read_only = True
    assert (peek(full, flags=Flag.DATA).pairs or [])[0].value == b"one"


@pytest.mark.rule("PEEK: a value that cannot be read from the disk")
def test_peek_of_a_value_that_cannot_be_read_is_not_readable_and_buries_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = EngineSubject(Rules(), cold=True)
    s = Subject(target)
    for key in (JOB, b"a:2:0:y"):
        s.set(key, b"one", flags=Flag.PERSIST)

    def fail(missing: Missing | None) -> Unreadable:
        entries = missing.entries if missing else ()
        return {entry.job_id: "the disk failed" for entry in entries}

    with monkeypatch.context() as broken:
        broken.setattr(target, "fetch", fail)
        assert peek(s, flags=Flag.DATA).error == "not-readable the disk failed"
        assert keys(peek(s)) == [JOB, b"a:2:0:y"]
    assert s.stats()["due"] == 2
    assert keys(peek(s, flags=Flag.DATA)) == [JOB, b"a:2:0:y"]


@pytest.mark.warm_only
@pytest.mark.rule("PEEK: The cost is that of the entries returned")
@pytest.mark.bounded_work("PEEK")
@pytest.mark.parametrize("name", [b"d:1:0:%d", b"d%d:1:0:x"], ids=["one domain", "many"])
def test_peek_of_500_entries_does_bounded_work(name: bytes) -> None:
    daemon = Daemon()
    for number in range(3 * NEXT):
        daemon.set(name % number, b"uri/%d" % number)
    flags = Flag.DATA | Flag.META
    data = do_bounded(daemon, lambda: daemon.ask(Function.PEEK, count=65_535, flags=flags))
    assert isinstance(data, bytes)
    assert len(decode_reply(data).pairs or ()) == NEXT
    before = daemon.store.work
    daemon.ask(Function.PEEK)
    assert daemon.store.work - before <= limits.REQUEST_WORK + limits.ENTRY_WORK
