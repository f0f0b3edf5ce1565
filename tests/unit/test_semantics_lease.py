"""Leases, RELEASE and TOUCH: every sentence of docs/protocol.md about them, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournald.engine.context import Settings
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


# --- tokens ---------------------------------------------------------------------------------------


def test_token_that_would_equal_the_entrys_previous_one_takes_the_next(s: Subject) -> None:
    s.set(JOB)
    first = s.lease(timeout=10 * SECOND)
    s.release(JOB, first)
    s.set(b"b:1:0:x")
    for _ in range(999):
        s.release(b"b:1:0:x", s.lease(b"b", timeout=10 * SECOND))
    assert s.lease(b"a", timeout=10 * SECOND) == first // 1000 * 1000 + (first + 1) % 1000
    assert s.delete(JOB, token=first) == "lease-lost"


# --- the end of a lease ---------------------------------------------------------------------------


def test_lease_that_runs_out_returns_the_entry_attempts_one_higher(s: Subject) -> None:
    s.set(JOB, at=START)
    s.set(OTHER, at=START)
    for attempts in (1, 2):
        s.lease(timeout=SECOND)
        s.later(2 * SECOND)
        meta = s.meta(JOB)
        assert (meta.attempts, meta.worked_on_until_us, meta.timestamp_us) == (attempts, 0, START)
    assert s.jobs(count=2) == [OTHER]
    # the second lost lease delays it
    s.later(2 * SECOND)
    assert s.jobs(count=2) == [JOB]


def lose(s: Subject, domain: bytes = b"a") -> int:
    """Lease a job for a second and lose that lease; return its end."""
    token = s.lease(domain, timeout=SECOND)
    s.now = token
    return token


@pytest.mark.parametrize("restarts", [False, True])
def test_lost_lease_backs_off_from_the_second_on_also_over_restarts(
    s: Subject, restarts: bool
) -> None:
    s = s.under(retry_delay_us=SECOND, retry_delay_us_max=5 * SECOND)
    s.set(JOB, flags=Flag.PERSIST)
    for delay in (0, 2 * SECOND, 4 * SECOND, 5 * SECOND, 5 * SECOND):
        due = lose(s) + delay
        s.stats()
        if restarts:
            restart(s)
        if delay:
            assert s.next(b"a").timeout == due
            s.now = due - 1
            assert s.jobs(b"a") == []
            s.later(1)


def test_lost_lease_after_a_reported_failure_is_the_second_attempt(s: Subject) -> None:
    s.set(JOB)
    assert fail(s, JOB, s.lease(), ttl=0) == ""
    due = lose(s) + 2 * SECOND
    assert s.next().timeout == due


def test_leases_lost_in_a_row_bury_an_entry_after_three_weeks_by_default(s: Subject) -> None:
    default = Settings()
    s = s.under(
        attempts_max=default.attempts_max,
        retry_delay_us=default.retry_delay_us,
        retry_delay_us_max=default.retry_delay_us_max,
    )
    s.set(JOB)
    for _ in range(24):
        lose(s)
        s.now = s.next(count=0).timeout or s.now
    assert 15 < (s.now - START) / (86400 * SECOND) < 25
    lose(s)
    assert (known(s)["state"], known(s)["attempts"]) == ("buried", 25)


def test_lost_leases_of_plain_data_or_without_a_retry_delay_do_not_back_off(s: Subject) -> None:
    for delay, key in ((SECOND, b"plain"), (0, JOB)):
        s = s.under(retry_delay_us=delay)
        s.set(key)
        for _ in range(3):
            token = s.get(key, timeout=SECOND).timeout
            assert token is not None
            s.now = token
        assert s.meta(key).not_before_us == 0
    assert s.jobs() == [JOB]


def test_entry_worked_on_does_not_expire_before_its_lease_ends(s: Subject) -> None:
    s.set(JOB, timeout=START + SECOND)
    token = s.lease(timeout=10 * SECOND)
    s.later(5 * SECOND)
    assert s.value(JOB) == b"v"
    s.now = token
    assert s.value(JOB) is None


# --- RELEASE --------------------------------------------------------------------------------------


def test_release_with_ttl_is_not_before_now_plus_ttl(s: Subject) -> None:
    s.set(JOB)
    assert s.release(JOB, s.lease(), ttl=SECOND) == ""
    assert s.meta(JOB).not_before_us == START + SECOND
    assert s.next().timeout == START + SECOND
    s.later(SECOND)
    assert s.jobs() == [JOB]


# --- TOUCH ----------------------------------------------------------------------------------------


def test_touch_repeated_with_the_token_before_changes_nothing_that_lasts_as_long(
    s: Subject,
) -> None:
    s.set(JOB)
    first = s.lease(timeout=SECOND)
    second = s.touch(JOB, first, ttl=9 * SECOND).timeout
    assert second is not None
    assert s.touch(JOB, first, ttl=9 * SECOND).timeout == second
    s.later(3 * SECOND)
    assert s.touch(JOB, first, ttl=6 * SECOND).timeout == second
    assert s.meta(JOB).worked_on_until_us == second
    # all else needs the token that stands
    assert s.delete(JOB, token=first) == s.release(JOB, first) == "lease-lost"
    third = s.touch(JOB, second, ttl=9 * SECOND).timeout
    assert s.touch(JOB, first, ttl=SECOND).code == "lease-lost"
    assert s.touch(JOB, second, ttl=SECOND).timeout == third
    s.later(20 * SECOND)
    assert s.touch(JOB, second, ttl=SECOND).code == "lease-lost"


def test_lease_token_is_in_metadata_and_stats(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=SECOND)
    assert s.meta(JOB).worked_on_until_us == token
    assert s.stats(JOB, flags=Flag.DATA)["worked_on_until"] == token


def test_touch_without_a_token_makes_the_expiry_now_plus_ttl(s: Subject) -> None:
    s.set(b"p", at=START - 5)
    s.later(9)
    reply = s.touch(b"p", ttl=SECOND)
    assert (reply.error, reply.timeout, reply.pairs) == ("", None, None)
    meta = s.meta(b"p")
    assert (meta.expires_us, meta.ttl_us) == (START + 9 + SECOND, 0)
    assert (meta.timestamp_us, meta.modified_us) == (START - 5, START)


def test_touch_without_ttl_is_bad_request(s: Subject) -> None:
    s.set(JOB)
    assert s.touch(JOB).code == "bad-request"
    assert s.touch(JOB, s.lease()).code == "bad-request"


# --- RELEASE with a value -------------------------------------------------------------------------
# RELEASE with a value: failed attempts, back-off and burial, by example from docs/protocol.md.


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


def test_entry_that_failed_25_times_is_buried_by_default(s: Subject) -> None:
    s = s.under(attempts_max=Settings().attempts_max)
    s.set(JOB)
    for _ in range(24):
        fail(s, JOB, s.lease(), b"no", ttl=0)
        assert known(s)["state"] == "ready"
    fail(s, JOB, s.lease(), b"no", ttl=0)
    assert known(s)["state"] == "buried"


def test_entry_of_a_log_with_many_attempts_keeps_them_until_it_fails_again() -> None:
    s = Subject(EngineSubject(Rules(attempts_max=0, retry_delay_us=0)))
    s.set(JOB, flags=Flag.PERSIST)
    for _ in range(40):
        fail(s, JOB, s.lease(), b"no", ttl=0)
    assert isinstance(s.target, EngineSubject)
    s.target.settings = Settings(retry_delay_us=0)
    assert s.target.settings.attempts_max == 25
    restart(s)
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 40)
    assert s.release(JOB, s.lease()) == ""
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 40)
    fail(s, JOB, s.lease(), b"no", ttl=0)
    assert known(s)["state"] == "buried"


def test_max_attempts_buries_with_the_error_as_reason(s: Subject) -> None:
    s = s.under(attempts_max=2)
    s.set(JOB)
    fail(s, JOB, s.lease(), b"one", ttl=0)
    assert known(s)["state"] == "ready"
    fail(s, JOB, s.lease(), b"two", ttl=0)
    assert known(s)["state"] == "buried"
    assert known(s)["buried_reason"] == "two"
    assert known(s)["attempts"] == 2


def bounded(attempts: int) -> dict[str, object]:
    """The value of a NEXT whose lease has this bound."""
    return {"value": b'{"attempts":%d}' % attempts, "kind": ValueType.STRING}


def test_lease_with_a_bound_buries_at_a_failed_attempt(s: Subject) -> None:
    s.set(JOB)
    fail(s, JOB, s.lease(**bounded(2)), b"one", ttl=0)
    assert known(s)["state"] == "ready"
    fail(s, JOB, s.lease(**bounded(2)), b"two", ttl=0)
    assert [known(s)[name] for name in ("state", "buried_reason", "attempts", "last_error")] == [
        *("buried", "two", 2, "two")
    ]


@pytest.mark.parametrize(
    ("of_lease", "of_failure", "buried_at"), [(0, 2, 2), (2, 3, 2), (3, 1, 1), (0, 0, None)]
)
def test_failure_with_a_bound_buries_and_counts_as_failed(
    s: Subject, of_lease: int, of_failure: int, buried_at: int | None
) -> None:
    """The smaller one of the bounds of the failure and of the lease."""
    s.set(JOB)
    for attempt in range(1, 4):
        how = {"ttl": 0, "count": of_failure}
        assert not fail(s, JOB, s.lease(**bounded(of_lease)), b"no", **how)
        facts = known(s)
        assert facts["attempts"] == attempt
        assert (facts["state"] == "buried") == (attempt == buried_at)
        if attempt == buried_at:
            assert facts["buried_reason"] == facts["last_error"] == "no"
            return
    assert buried_at is None


def test_bound_without_a_failure_is_ignored(s: Subject) -> None:
    s.set(JOB)
    how = {"timeout": s.lease(), "flags": Flag.WORKED_ON, "count": 1}
    assert not s.ask(request(Function.RELEASE, JOB, **how)).code
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 0)


BAD_OPTIONS = (
    *(b'{"attempt":1}', b'{"attempts":-1}', b'{"attempts":9223372036854775808}', b"[1]", b""),
    *(b'{"attempts":"1"}', b'{"attempts":1.5}', b'{"\xff":1}'),
)


@pytest.mark.parametrize("flags", [0, Flag.LISTEN, Flag.OVERWRITE])
@pytest.mark.parametrize(
    ("value", "kind", "code"),
    [
        *((bad, ValueType.STRING, "bad-value") for bad in BAD_OPTIONS),
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


def test_superseded_work_that_fails_is_dropped(s: Subject) -> None:
    s.set(JOB, uri=URI)
    token = s.lease()
    s.set(OTHER, uri=URI, at=START + 1)
    assert fail(s, JOB, token) == ""
    assert s.get(JOB).code == "not-found"
    assert s.jobs() == [OTHER]


def test_release_of_plain_data_with_a_value_counts_and_is_never_buried(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(b"plain")
    token = s.get(b"plain", timeout=SECOND).timeout
    assert token is not None
    assert fail(s, b"plain", token) == ""
    assert s.meta(b"plain").attempts == 1
    assert s.get(b"plain", timeout=SECOND).code == ""


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


def test_lease_bound_ends_with_its_lease_across_a_restart(s: Subject) -> None:
    s.set(JOB, flags=Flag.PERSIST)
    assert s.release(JOB, s.lease(**bounded(1))) == ""
    s.lease(timeout=SECOND)
    restart(s)
    s.later(2 * SECOND)
    assert (known(s)["state"], known(s)["attempts"]) == ("ready", 1)
