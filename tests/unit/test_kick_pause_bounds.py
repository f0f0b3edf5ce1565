"""KICK and PAUSE are bounded, and what they do on a disk that is nearly full."""

from __future__ import annotations

import pytest

from fastjournal.limits import KICK_BYTES_MAX, KICK_ENTRIES_MAX, PAUSED_DOMAINS_MAX
from fastjournal.protocol import decode_reply
from fastjournal.protocol.constants import Function
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, EngineSubject, Subject, request


@pytest.fixture
def s() -> Subject:
    return Subject(EngineSubject(Rules()))


@pytest.mark.rule("Dead letters (BURY, KICK): At most 250 a request")
def test_kick_of_at_most_250_entries_by_one_request(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KICK_ENTRIES_MAX == 250
    monkeypatch.setattr("fastjournald.engine.handlers.bury_kick.KICK_ENTRIES_MAX", 3)
    for n in range(4):
        s.set(b"a:1:0:%d" % n)
        s.bury(b"a:1:0:%d" % n)
    assert s.kick_domain(b"a", 65_535) == 3
    assert s.kick_domain(b"a", 65_535) == 1


def test_kick_looks_at_so_many_buried_entries_and_no_more(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that another connection has locked are passed over, one look each."""
    monkeypatch.setattr("fastjournald.engine.handlers.bury_kick.KICK_LOOKS_MAX", 3)
    for number in range(5):
        s.set(b"a:1:0:%d" % number)
        s.bury(b"a:1:0:%d" % number)
        if number < 3:
            s.lock(b"a:1:0:%d" % number, session="other")
    assert s.kick_domain(b"a", 5) == 0
    s.unlock(b"a:1:0:2", session="other")
    assert s.kick_domain(b"a", 5) == 1


@pytest.mark.rule("Dead letters (BURY, KICK): At most 250 a request")
def test_large_values_end_a_request_and_one_always_goes(s: Subject) -> None:
    half = KICK_BYTES_MAX // 2 - len(b"a:1:0:0")
    sizes = (KICK_BYTES_MAX + 1, half, half, 1)
    for n, size in enumerate(sizes):
        s.set(b"a:1:0:%d" % n, bytes(size))
        s.bury(b"a:1:0:%d" % n)
    assert [s.kick_domain(b"a", 9) for _ in sizes] == [1, 2, 1, 0]


@pytest.mark.rule("PAUSE: At most 100,000 domains at a time")
def test_pause_of_more_domains_than_the_limit_is_busy(
    s: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.engine.handlers.domains.PAUSED_DOMAINS_MAX", 2)
    assert PAUSED_DOMAINS_MAX == 100_000
    assert [s.pause(name, SECOND) for name in (b"a", b"b", b"c")] == ["", "", "busy"]
    assert s.pause(b"a", 2 * SECOND) == ""
    s.later(SECOND)
    assert s.pause(b"c", SECOND) == ""


# --- a disk that is nearly full -------------------------------------------------------------------

JOB = b"a:1:0:x"


@pytest.fixture
def full(s: Subject) -> Subject:
    """With a buried, a leased and a waiting entry, and a paused domain; then read-only."""
    assert isinstance(s.target, EngineSubject)
    for key in (JOB, b"b:1:0:x", b"b:1:0:y"):
        s.set(key)
    s.bury(JOB)
    s.pause(b"c", SECOND)
    s.target.engine.context.read_only = True
    return s


def test_read_only_engine_refuses_functions_that_grow_the_log(full: Subject) -> None:
    for req in (
        request(Function.KICK, JOB),
        request(Function.KICK, uri=b"a"),
        request(Function.PAUSE, b"a", ttl=1),
        request(Function.PAUSE, b"c", ttl=2 * SECOND),
    ):
        assert full.ask(req).code == "read-only"
    assert full.stats()["buried"] == 1
    assert full.stats(b"c")["paused_until"] == full.now + SECOND


def test_read_only_comes_last(full: Subject) -> None:
    assert full.ask(request(Function.KICK, b"no:1:0:x")).code == "not-found"
    assert full.ask(request(Function.KICK)).code == "bad-request"
    assert full.ask(request(Function.PAUSE, b"a:", ttl=1)).code == "bad-key"
    assert full.ask(request(Function.PAUSE, b"a")).code == "bad-request"


def test_read_only_engine_takes_functions_that_end_work(full: Subject) -> None:
    assert full.kick(b"b:1:0:x") == 0
    assert full.kick_domain(b"b") == 0
    assert full.bury(b"b:1:0:x") == ""
    assert full.bury(b"b:1:0:x") == ""
    # it would take another record of the whole entry, again and again
    assert full.bury(b"b:1:0:x", reason=b"another") == "read-only"
    assert full.pause(b"c", 0) == ""
    assert full.stats(b"c")["paused_until"] == 0


def test_waiting_next_is_not_served_by_the_end_of_a_pause_before_there_is_room(
    full: Subject,
) -> None:
    assert isinstance(full.target, EngineSubject)
    engine = full.target.engine
    engine.context.read_only = False
    full.pause(b"b", SECOND)
    full.listen()
    engine.context.read_only = True
    full.later(SECOND)
    assert full.serve() == []
    [(_, data)] = engine.resume(full.now)
    assert decode_reply(data).pairs
