"""Rules of workers without IO: failed attempts, retries of a job's end, the poll loop."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from fastjournal.client.core import calls
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call, reply_readers
from fastjournal.client.core.failed_attempts import EndPolicy, decide_retry, learn_burial
from fastjournal.client.core.failures import NOT_NOW, TLS_FAILED, connection_lost
from fastjournal.client.core.leased_job import LeasedJob
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.pipeline import Pipeline
from fastjournal.client.core.poll_loop import PollLoop
from fastjournal.client.core.results import Entry, RenewedLease, WriteOutcome, Written
from fastjournal.client.core.retry_policy import Backoff, Reconnect, rule_of
from fastjournal.client.core.stats import EntryStats
from fastjournal.client.core.worker_options import WorkerOptions, worker_options
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    FastjournalError,
    LeaseLostError,
    ProtocolError,
    RefusedError,
)
from fastjournal.limits import (
    CLIENT_REPEATS_MAX,
    JOBS_WAIT_BESIDE_WORK_US_MIN,
    JOBS_WAIT_US_MAX,
    REASON_BYTES_MAX,
)
from fastjournal.numeric import exponential_backoff
from fastjournal.protocol import Function, Meta, Reply, Request, encode_reply

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


@pytest.mark.parametrize("error", [lost(), lost(maybe_done=False)])
@pytest.mark.parametrize("call", [DELETE, RELEASE, BURY])
def test_end_of_a_job_is_sent_to_a_daemon_that_is_away_until_the_lease_is_over(
    call: Call[Any], error: CannotConnectError
) -> None:
    assert seconds_tried(call, error) == LEASE_S


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


def test_repr_of_a_job_has_its_key_and_neither_token_nor_value() -> None:
    entry = Entry(b"mails:128:0:x", b"", 1, b"secret", None, 712345)
    text = repr(LeasedJob(entry, options(lease=60), 1000.0))
    assert text == "<LeasedJob b'mails:128:0:x'>"
    entry = Entry(b"mails:128:0:x", b"", 1, b"secret", Meta(attempts=3), 712345)
    assert repr(LeasedJob(entry, options(lease=60), 1000.0)) == (
        "<LeasedJob b'mails:128:0:x' attempts=3>"
    )


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


# --- back-off and repeats -------------------------------------------------------------------------
# Back-off and repeats: pauses that grow, a table for every function.


LASTING_PLAN = Reconnect(first_pause=1, longest_pause=8, patience=30)


def pauses(seed: int, plan: Reconnect = LASTING_PLAN) -> list[float]:
    """The pauses of one effort in which every try fails at once."""
    backoff, now_s, found = Backoff(plan, Random(seed), 100.0), 100.0, []
    while (pause_s := backoff.pause_s(now_s)) is not None:
        found.append(pause_s)
        now_s += pause_s
    assert now_s <= 100 + float(plan.patience) + 1e-6
    return found


def test_get_that_leases_is_not_repeated_and_all_others_are() -> None:
    assert rule_of(calls.get("k").request).repeat
    assert rule_of(calls.get("k", expires=time.time() + 60).request).repeat
    assert not rule_of(calls.get("k", lease=9).request).repeat
    scan = calls.range_("a", lease=9)
    assert not rule_of(scan.first.request).repeat
    assert not rule_of(scan.following(b"c").request).repeat


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (calls.set_("k", timestamp_us=7), "stale"),
        (calls.delete("k", timestamp_us=7), "not-found"),
        (calls.delete("k", token=5, timestamp_us=7), "not-found"),
        (calls.release("k", 5), "lease-lost"),
        (calls.release("k", 5), "not-found"),
    ],
)
def test_repeat_that_finds_its_work_done_is_a_success(call: calls.Call[object], code: str) -> None:
    reply = Reply(error=code)
    with pytest.raises(RefusedError):
        call.result(reply)
    outcome = WriteOutcome.KEPT if code == "stale" else None
    assert call.result(reply, repeated=True) in (None, Written(7, b"k", outcome))


def test_refused_repeat_of_a_write_may_have_been_done_and_that_of_a_read_not() -> None:
    lost = calls.touch("k", 5, ttl=9).outcome(Reply(error="lease-lost"), repeated=True)
    assert isinstance(lost, LeaseLostError)
    assert lost.maybe_done
    for code in ("not-found", "not-owner"):  # the lock may have ended before, with its connection
        unlock = calls.unlock("k").outcome(Reply(error=code), repeated=True)
        assert isinstance(unlock, RefusedError)
        assert unlock.maybe_done
    missing = calls.get("k").outcome(Reply(error="not-found"), repeated=True)
    assert isinstance(missing, RefusedError)
    assert not missing.maybe_done
    first = calls.set_("k").outcome(Reply(error="exists"))
    assert isinstance(first, RefusedError)
    assert not first.maybe_done


def batch_of(*requests: Request, plan: Reconnect | None = LASTING_PLAN) -> Pipeline:
    return Pipeline(((request, None) for request in requests), plan)


def failed(error: FastjournalError, *, multiplexer: Multiplexer | None = None) -> Multiplexer:
    multiplexer = multiplexer or Multiplexer(reply_bytes_max=1000)
    multiplexer.fail(error)
    return multiplexer


def test_request_is_in_doubt_only_if_it_was_sent_and_not_answered() -> None:
    requests = [Request(Function.ADD, key=b"a"), Request(Function.NOP), Request(Function.ADD)]
    batch = batch_of(*requests)
    first = Multiplexer(reply_bytes_max=1000)
    batch.requests[0].start(first)
    batch.requests[1].start(first)
    first.receive_data(encode_reply(Reply(requests[0].identifier)))
    batch.lost(failed(connection_lost("killed"), multiplexer=first), 0)
    assert batch.unanswered() == batch.requests[1:]
    assert [errand.repeated for errand in batch.requests] == [False, True, False]
    second = Multiplexer(reply_bytes_max=1000)
    batch.requests[2].start(second)
    with pytest.raises(CannotConnectError) as caught:
        batch.lost(failed(connection_lost("killed")), 1)
    assert caught.value.maybe_done


def test_repeat_keeps_its_timestamp_and_ends_after_so_many_connections() -> None:
    request = Request(Function.SET, key=b"a")
    batch = batch_of(request)
    stamps = set()
    for _ in range(CLIENT_REPEATS_MAX):
        batch.requests[0].start(Multiplexer(reply_bytes_max=1000))
        stamps.add(request.timestamp)
        batch.lost(failed(connection_lost("killed")), 0)
    batch.requests[0].start(Multiplexer(reply_bytes_max=1000))
    with pytest.raises(CannotConnectError) as caught:
        batch.lost(failed(connection_lost("killed")), 0)
    assert caught.value.maybe_done
    assert len(stamps) == 1


def test_repeat_ends_with_the_patience_and_a_broken_protocol_is_not_repeated() -> None:
    batch = batch_of(Request(Function.NOP))
    batch.requests[0].start(Multiplexer(reply_bytes_max=1000))
    batch.lost(failed(connection_lost("killed")), 10)
    with pytest.raises(CannotConnectError):
        batch.lost(failed(connection_lost("killed")), 10 + LASTING_PLAN.patience + 1)
    with pytest.raises(ProtocolError):
        batch_of(Request(Function.NOP)).lost(failed(ProtocolError("HTTP")), 0)
    with pytest.raises(CannotConnectError) as caught:
        batch_of(Request(Function.ADD), plan=None).lost(failed(connection_lost("killed")), 0)
    assert not caught.value.maybe_done


def test_connection_that_was_refused_at_once_puts_nothing_in_doubt() -> None:
    for answered_before in (False, True):
        batch = batch_of(Request(Function.NEXT), Request(Function.ADD))
        multiplexer = Multiplexer(reply_bytes_max=1000)
        for errand in batch.requests:
            errand.start(multiplexer)
        if answered_before:
            multiplexer.receive_data(encode_reply(Reply(2)))
        multiplexer.receive_data(encode_reply(Reply(0, error="busy")))
        multiplexer.receive_data(b"")
        if answered_before:
            with pytest.raises(CannotConnectError) as caught:
                batch.lost(multiplexer, 0)
            assert (caught.value.code, caught.value.maybe_done) == ("busy", True)
        else:
            batch.lost(multiplexer, 0)
            assert [errand.repeated for errand in batch.requests] == [False, False]


@pytest.mark.parametrize("code", ["bad-request", "too-large", "unsupported-version"])
def test_retry_never_repeats_a_request_that_the_daemon_cannot_frame(code: str) -> None:
    batch = batch_of(Request(Function.NOP))
    multiplexer = Multiplexer(reply_bytes_max=1000)
    batch.requests[0].start(multiplexer)
    multiplexer.receive_data(encode_reply(Reply(0, error=f"{code} no")))
    with pytest.raises(CannotConnectError) as caught:
        batch.lost(multiplexer, 0)
    assert caught.value.code == code
