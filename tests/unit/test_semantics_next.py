"""NEXT: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, Function, State, ValueType
from fastjournal.protocol.messages import Meta, Pair
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


# --- what is returned -----------------------------------------------------------------------------


@pytest.mark.rule("Flags of a reply: 7 TWO_KEYS", "Functions: 11 NEXT")
def test_next_returns_a_due_entry_with_both_its_keys_and_leases_it(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI)
    reply = s.next(flags=Flag.DATA, timeout=10 * SECOND)
    assert reply.pairs == [Pair(JOB, ValueType.BUFFER, b"one", URI)]
    assert reply.flags & Flag.WORKED_ON
    assert reply.flags & Flag.TWO_KEYS
    assert s.meta(JOB).worked_on_until_us == reply.timeout
    assert s.jobs() == []


@pytest.mark.rule("Flags of a reply: 7 TWO_KEYS")
def test_second_key_is_empty_where_there_is_one_key_only(s: Subject) -> None:
    s.set(JOB)
    assert s.next().pairs == [Pair(JOB, ValueType.BUFFER, b"", b"")]


@pytest.mark.rule("Flags of a request: 10 DATA")
def test_next_returns_the_data_only_when_asked_for(s: Subject) -> None:
    s.set(JOB, b"one", kind=ValueType.STRING)
    assert s.next().pairs == [Pair(JOB, ValueType.STRING, b"")]


@pytest.mark.rule("Flags of a request: 15 META")
def test_next_returns_meta_if_asked(s: Subject) -> None:
    s.set(b"a:7:5:x", at=START - 5, flags=Flag.PERSIST)
    s.later(9)
    reply = s.next(flags=Flag.META)
    assert reply.pairs is not None
    assert reply.pairs[0].meta == Meta(
        timestamp_us=START - 5,
        created_us=START,
        modified_us=START,
        accessed_us=START + 9,
        worked_on_until_us=reply.timeout or 0,
        not_before_us=5,
        priority=7,
        state=State.PERSISTENT | State.JOURNAL,
    )


@pytest.mark.warm_only
def test_plain_entries_are_never_returned(s: Subject) -> None:
    s.set(b"p")
    s.set(b"a:256:0:x")
    reply = s.next()
    assert (reply.code, reply.pairs, reply.timeout) == ("", [], None)


@pytest.mark.rule("NEXT: Order")
def test_entries_come_by_priority_then_timestamp_then_arrival(s: Subject) -> None:
    keys = [b"a:2:0:p", b"a:1:9:q", b"a:1:3:z", b"a:1:3:y", b"a:01:0003:x"]
    for key in keys:
        s.set(key)
    order = [b"a:1:3:z", b"a:1:3:y", b"a:01:0003:x", b"a:1:9:q", b"a:2:0:p"]
    assert s.jobs(b"a", count=9) == order


def test_entry_is_due_when_its_timestamp_has_come(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START + SECOND))
    s.later(SECOND - 1)
    assert s.jobs() == []
    s.later(1)
    assert s.jobs() == [b"a:1:%d:x" % (START + SECOND)]


def test_domain_returns_its_own_entries_only(s: Subject) -> None:
    s.set(b"a:1:0:x")
    s.set(b"b:1:0:x")
    assert s.jobs(b"b", count=9) == [b"b:1:0:x"]


@pytest.mark.rule("Flags of a request: 13 COUNT")
@pytest.mark.parametrize(("count", "expected"), [(None, 1), (1, 1), (2, 2), (3, 3), (65535, 3)])
def test_count_is_an_upper_bound_and_1_if_absent(
    s: Subject, count: int | None, expected: int
) -> None:
    for n in range(3):
        s.set(b"a:1:0:%d" % n)
    assert len(s.jobs(count=count)) == expected


@pytest.mark.rule("NEXT: Nothing becomes due by time before that instant")
def test_count_of_0_asks_only_when_there_will_be_more(s: Subject) -> None:
    s.set(JOB)
    s.set(b"a:1:%d:x" % (START + 9))
    reply = s.next(count=0, flags=Flag.LISTEN)
    assert (reply.error, reply.pairs, reply.timeout) == ("", [], START + 9)
    assert s.jobs() == [JOB]


@pytest.mark.warm_only
@pytest.mark.parametrize("domain", [b"a:1", b"d" * 4097])
def test_next_of_a_name_that_is_no_domain_is_bad_key(s: Subject, domain: bytes) -> None:
    assert s.next(domain).code == "bad-key"


def test_next_gives_all_entries_of_a_reply_one_token(s: Subject) -> None:
    s.set(JOB)
    s.set(OTHER)
    token = s.lease(count=2)
    assert (s.meta(JOB).worked_on_until_us, s.meta(OTHER).worked_on_until_us) == (token, token)


@pytest.mark.parametrize("timeout", [None, 0])
def test_lease_without_a_length_is_the_default_lease(s: Subject, timeout: int | None) -> None:
    s.set(JOB)
    assert s.lease(timeout=timeout) // 1000 == (START + 24 * 3600 * SECOND) // 1000


def test_buried_entries_are_not_returned(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(JOB)
    s.lease(timeout=SECOND)
    s.later(2 * SECOND)
    reply = s.next()
    assert (reply.pairs, reply.timeout) == ([], None)


# --- turns ----------------------------------------------------------------------------------------


@pytest.mark.rule("NEXT: Round robin")
def test_domains_take_turns_one_entry_a_turn_inside_a_batch(s: Subject) -> None:
    for key in (b"a:1:0:1", b"a:1:0:2", b"a:1:0:3", b"b:1:0:1", b"c:1:0:1", b"c:1:0:2"):
        s.set(key)
    order = [b"a:1:0:1", b"b:1:0:1", b"c:1:0:1", b"a:1:0:2", b"c:1:0:2", b"a:1:0:3"]
    assert s.jobs(count=9) == order


def test_domains_take_turns_across_requests(s: Subject) -> None:
    for key in (b"a:1:0:1", b"a:1:0:2", b"b:1:0:1", b"b:1:0:2"):
        s.set(key)
    order = [s.jobs()[0] for _ in range(4)]
    assert order == [b"a:1:0:1", b"b:1:0:1", b"a:1:0:2", b"b:1:0:2"]


def test_domain_with_a_long_queue_does_not_starve_the_others(s: Subject) -> None:
    for n in range(100):
        s.set(b"big:0:0:%d" % n)
    s.set(b"small:255:0:x")
    assert b"small:255:0:x" in s.jobs(count=2)


def test_next_on_a_named_domain_does_not_change_turns(s: Subject) -> None:
    for key in (b"a:1:0:1", b"a:1:0:2", b"b:1:0:1"):
        s.set(key)
    assert s.jobs(b"a") == [b"a:1:0:1"]
    assert s.jobs() == [b"a:1:0:2"]


def test_domain_that_becomes_due_again_goes_to_the_end(s: Subject) -> None:
    s.set(b"a:1:0:1")
    s.set(b"b:1:0:1")
    assert s.jobs(b"a") == [b"a:1:0:1"]
    s.set(b"a:1:0:2")
    assert s.jobs(count=2) == [b"b:1:0:1", b"a:1:0:2"]


@pytest.mark.rule("NEXT: Round robin")
def test_domain_whose_only_entry_is_replaced_keeps_its_turn(s: Subject) -> None:
    s.set(b"a:1:0:1", uri=URI, at=START)
    s.set(b"b:1:0:1")
    s.set(b"a:1:0:2", uri=URI, at=START + 1)
    s.set(b"a:1:0:2", at=START + 2, flags=Flag.OVERWRITE)
    assert s.jobs(count=2) == [b"a:1:0:2", b"b:1:0:1"]


def test_domains_that_become_due_by_time_enter_in_order_of_instant_then_name(s: Subject) -> None:
    for domain, after in ((b"d", 2), (b"c", 2), (b"a", 3), (b"b", 1)):
        s.set(b"%s:1:%d:" % (domain, START + after * SECOND))
    s.later(9 * SECOND)
    assert [key[:1] for key in s.jobs(count=9)] == [b"b", b"c", b"d", b"a"]


# --- max-reply ------------------------------------------------------------------------------------


def test_max_reply_holds_and_what_does_not_fit_stays(s: Subject) -> None:
    s = s.under(reply_bytes_max=1100)
    for n in range(4):
        s.set(b"a:1:0:%d" % n, b"x" * 300)
    assert s.jobs(count=9, flags=Flag.DATA) == [b"a:1:0:0", b"a:1:0:1", b"a:1:0:2"]
    assert s.jobs(count=9, flags=Flag.DATA) == [b"a:1:0:3"]


def test_single_larger_pair_goes_alone(s: Subject) -> None:
    s = s.under(reply_bytes_max=100)
    s.set(JOB, b"x" * 300)
    s.set(OTHER, b"x" * 300)
    assert s.jobs(count=9, flags=Flag.DATA) == [JOB]
    assert s.jobs(count=9, flags=Flag.DATA) == [OTHER]


def test_domain_whose_entry_did_not_fit_is_the_first_of_the_next_reply(s: Subject) -> None:
    s = s.under(reply_bytes_max=1000)
    s.set(b"a:1:0:1", b"x" * 300)
    s.set(b"a:1:0:2", b"x" * 300)
    s.set(b"b:1:0:1", b"x" * 900)
    assert s.jobs(count=9, flags=Flag.DATA) == [b"a:1:0:1"]
    assert s.jobs(count=9, flags=Flag.DATA) == [b"b:1:0:1"]


# --- OVERWRITE ------------------------------------------------------------------------------------


@pytest.mark.rule("Flags of a request: 5 OVERWRITE")
def test_overwrite_deletes_the_entries_at_once(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI)
    s.set(OTHER, b"two")
    reply = s.next(flags=Flag.OVERWRITE | Flag.DATA, count=2)
    assert reply.pairs == [
        Pair(JOB, ValueType.BUFFER, b"one", URI),
        Pair(OTHER, ValueType.BUFFER, b"two"),
    ]
    assert (reply.timeout, reply.flags & Flag.WORKED_ON) == (None, 0)
    assert (s.value(JOB), s.value(URI), s.value(OTHER)) == (None, None, None)


@pytest.mark.rule("Last writer wins (timestamps, tombstones): Other causes of a tombstone")
def test_popped_entry_leaves_a_tombstone_with_its_own_timestamp(s: Subject) -> None:
    s.set(JOB, at=START)
    s.later(SECOND)
    s.next(flags=Flag.OVERWRITE, at=START + SECOND)
    assert s.set(JOB, at=START) == "stale"
    assert s.set(JOB, at=START + 1) == ""


# --- nothing due ----------------------------------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.rule("Flags of a reply: 13 COUNT")
def test_next_without_work_is_success_with_count_0_and_no_timeout(s: Subject) -> None:
    reply = s.next()
    assert (reply.error, reply.pairs, reply.timeout) == ("", [], None)


@pytest.mark.warm_only
@pytest.mark.rule("NEXT: Nothing becomes due by time before that instant")
def test_next_at_is_the_smallest_future_timestamp(s: Subject) -> None:
    for after in (9, 4, 7):
        s.set(b"a:1:%d:x" % (START + after))
    s.set(b"b:1:%d:x" % (START + 2))
    assert s.next(b"a").timeout == START + 4
    assert s.next().timeout == START + 2


@pytest.mark.rule("NEXT: Nothing becomes due by time before that instant")
def test_next_at_is_the_end_of_a_lease(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=10 * SECOND)
    assert s.next(b"a").timeout == token
    assert s.next(b"b").timeout is None


def test_next_at_knows_that_an_entry_waits_for_a_lease_on_its_uri(s: Subject) -> None:
    s.set(b"b:1:0:x", uri=URI, at=START)
    token = s.lease(timeout=10 * SECOND)
    s.set(b"c:1:0:x", uri=URI, at=START + 1)
    assert s.next(b"c").timeout == token
    assert s.next(b"b").timeout is None


def test_next_at_is_the_later_of_the_lease_on_the_uri_and_the_timestamp(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    s.lease(timeout=10 * SECOND)
    s.set(b"a:1:%d:x" % (START + 60 * SECOND), uri=URI, at=START + 1)
    assert s.next().timeout == START + 60 * SECOND


# --- waiting --------------------------------------------------------------------------------------


def test_listen_with_work_there_does_not_wait(s: Subject) -> None:
    s.set(JOB)
    assert s.jobs(flags=Flag.LISTEN) == [JOB]


@pytest.mark.rule("Flags of a request: 11 LISTEN")
def test_next_that_waits_is_answered_when_work_comes(s: Subject) -> None:
    s.listen(b"a", identifier=9, flags=Flag.DATA)
    assert s.serve() == []
    s.set(b"b:1:0:x")
    assert s.serve() == []
    s.later(5)
    s.set(JOB, b"one")
    [(session, reply)] = s.serve()
    assert (session, reply.identifier, reply.timestamp) == ("one", 9, START + 5)
    assert reply.pairs == [Pair(JOB, ValueType.BUFFER, b"one")]
    assert reply.flags & Flag.WORKED_ON
    assert not reply.flags & Flag.LISTEN
    assert reply.timeout == s.meta(JOB).worked_on_until_us
    assert s.serve() == []


def test_next_that_waits_is_answered_when_an_entry_becomes_due(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START + SECOND))
    s.listen()
    s.later(SECOND)
    [(_, reply)] = s.serve()
    assert reply.pairs


def test_next_that_waits_is_answered_when_a_lease_ends(s: Subject) -> None:
    s.set(JOB)
    s.lease(timeout=SECOND)
    s.listen()
    s.later(2 * SECOND)
    [(_, reply)] = s.serve()
    assert reply.pairs


@pytest.mark.rule("NEXT: Long polling (LISTEN)")
def test_next_that_waits_is_served_first_come_first_served(s: Subject) -> None:
    s.listen(session="first")
    s.listen(b"b", session="second")
    s.listen(b"a", session="third")
    s.set(JOB)
    assert [session for session, _ in s.serve()] == ["first"]
    s.set(OTHER)
    assert [session for session, _ in s.serve()] == ["third"]
    s.set(b"b:1:0:x")
    assert [session for session, _ in s.serve()] == ["second"]


def test_next_that_waits_for_a_domain_is_served_at_once_with_all_others(s: Subject) -> None:
    for session in ("first", "second", "third"):
        s.listen(b"a", session=session)
    s.set(JOB)
    s.set(OTHER)
    assert [session for session, _ in s.serve()] == ["first", "second"]


def test_engine_wakes_for_work_and_for_the_end_of_a_wait() -> None:
    engine = EngineSubject(Rules())
    s = Subject(engine)
    engine.advance(START)
    assert engine.engine.next_wake() is None
    s.listen(ttl=9 * SECOND)
    assert engine.engine.next_wake() == START + 9 * SECOND
    s.set(b"a:1:%d:x" % (START + 5 * SECOND))
    assert engine.engine.next_wake() == START + 5 * SECOND
    s.later(5 * SECOND)
    [(_, reply)] = s.serve()
    assert engine.engine.next_wake() == reply.timeout


@pytest.mark.rule("NEXT: Long polling (LISTEN)")
def test_wait_ends_after_ttl_with_count_0_and_next_at(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START + 60 * SECOND))
    s.listen(ttl=SECOND)
    s.later(SECOND - 1)
    assert s.serve() == []
    s.later(1)
    [(_, reply)] = s.serve()
    assert (reply.error, reply.pairs, reply.timeout) == ("", [], START + 60 * SECOND)


@pytest.mark.warm_only
def test_wait_without_ttl_has_no_end(s: Subject) -> None:
    s.listen()
    s.later(365 * 24 * 3600 * SECOND)
    assert s.serve() == []


@pytest.mark.warm_only
def test_wait_of_0_is_over_at_once(s: Subject) -> None:
    s.listen(ttl=0)
    [(_, reply)] = s.serve()
    assert (reply.error, reply.pairs) == ("", [])


def test_batch_for_any_domain_does_not_take_what_an_earlier_one_waits_for(s: Subject) -> None:
    s.listen(b"b", session="first")
    s.listen(session="second", count=9)
    s.set(JOB)
    s.set(b"b:1:0:x")
    served = [(session, [p.key for p in reply.pairs or []]) for session, reply in s.serve()]
    assert served == [("first", [b"b:1:0:x"]), ("second", [JOB])]


@pytest.mark.warm_only
@pytest.mark.rule("NEXT: Long polling (LISTEN)")
def test_quit_ends_the_waits_of_its_session_with_count_0(s: Subject) -> None:
    s.listen(session="one", identifier=5)
    s.listen(session="two")
    assert s.ask(request(Function.QUIT)).code == ""
    [(session, reply)] = s.serve()
    assert (session, reply.identifier, reply.error, reply.pairs) == ("one", 5, "", [])


def test_connection_that_ended_gets_no_work(s: Subject) -> None:
    s.listen(session="one")
    s.target.end_session("one")
    s.set(JOB)
    assert s.serve() == []
    assert s.jobs() == [JOB]
