"""STATS and the functions that touch no entry: docs/protocol.md, by example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.functions import NO_FUNCTIONS
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"
NONE = {"entries": 0, "waiting": 0, "due": 0, "delayed": 0, "worked_on": 0, "buried": 0}


def assert_numbers(numbers: dict[str, object], **expected: int) -> None:
    assert {name: numbers[name] for name in NONE} == {**NONE, **expected}


@pytest.mark.warm_only
def test_empty_daemon_has_zeros(s: Subject) -> None:
    numbers = s.stats()
    assert_numbers(numbers)
    assert (numbers["domains"], numbers["oldest_due_us"]) == (0, 0)


@pytest.mark.warm_only
def test_domain_without_entries_has_zeros(s: Subject) -> None:
    numbers = s.stats(b"none")
    assert_numbers(numbers)
    assert numbers["oldest_due_us"] == 0


@pytest.mark.warm_only
@pytest.mark.rule("Functions: Bad arguments")
@pytest.mark.parametrize("key", [b"a:1", b"d" * 4097])
def test_stats_of_a_name_that_is_no_domain_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.ask(request(Function.STATS, key)).code == "bad-key"


@pytest.mark.warm_only
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_stats_of_what_cannot_be_an_entry_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.ask(request(Function.STATS, key, flags=Flag.DATA)).code == "bad-key"


@pytest.mark.warm_only
def test_stats_of_the_longest_domain_is_told(s: Subject) -> None:
    assert_numbers(s.stats(b"d" * 4096))


@pytest.mark.warm_only
@pytest.mark.rule("STATS: `due`", "STATS: `delayed`")
def test_waiting_is_due_or_delayed(s: Subject) -> None:
    s.set(JOB)
    s.set(OTHER)
    s.set(b"a:1:%d:x" % (START + SECOND))
    assert_numbers(s.stats(b"a"), entries=3, waiting=3, due=2, delayed=1)
    s.later(SECOND)
    assert_numbers(s.stats(b"a"), entries=3, waiting=3, due=3)


@pytest.mark.rule("STATS: `waiting`", "STATS: `worked_on`", "STATS: `buried`")
def test_waiting_is_neither_worked_on_nor_buried(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(JOB)
    s.set(OTHER)
    s.lease(timeout=SECOND)
    assert_numbers(s.stats(b"a"), entries=2, waiting=1, due=1, worked_on=1)
    s.later(2 * SECOND)
    assert_numbers(s.stats(b"a"), entries=2, waiting=1, due=1, buried=1)


@pytest.mark.rule("STATS: `delayed`")
def test_entry_that_waits_for_a_lease_on_its_uri_is_delayed(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease()
    s.set(OTHER, uri=URI, at=START + 1)
    assert_numbers(s.stats(b"a"), entries=2, waiting=1, delayed=1, worked_on=1)
    s.delete(JOB, token=token)
    assert_numbers(s.stats(b"a"), entries=1, waiting=1, due=1)


@pytest.mark.warm_only
@pytest.mark.rule("STATS: `entries`", "STATS: `domains`")
def test_domain_counts_its_own_entries_and_the_daemon_all(s: Subject) -> None:
    s.set(JOB)
    s.set(b"b:1:0:x")
    s.set(b"p")
    assert_numbers(s.stats(b"a"), entries=1, waiting=1, due=1)
    assert_numbers(s.stats(), entries=3, waiting=2, due=2)
    assert s.stats()["domains"] == 2


def test_plain_entries_are_neither_waiting_nor_due(s: Subject) -> None:
    s.set(b"p")
    s.get(b"p", timeout=SECOND)
    assert_numbers(s.stats(), entries=1, worked_on=1)


@pytest.mark.warm_only
@pytest.mark.rule("STATS: `oldest_due_us`")
def test_oldest_due_is_how_long_the_oldest_due_entry_has_been_due(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START + SECOND))
    s.set(b"a:0:%d:y" % (START + 3 * SECOND))
    s.set(b"b:0:%d:y" % (START - SECOND))
    assert s.stats(b"a")["oldest_due_us"] == 0
    s.later(5 * SECOND)
    assert s.stats(b"a")["oldest_due_us"] == 4 * SECOND
    assert s.stats()["oldest_due_us"] == 6 * SECOND


@pytest.mark.rule("STATS: `oldest_due_us` counts from the entry's not-before instant")
def test_oldest_due_counts_from_the_end_of_a_delay(s: Subject) -> None:
    s.set(JOB)
    s.release(JOB, s.lease(), ttl=SECOND)
    s.later(3 * SECOND)
    assert s.stats()["oldest_due_us"] == 2 * SECOND


@pytest.mark.rule("STATS: `oldest_due_us` counts from the entry's not-before instant")
def test_stats_of_an_entry_without_instant_count_it_as_due_since_it_was_created(s: Subject) -> None:
    s.set(b"a:1:0:x")
    s.later(2 * SECOND)
    s.set(b"a:1:0:y")
    s.set(b"a:1:%d:z" % (START + SECOND))
    s.later(SECOND)
    assert s.stats()["oldest_due_us"] == 3 * SECOND
    s.lease()
    assert s.stats()["oldest_due_us"] == 2 * SECOND


def test_oldest_due_does_not_count_what_is_worked_on(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START - SECOND))
    s.lease()
    assert s.stats()["oldest_due_us"] == 0


@pytest.mark.warm_only
@pytest.mark.rule("Functions: 17 STATS")
def test_stats_is_one_pair_with_the_key_asked_for(s: Subject) -> None:
    s.set(JOB)
    reply = s.ask(request(Function.STATS, b"a"))
    assert reply.pairs is not None
    assert [pair.key for pair in reply.pairs] == [b"a"]


def test_stats_does_not_count_as_reading(s: Subject) -> None:
    s.set(JOB)
    s.later(9)
    s.stats(b"a")
    reply = s.next(flags=Flag.META | Flag.OVERWRITE)
    assert reply.pairs is not None
    assert reply.pairs[0].meta is not None
    assert reply.pairs[0].meta.modified_us == START


@pytest.mark.rule(
    "STATS: `requests`, `set_requests`, `next_requests`, `delete_requests`", "STATS: `leases_lost`"
)
def test_stats_of_the_daemon_have_totals_since_its_start() -> None:
    s = Subject(EngineSubject(Rules()))
    s.set(JOB)
    s.set(OTHER)
    s.lease(timeout=SECOND)
    s.later(2 * SECOND)
    s.delete(OTHER)
    totals = s.stats()
    assert (totals["set_requests"], totals["next_requests"], totals["delete_requests"]) == (2, 1, 1)
    assert (totals["requests"], totals["leases_lost"]) == (5, 1), "with this STATS"


# --- one entry, with DATA: the engine alone knows it ----------------------------------------------


@pytest.mark.rule("STATS: With DATA, everything known of an entry")
def test_stats_with_data_has_all_that_is_known_of_an_entry() -> None:
    s = Subject(EngineSubject(Rules(attempts_max=1)))
    s.set(JOB, uri=URI)
    for by in (JOB, URI):
        facts = s.stats(by, flags=Flag.DATA)
        assert facts["keys"] == [JOB.decode(), URI.decode()]
        assert (facts["state"], facts["attempts"], facts["buried_reason"]) == ("ready", 0, None)
    token = s.lease(timeout=SECOND)
    facts = s.stats(JOB, flags=Flag.DATA)
    assert (facts["state"], facts["worked_on_until"]) == ("worked on", token)
    s.later(2 * SECOND)
    facts = s.stats(JOB, flags=Flag.DATA)
    assert (facts["state"], facts["attempts"]) == ("buried", 1)
    assert "max-attempts" in facts["buried_reason"]


@pytest.mark.warm_only
def test_stats_with_data_of_a_missing_entry_is_not_found() -> None:
    s = Subject(EngineSubject(Rules()))
    assert s.ask(request(Function.STATS, JOB, flags=Flag.DATA)).code == "not-found"


# --- NOP, QUIT, AUTH, and what is not there -------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.rule("Functions: 0 NOP")
@pytest.mark.parametrize("function", [Function.NOP, Function.QUIT, Function.AUTH])
def test_nop_quit_and_auth_are_success(s: Subject, function: Function) -> None:
    reply = s.ask(request(function, value=b"token", identifier=0xFFFF))
    assert (reply.error, reply.pairs, reply.timeout, reply.ttl) == ("", None, None, None)


@pytest.mark.warm_only
@pytest.mark.rule("NOP: META tells the limits of the daemon")
def test_nop_with_meta_tells_the_limits_of_the_daemon(s: Subject) -> None:
    reply = s.ask(request(Function.NOP, flags=Flag.META))
    assert reply.error == ""
    assert reply.pairs is not None
    (pair,) = reply.pairs
    assert (pair.key, pair.value_type, pair.meta) == (b"", ValueType.STRING, None)
    assert json.loads(pair.value) == {"value_bytes_max": 1_000_000}


@pytest.mark.rule("Errors: `unknown-function`")
@pytest.mark.parametrize("function", NO_FUNCTIONS)
def test_function_number_that_is_not_there_is_an_unknown_function(
    s: Subject, function: int
) -> None:
    s.set(JOB, b"one", uri=URI)
    reply = s.ask(request(function, JOB, b"\x01", uri=b"second", at=START + 1, ttl=1))
    assert reply.code == "unknown-function"
    assert s.value(JOB) == b"one"


ALL_FLAGS = Flag.UPDATE_TIMEOUT | Flag.OVERWRITE | Flag.WORKED_ON | Flag.PERSIST | Flag.META
ALL_FLAGS |= Flag.DATA | Flag.LISTEN | Flag.PERSIST_ALIAS


@pytest.mark.rule("Flags of a request: A flag that a function does not use is ignored")
def test_flag_that_a_function_does_not_use_is_ignored(s: Subject) -> None:
    everything: dict[str, Any] = {
        "flags": ALL_FLAGS,
        "uri": b"second",
        "timeout": 1,
        "ttl": 1,
        "count": 1,
    }
    assert s.ask(request(Function.NOP, b"k", b"v", **everything)).error == ""
    assert s.ask(request(Function.AUTH, b"k", b"v", **everything)).error == ""
    s.set(JOB, flags=Flag.WORKED_ON | Flag.UPDATE_TIMEOUT | Flag.META, count=3)
    assert s.meta(JOB).worked_on_until_us == 0
    assert s.jobs(flags=Flag.WORKED_ON | Flag.UPDATE_TIMEOUT | Flag.PERSIST) == [JOB]
