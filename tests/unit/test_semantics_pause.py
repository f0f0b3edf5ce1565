"""PAUSE: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, State
from tests.property.model_parts import U64_MAX
from tests.property.subject import SECOND, START, Subject

JOB = b"a:1:0:x"
OTHER = b"b:1:0:y"
URI = b"http://example.org/"


@pytest.mark.rule("Functions: 18 PAUSE")
def test_pause_delivers_nothing_of_its_domain(s: Subject) -> None:
    s.set(JOB)
    assert s.pause(b"a", 10 * SECOND) == ""
    assert s.jobs(b"a") == []
    assert s.jobs() == []
    s.set(OTHER)
    assert s.jobs(count=9) == [OTHER]


@pytest.mark.rule("PAUSE: End of a pause")
def test_pause_ends_at_its_instant_and_not_before(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", SECOND)
    s.now = START + SECOND - 1
    assert s.jobs() == []
    s.later(1)
    assert s.jobs() == [JOB]


@pytest.mark.rule("Functions: 18 PAUSE")
def test_ttl_0_resumes(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    assert s.pause(b"a", 0) == ""
    assert s.jobs(b"a") == [JOB]


@pytest.mark.warm_only
def test_ttl_0_of_what_is_not_paused_is_success(s: Subject) -> None:
    assert s.pause(b"a", 0) == ""


@pytest.mark.rule("PAUSE: End of a pause")
@pytest.mark.parametrize("ttl", [SECOND, 60 * SECOND])
def test_second_pause_replaces_the_end_of_the_first(s: Subject, ttl: int) -> None:
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    s.pause(b"a", ttl)
    assert s.next().timeout == START + ttl
    s.later(ttl)
    assert s.jobs() == [JOB]


@pytest.mark.warm_only
def test_pause_can_last_to_the_end_of_time(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", U64_MAX)
    assert s.next().timeout == U64_MAX


def test_domain_without_entries_can_be_paused(s: Subject) -> None:
    s.pause(b"a", 10 * SECOND)
    s.set(JOB)
    assert s.next(b"a").timeout == START + 10 * SECOND
    s.later(10 * SECOND)
    assert s.jobs(b"a") == [JOB]


@pytest.mark.rule("PAUSE: End of a pause")
def test_pause_outlives_the_last_entry_of_its_domain(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    s.delete(JOB)
    assert s.next().timeout is None
    s.later(1)
    s.set(JOB, at=START + 1)
    assert s.jobs() == []
    assert s.next().timeout == START + 10 * SECOND


def test_pause_that_ends_serves_a_waiting_next(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", SECOND)
    s.listen(b"a")
    assert s.serve() == []
    s.later(SECOND)
    [(_, reply)] = s.serve()
    assert reply.pairs is not None
    assert [pair.key for pair in reply.pairs] == [JOB]


def test_pause_that_is_resumed_serves_a_waiting_next(s: Subject) -> None:
    s.pause(b"a", 10 * SECOND)
    s.listen()
    s.set(JOB)
    assert s.serve() == []
    s.pause(b"a", 0)
    assert len(s.serve()) == 1


def test_wait_is_not_served_from_a_domain_that_was_paused_meanwhile(s: Subject) -> None:
    s.listen()
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    assert s.serve() == []
    s.pause(b"a", 0)
    assert len(s.serve()) == 1


def test_pause_lets_work_be_leased_by_key_and_finished(s: Subject) -> None:
    s.set(JOB)
    s.set(b"a:1:0:y")
    s.pause(b"a", 10 * SECOND)
    token = s.get(JOB, timeout=SECOND).timeout
    assert token is not None
    assert s.next().timeout == START + 10 * SECOND
    assert s.delete(JOB, token=token) == ""
    assert s.delete(b"a:1:0:y") == ""
    assert s.next().timeout is None


def test_pause_lets_leases_and_lives_end_as_ever(s: Subject) -> None:
    s.set(JOB)
    s.set(b"a:2:0:y", timeout=START + 2 * SECOND)
    s.lease(timeout=SECOND)
    s.pause(b"a", 10 * SECOND)
    s.later(5 * SECOND)
    assert s.meta(JOB).attempts == 1
    assert s.value(b"a:2:0:y") is None
    assert s.jobs() == []
    s.later(5 * SECOND)
    assert s.jobs() == [JOB]


@pytest.mark.warm_only
@pytest.mark.rule("PAUSE: Next-at of a paused domain")
def test_next_at_is_the_end_of_the_pause_where_something_is_ready_then(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START + SECOND))
    s.pause(b"a", 10 * SECOND)
    for _ in range(2):
        assert s.next(b"a").timeout == START + 10 * SECOND
        assert s.next().timeout == START + 10 * SECOND
        s.later(2 * SECOND)


@pytest.mark.warm_only
@pytest.mark.rule("PAUSE: Next-at of a paused domain")
def test_next_at_is_what_comes_after_the_pause_where_nothing_is_ready_then(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START + 20 * SECOND))
    s.pause(b"a", 10 * SECOND)
    assert s.next(b"a").timeout == START + 20 * SECOND
    assert s.next().timeout == START + 20 * SECOND


def test_next_at_is_the_end_of_a_lease_where_that_is_all_there_is(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=20 * SECOND)
    s.pause(b"a", 10 * SECOND)
    assert s.next().timeout == token
    s.pause(b"a", 30 * SECOND)
    assert s.next().timeout == START + 30 * SECOND


@pytest.mark.warm_only
def test_next_at_of_any_domain_is_the_first_of_all(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    s.set(b"b:1:%d:x" % (START + 5 * SECOND))
    assert s.next().timeout == START + 5 * SECOND
    s.pause(b"b", 20 * SECOND)
    assert s.next().timeout == START + 10 * SECOND
    s.bury(JOB)
    assert s.next().timeout == START + 20 * SECOND


@pytest.mark.warm_only
def test_pause_does_not_count_buried_or_plain_entries_for_next_at(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB)
    s.pause(b"a", 10 * SECOND)
    assert s.next().timeout is None
    assert s.next(b"a").timeout is None


@pytest.mark.warm_only
def test_ready_entries_of_a_paused_domain_are_still_due_in_stats(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    s.later(3)
    for numbers in (s.stats(), s.stats(b"a")):
        assert (numbers["due"], numbers["waiting"], numbers["oldest_due_us"]) == (1, 1, 3)


@pytest.mark.warm_only
@pytest.mark.rule("STATS: `paused_until`")
def test_stats_of_a_domain_tells_until_when_it_is_paused(s: Subject) -> None:
    assert s.stats(b"a")["paused_until"] == 0
    s.pause(b"a", 10 * SECOND)
    assert s.stats(b"a")["paused_until"] == START + 10 * SECOND
    s.set(JOB)
    assert s.stats(b"a")["paused_until"] == START + 10 * SECOND
    s.later(10 * SECOND)
    assert s.stats(b"a")["paused_until"] == 0


@pytest.mark.rule("Metadata block, 68 bytes: 65 state")
def test_metadata_of_its_entries_tell_of_the_pause(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    assert s.meta(JOB).state & State.PAUSED
    s.set(b"p")
    assert not s.meta(b"p").state & State.PAUSED
    s.pause(b"a", 0)
    assert not s.meta(JOB).state & State.PAUSED


def test_resumed_domain_has_its_turn_after_all_others(s: Subject) -> None:
    for name in (b"a", b"b", b"c"):
        s.set(name + b":1:0:x")
    s.pause(b"a", 10 * SECOND)
    s.pause(b"a", 0)
    assert s.jobs(count=3) == [b"b:1:0:x", b"c:1:0:x", JOB]


def test_domains_whose_pauses_end_take_their_turns_by_instant_then_name(s: Subject) -> None:
    for name, ttl in ((b"c", 2), (b"b", 2), (b"a", 3)):
        s.set(name + b":1:0:x")
        s.pause(name, ttl)
    s.set(b"d:1:%d:x" % (START + 2))
    s.set(b"bb:1:%d:x" % (START + 2))
    s.later(5)
    assert s.jobs(count=9) == [
        b"b:1:0:x",
        b"bb:1:%d:x" % (START + 2),
        b"c:1:0:x",
        b"d:1:%d:x" % (START + 2),
        b"a:1:0:x",
    ]


def test_uri_of_a_lease_in_a_paused_domain_keeps_other_work_waiting(s: Subject) -> None:
    s.set(JOB, uri=URI)
    token = s.lease(timeout=5 * SECOND)
    s.later(1)
    s.set(OTHER, uri=URI, at=START + 1)
    s.pause(b"a", 60 * SECOND)
    assert s.next().timeout == token
    s.now = token
    assert s.jobs() == [OTHER]


@pytest.mark.warm_only
@pytest.mark.parametrize("domain", [b"", b"a:b", JOB, b"k" * 4097])
def test_pause_of_a_name_that_is_no_domain_is_bad_key(s: Subject, domain: bytes) -> None:
    assert s.pause(domain, 1) == "bad-key"


@pytest.mark.warm_only
@pytest.mark.rule("Functions: Bad arguments")
def test_pause_without_ttl_is_bad_request(s: Subject) -> None:
    assert s.pause(b"a", None) == "bad-request"


def test_paused_domain_takes_sets_and_kicks(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB)
    s.pause(b"a", SECOND)
    assert s.kick(JOB) == 1
    assert s.set(b"a:1:0:y", flags=Flag.PERSIST) == ""
    assert s.jobs() == []
    s.later(SECOND)
    assert s.jobs(count=9) == [JOB, b"a:1:0:y"]
