"""LIMIT: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastjournal.protocol.constants import Flag, Function, ValueType
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


@pytest.mark.rule("Functions: 22 LIMIT", "LIMIT: `interval_us`")
def test_limit_interval_spaces_hand_outs(s: Subject) -> None:
    fill(s)
    assert limit(s, interval_us=SECOND) == ""
    assert s.jobs(b"a") == [JOB]
    s.later(SECOND - 1)
    assert s.jobs(b"a") == []
    s.later(1)
    assert s.jobs(b"a") == [JOB_2]


def test_limit_interval_counts_from_a_hand_out_before_the_limit(s: Subject) -> None:
    fill(s)
    assert s.jobs(b"a") == [JOB]
    limit(s, interval_us=SECOND)
    assert s.jobs(b"a") == []
    s.later(SECOND)
    assert s.jobs(b"a") == [JOB_2]


def test_limit_interval_of_any_length_begins_with_a_hand_out(s: Subject) -> None:
    fill(s)
    assert limit(s, interval_us=2**63 - 1) == ""
    assert s.jobs(b"a") == [JOB]
    assert s.next(b"a").timeout == START + 2**63 - 1


def test_limit_interval_lets_a_batch_take_one(s: Subject) -> None:
    fill(s)
    limit(s, interval_us=SECOND)
    assert s.jobs(b"a", count=9) == [JOB]


def test_limit_interval_is_known_to_next_at(s: Subject) -> None:
    fill(s)
    limit(s, interval_us=SECOND)
    s.later(5)
    s.jobs()
    assert s.next(b"a").timeout == START + 5 + SECOND
    assert s.next().timeout == START + 5 + SECOND


@pytest.mark.rule("LIMIT: GET with a lease is a delivery too")
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


def test_limit_interval_outlives_the_last_entry_of_the_domain(s: Subject) -> None:
    fill(s, JOB)
    limit(s, interval_us=SECOND)
    token = s.lease(b"a")
    s.delete(JOB, token=token)
    fill(s, JOB_2)
    assert s.jobs(b"a") == []
    s.later(SECOND)
    assert s.jobs(b"a") == [JOB_2]


def test_limit_interval_passes_the_turn_to_other_domains(s: Subject) -> None:
    fill(s, JOB, JOB_2, OTHER, b"b:1:0:z")
    limit(s, interval_us=SECOND)
    assert s.jobs(count=9) == [JOB, OTHER, b"b:1:0:z"]


def test_limit_interval_of_another_domain_holds_nothing_up(s: Subject) -> None:
    fill(s, JOB, JOB_2, OTHER)
    limit(s, b"b", interval_us=SECOND)
    assert sorted(s.jobs(count=9)) == [JOB, JOB_2, OTHER]


# --- jobs ----------------------------------------------------------------------------------------


@pytest.mark.rule("LIMIT: `jobs`")
def test_limit_jobs_bounds_leases_at_once(s: Subject) -> None:
    fill(s)
    assert limit(s, jobs=2) == ""
    assert s.jobs(b"a", count=9) == [JOB, JOB_2]
    assert s.jobs(b"a") == []


@pytest.mark.parametrize("end", ["complete", "release", "run out", "bury", "unlisted"])
def test_limit_jobs_lets_the_next_one_go_when_a_lease_ends(s: Subject, end: str) -> None:
    fill(s, JOB, JOB_2)
    limit(s, jobs=1)
    token = s.lease(b"a", timeout=SECOND)
    assert s.jobs(b"a") == []
    match end:
        case "complete":
            assert s.delete(JOB, token=token) == ""
        case "release":
            assert s.release(JOB, token, ttl=9 * SECOND) == ""
        case "run out":
            s.now = token
            s.delete(JOB)
        case "bury":
            assert s.bury(JOB, token) == ""
        case "unlisted":
            limit(s, jobs=0)
    assert s.jobs(b"a") == [JOB_2]


def test_limit_jobs_lets_a_waiting_next_have_it(s: Subject) -> None:
    fill(s, JOB, JOB_2)
    limit(s, jobs=1)
    token = s.lease(b"a")
    s.listen(b"a", session="two")
    assert s.serve() == []
    s.delete(JOB, token=token)
    ((session, reply),) = s.serve()
    assert session == "two"
    assert reply.pairs is not None
    assert [pair.key for pair in reply.pairs] == [JOB_2]


def test_limit_interval_lets_a_waiting_next_have_it(s: Subject) -> None:
    fill(s, JOB, JOB_2)
    limit(s, interval_us=SECOND)
    s.jobs(b"a")
    s.listen(session="two")
    assert s.serve() == []
    s.later(SECOND)
    ((_, reply),) = s.serve()
    assert reply.pairs is not None
    assert [pair.key for pair in reply.pairs] == [JOB_2]


def test_limit_jobs_is_known_to_next_at(s: Subject) -> None:
    fill(s, JOB, JOB_2)
    limit(s, jobs=1)
    token = s.lease(b"a", timeout=3 * SECOND)
    assert s.next(b"a").timeout == token


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


@pytest.mark.rule("LIMIT: GET with a lease is a delivery too")
def test_limit_jobs_leaves_out_of_a_leasing_range_what_has_no_room(s: Subject) -> None:
    fill(s, JOB, JOB_2, JOB_3, OTHER)
    limit(s, jobs=2)
    reply = s.get(b"a", uri=b"c", timeout=SECOND)
    assert reply.pairs is not None
    assert [pair.key for pair in reply.pairs] == [JOB, JOB_2, OTHER]


def test_limit_jobs_lowered_below_what_is_leased_takes_nothing_away(s: Subject) -> None:
    fill(s)
    tokens = [s.lease(b"a"), s.lease(b"a")]
    limit(s, jobs=1)
    assert s.delete(JOB, token=tokens[0]) == ""
    assert s.jobs(b"a") == []
    assert s.delete(JOB_2, token=tokens[1]) == ""
    assert s.jobs(b"a") == [JOB_3]


# --- lease and attempts --------------------------------------------------------------------------


@pytest.mark.rule("LIMIT: `lease_us`")
def test_limit_lease_is_the_default_of_the_domain(s: Subject) -> None:
    fill(s, JOB, OTHER)
    limit(s, lease_us=5 * SECOND)
    assert START + 5 * SECOND <= s.lease(b"a") < START + 6 * SECOND
    assert s.lease(b"b") > START + 3600 * SECOND


def test_limit_lease_yields_to_the_timeout_of_the_request(s: Subject) -> None:
    fill(s, JOB)
    limit(s, lease_us=5 * SECOND)
    assert s.lease(b"a", timeout=SECOND) < START + 2 * SECOND


@pytest.mark.rule("LIMIT: a NEXT without timeout ends its batch")
def test_limit_lease_ends_a_batch_where_the_next_domain_has_another(s: Subject) -> None:
    fill(s, JOB, OTHER)
    limit(s, lease_us=5 * SECOND)
    assert s.jobs(count=9) == [JOB]
    assert s.jobs(count=9) == [OTHER]


@pytest.mark.rule("LIMIT: `lease_us`")
def test_limit_lease_holds_for_get_of_a_key(s: Subject) -> None:
    fill(s, JOB)
    limit(s, lease_us=5 * SECOND)
    token = s.get(JOB, timeout=0).timeout
    assert token is not None
    assert START + 5 * SECOND <= token < START + 6 * SECOND


@pytest.mark.rule("LIMIT: a NEXT without timeout ends its batch")
def test_limit_lease_yields_to_the_default_of_the_daemon_in_a_scan(s: Subject) -> None:
    fill(s, JOB, OTHER)
    limit(s, lease_us=5 * SECOND)
    reply = s.ask(request(Function.GET, b"a", uri=b"c", timeout=0))
    assert [pair.key for pair in reply.pairs or ()] == [JOB, OTHER]
    assert reply.timeout is not None
    assert reply.timeout > START + 3600 * SECOND


@pytest.mark.rule("LIMIT: `attempts`")
def test_limit_attempts_buries(s: Subject) -> None:
    fill(s, JOB, OTHER)
    limit(s, attempts=1)
    s.jobs(count=9, timeout=SECOND)
    s.later(2 * SECOND)
    assert s.stats(JOB, flags=Flag.DATA)["state"] == "buried"
    assert s.stats(OTHER, flags=Flag.DATA)["state"] == "ready"


# --- the value -----------------------------------------------------------------------------------


@pytest.mark.warm_only
def test_limit_changes_only_what_is_named(s: Subject) -> None:
    limit(s, interval_us=SECOND)
    limit(s, jobs=3)
    limit(s)
    numbers = s.stats(b"a")
    assert (numbers["interval_us"], numbers["jobs_max"]) == (SECOND, 3)


@pytest.mark.warm_only
def test_limit_0_is_the_default(s: Subject) -> None:
    s = s.under(interval_us_default=7, jobs_default=2)
    limit(s, interval_us=SECOND, jobs=5)
    limit(s, interval_us=0, jobs=0)
    numbers = s.stats(b"a")
    assert (numbers["interval_us"], numbers["jobs_max"]) == (7, 2)


def test_limit_default_interval_holds_for_every_domain(s: Subject) -> None:
    s = s.under(interval_us_default=SECOND)
    fill(s, JOB, JOB_2, OTHER)
    assert s.jobs(count=9) == [JOB, OTHER]
    assert s.jobs(count=9) == []
    s.later(SECOND)
    assert s.jobs(count=9) == [JOB_2]


def test_limit_default_jobs_holds_for_every_domain(s: Subject) -> None:
    s = s.under(jobs_default=1)
    fill(s, JOB, JOB_2, OTHER)
    assert s.jobs(count=9) == [JOB, OTHER]


@pytest.mark.warm_only
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"7",
        b"[]",
        b'{"interval": 1}',
        b'{"interval_us": -1}',
        b'{"interval_us": 1.5}',
        b'{"jobs": true}',
        b'{"jobs": "1"}',
        b'{"jobs": 9223372036854775808}',
        b'{"jobs": null}',
        b"{",
        b'{"\xff": 1}',
        b'{"jobs\xff": 1}',
        b'{"jobs": "\xff"}',
        b"\xff",
        b'{"jobs": ' + b"9" * 4000 + b"}",
    ],
)
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
@pytest.mark.rule("LIMIT: a value of more than 4,096 bytes")
def test_limit_refuses_a_large_value(s: Subject) -> None:
    for size, code in ((4096, ""), (4097, "too-large")):
        value = b'{"jobs": 7}'.ljust(size)
        assert s.ask(request(Function.LIMIT, b"a", value, kind=ValueType.STRING)).code == code


@pytest.mark.warm_only
def test_limit_needs_a_string(s: Subject) -> None:
    assert s.ask(request(Function.LIMIT, b"a", b"{}", kind=ValueType.BUFFER)).code == "bad-value"
    assert s.ask(request(Function.LIMIT, b"a")).code == "bad-value"


@pytest.mark.warm_only
@pytest.mark.parametrize("domain", [b"", b"a:b", b"a" * 4097])
def test_limit_needs_a_domain(s: Subject, domain: bytes) -> None:
    assert limit(s, domain, jobs=1) == "bad-key"


def test_limit_outlives_a_restart(s: Subject) -> None:
    fill(s)
    limit(s, interval_us=3 * SECOND, jobs=2)
    assert s.set(b"a:0:0:kept", flags=Flag.PERSIST) == ""
    assert s.jobs(b"a", timeout=100 * SECOND) == [b"a:0:0:kept"]
    assert s.set(b"a:0:0:kept 2", flags=Flag.PERSIST) == ""
    s.later(SECOND)
    s.target.restart(s.now) if isinstance(s.target, EngineSubject) else s.target.restart()
    numbers = s.stats(b"a")
    assert (numbers["interval_us"], numbers["jobs_max"]) == (3 * SECOND, 2)
    assert s.jobs(b"a") == []
    s.later(2 * SECOND)
    assert s.jobs(b"a") == [b"a:0:0:kept 2"]


@pytest.mark.rule("LIMIT: A LIMIT takes no lease away")
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
