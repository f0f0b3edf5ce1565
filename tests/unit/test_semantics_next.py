"""NEXT: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal import limits
from fastjournal.protocol import State, decode_reply
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournal.protocol.messages import Pair, Reply
from fastjournald.engine.engine import Missing
from fastjournald.tables.value_cache import Unreadable
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.engine_work import NEXT, Daemon, do_bounded

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


# --- what is returned -----------------------------------------------------------------------------


def test_next_returns_a_due_entry_with_both_its_keys_and_leases_it(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI)
    reply = s.next(flags=Flag.DATA, timeout=10 * SECOND)
    assert reply.pairs == [Pair(JOB, ValueType.BUFFER, b"one", URI)]
    assert reply.flags & Flag.WORKED_ON
    assert reply.flags & Flag.TWO_KEYS
    assert s.meta(JOB).worked_on_until_us == reply.timeout
    assert s.jobs() == []


def test_entries_come_by_priority_then_timestamp_then_arrival(s: Subject) -> None:
    keys = [b"a:2:0:p", b"a:1:9:q", b"a:1:3:z", b"a:1:3:y", b"a:01:0003:x"]
    for key in keys:
        s.set(key)
    order = [b"a:1:3:z", b"a:1:3:y", b"a:01:0003:x", b"a:1:9:q", b"a:2:0:p"]
    assert s.jobs(b"a", count=9) == order


# --- turns ----------------------------------------------------------------------------------------


def test_domains_take_turns_one_entry_a_turn_inside_a_batch(s: Subject) -> None:
    for key in (b"a:1:0:1", b"a:1:0:2", b"a:1:0:3", b"b:1:0:1", b"c:1:0:1", b"c:1:0:2"):
        s.set(key)
    order = [b"a:1:0:1", b"b:1:0:1", b"c:1:0:1", b"a:1:0:2", b"c:1:0:2", b"a:1:0:3"]
    assert s.jobs(count=9) == order


# --- max-reply ------------------------------------------------------------------------------------


def test_single_larger_pair_goes_alone(s: Subject) -> None:
    s = s.under(reply_bytes_max=100)
    s.set(JOB, b"x" * 300)
    s.set(OTHER, b"x" * 300)
    assert s.jobs(count=9, flags=Flag.DATA) == [JOB]
    assert s.jobs(count=9, flags=Flag.DATA) == [OTHER]


# --- nothing due ----------------------------------------------------------------------------------


@pytest.mark.warm_only
def test_next_without_work_is_success_with_count_0_and_no_timeout(s: Subject) -> None:
    reply = s.next()
    assert (reply.error, reply.pairs, reply.timeout) == ("", [], None)


def test_next_at_is_the_end_of_a_lease(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=10 * SECOND)
    assert s.next(b"a").timeout == token
    assert s.next(b"b").timeout is None


# --- waiting --------------------------------------------------------------------------------------


@pytest.mark.warm_only
def test_quit_ends_the_waits_of_its_session_with_count_0(s: Subject) -> None:
    s.listen(session="one", identifier=5)
    s.listen(session="two")
    assert s.ask(request(Function.QUIT)).code == ""
    [(session, reply)] = s.serve()
    assert (session, reply.identifier, reply.error, reply.pairs) == ("one", 5, "", [])


# --- CANCEL ---------------------------------------------------------------------------------------
# CANCEL: every sentence of docs/protocol.md about it, by example.


def wait(s: Subject, identifier: int, domain: bytes = b"a", session: str = "one") -> None:
    waits = request(Function.NEXT, domain, flags=Flag.LISTEN, identifier=identifier)
    assert s.target.handle(session, waits, s.now) is None


def cancel(s: Subject, count: int | None, session: str = "one") -> Reply:
    return s.ask(request(Function.CANCEL, count=count, identifier=9), session=session)


def answered(s: Subject) -> list[tuple[object, int, str, bool]]:
    """Whom the engine has answered who waited: session, identifier, code, whether with work."""
    served = s.target.serve_waiters(s.now)
    return [(one, told.identifier, told.code, bool(told.pairs)) for one, told in served]


def test_cancel_answers_a_waiting_next_with_nothing_before_its_own_reply(s: Subject) -> None:
    wait(s, 3)
    told = cancel(s, 3)
    assert (told.code, told.identifier) == ("", 9)
    assert answered(s) == [("one", 3, "", False)]
    s.set(JOB)
    assert answered(s) == [], "nobody waits any more"
    assert s.jobs() == [JOB]


def test_cancel_ends_all_that_has_the_identifier(s: Subject) -> None:
    wait(s, 3)
    wait(s, 3)
    s.set(b"key")
    s.ask(request(Function.GET, b"key", flags=Flag.LISTEN, identifier=3))
    assert cancel(s, 3).code == ""
    assert answered(s) == [("one", 3, "", False)] * 2
    assert cancel(s, 3).code == "not-found"


def test_cancel_of_nothing_is_not_found_and_changes_nothing(s: Subject) -> None:
    wait(s, 4)
    wait(s, 3, session="two")
    assert cancel(s, 3).code == "not-found"
    assert cancel(s, 0).code == "not-found"
    assert answered(s) == []
    s.set(JOB)
    assert answered(s) == [("one", 4, "", True)]
    assert cancel(s, 4).code == "not-found", "it was answered already"


# --- PEEK -----------------------------------------------------------------------------------------
# PEEK: every sentence of docs/protocol.md about it, by example.


LATE = b"a:1:%d:x" % (START + SECOND)


def peek(s: Subject, domain: bytes = b"", count: int | None = 9, flags: int = 0) -> Reply:
    return s.ask(request(Function.PEEK, domain, count=count, flags=flags))


def keys(reply: Reply) -> list[bytes]:
    assert reply.error == ""
    return [pair.key for pair in reply.pairs or ()]


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


def test_peek_is_no_read(s: Subject) -> None:
    s.set(JOB, ttl=10 * SECOND)
    s.later(5)
    (pair,) = peek(s, flags=Flag.META).pairs or []
    assert pair.meta is not None
    assert (pair.meta.accessed_us, pair.meta.expires_us) == (START, START + 10 * SECOND)
    assert (peek(s, flags=Flag.META).pairs or [])[0].meta == pair.meta


def test_peek_of_nothing_due_tells_when_something_will_be(s: Subject) -> None:
    assert (peek(s).pairs, peek(s).timeout) == ([], None)
    s.set(LATE)
    assert (peek(s, b"a").pairs, peek(s, b"a").timeout) == ([], START + SECOND)
    assert peek(s, b"other").timeout is None
    assert peek(s, count=0).timeout == START + SECOND
    s.later(SECOND)
    assert keys(peek(s)) == [LATE]


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


def test_peek_takes_one_if_there_is_no_count_and_ignores_what_only_next_has(s: Subject) -> None:
    s.set(JOB)
    s.set(b"a:1:0:y")
    asked = request(Function.PEEK, b"a", flags=Flag.OVERWRITE | Flag.LISTEN, timeout=1, ttl=1)
    assert keys(s.ask(asked)) == [JOB]
    assert keys(s.ask(request(Function.PEEK, b"none", flags=Flag.LISTEN))) == []
    assert s.stats()["due"] == 2


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


def test_peek_has_as_much_as_fits_a_reply(s: Subject) -> None:
    small = s.under(reply_bytes_max=200)
    for number in range(9):
        small.set(b"a:1:0:%d" % number, b"v" * 50)
    assert len(keys(peek(small, flags=Flag.DATA))) == 2
    small.set(b"a:0:0:large", b"v" * 900)
    assert keys(peek(small, flags=Flag.DATA)) == [b"a:0:0:large"]


def test_peek_is_answered_while_the_disk_is_nearly_full(cold: bool) -> None:
    full = Subject(EngineSubject(Rules()))
    full.set(JOB, b"one", flags=Flag.PERSIST)
    full.target.engine.context.read_only = True
    assert (peek(full, flags=Flag.DATA).pairs or [])[0].value == b"one"


def test_peek_of_a_value_that_cannot_be_read_is_not_readable_and_buries_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s = Subject(EngineSubject(Rules(), cold=True))
    for key in (JOB, b"a:2:0:y"):
        s.set(key, b"one", flags=Flag.PERSIST)

    def fail(missing: Missing | None) -> Unreadable:
        entries = missing.entries if missing else ()
        return {entry.job_id: "the disk failed" for entry in entries}

    with monkeypatch.context() as broken:
        broken.setattr(s.target, "fetch", fail)
        assert peek(s, flags=Flag.DATA).error == "not-readable the disk failed"
        assert keys(peek(s)) == [JOB, b"a:2:0:y"]
    assert s.stats()["due"] == 2
    assert keys(peek(s, flags=Flag.DATA)) == [JOB, b"a:2:0:y"]


@pytest.mark.warm_only
@pytest.mark.bounded_work("PEEK")
@pytest.mark.parametrize("name", [b"d:1:0:%d", b"d%d:1:0:x"], ids=["one domain", "many"])
def test_peek_of_500_entries_does_bounded_work(name: bytes) -> None:
    daemon = Daemon()
    for number in range(3 * NEXT):
        daemon.set(name % number, b"uri/%d" % number)
    flags = Flag.DATA | Flag.META
    data = do_bounded(daemon, lambda: daemon.ask(Function.PEEK, count=65_535, flags=flags))
    assert len(decode_reply(data).pairs or ()) == NEXT
    before = daemon.store.work
    daemon.ask(Function.PEEK)
    assert daemon.store.work - before <= limits.REQUEST_WORK + limits.ENTRY_WORK


# --- several domains, and a prefix ----------------------------------------------------------------


def of_value(value: bytes) -> dict[str, object]:
    return {"value": value, "kind": ValueType.STRING}


LIST = of_value(b'{"domains":["b","a"]}')
ORDERED = of_value(b'{"domains":["b","a"],"ordered":true}')
PREFIX = of_value(b'{"prefix":"crawl/"}')


def fill(s: Subject, *domains: bytes) -> None:
    for domain in domains:
        for name in (b"1", b"2", b"3"):
            s.set(domain + b":1:0:" + name)


def test_named_domains_take_turns_and_others_are_left_alone(s: Subject) -> None:
    fill(s, b"a", b"b", b"c")
    assert [s.jobs(**LIST) for _ in range(3)] == [[b"b:1:0:1"], [b"a:1:0:1"], [b"b:1:0:2"]]
    assert s.jobs(count=9, **LIST) == [b"a:1:0:2", b"b:1:0:3", b"a:1:0:3"]
    assert s.jobs(**LIST) == []
    assert s.jobs() == [b"c:1:0:1"]


def test_domain_that_empties_and_fills_again_starves_no_other(s: Subject) -> None:
    fill(s, b"a")
    taken = []
    for name in (b"1", b"2", b"3"):
        s.set(b"b:1:0:" + name)
        taken += s.jobs(**LIST)
    assert taken == [b"b:1:0:1", b"a:1:0:1", b"b:1:0:2"]


def test_ordered_domains_are_served_as_named_also_in_a_batch(s: Subject) -> None:
    fill(s, b"a", b"b")
    assert s.jobs(**ORDERED) == [b"b:1:0:1"]
    assert s.jobs(count=3, **ORDERED) == [b"b:1:0:2", b"b:1:0:3", b"a:1:0:1"]


def test_prefix_serves_its_domains_in_turns(s: Subject) -> None:
    fill(s, b"crawl/a", b"crawl/b", b"crawl", b"crawm/")
    taken = [s.jobs(**PREFIX) for _ in range(3)]
    assert taken == [[b"crawl/a:1:0:1"], [b"crawl/b:1:0:1"], [b"crawl/a:1:0:2"]]
    s.pause(b"crawl/b", SECOND)
    assert s.jobs(count=9, **PREFIX) == [b"crawl/a:1:0:3"]


def test_one_waiting_request_is_woken_by_any_of_its_domains(s: Subject) -> None:
    s.listen(**LIST)
    s.listen(session="prefix", **PREFIX)
    s.set(b"c:1:0:x")
    assert s.serve() == []
    s.set(b"a:1:0:x")
    s.set(b"b:1:0:x")
    assert [reply.pairs[0].key for _, reply in s.serve() if reply.pairs] in (
        [[b"a:1:0:x"], [b"b:1:0:x"]]
    )
    s.set(b"crawl/z:1:0:x")
    assert [session for session, _ in s.serve()] == ["prefix"]


@pytest.mark.warm_only
def test_instant_to_ask_again_is_of_the_named_domains(s: Subject) -> None:
    s.set(b"c:1:%d:x" % (START + SECOND))
    assert s.next(**LIST).timeout is None
    s.set(b"a:1:%d:x" % (START + 3 * SECOND))
    assert s.next(**LIST).timeout == START + 3 * SECOND


def test_peek_shows_what_next_would_take_and_moves_no_turn(s: Subject) -> None:
    fill(s, b"a", b"b", b"crawl/a", b"crawl/b")
    for options in (LIST, ORDERED, PREFIX):
        peeked = s.ask(request(Function.PEEK, count=4, **options)).pairs or []
        assert [pair.key for pair in peeked] == s.jobs(count=4, **options)


@pytest.mark.warm_only
@pytest.mark.parametrize(
    ("value", "key", "error"),
    [
        (b'{"domains":["a"]}', b"a", "bad-request"),
        (b'{"prefix":"a"}', b"a", "bad-request"),
        (b'{"domains":["a"],"prefix":"a"}', b"", "bad-request"),
        (b'{"domains":[]}', b"", "bad-value"),
        (b'{"domains":["a:b"]}', b"", "bad-key"),
        (b'{"domains":[""]}', b"", "bad-key"),
        (b'{"domains":[1]}', b"", "bad-value"),
        (b'{"domains":[' + b",".join([b'"a"'] * 65) + b"]}", b"", "bad-value"),
        (b'{"prefix":""}', b"", "bad-key"),
        (b'{"prefix":"a:"}', b"", "bad-key"),
        (b'{"prefix":"' + b"a" * 256 + b'"}', b"", "bad-key"),
        (b'{"ordered":true}', b"", "bad-request"),
    ],
)
@pytest.mark.parametrize("number", [Function.NEXT, Function.PEEK])
def test_wrong_selection_is_named(
    s: Subject, value: bytes, key: bytes, error: str, number: Function
) -> None:
    assert s.ask(request(number, key, **of_value(value))).code == error


def test_many_waiting_prefixes_are_each_served_by_their_own_domain(s: Subject) -> None:
    for number in range(200):
        options = of_value(b'{"prefix":"p%03d/"}' % number)
        s.listen(session=number, **options)
    for number in reversed(range(200)):
        s.set(b"p%03d/x:1:0:x" % number)
    served = {session: reply.pairs[0].key for session, reply in s.serve() if reply.pairs}
    while more := s.serve():
        served |= {session: reply.pairs[0].key for session, reply in more if reply.pairs}
    assert served == {number: b"p%03d/x:1:0:x" % number for number in range(200)}


SELECTS = pytest.mark.parametrize(
    "options", [LIST, ORDERED, PREFIX], ids=["list", "order", "prefix"]
)


@SELECTS
def test_cancel_ends_a_wait_for_several_domains(s: Subject, options: dict[str, object]) -> None:
    s.listen(identifier=3, **options)
    assert cancel(s, 3).code == ""
    assert answered(s) == [("one", 3, "", False)]
    fill(s, b"a", b"crawl/a")
    assert answered(s) == [], "no domain has it waiting any more"
    assert len(s.jobs(**options)) == 1


def limit(s: Subject, domain: bytes, value: bytes) -> None:
    assert s.ask(request(Function.LIMIT, domain, **of_value(value))).code == ""


@SELECTS
def test_several_domains_keep_to_their_limits_and_a_wait_goes_on_when_they_allow_more(
    s: Subject, options: dict[str, object]
) -> None:
    fill(s, b"b", b"crawl/b")
    fill(s, b"a", b"crawl/a")
    for domain in (b"b", b"crawl/b"):
        limit(s, domain, b'{"jobs":1}')
    for domain in (b"a", b"crawl/a"):
        limit(s, domain, b'{"interval_us":%d}' % SECOND)
    taken = s.jobs(count=9, timeout=10 * SECOND, **options)
    assert len(taken) == 2, "one of each"
    assert s.next(**options).timeout == START + SECOND, "the interval of one of them"
    s.listen(session="waits", **options)
    assert s.serve() == []
    s.later(SECOND)
    ((_, reply),) = s.serve()
    assert [pair.key.partition(b":")[0] for pair in reply.pairs or ()] in ([b"a"], [b"crawl/a"])


@SELECTS
def test_several_domains_end_a_batch_where_the_default_lease_differs(
    s: Subject, options: dict[str, object]
) -> None:
    fill(s, b"a", b"b", b"crawl/a", b"crawl/b")
    for domain in (b"a", b"crawl/a"):
        limit(s, domain, b'{"lease_us":%d}' % SECOND)
    first = s.jobs(count=9, **options)
    assert 0 < len(first) < 6
    assert len({key.partition(b":")[0] for key in first}) == 1
