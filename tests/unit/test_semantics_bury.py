"""BURY: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.limits import REASON_BYTES_MAX
from fastjournal.protocol.constants import Flag, Function, State
from tests.property.subject import SECOND, START, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


def reason(s: Subject, key: bytes) -> str | None:
    found = s.stats(key, flags=Flag.DATA)["buried_reason"]
    assert found is None or isinstance(found, str)
    return found


def is_buried(s: Subject, key: bytes) -> bool:
    return bool(s.meta(key).state & State.BURIED)


@pytest.mark.rule("Functions: 15 BURY")
def test_leased_entry_is_set_aside_with_its_token_and_a_reason(s: Subject) -> None:
    s.set(JOB, at=START)
    token = s.lease(timeout=10 * SECOND)
    s.later(SECOND)
    assert s.bury(JOB, token, b"exit 1") == ""
    meta = s.meta(JOB)
    assert (meta.worked_on_until_us, meta.attempts) == (0, 0)
    assert (meta.timestamp_us, meta.modified_us) == (START, START)
    assert is_buried(s, JOB)
    assert reason(s, JOB) == "exit 1"


@pytest.mark.rule("Metadata block, 68 bytes: 65 state", "Functions: 15 BURY")
def test_buried_entry_is_not_handed_out_and_a_get_finds_it(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB)
    assert s.jobs() == []
    assert s.next().timeout is None
    assert s.value(JOB) == b"v"
    assert s.get(JOB, timeout=SECOND).code == "not-found"


@pytest.mark.parametrize("by", [JOB, URI])
def test_bury_by_any_key(s: Subject, by: bytes) -> None:
    s.set(JOB, uri=URI)
    assert s.bury(by, s.lease()) == ""
    assert is_buried(s, JOB)


@pytest.mark.rule("Dead letters (BURY, KICK): With a token and without")
def test_bury_without_a_token_ends_a_lease_and_its_token_is_lost(s: Subject) -> None:
    s.set(JOB)
    token = s.lease()
    assert s.bury(JOB) == ""
    assert s.stats()["worked_on"] == 0
    assert s.delete(JOB, token=token) == "lease-lost"
    assert s.release(JOB, token) == "lease-lost"


@pytest.mark.warm_only
def test_bury_without_a_token_takes_a_waiting_entry(s: Subject) -> None:
    later = b"a:1:%d:z" % (START + 60 * SECOND)
    for key in (JOB, later):
        s.set(key)
        assert s.bury(key) == ""
    assert s.next().timeout is None
    numbers = s.stats(b"a")
    assert (numbers["waiting"], numbers["buried"]) == (0, 2)


def test_plain_entry_can_be_buried(s: Subject) -> None:
    s.set(b"p")
    assert s.bury(b"p", reason=b"no") == ""
    assert is_buried(s, b"p")
    assert s.stats()["buried"] == 1
    assert s.stats()["due"] == 0


def test_bury_without_a_value_has_an_empty_reason(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB)
    assert reason(s, JOB) == ""


@pytest.mark.rule("Dead letters (BURY, KICK): An entry that is buried already takes the new reason")
def test_bury_of_a_buried_entry_takes_the_new_reason(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB, reason=b"one")
    assert s.bury(JOB, reason=b"two") == ""
    assert reason(s, JOB) == "two"
    assert s.stats()["buried"] == 1


def test_attempts_stay(s: Subject) -> None:
    s.set(JOB)
    s.lease(timeout=SECOND)
    s.later(2 * SECOND)
    s.bury(JOB, s.lease())
    assert s.meta(JOB).attempts == 1


@pytest.mark.rule("Dead letters (BURY, KICK): A superseded entry is gone instead")
def test_work_whose_uri_went_to_a_newer_set_is_dropped_with_a_tombstone(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    token = s.lease()
    s.later(5)
    s.set(OTHER, uri=URI, at=START + 5)
    assert s.bury(JOB, token) == ""
    assert s.value(JOB) is None
    assert s.set(JOB, at=START + 5) == "stale"
    assert s.jobs() == [OTHER]


def test_newer_work_on_its_uri_begins(s: Subject) -> None:
    s.set(JOB, uri=URI)
    token = s.lease()
    s.later(1)
    s.set(OTHER, uri=URI, at=START + 1)
    assert s.jobs() == []
    s.bury(JOB, token)
    assert s.jobs() == [OTHER]


def test_set_over_what_is_buried_makes_it_wait_again(s: Subject) -> None:
    s.set(JOB)
    s.bury(JOB)
    s.later(1)
    assert s.set(JOB, flags=Flag.OVERWRITE, at=START + 1) == ""
    assert not is_buried(s, JOB)
    assert s.jobs() == [JOB]


def test_set_with_its_uri_replaces_what_is_buried(s: Subject) -> None:
    s.set(JOB, uri=URI)
    s.bury(JOB)
    s.later(1)
    assert s.set(OTHER, uri=URI, at=START + 1) == ""
    assert s.value(JOB) is None
    assert s.jobs() == [OTHER]


def test_buried_entry_can_be_deleted_and_expires(s: Subject) -> None:
    s.set(JOB)
    s.set(OTHER, timeout=START + SECOND)
    for key in (JOB, OTHER):
        s.bury(key)
    assert s.delete(JOB) == ""
    s.later(SECOND)
    assert s.value(OTHER) is None
    assert s.stats()["buried"] == 0


@pytest.mark.rule("Dead letters (BURY, KICK): A superseded entry is gone instead")
def test_bury_of_an_entry_that_outlived_its_life_under_a_lease_removes_it(s: Subject) -> None:
    s.set(JOB, timeout=START + SECOND)
    token = s.lease(timeout=10 * SECOND)
    s.later(2 * SECOND)
    assert s.bury(JOB, token) == ""
    assert s.value(JOB) is None


@pytest.mark.rule("Dead letters (BURY, KICK): With a token and without")
def test_token_that_is_not_that_of_the_lease_is_lease_lost(s: Subject) -> None:
    s.set(JOB)
    assert s.bury(JOB, 1) == "lease-lost"
    assert s.bury(JOB, s.lease() + 1) == "lease-lost"
    assert not is_buried(s, JOB)


def test_token_that_is_over_is_lease_lost(s: Subject) -> None:
    s.set(JOB)
    s.now = token = s.lease(timeout=SECOND)
    assert s.bury(JOB, token) == "lease-lost"
    assert s.meta(JOB).attempts == 1


@pytest.mark.warm_only
def test_bury_of_a_missing_key_is_not_found(s: Subject) -> None:
    assert s.bury(JOB) == "not-found"
    assert s.bury(JOB, 1) == "not-found"


@pytest.mark.warm_only
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_empty_or_oversize_key_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.bury(key) == "bad-key"


@pytest.mark.warm_only
@pytest.mark.parametrize(("flags", "timeout"), [(Flag.WORKED_ON, None), (0, START)])
def test_bury_with_only_one_of_worked_on_and_timeout_is_bad_request(
    s: Subject, flags: int, timeout: int | None
) -> None:
    s.set(JOB)
    reply = s.ask(request(Function.BURY, JOB, flags=flags, timeout=timeout))
    assert reply.code == "bad-request"


@pytest.mark.rule("Dead letters (BURY, KICK): Over 4,096 bytes it is `too-large`")
def test_reason_over_its_limit_is_too_large(s: Subject) -> None:
    s.set(JOB)
    assert s.bury(JOB, reason=b"r" * (REASON_BYTES_MAX + 1)) == "too-large"
    assert not is_buried(s, JOB)
    assert s.bury(JOB, reason=b"r" * REASON_BYTES_MAX) == ""


@pytest.mark.warm_only
@pytest.mark.parametrize("at", [0, START + 999 * SECOND])
def test_bury_does_not_look_at_the_timestamp(s: Subject, at: int) -> None:
    s.set(JOB)
    assert s.ask(request(Function.BURY, JOB, at=at)).error == ""
