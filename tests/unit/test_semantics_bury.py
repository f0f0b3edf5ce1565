"""BURY: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.limits import REASON_BYTES_MAX
from fastjournal.protocol.constants import Flag, State
from tests.property.subject import SECOND, START, Subject

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


def reason(s: Subject, key: bytes) -> str | None:
    found = s.stats(key, flags=Flag.DATA)["buried_reason"]
    assert found is None or isinstance(found, str)
    return found


def is_buried(s: Subject, key: bytes) -> bool:
    return bool(s.meta(key).state & State.BURIED)


def test_buried_entry_is_not_handed_out_and_a_get_finds_it(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB)
    assert s.jobs() == []
    assert s.next().timeout is None
    assert s.value(JOB) == b"v"
    assert s.get(JOB, timeout=SECOND).code == "not-found"


def test_bury_of_a_buried_entry_takes_the_new_reason(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB, reason=b"one")
    assert s.bury(JOB, reason=b"two") == ""
    assert reason(s, JOB) == "two"
    assert s.stats()["buried"] == 1


def test_bury_of_an_entry_that_outlived_its_life_under_a_lease_removes_it(s: Subject) -> None:
    s.set(JOB, timeout=START + SECOND)
    token = s.lease(timeout=10 * SECOND)
    s.later(2 * SECOND)
    assert s.bury(JOB, token) == ""
    assert s.value(JOB) is None


def test_token_that_is_not_that_of_the_lease_is_lease_lost(s: Subject) -> None:
    s.set(JOB)
    assert s.bury(JOB, 1) == "lease-lost"
    assert s.bury(JOB, s.lease() + 1) == "lease-lost"
    assert not is_buried(s, JOB)


def test_reason_over_its_limit_is_too_large(s: Subject) -> None:
    s.set(JOB)
    assert s.bury(JOB, reason=b"r" * (REASON_BYTES_MAX + 1)) == "too-large"
    assert not is_buried(s, JOB)
    assert s.bury(JOB, reason=b"r" * REASON_BYTES_MAX) == ""


# --- KICK -----------------------------------------------------------------------------------------
# KICK: every sentence of docs/protocol.md about it, by example.


def buried(s: Subject, *keys: bytes) -> None:
    for key in keys:
        assert s.set(key) == ""
        assert s.bury(key, reason=b"why") == ""


@pytest.mark.parametrize("by", [JOB, URI])
def test_kick_by_any_key_makes_a_buried_entry_ready_again(s: Subject, by: bytes) -> None:
    s.set(JOB, uri=URI)
    s.bury(JOB, reason=b"why")
    assert s.kick(by) == 1
    assert not s.meta(JOB).state & State.BURIED
    assert s.stats(JOB, flags=Flag.DATA)["buried_reason"] is None
    assert s.jobs() == [JOB]


def test_plain_entry_is_kicked_by_its_key_only(s: Subject) -> None:
    buried(s, b"p")
    assert s.kick_domain(b"p") == 0
    assert s.kick(b"p") == 1
    assert s.get(b"p", timeout=SECOND).code == ""


def test_kick_of_one_priority_and_instant_takes_the_oldest_first(s: Subject) -> None:
    buried(s, OTHER, JOB)
    s.kick_domain(b"a")
    assert s.jobs() == [OTHER]


@pytest.mark.warm_only
def test_unknown_domain_has_nothing_to_kick(s: Subject) -> None:
    assert s.kick_domain(b"none", 9) == 0
