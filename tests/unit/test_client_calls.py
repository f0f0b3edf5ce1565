"""Calls: the request that each builds, and what its replies mean."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fastjournal.client.core import calls
from fastjournal.client.core.calls import WAIT_WITHOUT_END, Call, silence_allowed_s
from fastjournal.client.core.calls.base import key_bytes
from fastjournal.client.core.results import Change, ChangeKind, Entry, Jobs, WriteOutcome, Written
from fastjournal.client.core.stats import DaemonStats, DomainStats
from fastjournal.errors import BadRequestError, ProtocolError, RefusedError
from fastjournal.keys import parse_journal_key
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
S = 1_000_000
LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
LATER_S = int(LATER.timestamp())
LATER_US = LATER_S * S
GIVEN = DATA | META | PERSIST | OVERWRITE | WORKED_ON | LISTEN | UPDATE

CASES = [
    (calls.nop(), F.NOP, 0, {}),
    (calls.quit_(), F.QUIT, 0, {}),
    (calls.set_("k", b"v"), F.SET, PERSIST,
     {"key": b"k", "value": b"v", "value_type": ValueType.BUFFER, "timeout": None, "ttl": None}),
    (
        calls.set_(
            b"k", 7, uri="u", persist=False, overwrite=True, expires=LATER_S, ttl=6, timestamp_us=9
        ),
        F.SET,
        OVERWRITE,
        {"second_key": b"u", "value_type": 3, "timeout": LATER_US, "ttl": 6 * S, "timestamp": 9},
    ),
    (calls.get("k"), F.GET, DATA, {"key": b"k", "timeout": None}),
    (calls.get("k", data=False, meta=True, lease=0), F.GET, META, {"timeout": 0}),
    (calls.get("k", expires=LATER), F.GET, DATA | UPDATE, {"timeout": LATER_US}),
    (calls.get("k", skip_worked_on=True), F.GET, DATA | WORKED_ON, {"timeout": None}),
    (calls.delete("k"), F.DELETE, PERSIST, {"timeout": None}),
    (calls.delete("k", token=4, timestamp_us=3), F.DELETE, PERSIST | WORKED_ON, {"timeout": 4}),
    (calls.delete("k", overwrite=True, persist=False), F.DELETE, OVERWRITE, {}),
    (calls.next_(), F.NEXT, DATA, {"key": b"", "count": 1, "timeout": 300 * S, "ttl": None}),
    (calls.next_(lease=0), F.NEXT, DATA, {"timeout": 0}),
    (calls.next_("d", count=64, lease=0.005, wait=timedelta(seconds=6), meta=True), F.NEXT,
     DATA | META | LISTEN, {"key": b"d", "count": 64, "timeout": 5000, "ttl": 6 * S}),
    (calls.next_(wait=WAIT_WITHOUT_END), F.NEXT, DATA | LISTEN, {"ttl": None}),
    (calls.next_(delete=True), F.NEXT, DATA | OVERWRITE, {"timeout": None}),
    (calls.release("k", 4), F.RELEASE, WORKED_ON, {"timeout": 4, "ttl": None}),
    (calls.release("k", 4, delay=0.1), F.RELEASE, WORKED_ON, {"timeout": 4, "ttl": 100_000}),
    (calls.touch("k", 4, ttl=9), F.TOUCH, WORKED_ON, {"timeout": 4, "ttl": 9 * S}),
    (calls.touch("k", ttl=9), F.TOUCH, 0, {"timeout": None, "ttl": 9 * S}),
    (calls.bury("k", 4, reason="r"), F.BURY, WORKED_ON, {"timeout": 4, "value": b"r"}),
    (calls.bury("k"), F.BURY, 0, {"timeout": None, "value": b""}),
    (calls.kick("k"), F.KICK, 0, {"key": b"k", "second_key": None, "count": None}),
    (calls.kick_domain("d", count=7), F.KICK, 0, {"key": b"", "second_key": b"d", "count": 7}),
    (calls.pause("d", 9), F.PAUSE, 0, {"key": b"d", "ttl": 9 * S}),
    (calls.resume("d"), F.PAUSE, 0, {"key": b"d", "ttl": 0}),
    (calls.limit("d", attempts=-1), F.LIMIT, 0, {"key": b"d", "value": b'{"attempts":-1}'}),
    (calls.pause_all(9), F.PAUSE, 0, {"key": b"", "ttl": 9 * S}),
    (calls.pause_all(), F.PAUSE, 0, {"key": b"", "ttl": 2**64 - 1}),
    (calls.resume_all(), F.PAUSE, 0, {"key": b"", "ttl": 0}),
    (calls.add("k", 2), F.ADD, PERSIST, {"value_type": 3, "value": bytes(7) + b"\2"}),
    (calls.add("k", 0.5, create=True, persist=False, meta=True, timestamp_us=7), F.ADD,
     OVERWRITE | META, {"value_type": 4, "timestamp": 7}),
    (calls.flip("k", meta=True), F.NOT, PERSIST | META, {"key": b"k", "value_type": None}),
    (calls.truncate("k", 5), F.TRUNCATE, PERSIST, {"value_type": 3, "value": bytes(7) + b"\5"}),
    (calls.lock("k"), F.LOCK, 0, {"key": b"k", "timeout": None}),
    (calls.lock("k", timeout=5), F.LOCK, 0, {"timeout": 5 * S}),
    (calls.unlock("k"), F.UNLOCK, 0, {"key": b"k"}),
    (calls.rename("k", "l"), F.RENAME, PERSIST, {"key": b"k", "second_key": b"l"}),
    (calls.rename("k", "l", overwrite=True, persist=False, timestamp_us=3), F.RENAME, OVERWRITE,
     {"timestamp": 3}),
    (calls.link("k", "l"), F.LINK, PERSIST, {"key": b"k", "second_key": b"l"}),
    (calls.auth("secret"), F.AUTH, 0, {"value_type": 1, "value": b"secret"}),
    (calls.daemon_stats(), F.STATS, 0, {"key": b""}),
    (calls.domain_stats("d"), F.STATS, 0, {"key": b"d"}),
    (calls.entry_stats("k"), F.STATS, DATA, {"key": b"k"}),
    (calls.range_("a", "b", page=5).first, F.GET, DATA,
     {"key": b"a", "second_key": b"b", "count": 5, "timeout": None}),
    (calls.range_(data=False, meta=True, lease=9).first, F.GET, META,
     {"key": b"", "second_key": b"", "count": 1000, "timeout": 9 * S}),
    (calls.range_(expires=LATER_S).first, F.GET, DATA | UPDATE, {"timeout": LATER_US}),
    (calls.prefix("a", skip_worked_on=True).first, F.GET, DATA | WORKED_ON,
     {"key": b"a", "second_key": b"a" + b"\xff" * 4095}),
    (calls.listening("k"), F.GET, LISTEN, {"key": b"k", "second_key": b"k", "count": 1}),
    (calls.listening(start="b"), F.GET, LISTEN, {"key": b"b", "second_key": b""}),
    (calls.listening(prefix=b"\xff"), F.GET, LISTEN, {"second_key": b"\xff" * 4096}),
    (calls.stats("d"), F.STATS, 0, {"key": b"d"}),
    (calls.stats("k", data=True), F.STATS, DATA, {"key": b"k"}),
    (calls.snapshot(), F.SNAPSHOT, 0, {"key": b"", "count": None}),
    (calls.snapshot(keep=3), F.SNAPSHOT, 0, {"count": 3}),
    (calls.remote_checkpoint(), F.REMOTE, 0, {"key": b"checkpoint"}),
    (calls.remote_handover(), F.REMOTE, 0, {"key": b"handover"}),
]  # fmt: skip


@pytest.mark.parametrize(("call", "function", "flags", "fields"), CASES)
def test_call_reaches_the_daemon_with_these_fields(
    call: Call[object], function: Function, flags: Flag, fields: dict[str, object]
) -> None:
    request = decode_request(encode_request(call.request))
    assert (request.function, request.flags & GIVEN) == (function, flags)
    assert request.query == (Query.KEY if request.second_key is None else Query.RANGE)
    assert {name: getattr(request, name) for name in fields} == fields


def test_function_of_this_version_has_a_call() -> None:
    assert calls.__file__ is not None
    texts = [path.read_text(encoding="utf-8") for path in Path(calls.__file__).parent.glob("*.py")]
    asked = {name for text in texts for name in re.findall(r"Request\(\s*Function\.(\w+)", text)}
    assert asked == {function.name for function in Function}


def test_pages_behind_the_first_are_asked_for_in_the_same_way() -> None:
    for scan in (
        calls.range_("a", "b", data=False, meta=True, lease=9),
        calls.regex("a", data=False, meta=True, lease=9),
    ):
        request = decode_request(encode_request(scan.following(b"cursor").request))
        assert (request.query, request.key) == (Query.CURSOR, b"cursor")
        assert (request.flags & GIVEN, request.timeout) == (META, 9 * S)
        reply = Reply(timeout=50, cursor=b"more", pairs=[Pair(b"k", 1, b"")])
        page = scan.following(b"cursor").result(reply)
        assert (page.cursor, [(entry.key, entry.token) for entry in page]) == (
            b"more",
            [(b"k", 50)],
        )
        assert scan.following(b"cursor").undo is not None
    assert calls.range_("a").first.result(Reply(pairs=[], cursor=b"")).cursor is None


@pytest.mark.parametrize(
    "build",
    [
        lambda: calls.next_(count=0),
        lambda: calls.next_(count=65_536),
        lambda: calls.next_(lease=-1),
        lambda: calls.next_(wait=-1),
        lambda: calls.get("k", lease=1, expires=LATER),
        lambda: calls.get("k" * 4097),
        lambda: calls.set_("k", expires=2**64),
        lambda: calls.set_("k", 2**63),
        lambda: calls.touch("k", -1, ttl=1),
        lambda: calls.add("k", True),
        lambda: calls.truncate("k", -1),
        lambda: calls.kick_domain("d", count=0),
        lambda: calls.domain_stats(""),
        lambda: calls.range_("a", page=0),
        lambda: calls.range_("a", page=65_536),
        lambda: calls.range_("a", lease=1, expires=LATER),
        lambda: calls.prefix("k" * 4097),
        lambda: calls.regex("k" * 4097),
        calls.listening,
        lambda: calls.listening("k", prefix="k"),
    ],
)
def test_argument_that_no_daemon_takes_is_refused_before_anything_is_sent(
    build: Callable[[], object],
) -> None:
    with pytest.raises(BadRequestError):
        build()


def test_set_returns_the_timestamp_that_repeats_it() -> None:
    call = calls.set_("k", timestamp_us=77)
    assert call.result(Reply()) == Written(77, b"k", WriteOutcome.NEW)
    assert call.result(Reply(ttl=1)).outcome == "replaced"
    assert call.result(Reply(ttl=0)).outcome == "kept"
    assert call.result(Reply(error="stale"), repeated=True).outcome == "kept"
    assert Written(LATER_US).timestamp == LATER


NEARLY = ("pages:256:0:x", "pages:0128:0:x", b"\xff:1:18446744073709551616:")


@pytest.mark.parametrize("key", NEARLY)
@pytest.mark.parametrize(
    "call",
    [
        calls.set_,
        functools.partial(calls.add, create=True),
        functools.partial(calls.rename, "old"),
        functools.partial(calls.link, "old"),
    ],
)
def test_key_that_nearly_is_a_journal_key_is_refused_unless_it_is_plain(
    call: Callable[..., Call[object]], key: str | bytes
) -> None:
    with pytest.raises(BadRequestError, match="no worker would get it") as refused:
        call(key)
    assert (refused.value.code, "plain=True" in str(refused.value)) == ("bad-key", True)
    request = call(key, plain=True).request
    assert key_bytes(key) in (request.key, request.second_key)


def test_set_without_a_key_is_work_in_the_domain_of_its_uri() -> None:
    call = calls.set_(None, "v", uri="https://Example.org:8080/a", timestamp_us=77)
    written = call.result(Reply())
    assert written.timestamp_us == 77
    parts = parse_journal_key(written.key)
    assert (parts.domain, parts.priority, parts.not_before_us) == (b"example.org%3A8080", 128, 77)
    assert call.request.second_key == b"https://Example.org:8080/a"
    first, second = (calls.set_(None, uri="https://a.org/").request for _ in "12")
    assert first.key != second.key, "each is stamped when it is built"
    assert parse_journal_key(first.key).not_before_us == first.timestamp
    for wrong in (None, "no host"):
        with pytest.raises(BadRequestError, match="host"):
            calls.set_(None, uri=wrong)


def test_get_that_leases_returns_the_token_and_one_that_moves_the_expiry_does_not() -> None:
    reply = Reply(timeout=50, pairs=[Pair(b"k", 2, "wörth".encode(), b"u", Meta(attempts=3))])
    leased = calls.get("k", lease=9).result(reply)
    assert leased == Entry(b"k", b"u", 2, "wörth".encode(), Meta(attempts=3), 50)
    assert (leased.uri, leased.decoded(), leased.journal_key) == (b"u", "wörth", None)
    assert calls.get("k", expires=LATER).result(reply).token is None
    assert calls.get("k").result(reply).token is None


@pytest.mark.parametrize(
    "entry", [Entry(b"k", value_type=5, value=b"\1"), Change(ChangeKind.SET, b"k", 5, b"\1")]
)
def test_decoded_value_is_of_the_type_that_the_program_names(entry: Entry | Change) -> None:
    assert (entry.decoded(), entry.decoded(bool)) == (True, True)
    with pytest.raises(BadRequestError, match="the value is bool, not int") as refused:
        entry.decoded(int)  # True is no number here
    assert refused.value.code == "bad-value"


def test_next_returns_jobs_under_one_token_or_the_instant_to_ask_again() -> None:
    pairs = [Pair(b"d:001:0000000000000002:x", 1, b"v", b"u"), Pair(b"d:001:0:y", 1, b"w")]
    jobs = calls.next_().result(Reply(timeout=50, pairs=pairs))
    assert (jobs.token, jobs.next_at, jobs.next_at_us, len(jobs)) == (50, None, None, 2)
    assert [(job.key, job.value, job.token) for job in jobs] == [
        (b"d:001:0000000000000002:x", b"v", 50),
        (b"d:001:0:y", b"w", 50),
    ]
    assert isinstance(jobs, Sequence)
    assert (jobs[0], jobs[-1:], list(reversed(jobs))) == (jobs.pairs[0], jobs.pairs[1:], jobs[::-1])
    assert jobs[1] in jobs
    with pytest.raises(IndexError):
        jobs[2]
    key = jobs[0].journal_key
    assert (key.domain, key.priority, key.not_before_us, key.id) == (b"d", 1, 2, b"x")
    nothing = calls.next_().result(Reply(timeout=60, pairs=[]))
    assert nothing == Jobs(None, 60, [])
    assert not nothing
    assert nothing != Jobs(None, 61, [])
    assert repr(nothing) == "Jobs(token=None, next_at_us=60, pairs=[])"
    assert nothing.next_at == datetime(1970, 1, 1, 0, 0, 0, 60, UTC)
    assert calls.next_().result(Reply()) == Jobs(None, None, [])
    deleted = calls.next_(delete=True).result(Reply(pairs=pairs))
    assert (deleted.token, [job.token for job in deleted]) == (None, [None, None])


def test_refusal_carries_its_code_and_a_sentence_even_where_the_daemon_gave_none() -> None:
    with pytest.raises(RefusedError, match=r"^lease-lost: attempted by another") as caught:
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
        (calls.touch("k", 1, ttl=1), Reply()),
        (calls.stats(), Reply(pairs=[Pair(b"", 2, b"[1]")])),
        (calls.stats(), Reply(pairs=[Pair(b"", 2, b"{")])),
        (calls.stats(), Reply(pairs=[Pair(b"", 2, b'{"\xff": 1}')])),
        (calls.daemon_stats(), Reply(pairs=[Pair(b"", 2, b"[1]")])),
        (calls.entry_stats("k"), Reply(pairs=[Pair(b"k", 2, b"{}")])),
        (calls.kick("k"), Reply()),
        (calls.add("k"), Reply()),
        (calls.snapshot(), Reply()),
        (calls.remote_checkpoint(), Reply()),
    ],
)
def test_reply_that_lacks_what_it_must_have_is_a_protocol_error(
    call: Call[object], reply: Reply
) -> None:
    with pytest.raises(ProtocolError):
        call.result(reply)


def test_statistics_have_types_and_what_is_new_in_them_is_left_out() -> None:
    told = b'{"entries": 3, "due": 2, "paused_until": 9, "invented_later": [1]}'
    reply = Reply(pairs=[Pair(b"d", 2, told)])
    assert calls.domain_stats("d").result(reply) == DomainStats(entries=3, due=2, paused_until_us=9)
    assert calls.daemon_stats().result(reply) == DaemonStats(entries=3, due=2, paused_until_us=9)
    assert calls.stats("d").result(reply)["invented_later"] == [1]
    told = b'{"keys": ["k", "u"], "state": "buried", "buried_reason": "r", "created": 1500000}'
    known = calls.entry_stats("k").result(Reply(pairs=[Pair(b"k", 2, told)]))
    assert (known.keys, known.state, known.buried_reason) == (["k", "u"], "buried", "r")
    assert (known.created_us, known.created) == (1_500_000, datetime.fromtimestamp(1.5, UTC))
    assert (known.locked_until_us, known.locked_until) == (0, None)


def test_daemon_that_owes_an_answer_may_be_silent_as_long_as_a_next_waits() -> None:
    def allowed(*many: Call[Any]) -> float | None:
        return silence_allowed_s(60, [call.request for call in many])

    assert allowed() == allowed(calls.nop(), calls.next_()) == 60
    assert allowed(calls.next_(wait=5), calls.next_(wait=1)) == 65
    assert allowed(calls.next_(wait=WAIT_WITHOUT_END), calls.nop()) is None
    assert silence_allowed_s(None, [calls.nop().request]) is None


def test_error_code_that_a_client_does_not_know_is_a_refusal() -> None:
    reply = Reply(1, error="quota-reached three a minute")
    with pytest.raises(RefusedError, match="three a minute") as caught:
        calls.delete(b"k").result(reply)
    assert caught.value.code == "quota-reached"


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (calls.range_("a").first, b"a"),
        (calls.range_("a").following(b"cursor"), None),
        (calls.regex("a.*").first, None),
        (calls.get("k"), b"k"),
    ],
)
def test_refusal_names_a_key_and_no_cursor_or_expression(
    call: Call[object], key: bytes | None
) -> None:
    refused = call.outcome(Reply(call.request.identifier, error="forbidden"))
    assert isinstance(refused, RefusedError)
    assert refused.key == key


def test_next_and_peek_of_several_domains_or_a_prefix_have_them_in_their_value() -> None:
    for call in (calls.next_, calls.peek):
        asked = call(["mails", b"search"], ordered=True).request
        assert (asked.key, asked.value_type) == (b"", ValueType.STRING)
        assert asked.value == b'{"domains":["mails","search"],"ordered":true}'
        assert call(prefix="crawl/").request.value == b'{"prefix":"crawl/"}'
        for wrong in (
            lambda call=call: call([]),
            lambda call=call: call(["a"] * 65),
            lambda call=call: call("a", ordered=True),
            lambda call=call: call("a", prefix="a"),
            lambda call=call: call(prefix=b"\xff"),
        ):
            with pytest.raises(BadRequestError):
                wrong()
    both = calls.next_(["a"], attempts_max=2).request.value
    assert both == b'{"attempts":2,"domains":["a"]}'
