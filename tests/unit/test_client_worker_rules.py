"""Rules of workers without IO: failed attempts, retries of a job's end, the poll loop."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from fastjournal.client.core import calls
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call, reply_readers
from fastjournal.client.core.failed_attempts import (
    EndPolicy,
    decide_retry,
    learn_burial,
)
from fastjournal.client.core.failures import NOT_NOW, TLS_FAILED
from fastjournal.client.core.leased_job import LeasedJob
from fastjournal.client.core.poll_loop import PollLoop
from fastjournal.client.core.results import Entry, RenewedLease
from fastjournal.client.core.retry_policy import Reconnect
from fastjournal.client.core.stats import EntryStats
from fastjournal.client.core.worker_options import WorkerOptions, worker_options
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    FastjournalError,
    ProtocolError,
    RefusedError,
)
from fastjournal.limits import (
    JOBS_WAIT_BESIDE_WORK_US_MIN,
    JOBS_WAIT_US_MAX,
    REASON_BYTES_MAX,
)
from fastjournal.numeric import exponential_backoff
from fastjournal.protocol import Reply

PATIENCE_S = 300.0
PLAN = Reconnect(first_pause=0.1, longest_pause=5, patience=PATIENCE_S)
LEASE_S = 60.0

DELETE = calls.delete("k", token=7)
RELEASE = calls.release("k", 7)
BURY = calls.bury("k", 7)


def lost(*, maybe_done: bool = True) -> CannotConnectError:
    error = CannotConnectError("lost", code="connection-lost")
    error.maybe_done = maybe_done
    return error


# --- failed attempts ------------------------------------------------------------------------------


def test_backoff_doubles_with_each_failure_up_to_its_bound() -> None:
    delays = [exponential_backoff(10, 100, before) for before in range(6)]
    assert delays == [10, 20, 40, 80, 100, 100]
    assert exponential_backoff(10, 100, 1_000_000) == 100


def test_burial_comes_with_the_last_attempt_that_is_allowed() -> None:
    def decide(before: int, attempts_max: int) -> tuple[int, int | None, bool, str]:
        failed = decide_retry(
            "exit 9", failures_before=before, delay_us=5, attempts_max=attempts_max
        )
        return failed.attempts, failed.delay_us, failed.buried, failed.reason

    assert decide(0, 2) == (1, 5, False, "exit 9")
    assert decide(1, 2) == (2, None, True, "exit 9")
    assert decide(7, 2) == (8, None, True, "exit 9")
    assert decide(1000, 0) == (1001, 5, False, "exit 9")


@pytest.mark.parametrize(
    ("answer", "buried"),
    [
        (EntryStats([], "buried", attempts=2, buried_reason="exit 9"), True),
        (EntryStats([], "delayed", attempts=2, last_error="exit 9"), False),
        (RefusedError("gone", code="not-found"), False),
        (RefusedError("no right to read", code="forbidden"), True),
        (CannotConnectError("away"), True),
    ],
)
def test_burial_at_the_bound_of_the_worker_is_certain_unless_the_entry_tells_otherwise(
    answer: EntryStats | FastjournalError, buried: bool
) -> None:
    told = decide_retry("exit 9", failures_before=1, delay_us=5, attempts_max=2)
    failed = learn_burial(told, answer)
    assert (failed.buried, failed.delay_us, failed.attempts) == (buried, None, 2)


@pytest.mark.parametrize(
    ("answer", "buried", "delay_us"),
    [
        (EntryStats([], "buried", attempts=2, buried_reason="exit 9"), True, None),
        (EntryStats([], "delayed", attempts=2, last_error="exit 9"), False, 5),
        (EntryStats([], "buried", attempts=3, buried_reason="exit 9"), False, 5),
        (EntryStats([], "buried", attempts=2, buried_reason="an operator's"), False, 5),
        (RefusedError("gone", code="not-found"), False, 5),
        (RefusedError("no right to read", code="forbidden"), None, 5),
        (CannotConnectError("away"), None, 5),
    ],
)
def test_burial_by_the_daemon_is_learned_from_the_entry(
    answer: EntryStats | FastjournalError, buried: bool | None, delay_us: int | None
) -> None:
    told = decide_retry("exit 9", failures_before=1, delay_us=5, attempts_max=0)
    failed = learn_burial(told, answer)
    assert (failed.buried, failed.delay_us, failed.attempts) == (buried, delay_us, 2)


@pytest.mark.parametrize("attempts_max", [0, 1])
def test_reason_of_a_failure_is_cut_to_the_bytes_that_the_daemon_takes(attempts_max: int) -> None:
    failed = decide_retry(
        "\N{SNOWMAN}" * 2000, failures_before=0, delay_us=None, attempts_max=attempts_max
    )
    assert REASON_BYTES_MAX - 3 < len(failed.reason.encode()) <= REASON_BYTES_MAX
    assert failed.reason.startswith("\N{SNOWMAN}" * 1000)
    with pytest.raises(TypeError, match="reason is str"):
        decide_retry(7, failures_before=0, delay_us=None, attempts_max=0)


# --- the end of a job -----------------------------------------------------------------------------


def policy(call: Call[Any], plan: Reconnect | None = PLAN) -> EndPolicy:
    return EndPolicy(call, plan, Random(1), lease_ends_s=LEASE_S)


def seconds_tried(call: Call[Any], error: FastjournalError) -> float:
    """By a clock that only the pauses move."""
    retries, now_s = policy(call), 0.0
    with contextlib.suppress(type(error)):
        while (pause_s := retries.pause_s(error, now_s)) is not None:
            now_s += pause_s
        raise AssertionError("an error that is no refusal does not say that it is done")
    return now_s


def test_end_of_a_job_is_sent_again_where_its_lease_ends_within_a_microsecond() -> None:
    retries = policy(DELETE)
    assert retries.pause_s(lost(), LEASE_S - 1e-7) is not None
    with pytest.raises(CannotConnectError):
        retries.pause_s(lost(), LEASE_S)


@pytest.mark.parametrize("error", [lost(), lost(maybe_done=False)])
@pytest.mark.parametrize("call", [DELETE, RELEASE, BURY])
def test_end_of_a_job_is_sent_to_a_daemon_that_is_away_until_the_lease_is_over(
    call: Call[Any], error: CannotConnectError
) -> None:
    assert seconds_tried(call, error) == LEASE_S


@pytest.mark.parametrize("code", sorted(NOT_NOW))
def test_end_of_a_job_is_sent_to_a_daemon_that_says_not_now_until_the_lease_is_over(
    code: str,
) -> None:
    assert seconds_tried(DELETE, RefusedError("", code=code)) == LEASE_S


@pytest.mark.parametrize(
    "error",
    [
        *(RefusedError("", code=code) for code in ("forbidden", "clock-skew", "lease-lost")),
        CannotConnectError("closed", code="not-connected"),
        CannotConnectError("", code="unsupported-version"),
        ProtocolError("no reply"),
        BadRequestError(""),
    ],
    ids=lambda error: error.code,
)
def test_end_of_a_job_is_not_sent_again_in_vain(error: FastjournalError) -> None:
    assert seconds_tried(DELETE, error) == 0


def test_end_of_a_job_waits_for_a_certificate_that_somebody_mends() -> None:
    assert seconds_tried(DELETE, CannotConnectError("", code=TLS_FAILED)) == LEASE_S


def test_end_of_a_job_is_sent_once_by_a_client_that_does_not_reconnect() -> None:
    for error in (lost(), RefusedError("", code="busy")):
        with pytest.raises(type(error)):
            policy(DELETE, None).pause_s(error, 0.0)


@pytest.mark.parametrize(
    ("call", "code"),
    [(DELETE, "not-found"), (RELEASE, "lease-lost"), (RELEASE, "not-found"), (BURY, "lease-lost")],
)
def test_refusal_of_a_repeated_end_means_that_the_first_one_was_carried_out(
    call: Call[Any], code: str
) -> None:
    refused = RefusedError("", code=code)
    with pytest.raises(RefusedError):
        policy(call).pause_s(refused, 0.0)
    not_sent = policy(call)
    assert not_sent.pause_s(lost(maybe_done=False), 0.0) is not None
    with pytest.raises(RefusedError):
        not_sent.pause_s(refused, 1.0)
    repeated = policy(call)
    assert repeated.pause_s(lost(), 0.0) is not None
    assert repeated.pause_s(RefusedError("", code="busy"), 1.0) is not None
    assert repeated.pause_s(refused, 2.0) is None


def test_completion_that_is_repeated_and_refused_by_its_token_is_no_success() -> None:
    repeated = policy(DELETE)
    repeated.pause_s(lost(), 0.0)
    with pytest.raises(RefusedError):
        repeated.pause_s(RefusedError("", code="lease-lost"), 1.0)


# --- the lease ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_us", [-(10**12), 0, 10**12])
@pytest.mark.parametrize("left_s", [3, 600])
def test_lease_ends_for_its_worker_as_the_daemon_says_whatever_its_clock_shows(
    ahead_us: int, left_s: int
) -> None:
    now_us = 1_700_000_000_000_000 + ahead_us
    reply = Reply(timestamp=now_us, timeout=now_us + left_s * 1_000_000)
    job = LeasedJob(Entry(b"d:1:0:x", b"", 1, b"", None, 7), options(lease=60), 1000.0)
    renewal = job._renewal_call(60_000_000)
    assert renewal.request == calls.touch("d:1:0:x", 7, ttl=60).request
    job._renewed(renewal.result(reply), asked_s=1050.0)
    assert (job.token, job._lease_ends_s) == (reply.timeout, 1050.0 + left_s)


def test_lease_that_is_over_by_the_daemon_has_no_time_left() -> None:
    renewal = Call(calls.touch("k", 7, ttl=60).request, reply_readers.renewed_lease)
    assert renewal.result(Reply(timestamp=9, timeout=8)) == RenewedLease(8, 0)
    with pytest.raises(ProtocolError):
        renewal.result(Reply(timestamp=9))


# --- the poll loop --------------------------------------------------------------------------------


def options(**fields: Any) -> WorkerOptions:
    return worker_options(**({"domain": "d", "count": 3, "lease": 1, "wait": None} | fields))


def polling(plan: Reconnect | None = PLAN, **fields: Any) -> PollLoop:
    own = {name: fields.pop(name) for name in ("was_answered", "beside_work") if name in fields}
    return PollLoop(options(**fields), plan, Random(1), 0.0, **own)


def seconds_asked(loop: PollLoop, error: FastjournalError, most_s: float = 10_000) -> float:
    now_s = 0.0
    with contextlib.suppress(type(error)):
        while now_s < most_s:
            now_s += loop.failed(error, now_s)
    return now_s


def test_poll_loop_asks_a_daemon_that_says_not_now_for_as_long_as_its_own_patience() -> None:
    for code in NOT_NOW:
        error = RefusedError("", code=code)
        assert seconds_asked(polling(), error) == PATIENCE_S
        assert seconds_asked(polling(patience=3600), error) == 3600
        assert seconds_asked(polling(patience=1), error) == 1
        assert seconds_asked(polling(None, patience=3600), error) == 0
    for code in ("forbidden", "auth-failed"):
        assert seconds_asked(polling(patience=3600), RefusedError("", code=code)) == 0


def test_poll_loop_without_end_outwaits_a_daemon_that_is_read_only() -> None:
    error = RefusedError("", code="read-only")
    assert seconds_asked(polling(wait=WAIT_WITHOUT_END), error) >= 10_000
    busy = RefusedError("", code="busy")
    assert seconds_asked(polling(wait=WAIT_WITHOUT_END), busy) == PATIENCE_S


def test_poll_loop_repeats_a_lost_next_for_as_long_as_reconnect_has_patience() -> None:
    assert seconds_asked(polling(patience=3600), lost()) == PATIENCE_S
    # the effort to connect had all of that patience already
    assert seconds_asked(polling(), lost(maybe_done=False)) == 0
    assert seconds_asked(polling(), BadRequestError("")) == 0


def test_poll_loop_waits_for_a_certificate_only_once_a_daemon_has_answered() -> None:
    error = CannotConnectError("", code=TLS_FAILED)
    assert seconds_asked(polling(), error) == 0
    assert seconds_asked(polling(was_answered=True), error) == PATIENCE_S
    loop = polling()
    loop.answered()
    assert seconds_asked(loop, error) == PATIENCE_S


def test_poll_loop_that_was_answered_is_patient_anew() -> None:
    loop = polling(patience=100)
    assert seconds_asked(loop, RefusedError("", code="busy"), most_s=90) >= 90
    loop.answered()
    assert seconds_asked(loop, RefusedError("", code="busy")) == 100


def test_poll_loop_splits_a_long_wait_and_ends_with_it() -> None:
    loop = polling(wait=JOBS_WAIT_US_MAX / 1e6 + 5)
    first, last = loop.call(0.0, 3).request, loop.call(30.0, 2).request
    assert (first.ttl, first.count) == (JOBS_WAIT_US_MAX, 3)
    assert (last.ttl, last.count) == (5_000_000, 2)
    assert not loop.is_over(34.9)
    assert loop.is_over(35.0)
    assert loop.call(99.0, 1).request.ttl == 0


def test_poll_loop_beside_running_jobs_waits_for_a_moment_at_least() -> None:
    brief = polling(wait=1e-5, beside_work=True)
    assert brief.call(0.0, 1).request.ttl == JOBS_WAIT_BESIDE_WORK_US_MIN
    assert polling(wait=timedelta(microseconds=10)).call(0.0, 1).request.ttl == 10
    assert polling(beside_work=True).call(0.0, 1).request.ttl is None
    assert polling(beside_work=True).is_over(0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retry_delay_max": 5},
        {"retry_delay_max": 5, "retry_delay": lambda job: 3},
        {"retry_delay_max": -1, "retry_delay": 3},
        {"attempts_max": -1},
        {"patience": -1.0},
    ],
)
def test_worker_options_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        options(**wrong)
