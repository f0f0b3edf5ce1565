"""GET of a range, an expression and a cursor: every sentence of docs/protocol.md, by example."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.limits import KEY_BYTES_MAX, PAIRS_MAX, SCAN_LEASES_MAX
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Reply
from tests.property.model import Model
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
URI = b"u"
REGEX = Query.REGEX << QUERY_SHIFT
CURSOR = Query.CURSOR << QUERY_SHIFT


class ScanSubject(Subject):
    """Asks for many keys."""

    def range(self, first: bytes = b"", last: bytes = b"", count: int = 0, **fields: Any) -> Reply:
        return self.ask(request(Function.GET, first, uri=last, count=count, **fields))

    def regex(self, expression: bytes, *, flags: int = 0, **fields: Any) -> Reply:
        return self.ask(request(Function.GET, expression, flags=flags | REGEX, **fields))

    def cursor(self, cursor: bytes | None, *, flags: int = 0, **fields: Any) -> Reply:
        assert cursor is not None
        return self.ask(request(Function.GET, cursor, flags=flags | CURSOR, **fields))

    def plain(self, *keys: bytes) -> None:
        for key in keys:
            assert self.set(key) == ""


@pytest.fixture(params=[EngineSubject, Model], ids=["engine", "model"])
def s(request: pytest.FixtureRequest) -> ScanSubject:
    return ScanSubject(request.param(Rules()))


@pytest.fixture
def engine() -> ScanSubject:
    """For what the naive model does not say: cursors, expressions that only RE2 knows, sizes."""
    return ScanSubject(EngineSubject(Rules()))


def keys(reply: Reply) -> list[bytes]:
    assert reply.error == ""
    assert reply.pairs is not None
    return [pair.key for pair in reply.pairs]


def test_range_holds_both_ends_and_comes_in_byte_order(s: ScanSubject) -> None:
    s.plain(b"d", b"b", b"a", b"c", b"b\0", b"e")
    assert keys(s.range(b"b", b"d")) == [b"b", b"b\0", b"c", b"d"]
    assert s.range(b"b", b"d").cursor is None


@pytest.mark.warm_only
def test_scan_that_finds_nothing_is_a_success_without_pairs(s: ScanSubject) -> None:
    s.plain(b"b")
    for reply in (s.range(b"c", b"d"), s.range(b"c", b"a"), s.regex(b"^c")):
        assert (reply.error, reply.pairs, reply.cursor, reply.timeout) == ("", [], None, None)


@pytest.mark.warm_only
def test_bound_over_4096_bytes_is_bad_key(s: ScanSubject) -> None:
    assert s.range(b"k" * (KEY_BYTES_MAX + 1)).code == "bad-key"
    assert s.range(b"k", b"k" * (KEY_BYTES_MAX + 1)).code == "bad-key"


def test_expression_matches_bytes(s: ScanSubject) -> None:
    s.plain(b"a\xe9z", b"a\xc3\xa9z")
    assert keys(s.regex(b"^a.z$")) == [b"a\xe9z"]
    assert keys(s.regex(b"\xe9")) == [b"a\xe9z"]


@pytest.mark.warm_only
def test_expression_that_is_none_is_bad_regex_with_the_reason(s: ScanSubject) -> None:
    assert s.regex(b"(").code == "bad-regex"
    assert s.regex(b"[").code == "bad-regex"


@pytest.mark.warm_only
def test_expression_that_is_too_complex_or_too_long_is_bad_regex(engine: ScanSubject) -> None:
    assert engine.regex(b"(").error == "bad-regex missing ): ("
    assert "too complex" in engine.regex(b"(a{1,500}){1,2}" * 4).error
    assert engine.regex(b"a" * 4097).code == "bad-regex"


def test_count_is_a_limit_and_the_cursor_goes_on_with_the_same(s: ScanSubject) -> None:
    s.plain(*(b"k%d" % number for number in range(7)))
    first = s.range(b"k1", b"k6", count=3)
    assert keys(first) == [b"k1", b"k2", b"k3"]
    second = s.cursor(first.cursor, count=1)
    assert keys(second) == [b"k4", b"k5", b"k6"]
    assert second.cursor is None


def test_scan_has_no_cursor_where_nothing_more_would_come(s: ScanSubject) -> None:
    s.plain(b"a", b"b", b"c")
    assert s.range(b"", b"b", count=2).cursor is None
    assert s.regex(b"[ab]", count=2).cursor is None
    s.get(b"c", timeout=SECOND)
    assert s.range(count=2, flags=Flag.WORKED_ON).cursor is None
    assert s.range(count=2).cursor is not None


@pytest.mark.warm_only
@pytest.mark.parametrize("cursor", [b"", b"none", b"\0" * 30, b"k" * 5000])
def test_cursor_that_the_daemon_did_not_give_is_bad_cursor(s: ScanSubject, cursor: bytes) -> None:
    assert s.cursor(cursor).code == "bad-cursor"


def test_damaged_cursor_is_bad_cursor(engine: ScanSubject) -> None:
    engine.plain(b"a", b"b")
    cursor = engine.range(count=1).cursor
    assert engine.cursor(cursor[:-1] + bytes([cursor[-1] ^ 1])).error.startswith("bad-cursor ")


def test_update_timeout_sets_the_expiry_of_all_that_is_returned(s: ScanSubject) -> None:
    s.plain(b"a", b"b", b"c")
    reply = s.range(b"", b"b", flags=Flag.UPDATE_TIMEOUT, timeout=START + SECOND)
    assert (reply.timeout, reply.flags & Flag.WORKED_ON) == (None, 0)
    s.later(SECOND)
    assert keys(s.range()) == [b"c"]


def test_lease_takes_each_entry_once_under_its_first_key_with_one_token(s: ScanSubject) -> None:
    s.set(JOB, b"one", uri=URI)
    s.plain(b"p")
    reply = s.range(timeout=7 * SECOND, flags=Flag.META)
    assert keys(reply) == [JOB, b"p"]
    assert reply.flags & Flag.WORKED_ON
    assert reply.timeout is not None
    assert reply.timeout // 1000 == (START + 7 * SECOND) // 1000
    for pair in reply.pairs or []:
        assert pair.meta is not None
        assert pair.meta.worked_on_until_us == reply.timeout
    again = s.range(timeout=7 * SECOND)
    assert (keys(again), again.timeout, again.flags & Flag.WORKED_ON) == ([], None, 0)
    assert s.delete(JOB, token=reply.timeout) == s.delete(b"p", token=reply.timeout) == ""


def test_lease_leaves_out_what_is_buried(s: ScanSubject) -> None:
    s.plain(b"p", b"q")
    assert s.ask(request(Function.BURY, b"p")).code == ""
    assert keys(s.range(timeout=SECOND)) == [b"q"]
    assert keys(s.range()) == [b"p", b"q"]


def test_lease_is_for_a_thousand_entries_and_the_cursor_for_the_others(s: ScanSubject) -> None:
    with s.checked_once():
        s.plain(*(b"k%05d" % number for number in range(SCAN_LEASES_MAX + 2)))
    with s.checked_once():
        first = s.range(timeout=SECOND)
    assert len(keys(first)) == SCAN_LEASES_MAX
    second = s.cursor(first.cursor, timeout=SECOND)
    assert keys(second) == [b"k%05d" % (SCAN_LEASES_MAX + number) for number in range(2)]
    assert second.cursor is None


def test_scan_does_not_find_expired_entries(s: ScanSubject) -> None:
    s.set(b"p", timeout=START + SECOND)
    s.later(SECOND)
    assert keys(s.range()) == []


@pytest.mark.parametrize("reply_bytes_max", [4096, 5000, 70_000])
def test_reply_with_its_cursor_has_max_reply_bytes_at_most(reply_bytes_max: int) -> None:
    s = ScanSubject(EngineSubject(Rules(reply_bytes_max=reply_bytes_max)))
    for number in range(60):
        s.set(b"%03d" % number + b"k" * (number * 37 % 900), b"v" * (number * 91 % 1700))
    reply = s.range(flags=Flag.DATA | Flag.META)
    found = keys(reply)
    while reply.cursor is not None:
        reply = s.cursor(reply.cursor, flags=Flag.DATA | Flag.META)
        found += keys(reply)
        assert s.target.reply_bytes <= reply_bytes_max
    assert [key[:3] for key in found] == [b"%03d" % number for number in range(60)]


def test_single_larger_pair_goes_alone(s: ScanSubject) -> None:
    s = ScanSubject(type(s.target)(Rules(reply_bytes_max=4096)))
    s.set(b"a", b"v")
    s.set(b"b", b"v" * 10_000)
    s.set(b"c", b"v")
    first = s.range(flags=Flag.DATA)
    second = s.cursor(first.cursor, flags=Flag.DATA)
    third = s.cursor(second.cursor, flags=Flag.DATA)
    assert [keys(reply) for reply in (first, second, third)] == [[b"a"], [b"b"], [b"c"]]
    assert third.cursor is None


def test_reply_has_65535_pairs_at_most(engine: ScanSubject) -> None:
    assert isinstance(engine.target, EngineSubject)
    engine.target.checks = False
    for number in range(PAIRS_MAX + 1):
        set_ = request(Function.SET, b"%05x" % number, b"v", flags=Flag.PERSIST)
        assert engine.target.engine.handle("writer", set_, START) is not None
    engine.target.evict()
    first = engine.range()
    assert len(keys(first)) == PAIRS_MAX
    assert keys(engine.cursor(first.cursor)) == [b"%05x" % PAIRS_MAX]


def test_scan_that_leases_is_refused_while_the_daemon_is_read_only(engine: ScanSubject) -> None:
    assert isinstance(engine.target, EngineSubject)
    engine.plain(b"p")
    engine.target.engine.context.read_only = True
    assert engine.range(timeout=SECOND).code == "read-only"
    assert keys(engine.range()) == [b"p"]
