"""STATS with DATA and META: what keeps an entry from being delivered now."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.client import EntryExplanation
from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB, OTHER = b"a:1:0:x", b"a:1:0:y"
URI = b"http://example.org/"
EXPLAINED = Flag.DATA | Flag.META


def engine(**rules: int) -> Subject:
    return Subject(EngineSubject(Rules(**rules)))


def explained(s: Subject, key: bytes) -> dict[str, Any]:
    return s.stats(key, flags=EXPLAINED)


@pytest.mark.rule(
    "Delivery state of an entry: `ready_before`",
    "Delivery state of an entry: `domain`, `domain_due`, `domain_worked_on`",
)
def test_explanation_counts_due_entries_before_an_entry_in_work_order() -> None:
    s = engine()
    keys = [b"a:%d:%d:%d" % (number % 3, START - number % 7, number) for number in range(1500)]
    assert isinstance(s.target, EngineSubject)
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


@pytest.mark.rule(
    "Delivery state of an entry: `now_us`",
    "Delivery state of an entry: `delayed_until_us`",
    "Delivery state of an entry: `uri_leased_by`, `uri_leased_since_us`, `uri_leased_until_us`",
    "Delivery state of an entry: `superseded_by`",
)
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


@pytest.mark.rule(
    "Delivery state of an entry: `locked_since_us`",
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


@pytest.mark.rule(
    "Delivery state of an entry: `domain_paused_until_us`",
    "Delivery state of an entry: `domain_delivered_us`, `domain_interval_us`, "
    "`domain_waits_until_us`",
    "Delivery state of an entry: `domain_jobs_max`, `domain_is_full`",
    "Delivery state of an entry: `domain_held_until_us`",
)
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


@pytest.mark.rule(
    "Delivery state of an entry: a key without an entry that has a tombstone is no error"
)
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


@pytest.mark.rule(
    "Delivery state of an entry: `modified_us`, `accessed_us`",
    "Delivery state of an entry: `attempts_max`, `postpone_us_max`, `read_only`",
)
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
    assert isinstance(s.target, EngineSubject)
    s.target.engine.context.read_only = True
    assert explained(s, JOB)["read_only"] == 1


def test_library_knows_every_field_of_an_explanation() -> None:
    s = engine()
    s.set(JOB)
    s.set(OTHER)
    s.delete(OTHER)
    known = set(EntryExplanation.__struct_encode_fields__)
    assert set(explained(s, JOB)) == known - {"deleted_us", "tombstone_until_us"}
    assert set(explained(s, OTHER)) <= known


def test_explanation_changes_nothing_and_is_no_access() -> None:
    s = engine()
    s.set(JOB, at=START, ttl=5 * SECOND)
    before = explained(s, JOB)
    s.later(SECOND)
    after = explained(s, JOB)
    assert {**before, "now_us": START + SECOND} == after
