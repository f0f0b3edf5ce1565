"""KICK: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, Function, State
from tests.property.subject import SECOND, START, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


def buried(s: Subject, *keys: bytes) -> None:
    for key in keys:
        assert s.set(key) == ""
        assert s.bury(key, reason=b"why") == ""


@pytest.mark.rule("Flags of a reply: 14 TTL", "Functions: 16 KICK")
@pytest.mark.parametrize("by", [JOB, URI])
def test_kick_by_any_key_makes_a_buried_entry_ready_again(s: Subject, by: bytes) -> None:
    s.set(JOB, uri=URI)
    s.bury(JOB, reason=b"why")
    assert s.kick(by) == 1
    assert not s.meta(JOB).state & State.BURIED
    assert s.stats(JOB, flags=Flag.DATA)["buried_reason"] is None
    assert s.jobs() == [JOB]


@pytest.mark.rule("Functions: 16 KICK")
def test_kick_does_not_count_entries_that_are_not_buried(s: Subject) -> None:
    s.set(JOB)
    assert s.kick(JOB) == 0
    s.lease()
    assert s.kick(JOB) == 0
    s.set(b"p")
    assert s.kick(b"p") == 0


@pytest.mark.warm_only
def test_kick_of_a_missing_key_is_not_found(s: Subject) -> None:
    assert s.ask(request(Function.KICK, JOB)).code == "not-found"


def test_attempts_arrival_and_the_instant_stay(s: Subject) -> None:
    s.set(JOB, at=START)
    s.set(OTHER, at=START)
    s.lease(timeout=SECOND)
    s.later(2 * SECOND)
    s.bury(JOB)
    assert s.kick(JOB) == 1
    meta = s.meta(JOB)
    assert (meta.attempts, meta.not_before_us, meta.timestamp_us, meta.modified_us) == (
        1,
        0,
        START,
        START,
    )
    assert s.jobs(count=2) == [JOB, OTHER]


def test_kick_of_an_entry_that_is_not_due_yet_waits_for_its_instant(s: Subject) -> None:
    later = b"a:1:%d:z" % (START + 60 * SECOND)
    buried(s, later)
    assert s.kick(later) == 1
    assert s.next().timeout == START + 60 * SECOND


def test_plain_entry_is_kicked_by_its_key_only(s: Subject) -> None:
    buried(s, b"p")
    assert s.kick_domain(b"p") == 0
    assert s.kick(b"p") == 1
    assert s.get(b"p", timeout=SECOND).code == ""


@pytest.mark.rule("Functions: 16 KICK")
def test_domain_is_kicked_in_the_order_of_work(s: Subject) -> None:
    first, second, third = b"a:0:7:z", b"a:1:3:y", b"a:1:5:x"
    buried(s, third, second, first, b"b:0:0:x")
    for key in (first, second, third):
        assert s.kick_domain(b"a") == 1
        assert s.jobs() == [key]
    assert s.kick_domain(b"a") == 0


def test_kick_of_one_priority_and_instant_takes_the_oldest_first(s: Subject) -> None:
    buried(s, OTHER, JOB)
    s.kick_domain(b"a")
    assert s.jobs() == [OTHER]


@pytest.mark.rule("Dead letters (BURY, KICK): At most 250 a request")
def test_kick_of_at_most_count_entries(s: Subject) -> None:
    buried(s, *(b"a:1:0:%d" % n for n in range(5)))
    assert s.kick_domain(b"a", 0) == 0
    assert s.kick_domain(b"a", 2) == 2
    assert s.kick_domain(b"a", 65_535) == 3


@pytest.mark.warm_only
def test_unknown_domain_has_nothing_to_kick(s: Subject) -> None:
    assert s.kick_domain(b"none", 9) == 0


@pytest.mark.warm_only
@pytest.mark.parametrize("domain", [b"", b"a:b", b"k" * 4097])
def test_kick_of_a_name_that_is_no_domain_is_bad_key(s: Subject, domain: bytes) -> None:
    assert s.ask(request(Function.KICK, uri=domain)).code == "bad-key"


@pytest.mark.warm_only
@pytest.mark.rule("Functions: Bad arguments")
def test_kick_without_a_key_or_a_domain_is_bad_request(s: Subject) -> None:
    assert s.ask(request(Function.KICK)).code == "bad-request"


@pytest.mark.warm_only
def test_oversize_key_is_bad_key(s: Subject) -> None:
    assert s.ask(request(Function.KICK, b"k" * 4097)).code == "bad-key"


def test_kick_serves_a_waiting_next(s: Subject) -> None:
    buried(s, JOB)
    s.listen(b"a")
    s.kick(JOB)
    [(_, reply)] = s.serve()
    assert reply.pairs is not None
    assert [pair.key for pair in reply.pairs] == [JOB]


def test_kick_after_max_attempts_is_buried_again_at_the_next_lost_lease(s: Subject) -> None:
    s = s.under(attempts_max=2)
    s.set(JOB)
    for _ in range(2):
        s.lease(timeout=SECOND)
        s.later(2 * SECOND)
    assert s.kick_domain(b"a") == 1
    s.lease(timeout=SECOND)
    s.later(2 * SECOND)
    meta = s.meta(JOB)
    assert (meta.attempts, meta.state & State.BURIED) == (3, State.BURIED)


@pytest.mark.parametrize("at", [0, START + 999 * SECOND])
def test_kick_does_not_look_at_the_timestamp(s: Subject, at: int) -> None:
    buried(s, JOB)
    assert s.ask(request(Function.KICK, JOB, at=at)).ttl == 1
