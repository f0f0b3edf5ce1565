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


def bounded(attempts: int) -> dict[str, object]:
    """The value of a NEXT whose lease has this bound."""
    return {"value": b'{"attempts":%d}' % attempts, "kind": ValueType.STRING}


@pytest.mark.rule(
    "Failed attempts (RELEASE with a value): the max-attempts of a worker come with its NEXT",
    "NEXT: `attempts`",
)
def test_lease_with_a_bound_buries_at_a_failed_attempt(s: Subject) -> None:
    s.set(JOB)
    fail(s, JOB, s.lease(**bounded(2)), b"one", ttl=0)
    assert known(s)["state"] == "ready"
    fail(s, JOB, s.lease(**bounded(2)), b"two", ttl=0)
    assert [known(s)[name] for name in ("state", "buried_reason", "attempts", "last_error")] == [
        *("buried", "two", 2, "two")
    ]


@pytest.mark.rule("NEXT: Lost lease")
def test_lease_with_a_bound_buries_where_its_worker_dies(s: Subject) -> None:
    s.set(JOB)
    s.now = s.lease(timeout=SECOND, **bounded(2))
    assert known(s)["state"] == "ready"
    s.now = s.lease(timeout=SECOND, **bounded(2))
    assert (known(s)["state"], known(s)["attempts"]) == ("buried", 2)
    assert known(s)["buried_reason"] == "attempts reached max-attempts"


def test_lease_without_a_bound_has_none_of_the_lease_before(s: Subject) -> None:
    s.set(JOB)
    assert s.release(JOB, s.lease(**bounded(1))) == ""
    s.now = s.lease(timeout=SECOND)
    assert known(s)["state"] == "ready"
    assert s.release(JOB, s.lease(**bounded(1))) == ""
    assert s.get(JOB, timeout=SECOND).code == ""
    s.later(2 * SECOND)
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 2)


def test_lease_with_a_bound_ends_by_a_set_over_its_entry(s: Subject) -> None:
    s.set(JOB)
    s.lease(**bounded(1))
    s.set(JOB, at=START + 1, flags=Flag.OVERWRITE)
    s.now = s.lease(timeout=SECOND)
    assert known(s)["state"] == "ready"


def test_lease_with_a_bound_of_0_has_none(s: Subject) -> None:
    s.set(JOB)
    s.now = s.lease(timeout=SECOND, **bounded(0))
    fail(s, JOB, s.lease(**bounded(0)), ttl=0)
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 2)


def test_lease_keeps_its_bound_when_it_is_renewed_and_its_entry_renamed(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=SECOND, **bounded(1))
    held = {"timeout": token, "flags": Flag.WORKED_ON}
    renewed = s.ask(request(Function.TOUCH, JOB, ttl=5 * SECOND, **held)).timeout
    assert s.ask(request(Function.RENAME, JOB, uri=OTHER, at=START + 1)).code == ""
    assert renewed is not None
    s.now = renewed
    assert (known(s, OTHER)["state"], known(s, OTHER)["attempts"]) == ("buried", 1)


def test_lease_keeps_its_bound_for_each_entry_of_a_batch(s: Subject) -> None:
    s.set(JOB)
    s.set(OTHER)
    s.now = s.lease(count=2, timeout=SECOND, **bounded(1))
    assert [known(s, key)["state"] for key in (JOB, OTHER)] == ["buried", "buried"]


def test_lease_of_a_waiting_next_has_the_bound_that_came_with_it(s: Subject) -> None:
    s.listen(timeout=SECOND, **bounded(1))
    s.set(JOB)
    ((_, reply),) = s.serve()
    assert reply.timeout is not None
    s.now = reply.timeout
    assert known(s)["state"] == "buried"


@pytest.mark.parametrize(("daemons", "of_lease"), [(1, 9), (9, 1), (1, 0), (0, 1)])
def test_lease_bound_and_max_attempts_hold_both(s: Subject, daemons: int, of_lease: int) -> None:
    s = s.under(attempts_max=daemons)
    s.set(JOB)
    s.now = s.lease(timeout=SECOND, **bounded(of_lease))
    assert known(s)["state"] == "buried"


def test_lease_bound_and_the_attempts_of_a_limit_hold_both(s: Subject) -> None:
    s.ask(request(Function.LIMIT, b"a", b'{"attempts":2}', kind=ValueType.STRING))
    s.set(JOB)
    s.now = s.lease(timeout=SECOND, **bounded(9))
    s.now = s.lease(timeout=SECOND, **bounded(9))
    assert (known(s)["state"], known(s)["attempts"]) == ("buried", 2)


def test_pop_with_a_bound_deletes_as_without(s: Subject) -> None:
    s.set(JOB)
    assert s.jobs(flags=Flag.OVERWRITE, **bounded(1)) == [JOB]
    assert s.get(JOB).code == "not-found"


@pytest.mark.rule("NEXT: the value, of type string, is a JSON object of options")
@pytest.mark.parametrize("flags", [0, Flag.LISTEN, Flag.OVERWRITE])
@pytest.mark.parametrize(
    ("value", "kind", "code"),
    [
        (b'{"attempt":1}', ValueType.STRING, "bad-value"),
        (b'{"attempts":-1}', ValueType.STRING, "bad-value"),
        (b'{"attempts":9223372036854775808}', ValueType.STRING, "bad-value"),
        (b'{"attempts":"1"}', ValueType.STRING, "bad-value"),
        (b'{"attempts":1.5}', ValueType.STRING, "bad-value"),
        (b"[1]", ValueType.STRING, "bad-value"),
        (b"", ValueType.STRING, "bad-value"),
        (b'{"\xff":1}', ValueType.STRING, "bad-value"),
        (b'{"attempts":1}', ValueType.BUFFER, "bad-value"),
        pytest.param(b"{%4095s}" % b"", ValueType.STRING, "too-large", id="4,097 bytes"),
        pytest.param(b"{%4094s}" % b"", ValueType.STRING, "", id="4,096 bytes"),
        (b'{"attempts":9223372036854775807}', ValueType.STRING, ""),
    ],
)
def test_next_refuses_options_that_it_does_not_know(
    s: Subject, value: bytes, kind: int, code: str, flags: int
) -> None:
    s.set(JOB)
    assert s.next(value=value, kind=kind, flags=flags).code == code
    if code:
        assert known(s)["state"] == "ready"


def test_release_takes_no_bound(s: Subject) -> None:
    s.set(JOB)
    fail(s, JOB, s.lease(), b"one", ttl=0, count=1)
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 1)


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


def restart(s: Subject) -> None:
    s.target.restart(s.now) if isinstance(s.target, EngineSubject) else s.target.restart()


@pytest.mark.parametrize(("attempts_max", "of_lease"), [(0, 0), (2, 0), (0, 2)])
def test_failed_attempts_outlive_a_restart(s: Subject, attempts_max: int, of_lease: int) -> None:
    s = s.under(attempts_max=attempts_max)
    s.set(JOB, flags=Flag.PERSIST)
    fail(s, JOB, s.lease(**bounded(of_lease)), b"one", ttl=0)
    fail(s, JOB, s.lease(**bounded(of_lease)), b"two")
    before = known(s)
    assert before["attempts"] == 2
    assert (before["state"] == "buried") is bool(attempts_max or of_lease)
    restart(s)
    after = known(s)
    for name in ("attempts", "last_error", "state", "buried_reason"):
        assert after[name] == before[name]
    if not attempts_max and not of_lease:
        assert s.next().timeout == START + 2 * SECOND


@pytest.mark.parametrize("renewed", [False, True])
def test_lease_keeps_its_bound_across_a_restart(s: Subject, renewed: bool) -> None:
    s.set(JOB, flags=Flag.PERSIST)
    token = s.lease(timeout=SECOND, **bounded(1))
    if renewed:
        held = {"timeout": token, "flags": Flag.WORKED_ON}
        assert s.ask(request(Function.TOUCH, JOB, ttl=5 * SECOND, **held)).code == ""
    restart(s)
    s.later(6 * SECOND)
    assert (known(s)["state"], known(s)["attempts"]) == ("buried", 1)


def test_lease_bound_ends_with_its_lease_across_a_restart(s: Subject) -> None:
    s.set(JOB, flags=Flag.PERSIST)
    assert s.release(JOB, s.lease(**bounded(1))) == ""
    s.lease(timeout=SECOND)
    restart(s)
    s.later(2 * SECOND)
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 1)


def test_kick_makes_an_entry_ready_whose_last_attempt_failed(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(JOB)
    fail(s, JOB, s.lease(), ttl=9 * SECOND)
    assert s.kick(JOB) == 1
    assert s.jobs() == [JOB]
