"""RELEASE with a value: failed attempts, back-off and burial, by example from docs/protocol.md."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB, OTHER, URI = b"a:1:0:x", b"a:1:0:y", b"http://example.org/"


def fail(
    s: Subject,
    key: bytes,
    token: int,
    error: bytes = b"boom",
    *,
    ttl: int | None = None,
    kind: int = ValueType.STRING,
    count: int | None = None,
) -> str:
    held = {"timeout": token, "flags": Flag.WORKED_ON}
    asked = request(Function.RELEASE, key, error, kind=kind, ttl=ttl, count=count, **held)
    return s.ask(asked).code


def known(s: Subject, key: bytes = JOB) -> dict[str, object]:
    return s.stats(key, flags=Flag.DATA)


def test_release_with_a_value_counts_an_attempt_and_keeps_the_error(s: Subject) -> None:
    s.set(JOB)
    assert fail(s, JOB, s.lease()) == ""
    assert s.meta(JOB).attempts == 1
    assert known(s)["last_error"] == "boom"
    assert known(s)["state"] == "delayed"


def test_release_without_a_value_counts_nothing(s: Subject) -> None:
    s.set(JOB)
    assert s.release(JOB, s.lease()) == ""
    assert s.meta(JOB).attempts == 0
    assert known(s)["last_error"] is None
    assert s.jobs() == [JOB]


def test_release_with_an_empty_value_is_a_failed_attempt_too(s: Subject) -> None:
    s.set(JOB)
    assert fail(s, JOB, s.lease(), b"") == ""
    assert s.meta(JOB).attempts == 1
    assert known(s)["last_error"] == ""


def test_back_off_doubles_for_each_earlier_attempt(s: Subject) -> None:
    s.set(JOB)
    for delay in (1, 2, 4, 8):
        assert fail(s, JOB, s.lease()) == ""
        assert s.next().timeout == s.now + delay * SECOND
        s.later(delay * SECOND - 1)
        assert s.jobs(flags=Flag.OVERWRITE) == []
        s.later(1)


def test_back_off_counts_lost_leases_as_earlier_attempts(s: Subject) -> None:
    s.set(JOB)
    s.now = s.lease(timeout=SECOND)
    fail(s, JOB, s.lease())
    assert s.next().timeout == s.now + 2 * SECOND


def test_back_off_has_a_bound(s: Subject) -> None:
    s = s.under(retry_delay_us=SECOND, retry_delay_us_max=3 * SECOND)
    s.set(JOB)
    for delay in (1, 2, 3, 3):
        fail(s, JOB, s.lease())
        assert s.next().timeout == s.now + delay * SECOND
        s.later(delay * SECOND)


def test_back_off_of_very_many_attempts_is_the_bound(s: Subject) -> None:
    s = s.under(retry_delay_us=1, retry_delay_us_max=5)
    s.set(JOB)
    for _ in range(80):
        fail(s, JOB, s.lease())
        s.later(5)
    assert s.meta(JOB).attempts == 80


def test_release_with_a_value_and_ttl_waits_for_the_ttl(s: Subject) -> None:
    s.set(JOB)
    fail(s, JOB, s.lease(), ttl=9 * SECOND)
    assert s.next().timeout == START + 9 * SECOND
    assert s.meta(JOB).attempts == 1


def test_release_with_a_value_and_ttl_0_waits_for_nothing(s: Subject) -> None:
    s.set(JOB)
    fail(s, JOB, s.lease(), ttl=0)
    assert s.jobs() == [JOB]


@pytest.mark.rule("Failed attempts (RELEASE with a value): no delay applies then")
def test_max_attempts_buries_with_the_error_as_reason(s: Subject) -> None:
    s = s.under(attempts_max=2)
    s.set(JOB)
    fail(s, JOB, s.lease(), b"one", ttl=0)
    assert known(s)["state"] == "ready"
    fail(s, JOB, s.lease(), b"two", ttl=0)
    assert known(s)["state"] == "buried"
    assert known(s)["buried_reason"] == "two"
    assert known(s)["attempts"] == 2


def test_max_attempts_counts_lost_leases_and_failures_together(s: Subject) -> None:
    s = s.under(attempts_max=2)
    s.set(JOB)
    s.now = s.lease(timeout=SECOND)
    fail(s, JOB, s.lease(), b"two")
    assert known(s)["buried_reason"] == "two"


@pytest.mark.rule("Failed attempts (RELEASE with a value): COUNT in a RELEASE with a value")
def test_release_with_count_buries_at_the_bound_of_the_worker(s: Subject) -> None:
    s.set(JOB)
    fail(s, JOB, s.lease(), b"one", ttl=0, count=2)
    assert known(s)["state"] == "ready"
    fail(s, JOB, s.lease(), b"two", ttl=0, count=2)
    assert [known(s)[name] for name in ("state", "buried_reason", "attempts", "last_error")] == [
        *("buried", "two", 2, "two")
    ]
    assert s.kick(JOB) == 1
    fail(s, JOB, s.lease(), b"three", ttl=0, count=4)
    assert known(s)["state"] == "ready", "the bound holds for its request only"


@pytest.mark.parametrize("count", [0, 9])
def test_release_with_count_never_lets_an_entry_fail_more_often_than_the_daemon(
    s: Subject, count: int
) -> None:
    s = s.under(attempts_max=1)
    s.set(JOB)
    fail(s, JOB, s.lease(), count=count)
    assert known(s)["state"] == "buried"


def test_release_with_count_and_no_value_counts_nothing(s: Subject) -> None:
    s.set(JOB)
    assert s.release(JOB, s.lease(), count=1) == ""
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 0)


def test_kick_keeps_attempts_and_the_last_error(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(JOB)
    fail(s, JOB, s.lease())
    assert s.kick(JOB) == 1
    assert known(s)["last_error"] == "boom"
    assert known(s)["attempts"] == 1


def test_set_over_an_entry_erases_its_last_error(s: Subject) -> None:
    s.set(JOB)
    fail(s, JOB, s.lease())
    s.set(JOB, at=START + 1, flags=Flag.OVERWRITE)
    assert known(s)["last_error"] is None
    assert known(s)["attempts"] == 0


def test_superseded_work_that_fails_is_dropped(s: Subject) -> None:
    s.set(JOB, uri=URI)
    token = s.lease()
    s.set(OTHER, uri=URI, at=START + 1)
    assert fail(s, JOB, token) == ""
    assert s.get(JOB).code == "not-found"
    assert s.jobs() == [OTHER]


@pytest.mark.rule("Failed attempts (RELEASE with a value): plain entries, which GET can lease")
def test_release_of_plain_data_with_a_value_counts_and_is_never_buried(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(b"plain")
    token = s.get(b"plain", timeout=SECOND).timeout
    assert token is not None
    assert fail(s, b"plain", token) == ""
    assert s.meta(b"plain").attempts == 1
    assert s.get(b"plain", timeout=SECOND).code == ""


def test_release_with_a_value_needs_the_token(s: Subject) -> None:
    s.set(JOB)
    token = s.lease()
    assert fail(s, JOB, token + 1) == "lease-lost"
    assert fail(s, OTHER, token) == "not-found"
    assert s.meta(JOB).attempts == 0


@pytest.mark.rule("Failed attempts (RELEASE with a value): another type is")
def test_release_with_a_value_of_another_type_is_refused(s: Subject) -> None:
    s.set(JOB)
    token = s.lease()
    assert fail(s, JOB, token, kind=ValueType.BUFFER) == "bad-value"
    assert fail(s, JOB, token) == ""


@pytest.mark.parametrize(("size", "code"), [(4096, ""), (4097, "too-large")])
def test_release_bounds_the_error(s: Subject, size: int, code: str) -> None:
    s.set(JOB)
    assert fail(s, JOB, s.lease(), b"x" * size) == code


@pytest.mark.parametrize(("attempts_max", "count"), [(0, None), (2, None), (0, 2)])
def test_failed_attempts_outlive_a_restart(
    s: Subject, attempts_max: int, count: int | None
) -> None:
    s = s.under(attempts_max=attempts_max)
    s.set(JOB, flags=Flag.PERSIST)
    fail(s, JOB, s.lease(), b"one", ttl=0, count=count)
    fail(s, JOB, s.lease(), b"two", count=count)
    before = known(s)
    assert before["attempts"] == 2
    assert (before["state"] == "buried") is bool(attempts_max or count)
    s.target.restart(s.now) if isinstance(s.target, EngineSubject) else s.target.restart()
    after = known(s)
    for name in ("attempts", "last_error", "state", "buried_reason"):
        assert after[name] == before[name]
    if not attempts_max and count is None:
        assert s.next().timeout == START + 2 * SECOND


def test_kick_makes_an_entry_ready_whose_last_attempt_failed(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(JOB)
    fail(s, JOB, s.lease(), ttl=9 * SECOND)
    assert s.kick(JOB) == 1
    assert s.jobs() == [JOB]
