"""STATS and the functions that touch no entry: docs/protocol.md, by example."""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from fastjournal import limits
from fastjournal.client import EntryExplanation
from fastjournal.limits import KEY_BYTES_MAX, TAKEN_URI_BYTES, TAKEN_URIS_BYTES_MAX
from fastjournal.protocol import Reply, decode_reply
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query, ValueType
from fastjournal.protocol.functions import Right
from fastjournald.engine.authorization import Grant, Grants
from tests.functions import NO_FUNCTIONS
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.engine_work import Daemon, do_bounded

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"
NONE = {"entries": 0, "waiting": 0, "due": 0, "delayed": 0, "worked_on": 0, "buried": 0}


def assert_numbers(numbers: dict[str, object], **expected: int) -> None:
    assert {name: numbers[name] for name in NONE} == {**NONE, **expected}


@pytest.mark.warm_only
def test_waiting_is_due_or_delayed(s: Subject) -> None:
    s.set(JOB)
    s.set(OTHER)
    s.set(b"a:1:%d:x" % (START + SECOND))
    assert_numbers(s.stats(b"a"), entries=3, waiting=3, due=2, delayed=1)
    s.later(SECOND)
    assert_numbers(s.stats(b"a"), entries=3, waiting=3, due=3)


def test_waiting_is_neither_worked_on_nor_buried(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(JOB)
    s.set(OTHER)
    s.lease(timeout=SECOND)
    assert_numbers(s.stats(b"a"), entries=2, waiting=1, due=1, worked_on=1)
    s.later(2 * SECOND)
    assert_numbers(s.stats(b"a"), entries=2, waiting=1, due=1, buried=1)


@pytest.mark.warm_only
def test_domain_counts_its_own_entries_and_the_daemon_all(s: Subject) -> None:
    s.set(JOB)
    s.set(b"b:1:0:x")
    s.set(b"p")
    assert_numbers(s.stats(b"a"), entries=1, waiting=1, due=1)
    assert_numbers(s.stats(), entries=3, waiting=2, due=2)
    assert s.stats()["domains"] == 2


@pytest.mark.warm_only
def test_oldest_due_is_how_long_the_oldest_due_entry_has_been_due(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START + SECOND))
    s.set(b"a:0:%d:y" % (START + 3 * SECOND))
    s.set(b"b:0:%d:y" % (START - SECOND))
    assert s.stats(b"a")["oldest_due_us"] == 0
    s.later(5 * SECOND)
    assert s.stats(b"a")["oldest_due_us"] == 4 * SECOND
    assert s.stats()["oldest_due_us"] == 6 * SECOND


def test_oldest_due_counts_from_the_end_of_a_delay(s: Subject) -> None:
    s.set(JOB)
    s.release(JOB, s.lease(), ttl=SECOND)
    s.later(3 * SECOND)
    assert s.stats()["oldest_due_us"] == 2 * SECOND


@pytest.mark.warm_only
def test_stats_is_one_pair_with_the_key_asked_for(s: Subject) -> None:
    s.set(JOB)
    reply = s.ask(request(Function.STATS, b"a"))
    assert reply.pairs is not None
    assert [pair.key for pair in reply.pairs] == [b"a"]


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


# --- bad arguments --------------------------------------------------------------------------------

TOO_LONG = b"k" * 4097
TOKEN = {"flags": Flag.WORKED_ON, "timeout": 1}


@pytest.mark.warm_only
@pytest.mark.parametrize(
    ("function", "key", "fields", "code"),
    [
        *((Function.STATS, key, {}, "bad-key") for key in (b"a:1", TOO_LONG)),
        *((Function.NEXT, key, {}, "bad-key") for key in (b"a:1", TOO_LONG)),
        (Function.DOMAINS, TOO_LONG, {}, "bad-key"),
        *((Function.DELETE, key, {}, "bad-key") for key in (b"", TOO_LONG)),
        *((Function.BURY, key, {}, "bad-key") for key in (b"", TOO_LONG)),
        *((Function.RELEASE, key, TOKEN, "bad-key") for key in (b"", TOO_LONG)),
        *((Function.TOUCH, key, TOKEN | {"ttl": 1}, "bad-key") for key in (b"", TOO_LONG)),
        *((Function.TOUCH, key, {"ttl": 1}, "bad-key") for key in (b"", TOO_LONG)),
        *((Function.KICK, b"", {"uri": domain}, "bad-key") for domain in (b"", b"a:b", TOO_LONG)),
        (Function.KICK, TOO_LONG, {}, "bad-key"),
        (Function.KICK, b"", {}, "bad-request"),
        # WORKED_ON and timeout, a token, come together
        *(
            (function, JOB, {"ttl": 1} | half, "bad-request")
            for function in (Function.DELETE, Function.BURY, Function.TOUCH, Function.RELEASE)
            for half in ({"flags": Flag.WORKED_ON}, {"timeout": START})
        ),
        *(
            (Function.RELEASE, JOB, none, "bad-request")
            for none in ({}, {"flags": Flag.OVERWRITE, "timeout": START})
        ),
    ],
)
def test_bad_argument_is_refused_and_changes_nothing(
    s: Subject, function: Function, key: bytes, fields: dict[str, Any], code: str
) -> None:
    s.set(JOB)
    assert s.ask(request(function, key, **fields)).code == code
    assert_numbers(s.stats(), entries=1, waiting=1, due=1)


# --- one entry, with DATA: the engine alone knows it ----------------------------------------------


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


# --- NOP, QUIT, AUTH, and what is not there -------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.parametrize("function", [Function.NOP, Function.QUIT, Function.AUTH])
def test_nop_quit_and_auth_are_success(s: Subject, function: Function) -> None:
    reply = s.ask(request(function, value=b"token", identifier=0xFFFF))
    assert (reply.error, reply.pairs, reply.timeout, reply.ttl) == ("", None, None, None)


@pytest.mark.warm_only
def test_nop_with_meta_tells_the_limits_of_the_daemon(s: Subject) -> None:
    reply = s.ask(request(Function.NOP, flags=Flag.META))
    assert reply.error == ""
    assert reply.pairs is not None
    (pair,) = reply.pairs
    assert (pair.key, pair.value_type, pair.meta) == (b"", ValueType.STRING, None)
    limits = {"value_bytes_max": 1_000_000, "tombstone_ttl_us": 3_600_000_000}
    assert json.loads(pair.value) == limits


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


# --- DOMAINS --------------------------------------------------------------------------------------
# DOMAINS: every sentence of docs/protocol.md about it, by example.


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
def test_domains_have_the_object_of_stats_and_their_pause_and_limits(e: Subject) -> None:
    e.set(b"d:1:0:x")
    e.pause(b"d", SECOND)
    e.pause(b"empty", 2 * SECOND)
    e.later(5)
    for name, until in ((b"d", START + SECOND), (b"empty", START + 2 * SECOND)):
        (pair,) = ask(e, name).pairs or ()
        told = json.loads(pair.value)
        asked = e.stats(name)
        # a list does not look at the workers for each of its domains
        assert asked.pop("workers_busy") == 0
        assert told.items() >= asked.items()
        assert told["paused_until_us"] == told["paused_until"] == until
    limit = request(
        Function.LIMIT, b"limited", b'{"interval_us":7,"jobs":2}', kind=ValueType.STRING
    )
    assert e.ask(limit).error == ""
    (pair,) = ask(e, b"l").pairs or ()
    told = json.loads(pair.value)
    assert (told["interval_us"], told["jobs_max"], told["paused_until_us"]) == (7, 2, 0)


@pytest.mark.warm_only
@pytest.mark.parametrize("count", [None, 0, 1, 2, 3, 7, 8, 65_535])
def test_pages_have_count_domains_and_a_cursor_where_there_is_one_more(
    e: Subject, count: int | None
) -> None:
    size = count or len(NAMES)
    expected = [NAMES[at : at + size] for at in range(0, len(NAMES), size)]
    assert pages(fill(e), b"", count) == expected
    assert pages(e, b"a", 3) == [NAMES[:3], NAMES[3:4]]


def test_cursor_goes_on_behind_its_last_name_whatever_came_and_went(e: Subject) -> None:
    reply = ask(fill(e), b"", 2)
    assert names(reply) == [b"a", b"a b"]
    e.delete(b"a b:1:0:x")
    e.set(b"a c:1:0:x")
    e.set(b"a a:1:0:x")
    e.delete(b"ab:1:0:x")
    assert names(ask(e, reply.cursor or b"", flags=CURSOR)) == [b"a c", b"a-b"]
    assert names(ask(e, reply.cursor or b"", flags=CURSOR)) == [b"a c", b"a-b"]


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
        reply = decode_reply(data)
        found += names(reply)
    assert found == [b"d%04d" % at for at in range(number)]


@pytest.mark.warm_only
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


# --- what keeps an entry from delivery ------------------------------------------------------------
# STATS with DATA and META: what keeps an entry from being delivered now.


EXPLAINED = Flag.DATA | Flag.META


def engine(**rules: int) -> Subject:
    return Subject(EngineSubject(Rules(**rules)))


def explained(s: Subject, key: bytes) -> dict[str, Any]:
    return s.stats(key, flags=EXPLAINED)


def test_explanation_counts_due_entries_before_an_entry_in_work_order() -> None:
    s = engine()
    keys = [b"a:%d:%d:%d" % (number % 3, START - number % 7, number) for number in range(1500)]
    with s.target.checked_once():
        for key in keys:
            s.set(key)
    s.set(b"b:0:0:elsewhere")
    s.set(b"a:0:%d:later" % (START + SECOND))
    order = sorted(keys, key=lambda key: ([*map(int, key.split(b":")[1:3])], keys.index(key)))
    for place in (0, 1, 255, 256, 700, 1499):
        facts = explained(s, order[place])
        assert (facts["state"], facts["ready_before"]) == ("ready", place)
    assert explained(s, order[0])["domain_due"] == 1500


def test_explanation_names_the_lease_of_another_entry_on_the_uri() -> None:
    s = engine()
    s.set(JOB, uri=URI, at=START)
    s.later(SECOND)
    token = s.lease(timeout=60 * SECOND)
    leased = explained(s, JOB)
    assert (leased["uri_leased_by"], leased["superseded_by"]) == (None, None)
    s.later(SECOND)
    s.set(OTHER, uri=URI, at=START + 1)
    for by in (OTHER, URI):
        facts = explained(s, by)
        assert (facts["state"], facts["uri_leased_by"]) == ("delayed", JOB.decode())
        assert facts["uri_leased_until_us"] == facts["delayed_until_us"] == token
        assert facts["uri_leased_since_us"] == START + SECOND
        assert facts["now_us"] == START + 2 * SECOND
    assert explained(s, JOB)["superseded_by"] == OTHER.decode()


def test_explanation_names_the_job_of_another_domain_that_had_or_has_the_uri() -> None:
    s = engine()
    elsewhere = b"b:1:0:x"
    s.set(JOB, uri=URI, at=START)
    s.later(SECOND)
    s.set(elsewhere, uri=URI, at=START + 1)
    assert explained(s, JOB)["uri_taken_by"] == elsewhere.decode()
    s.later(SECOND)
    s.set(b"b:1:0:y", uri=URI, at=START + 2)
    assert explained(s, elsewhere)["uri_taken_by"] is None, "by one of its own domain"
    facts = explained(s, URI)
    assert (facts["took_uri_from"], facts["took_uri_us"]) == (JOB.decode(), START + SECOND)
    s.delete(URI, at=START + 3)
    s.later(SECOND)
    s.set(b"b:1:0:z", uri=URI, at=START + 4)
    assert explained(s, URI)["took_uri_from"] is None, "created later"
    s.set(JOB, at=START + 5)
    s.later(SECOND)
    s.delete(JOB, at=START + 6)
    assert explained(s, JOB)["uri_taken_by"] is None, "another job of this key"


def test_explanation_of_taken_uris_is_bounded_in_bytes() -> None:
    s = engine()
    taken = s.target.engine.context.taken_uris
    number, uri = 0, b"u" * 3000
    while taken.of(b"a:1:0:0") is not None or number < 2:
        for domain in (b"a", b"b"):
            s.set(
                b"%b:1:0:%d" % (domain, number), uri=uri + b"%d" % (number % 3), at=START + number
            )
            assert taken.bytes <= TAKEN_URIS_BYTES_MAX
        number += 1
    assert taken.bytes > TAKEN_URIS_BYTES_MAX - 2 * KEY_BYTES_MAX - TAKEN_URI_BYTES
    assert taken.of(b"a:1:0:%d" % (number - 1)) is not None
    assert taken.bytes == sum(
        TAKEN_URI_BYTES + len(key) + len(found.uri) + len(found.key)
        for key in (b"%b:1:0:%d" % (d, n) for d in (b"a", b"b") for n in range(number))
        if (found := taken.of(key)) is not None
    )


def test_explanation_tells_since_when_an_entry_is_locked() -> None:
    s = engine()
    s.set(JOB)
    s.later(SECOND)
    assert s.lock(JOB, timeout=9 * SECOND) == ""
    s.later(SECOND)
    facts = explained(s, JOB)
    assert (facts["locked_since_us"], facts["locked_until"]) == (
        START + SECOND,
        START + 10 * SECOND,
    )
    assert facts["delayed_until_us"] == START + 10 * SECOND
    assert s.ask(request(Function.RENAME, JOB, uri=OTHER, at=START + 1)).error == ""
    assert explained(s, OTHER)["locked_since_us"] == START + SECOND


def test_explanation_tells_the_hold_of_a_domain() -> None:
    s = engine()
    s.set(JOB)
    s.set(OTHER)
    s.ask(request(Function.LIMIT, b"a", b'{"interval_us": 5000000}', kind=2))
    s.lease(timeout=60 * SECOND)
    facts = explained(s, OTHER)
    assert facts["domain_delivered_us"] == START
    assert facts["domain_waits_until_us"] == facts["domain_held_until_us"] == START + 5 * SECOND
    assert (facts["domain_is_full"], facts["domain_paused_until_us"]) == (False, 0)
    s.ask(request(Function.LIMIT, b"a", b'{"interval_us": 0, "jobs": 1}', kind=2))
    facts = explained(s, OTHER)
    assert (facts["domain_is_full"], facts["domain_jobs_max"]) == (True, 1)
    assert facts["domain_worked_on"] == 1
    assert facts["domain_held_until_us"] >= START + 60 * SECOND
    s.pause(b"a", 90 * SECOND)
    assert explained(s, OTHER)["domain_paused_until_us"] == START + 90 * SECOND


def test_explanation_of_a_deleted_key_is_its_tombstone() -> None:
    s = engine(tombstone_ttl_us=100 * SECOND)
    s.set(JOB, at=START)
    s.later(SECOND)
    s.delete(JOB, at=START + 7)
    facts = explained(s, JOB)
    assert facts == {
        "state": "deleted",
        "keys": [JOB.decode()],
        "now_us": START + SECOND,
        "timestamp": START + 7,
        "deleted_us": START + SECOND,
        "tombstone_until_us": START + 101 * SECOND,
        "uri_taken_by": None,
    }
    assert s.ask(request(Function.STATS, JOB, flags=Flag.DATA)).code == "not-found"
    s.later(100 * SECOND)
    assert s.ask(request(Function.STATS, JOB, flags=EXPLAINED)).code == "not-found"


def test_explanation_of_a_plain_entry_has_no_domain() -> None:
    s = engine()
    s.set(b"p")
    facts = explained(s, b"p")
    assert facts["state"] == "plain"
    assert not [name for name in facts if name.startswith("domain")]


def test_explanation_tells_bounds_and_times_of_an_entry() -> None:
    s = engine(attempts_max=7, postpone_us_max=3 * SECOND)
    s.set(JOB)
    s.later(SECOND)
    token = s.lease(timeout=SECOND)
    facts = explained(s, JOB)
    assert (facts["modified_us"], facts["accessed_us"]) == (START, START + SECOND)
    assert (facts["attempts_max"], facts["postpone_us_max"]) == (7, 3 * SECOND)
    assert facts["worked_on_until"] == token
    assert s.release(JOB, token) == ""
    s.lease(value=b'{"attempts":2}', kind=ValueType.STRING)
    assert explained(s, JOB)["attempts_max"] == 2
    assert facts["read_only"] == 0
    s.target.engine.context.read_only = True
    assert explained(s, JOB)["read_only"] == 1


def test_library_knows_every_field_of_an_explanation() -> None:
    s = engine()
    s.set(JOB)
    s.set(OTHER)
    s.delete(OTHER)
    known = set(EntryExplanation.__struct_encode_fields__)
    assert set(explained(s, JOB)) == known - {"deleted_us", "tombstone_until_us", "uri_taken_by"}
    assert set(explained(s, OTHER)) <= known


def fail(s: Subject, key: bytes, **fields: int) -> None:
    """Lease the next job, which has this key, and end the attempt with an error."""
    token = s.lease(b"a")
    assert s.release(key, token, value=b"SMTP 550", kind=ValueType.STRING, **fields) == ""


def test_oldest_waiting_is_since_the_job_was_asked_for_however_often_it_failed() -> None:
    s = Subject(EngineSubject(Rules()))
    s.set(JOB)
    s.later(SECOND)
    s.set(b"a:2:0:later")
    for _ in range(3):
        s.later(60 * SECOND)
        fail(s, JOB, ttl=30 * SECOND)
    s.later(10 * SECOND)
    # delayed after its failure, and nothing else waits: not due, but waiting for three minutes
    assert s.delete(b"a:2:0:later") == ""
    expected = {"oldest_due_us": 0, "oldest_waiting_us": 191 * SECOND}
    for numbers in (s.stats(b"a"), s.stats()):
        assert {name: numbers[name] for name in expected} == expected
    s.later(20 * SECOND)
    token = s.lease(b"a")
    assert s.stats(b"a")["oldest_waiting_us"] == 0, "worked on: it does not wait"
    assert s.release(JOB, token) == ""
    assert s.stats(b"a")["oldest_waiting_us"] == 211 * SECOND
    assert s.rename(JOB, OTHER) == ""
    assert s.stats(b"a")["oldest_waiting_us"] == 211 * SECOND
    assert s.bury(OTHER) == ""
    assert s.stats(b"a")["oldest_waiting_us"] == 0
    assert s.kick(OTHER) == 1
    assert s.stats()["oldest_waiting_us"] == 211 * SECOND


def test_oldest_waiting_counts_from_the_instant_in_the_key() -> None:
    s = Subject(EngineSubject(Rules()))
    later = b"a:1:%d:x" % (START + 5 * SECOND)
    s.set(later)
    s.set(b"a:1:%d:past" % (START - 100 * SECOND))
    s.later(2 * SECOND)
    assert s.stats(b"a")["oldest_waiting_us"] == 2 * SECOND, "since it was set, not before"
    assert s.delete(b"a:1:%d:past" % (START - 100 * SECOND)) == ""
    assert s.stats(b"a")["oldest_waiting_us"] == 0, "it is for later"
    s.later(4 * SECOND)
    assert s.stats(b"a")["oldest_waiting_us"] == SECOND
    fail(s, later, ttl=9 * SECOND)
    s.later(SECOND)
    assert s.stats(b"a")["oldest_waiting_us"] == 2 * SECOND
