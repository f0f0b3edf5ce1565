"""Back-off and repeats: pauses that grow, a table for every function."""

from __future__ import annotations

import time
from random import Random

import pytest

from fastjournal.client.core import calls
from fastjournal.client.core.failures import connection_lost
from fastjournal.client.core.multiplexer import Multiplexer
from fastjournal.client.core.pipeline import Pipeline
from fastjournal.client.core.results import Written
from fastjournal.client.core.retry_policy import Backoff, Reconnect, rule_of
from fastjournal.errors import (
    BadRequestError,
    CannotConnectError,
    FastjournalError,
    LeaseLostError,
    ProtocolError,
    RefusedError,
)
from fastjournal.limits import CLIENT_REPEATS_MAX
from fastjournal.protocol import Function, Reply, Request, encode_reply
from tests.functions import NO_FUNCTION

PLAN = Reconnect(first_pause=1, longest_pause=8, patience=30)


def pauses(seed: int, plan: Reconnect = PLAN) -> list[float]:
    """The pauses of one effort in which every try fails at once."""
    backoff, now_s, found = Backoff(plan, Random(seed), 100.0), 100.0, []
    while (pause_s := backoff.pause_s(now_s)) is not None:
        found.append(pause_s)
        now_s += pause_s
    assert now_s <= 100 + float(plan.patience) + 1e-6
    return found


def test_pauses_grow_with_jitter_up_to_their_bound_and_end_with_the_patience() -> None:
    many = [pauses(seed) for seed in range(200)]
    for n, bound in enumerate([1, 2, 4, 8, 8, 8]):
        drawn = [one[n] for one in many if len(one) > n]
        assert 0 <= min(drawn) <= max(drawn) <= bound
        assert len(set(drawn)) == len(drawn)
    assert max(one[2] for one in many) > 2
    assert pauses(7) == pauses(7) != pauses(8)


def test_backoff_makes_at_least_one_try() -> None:
    assert pauses(1, Reconnect(patience=0)) == [0.0]


@pytest.mark.parametrize("field", ["first_pause", "longest_pause", "patience"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_plan_without_sense_is_refused(field: str, value: float) -> None:
    with pytest.raises(BadRequestError):
        Reconnect(**{field: value})


def test_retry_never_repeats_a_function_that_counts_or_takes() -> None:
    for function in (
        Function.QUIT,
        Function.ADD,
        Function.NOT,
        Function.TRUNCATE,
        Function.RENAME,
        Function.NEXT,
        Function.LINK,
        Function.KICK,
        Function.AUTH,
        Function.CANCEL,
        Function.SNAPSHOT,
    ):
        assert not rule_of(Request(function)).repeat, function
    for function in (Function.NOP, Function.STATS, Function.LOCK, Function.TOUCH, Function.PAUSE):
        assert rule_of(Request(function)).repeat, function
    assert not rule_of(Request(NO_FUNCTION)).repeat


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
    assert call.result(reply, repeated=True) in (None, Written(7, b"k"))


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


def batch_of(*requests: Request, plan: Reconnect | None = PLAN) -> Pipeline:
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
        batch.lost(failed(connection_lost("killed")), 10 + PLAN.patience + 1)
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
