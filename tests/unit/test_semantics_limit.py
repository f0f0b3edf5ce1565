"""LIMIT: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastjournal.protocol.constants import Flag, Function, State, ValueType
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB, JOB_2, JOB_3 = b"a:1:0:x", b"a:1:0:y", b"a:1:0:z"
OTHER = b"b:1:0:y"


def limit(s: Subject, domain: bytes = b"a", **limits: Any) -> str:
    value = json.dumps(limits).encode()
    return s.ask(request(Function.LIMIT, domain, value, kind=ValueType.STRING)).code


def fill(s: Subject, *keys: bytes) -> None:
    for key in keys or (JOB, JOB_2, JOB_3):
        assert s.set(key) == ""


# --- interval ------------------------------------------------------------------------------------


def test_limit_interval_spaces_hand_outs(s: Subject) -> None:
    fill(s)
    assert limit(s, interval_us=SECOND) == ""
    assert s.jobs(b"a") == [JOB]
    s.later(SECOND - 1)
    assert s.jobs(b"a") == []
    s.later(1)
    assert s.jobs(b"a") == [JOB_2]


def test_limit_interval_counts_pops_and_leases_of_get(s: Subject) -> None:
    fill(s)
    limit(s, interval_us=SECOND)
    assert s.jobs(b"a", flags=Flag.OVERWRITE) == [JOB]
    assert s.jobs(b"a") == []
    assert s.get(JOB_2, timeout=SECOND).code == "busy"
    s.later(SECOND)
    assert s.get(JOB_2, timeout=SECOND).code == ""
    assert s.jobs(b"a") == []
    s.later(SECOND)
    # its lease has run out, and it is first in the order of work
    assert s.jobs(b"a") == [JOB_2]


# --- jobs ----------------------------------------------------------------------------------------


def test_limit_jobs_bounds_leases_at_once(s: Subject) -> None:
    fill(s)
    assert limit(s, jobs=2) == ""
    assert s.jobs(b"a", count=9) == [JOB, JOB_2]
    assert s.jobs(b"a") == []


def test_limit_jobs_counts_superseded_work(s: Subject) -> None:
    s.set(JOB, uri=b"u")
    limit(s, jobs=1)
    s.lease(b"a", timeout=3 * SECOND)
    # the worker goes on with what a newer SET has superseded
    s.set(JOB_2, uri=b"u", at=START + 1)
    fill(s, JOB_3)
    assert s.jobs(b"a") == []
    s.later(4 * SECOND)
    assert s.jobs(b"a") == [JOB_2]


def test_limit_jobs_holds_for_leases_of_get(s: Subject) -> None:
    fill(s, JOB, JOB_2)
    limit(s, jobs=1)
    s.lease(b"a")
    assert s.get(JOB_2, timeout=SECOND).code == "busy"


def test_limit_jobs_leaves_out_of_a_leasing_range_what_has_no_room(s: Subject) -> None:
    fill(s, JOB, JOB_2, JOB_3, OTHER)
    limit(s, jobs=2)
    reply = s.get(b"a", uri=b"c", timeout=SECOND)
    assert reply.pairs is not None
    assert [pair.key for pair in reply.pairs] == [JOB, JOB_2, OTHER]


# --- lease and attempts --------------------------------------------------------------------------


def test_limit_lease_is_the_default_of_the_domain(s: Subject) -> None:
    fill(s, JOB, OTHER)
    limit(s, lease_us=5 * SECOND)
    assert START + 5 * SECOND <= s.lease(b"a") < START + 6 * SECOND
    assert s.lease(b"b") > START + 3600 * SECOND


def test_limit_lease_ends_a_batch_where_the_next_domain_has_another(s: Subject) -> None:
    fill(s, JOB, OTHER)
    limit(s, lease_us=5 * SECOND)
    assert s.jobs(count=9) == [JOB]
    assert s.jobs(count=9) == [OTHER]


def test_limit_attempts_buries(s: Subject) -> None:
    fill(s, JOB, OTHER)
    limit(s, attempts=1)
    s.jobs(count=9, timeout=SECOND)
    s.later(2 * SECOND)
    assert s.stats(JOB, flags=Flag.DATA)["state"] == "buried"
    assert s.stats(OTHER, flags=Flag.DATA)["state"] == "ready"


def test_limit_attempts_minus_1_buries_never_also_after_a_restart(s: Subject) -> None:
    s = s.under(attempts_max=1, retry_delay_us=0)
    s.set(JOB, flags=Flag.PERSIST)
    assert limit(s, attempts=-1) == ""
    for restarts in (False, True):
        if restarts:
            s.target.restart(s.now) if isinstance(s.target, EngineSubject) else s.target.restart()
        s.now = s.lease(b"a", timeout=SECOND)
        assert s.stats(JOB, flags=Flag.DATA)["state"] == "ready"
    # the bound of a lease holds beside it
    bound = {"value": b'{"attempts":3}', "kind": ValueType.STRING}
    s.now = s.lease(b"a", timeout=SECOND, **bound)
    assert s.stats(JOB, flags=Flag.DATA)["state"] == "buried"
    assert limit(s, attempts=-2) == "bad-value"
    assert limit(s, jobs=-1) == "bad-value"


@pytest.mark.warm_only
def test_stats_show_no_bound_where_limit_attempts_is_minus_1() -> None:
    s = Subject(EngineSubject(Rules(attempts_max=7)))
    assert s.stats(b"a")["attempts_max"] == 7
    limit(s, attempts=-1)
    assert s.stats(b"a")["attempts_max"] == 0
    limit(s, attempts=0)
    assert s.stats(b"a")["attempts_max"] == 7


# --- the value -----------------------------------------------------------------------------------


def test_limit_default_interval_holds_for_every_domain(s: Subject) -> None:
    s = s.under(interval_us_default=SECOND)
    fill(s, JOB, JOB_2, OTHER)
    assert s.jobs(count=9) == [JOB, OTHER]
    assert s.jobs(count=9) == []
    s.later(SECOND)
    assert s.jobs(count=9) == [JOB_2]


@pytest.mark.warm_only
@pytest.mark.parametrize(
    "value",
    [
        b"", b"7", b"[]", b'{"interval": 1}', b'{"interval_us": -1}', b'{"interval_us": 1.5}',
        b'{"jobs": true}', b'{"jobs": "1"}', b'{"jobs": 9223372036854775808}', b'{"jobs": null}',
        b"{", b'{"\xff": 1}', b'{"jobs\xff": 1}', b'{"jobs": "\xff"}', b"\xff",
        b'{"jobs": ' + b"9" * 4000 + b"}",
    ],
)  # fmt: skip
def test_limit_refuses_unknown_names_and_bad_numbers(s: Subject, value: bytes) -> None:
    asked = request(Function.LIMIT, b"a", value, kind=ValueType.STRING)
    assert s.ask(asked).code == "bad-value"
    assert s.stats(b"a")["jobs_max"] == 0


@pytest.mark.warm_only
def test_limit_names_half_of_a_surrogate_pair() -> None:
    engine = Subject(EngineSubject(Rules()))  # the model has no sentences
    asked = request(Function.LIMIT, b"a", b'{"jobs": "\\ud800"}', kind=ValueType.STRING)
    told = engine.ask(asked).error
    assert told.startswith(r"bad-value \ud800 (byte 10) is half of a surrogate pair")


@pytest.mark.warm_only
def test_limit_refuses_a_large_value(s: Subject) -> None:
    for size, code in ((4096, ""), (4097, "too-large")):
        value = b'{"jobs": 7}'.ljust(size)
        assert s.ask(request(Function.LIMIT, b"a", value, kind=ValueType.STRING)).code == code


@pytest.mark.parametrize("limited_at", ["before", "after"])
@pytest.mark.parametrize("persist", [0, Flag.PERSIST])
@pytest.mark.parametrize("how", ["lease", "pop", "get", "scan"])
def test_limit_interval_that_runs_outlives_a_restart(
    s: Subject, how: str, persist: int, limited_at: str
) -> None:
    s.set(b"a:2:0:kept", flags=Flag.PERSIST)
    s.set(JOB, flags=persist)
    if limited_at == "before":
        limit(s, interval_us=5 * SECOND)
    if how == "lease":
        assert s.jobs(b"a") == [JOB]
    elif how == "pop":
        assert s.jobs(b"a", flags=Flag.OVERWRITE) == [JOB]
    elif how == "get":
        assert s.get(JOB, timeout=SECOND).code == ""
    else:
        assert s.get(b"a:1", uri=b"a:2", timeout=SECOND, count=0).pairs
    if how != "pop":
        s.delete(JOB, flags=persist)
    if limited_at == "after":
        limit(s, interval_us=5 * SECOND)
    s.later(SECOND)
    s.target.restart(s.now) if isinstance(s.target, EngineSubject) else s.target.restart()
    assert s.jobs(b"a") == []
    assert s.next(b"a").timeout == START + 5 * SECOND
    s.later(4 * SECOND)
    assert s.jobs(b"a") == [b"a:2:0:kept"]


# --- PAUSE ----------------------------------------------------------------------------------------
# PAUSE: every sentence of docs/protocol.md about it, by example.


def test_pause_ends_at_its_instant_and_not_before(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", SECOND)
    s.now = START + SECOND - 1
    assert s.jobs() == []
    s.later(1)
    assert s.jobs() == [JOB]


def test_ttl_0_resumes(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    assert s.pause(b"a", 0) == ""
    assert s.jobs(b"a") == [JOB]


@pytest.mark.warm_only
def test_ttl_0_of_what_is_not_paused_is_success(s: Subject) -> None:
    assert s.pause(b"a", 0) == ""


@pytest.mark.warm_only
def test_next_at_is_what_comes_after_the_pause_where_nothing_is_ready_then(s: Subject) -> None:
    s.set(b"a:1:%d:x" % (START + 20 * SECOND))
    s.pause(b"a", 10 * SECOND)
    assert s.next(b"a").timeout == START + 20 * SECOND
    assert s.next().timeout == START + 20 * SECOND


@pytest.mark.warm_only
def test_stats_of_a_domain_tells_until_when_it_is_paused(s: Subject) -> None:
    assert s.stats(b"a")["paused_until"] == 0
    s.pause(b"a", 10 * SECOND)
    assert s.stats(b"a")["paused_until"] == START + 10 * SECOND
    s.set(JOB)
    assert s.stats(b"a")["paused_until"] == START + 10 * SECOND
    s.later(10 * SECOND)
    assert s.stats(b"a")["paused_until"] == 0


def test_metadata_of_its_entries_tell_of_the_pause(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"a", 10 * SECOND)
    assert s.meta(JOB).state & State.PAUSED
    s.set(b"p")
    assert not s.meta(b"p").state & State.PAUSED
    s.pause(b"a", 0)
    assert not s.meta(JOB).state & State.PAUSED


# --- PAUSE of everything --------------------------------------------------------------------------


def test_pause_of_everything_holds_for_domains_to_come_and_ends_at_its_instant(s: Subject) -> None:
    s.set(JOB)
    assert s.pause(b"", SECOND) == ""
    s.set(b"new:1:0:x")
    s.now = START + SECOND - 1
    for domain in (b"", b"a", b"new"):
        assert s.jobs(domain) == []
        assert s.next(domain).timeout == START + SECOND
    s.later(1)
    assert s.jobs(count=2) == [JOB, b"new:1:0:x"]


def test_pause_of_everything_and_those_of_domains_are_independent(s: Subject) -> None:
    s.set(JOB)
    s.set(b"b:1:0:x")
    s.pause(b"a", 10 * SECOND)
    s.pause(b"", 10 * SECOND)
    assert s.pause(b"a", 0) == ""
    assert s.jobs(b"a") == []
    s.pause(b"b", 10 * SECOND)
    assert s.pause(b"", 0) == ""
    assert s.jobs(count=9) == [JOB]
    s.later(10 * SECOND)
    assert s.jobs(count=9) == [b"b:1:0:x"]


def test_waiting_requests_are_served_when_everything_is_resumed_or_its_pause_ends(
    s: Subject,
) -> None:
    for ttl in (10 * SECOND, SECOND):
        s.pause(b"", ttl)
        s.listen(session="any")
        s.listen(b"b", session="named")
        s.listen(session="list", value=b'{"domains":["c","d"]}', kind=ValueType.STRING)
        for domain in (b"a", b"b", b"c"):
            s.set(domain + b":1:%d:x" % ttl)
        assert s.serve() == []
        if ttl == SECOND:
            s.later(ttl)
        else:
            s.pause(b"", 0)
        served = s.serve()
        assert [session for session, _ in served] == ["any", "named", "list"]
        assert all(reply.pairs for _, reply in served)


def test_peek_of_a_named_domain_shows_its_jobs_while_everything_is_paused(s: Subject) -> None:
    s.set(JOB)
    s.pause(b"", SECOND)
    peek = request(Function.PEEK, b"a")
    assert [pair.key for pair in s.ask(peek).pairs or ()] == [JOB]
    for fields in ({}, {"value": b'{"domains":["a"]}', "kind": ValueType.STRING}):
        reply = s.ask(request(Function.PEEK, **fields))
        assert (reply.pairs, reply.timeout) == ([], START + SECOND)


def test_pause_of_everything_leaves_leases_and_their_completion_alone(s: Subject) -> None:
    s.set(JOB)
    s.set(b"a:1:0:y")
    token = s.next().timeout
    assert token is not None
    s.pause(b"", 10 * SECOND)
    assert s.get(b"a:1:0:y", timeout=SECOND).code == ""
    assert s.delete(JOB, timeout=token, flags=Flag.WORKED_ON) == ""


@pytest.mark.warm_only
def test_pause_of_everything_lasts_over_a_restart_and_is_no_domain(s: Subject) -> None:
    s.set(JOB, flags=Flag.PERSIST)
    s.pause(b"", 2**64 - 1)
    s.target.restart(s.now) if isinstance(s.target, EngineSubject) else s.target.restart()
    assert s.jobs() == []
    assert s.stats()["paused_until"] == s.stats(b"a")["daemon_paused_until"] == 2**64 - 1
    assert s.stats(b"a")["paused_until"] == 0
    listed = s.ask(request(Function.DOMAINS)).pairs or []
    assert [pair.key for pair in listed] == [b"a"]
    s.pause(b"", 0)
    s.target.restart(s.now) if isinstance(s.target, EngineSubject) else s.target.restart()
    assert s.stats()["paused_until"] == 0
    assert s.jobs() == [JOB]
