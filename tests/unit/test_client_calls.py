"""Calls: the request that each builds, and what its replies mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastjournal.client import calls
from fastjournal.client.calls import WAIT_WITHOUT_END, Call, silence_allowed_s
from fastjournal.client.results import Entry, Jobs, Written
from fastjournal.errors import BadRequestError, ProtocolError, RefusedError
from fastjournal.protocol import (
    Flag,
    Function,
    Meta,
    Pair,
    Query,
    Reply,
    ValueType,
    decode_request,
    encode_request,
)

F = Function
DATA, META, PERSIST, OVERWRITE = Flag.DATA, Flag.META, Flag.PERSIST, Flag.OVERWRITE
WORKED_ON, LISTEN, UPDATE = Flag.WORKED_ON, Flag.LISTEN, Flag.UPDATE_TIMEOUT
GIVEN = DATA | META | PERSIST | OVERWRITE | WORKED_ON | LISTEN | UPDATE

CASES = [
    (calls.nop(), F.NOP, 0, {}),
    (calls.quit_(), F.QUIT, 0, {}),
    (
        calls.set_("k", b"v"),
        F.SET,
        PERSIST,
        {"key": b"k", "value": b"v", "value_type": ValueType.BUFFER, "timeout": None, "ttl": None},
    ),
    (
        calls.set_(b"k", 7, uri="u", persist=False, overwrite=True, expires=5, ttl=6, timestamp=9),
        F.SET,
        OVERWRITE,
        {"second_key": b"u", "value_type": 3, "timeout": 5, "ttl": 6, "timestamp": 9},
    ),
    (calls.get("k"), F.GET, DATA, {"key": b"k", "timeout": None}),
    (calls.get("k", data=False, meta=True, lease_us=0), F.GET, META, {"timeout": 0}),
    (calls.get("k", expires=8), F.GET, DATA | UPDATE, {"timeout": 8}),
    (calls.get("k", skip_worked_on=True), F.GET, DATA | WORKED_ON, {"timeout": None}),
    (calls.delete("k"), F.DELETE, PERSIST, {"timeout": None}),
    (calls.delete("k", token=4, timestamp=3), F.DELETE, PERSIST | WORKED_ON, {"timeout": 4}),
    (calls.delete("k", overwrite=True, persist=False), F.DELETE, OVERWRITE, {}),
    (calls.next_(), F.NEXT, DATA, {"key": b"", "count": 1, "timeout": None, "ttl": None}),
    (
        calls.next_("d", count=64, lease_us=5, wait_us=6, meta=True),
        F.NEXT,
        DATA | META | LISTEN,
        {"key": b"d", "count": 64, "timeout": 5, "ttl": 6},
    ),
    (calls.next_(wait_us=WAIT_WITHOUT_END), F.NEXT, DATA | LISTEN, {"ttl": None}),
    (calls.next_(delete=True), F.NEXT, DATA | OVERWRITE, {}),
    (calls.release("k", 4), F.RELEASE, WORKED_ON, {"timeout": 4, "ttl": None}),
    (calls.release("k", 4, delay_us=9), F.RELEASE, WORKED_ON, {"timeout": 4, "ttl": 9}),
    (calls.touch("k", 4, ttl_us=9), F.TOUCH, WORKED_ON, {"timeout": 4, "ttl": 9}),
    (calls.touch("k", ttl_us=9), F.TOUCH, 0, {"timeout": None, "ttl": 9}),
    (calls.bury("k", 4, reason="r"), F.BURY, WORKED_ON, {"timeout": 4, "value": b"r"}),
    (calls.stats("d"), F.STATS, 0, {"key": b"d"}),
    (calls.stats("k", data=True), F.STATS, DATA, {"key": b"k"}),
    (calls.snapshot(), F.SNAPSHOT, 0, {"key": b""}),
]


@pytest.mark.parametrize(("call", "function", "flags", "fields"), CASES)
def test_a_call_reaches_the_daemon_with_these_fields(
    call: Call[object], function: Function, flags: Flag, fields: dict[str, object]
) -> None:
    request = decode_request(encode_request(call.request))
    assert request.function == function
    assert request.flags & GIVEN == flags
    assert request.query == (Query.KEY if request.second_key is None else Query.RANGE)
    assert {name: getattr(request, name) for name in fields} == fields


def test_every_function_of_this_version_has_a_call() -> None:
    later = {F.ADD, F.NOT, F.TRUNCATE, F.LOCK, F.UNLOCK, F.RENAME, F.LINK, F.KICK, F.PAUSE, F.AUTH}
    assert {case[1] for case in CASES} == set(Function) - later


@pytest.mark.parametrize(
    "build",
    [
        lambda: calls.next_(count=0),
        lambda: calls.next_(count=65_536),
        lambda: calls.next_(lease_us=-1),
        lambda: calls.next_(wait_us=-1),
        lambda: calls.get("k", lease_us=1, expires=1),
        lambda: calls.get("k" * 4097),
        lambda: calls.set_("k", expires=2**64),
        lambda: calls.set_("k", 2**63),
        lambda: calls.touch("k", -1, ttl_us=1),
    ],
)
def test_an_argument_that_no_daemon_takes_is_refused_before_anything_is_sent(
    build: Callable[[], object],
) -> None:
    with pytest.raises(BadRequestError):
        build()


def test_a_set_returns_the_timestamp_that_repeats_it() -> None:
    call = calls.set_("k", timestamp=77)
    assert call.result(Reply()) == Written(77)


def test_a_get_that_leases_returns_the_token_and_one_that_moves_the_expiry_does_not() -> None:
    reply = Reply(timeout=50, pairs=[Pair(b"k", 2, "wörth".encode(), b"u", Meta(attempts=3))])
    leased = calls.get("k", lease_us=9).result(reply)
    assert leased == Entry(b"k", b"u", 2, "wörth".encode(), Meta(attempts=3), 50)
    assert (leased.uri, leased.decoded(), leased.journal_key) == (b"u", "wörth", None)
    assert calls.get("k", expires=50).result(reply).token is None
    assert calls.get("k").result(reply).token is None


def test_next_returns_jobs_under_one_token_or_the_instant_to_ask_again() -> None:
    pairs = [Pair(b"d:001:0000000000000002:x", 1, b"v", b"u"), Pair(b"d:001:0:y", 1, b"w")]
    jobs = calls.next_().result(Reply(timeout=50, pairs=pairs))
    assert (jobs.token, jobs.next_at, len(jobs)) == (50, None, 2)
    assert [(job.key, job.value, job.token) for job in jobs] == [
        (b"d:001:0000000000000002:x", b"v", 50),
        (b"d:001:0:y", b"w", 50),
    ]
    key = jobs.pairs[0].journal_key
    assert key is not None
    assert (key.domain, key.priority, key.timestamp, key.id) == (b"d", 1, 2, b"x")
    assert calls.next_().result(Reply(timeout=60, pairs=[])) == Jobs(None, 60, [])
    assert calls.next_().result(Reply()) == Jobs(None, None, [])
    deleted = calls.next_(delete=True).result(Reply(pairs=pairs))
    assert (deleted.token, [job.token for job in deleted]) == (None, [None, None])


def test_a_refusal_carries_its_code_and_a_sentence_even_where_the_daemon_gave_none() -> None:
    with pytest.raises(RefusedError, match=r"^attempted by another$") as caught:
        calls.delete("k", token=1).result(Reply(error="lease-lost attempted by another"))
    assert caught.value.code == "lease-lost"
    with pytest.raises(RefusedError, match="no longer yours") as caught:
        calls.delete("k", token=1).result(Reply(error="lease-lost"))
    assert caught.value.code == "lease-lost"
    with pytest.raises(RefusedError, match="the daemon refused it"):
        calls.nop().result(Reply(error="never-heard-of"))


@pytest.mark.parametrize(
    ("call", "reply"),
    [
        (calls.get("k"), Reply()),
        (calls.get("k"), Reply(pairs=[Pair(b"a"), Pair(b"b")])),
        (calls.next_(), Reply(pairs=[Pair(b"a")])),
        (calls.touch("k", 1, ttl_us=1), Reply()),
        (calls.stats(), Reply(pairs=[Pair(b"", 2, b"[1]")])),
        (calls.stats(), Reply(pairs=[Pair(b"", 2, b"{")])),
        (calls.snapshot(), Reply()),
    ],
)
def test_a_reply_that_lacks_what_it_must_have_is_a_protocol_error(
    call: Call[object], reply: Reply
) -> None:
    with pytest.raises(ProtocolError):
        call.result(reply)


def test_what_leased_can_be_undone_by_releases() -> None:
    pairs = [Pair(b"d:1:1:a"), Pair(b"d:1:1:b")]
    for call in (calls.next_(count=2), calls.get("k", lease_us=1)):
        assert call.undo is not None
        undone = call.undo(call.request, Reply(timeout=9, pairs=pairs))
        assert [(r.function, r.key, r.timeout) for r in undone] == [
            (F.RELEASE, b"d:1:1:a", 9),
            (F.RELEASE, b"d:1:1:b", 9),
        ]
        assert call.undo(call.request, Reply(timeout=9, pairs=[])) == []
    assert calls.next_(delete=True).undo is None
    assert calls.get("k").undo is None


def test_a_daemon_that_owes_an_answer_may_be_silent_as_long_as_a_next_waits() -> None:
    def allowed(*many: Call[Any]) -> float | None:
        return silence_allowed_s(60, [call.request for call in many])

    assert allowed() == allowed(calls.nop(), calls.next_()) == 60
    assert allowed(calls.next_(wait_us=5_000_000), calls.next_(wait_us=1)) == 65
    assert allowed(calls.next_(wait_us=WAIT_WITHOUT_END), calls.nop()) is None
    assert silence_allowed_s(None, [calls.nop().request]) is None
