"""SET: every sentence of docs/protocol.md about it, by example, on the engine and on the model."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.protocol.constants import Flag, State, ValueType
from fastjournal.protocol.functions import Function
from tests.property.model import Model
from tests.property.model_parts import U64_MAX, Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


# --- plain SET ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        pytest.param(ValueType.VOID, b"", marks=pytest.mark.warm_only),
        (ValueType.BUFFER, b"\x00\xff"),
        (ValueType.STRING, "ä".encode()),
        pytest.param(ValueType.INTEGER, b"123", marks=pytest.mark.warm_only),
        pytest.param(ValueType.FLOAT, b"x", marks=pytest.mark.warm_only),
        pytest.param(ValueType.BOOLEAN, b"\x07", marks=pytest.mark.warm_only),
    ],
)
def test_daemon_stores_data_as_it_came(s: Subject, kind: ValueType, data: bytes) -> None:
    assert s.set(b"p", data, kind=kind) == ""
    pair = s.pair(b"p")
    assert (pair.value_type, pair.value) == (kind, data)


@pytest.mark.warm_only
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_empty_or_oversize_key_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.set(key) == "bad-key"


@pytest.mark.warm_only
@pytest.mark.parametrize("uri", [b"", b"u" * 4097, JOB])
def test_empty_or_oversize_uri_or_the_key_itself_is_bad_key(s: Subject, uri: bytes) -> None:
    assert s.set(JOB, uri=uri) == "bad-key"
    assert s.value(JOB) is None


@pytest.mark.warm_only
@pytest.mark.parametrize(
    ("data", "kind"), [(None, 0), (b"x", 6), (b"x", 255), (b"x", ValueType.VOID)]
)
def test_set_without_value_with_a_type_over_5_or_void_with_data_is_bad_value(
    s: Subject, data: bytes | None, kind: int
) -> None:
    assert s.set(b"p", data, kind=kind) == "bad-value"
    assert s.value(b"p") is None


def test_set_without_overwrite_of_a_key_that_exists_is_exists(s: Subject) -> None:
    s.set(b"p", b"one")
    assert s.set(b"p", b"two", at=START + 1) == "exists"
    assert s.value(b"p") == b"one"


# --- journal keys ---------------------------------------------------------------------------------


def test_priority_and_not_before_come_from_the_key(s: Subject) -> None:
    s.set(b"a:7:%d:x" % (START + 5))
    meta = s.meta(b"a:7:%d:x" % (START + 5))
    assert (meta.priority, meta.not_before_us) == (7, START + 5)


# --- metadata -------------------------------------------------------------------------------------


def test_set_is_dated_by_the_writer_and_by_the_daemon(s: Subject) -> None:
    s.later(5)
    s.set(b"p", at=START + 1)
    meta = s.meta(b"p")
    assert (meta.timestamp_us, meta.created_us, meta.modified_us) == (
        START + 1,
        START + 5,
        START + 5,
    )


@pytest.mark.parametrize("flag", [Flag.PERSIST, Flag.PERSIST_ALIAS])
def test_set_persists_by_either_bit(s: Subject, flag: Flag) -> None:
    s.set(b"p", flags=flag)
    assert s.meta(b"p").state == State.PERSISTENT


# --- expiry ---------------------------------------------------------------------------------------


def test_ttl_without_timeout_makes_the_first_expiry_now_plus_ttl(s: Subject) -> None:
    s.set(b"p", ttl=SECOND)
    s.later(SECOND)
    assert s.value(b"p") is None


def test_expiry_beyond_the_last_instant_is_the_last_instant(s: Subject) -> None:
    s.set(b"p", ttl=U64_MAX)
    assert s.meta(b"p").expires_us == U64_MAX


def test_expiry_leaves_no_tombstone(s: Subject) -> None:
    s.set(b"p", timeout=START + 1, at=START)
    s.later(1)
    assert s.set(b"p", b"again", at=START) == ""
    assert s.value(b"p") == b"again"


# --- which write wins -----------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, Flag.OVERWRITE])
def test_set_with_a_smaller_timestamp_than_the_entry_is_stale(s: Subject, flags: int) -> None:
    s.set(b"p", b"one", at=START)
    assert s.set(b"p", b"two", at=START - 1, flags=flags) == "stale"
    assert s.value(b"p") == b"one"


def test_repeat_is_recognised_before_its_arguments_are_checked(s: Subject) -> None:
    s.set(b"p", b"one", at=START)
    assert s.set(b"p", None, at=START) == ""
    assert s.value(b"p") == b"one"


@pytest.mark.warm_only
def test_timestamp_up_to_the_skew_ahead_is_taken_and_beyond_is_clock_skew(s: Subject) -> None:
    assert s.set(b"p", at=START + 60 * SECOND) == ""
    assert s.set(b"q", at=START + 60 * SECOND + 1) == "clock-skew"
    assert s.value(b"q") is None


def test_set_repeated_after_its_job_was_done_is_stale(s: Subject) -> None:
    s.set(JOB, at=START)
    s.delete(JOB, token=s.lease(), at=START)
    assert s.set(JOB, at=START) == "stale"


@pytest.mark.warm_only
def test_oldest_tombstones_go_first(s: Subject) -> None:
    s = s.under(tombstones_max=2)
    for key in (b"p", b"q", b"r"):
        s.delete(key, at=START)
    assert [s.set(key, at=START) for key in (b"r", b"q", b"p")] == ["stale", "stale", ""]


# --- which error, where several apply -------------------------------------------------------------


@pytest.mark.warm_only
def test_bad_arguments_come_before_all_other_errors(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.set(b"p", None, at=START + 999 * SECOND) == "bad-value"


@pytest.mark.warm_only
def test_clock_skew_comes_before_exists(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.set(b"p", at=START + 999 * SECOND) == "clock-skew"


# --- OVERWRITE ------------------------------------------------------------------------------------


def test_overwrite_replaces_the_value_and_keeps_created(s: Subject) -> None:
    s.set(b"p", b"one", at=START)
    s.later(5)
    assert s.set(b"p", b"two", kind=ValueType.STRING, at=START + 1, flags=Flag.OVERWRITE) == ""
    pair = s.pair(b"p")
    assert pair.meta is not None
    assert (pair.value_type, pair.value) == (ValueType.STRING, b"two")
    assert (pair.meta.timestamp_us, pair.meta.created_us) == (START + 1, START)
    assert pair.meta.modified_us == START + 5


@pytest.mark.parametrize("at", [START, START + 1])
@pytest.mark.parametrize("flags", [0, Flag.OVERWRITE])
def test_key_that_is_a_further_key_of_another_entry_exists(s: Subject, at: int, flags: int) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    assert s.set(URI, b"two", at=at, flags=flags) == "exists"
    assert s.value(URI) == b"one"


@pytest.mark.parametrize(
    ("leased", "flags", "code"),
    [
        (False, Flag.OVERWRITE | Flag.WORKED_ON, ""),
        (True, Flag.OVERWRITE | Flag.WORKED_ON, "worked-on"),
        (True, Flag.WORKED_ON, "exists"),
        (True, Flag.OVERWRITE, ""),
    ],
)
def test_overwrite_with_worked_on_leaves_a_leased_entry(
    s: Subject, leased: bool, flags: int, code: str
) -> None:
    s.set(JOB, b"one", at=START)
    token = s.lease() if leased else 0
    assert s.set(JOB, b"two", at=START + 1, flags=flags) == code
    assert s.value(JOB) == (b"one" if code else b"two")
    if code:
        assert s.delete(JOB, token=token) == ""


def test_reply_has_the_number_of_replaced_entries(s: Subject) -> None:
    def replaced(key: bytes, at: int, uri: bytes | None = None, flags: int = 0) -> int | None:
        reply = s.ask(request(Function.SET, key, b"v", at=at, uri=uri, flags=flags))
        assert reply.error == ""
        return reply.ttl

    assert replaced(JOB, START, URI) is None
    assert replaced(JOB, START, URI) == 0
    assert replaced(OTHER, START + 1, URI) == 1
    assert replaced(JOB, START + 2) is None
    assert replaced(JOB, START + 3, URI, Flag.OVERWRITE) == 2
    s.lease()
    assert replaced(OTHER, START + 4, URI) is None
    assert replaced(OTHER, START + 5, None, Flag.OVERWRITE) == 1


def test_reply_names_the_replaced_job_of_another_domain(s: Subject) -> None:
    def given_up(key: bytes, at: int, **fields: Any) -> tuple[int | None, list[bytes]]:
        reply = s.ask(request(Function.SET, key, b"v", at=at, uri=URI, **fields))
        assert reply.error == ""
        return reply.ttl, [pair.key for pair in reply.pairs or ()]

    assert given_up(JOB, START) == (None, [])
    assert given_up(OTHER, START + 1) == (1, []), "of the same domain"
    assert given_up(b"b:1:0:x", START + 2) == (1, [OTHER])
    assert given_up(b"b:1:0:x", START + 2) == (0, []), "a repeat"
    s.set(JOB, at=START + 3)
    assert given_up(JOB, START + 4, flags=Flag.OVERWRITE) == (2, [b"b:1:0:x"])
    assert given_up(b"plain", START + 5) == (1, [])
    assert given_up(b"b:1:0:x", START + 6) == (1, [])
    s.lease(b"b")
    assert given_up(b"c:1:0:x", START + 7) == (None, []), "a leased job stays"


# --- URI: no duplicates ---------------------------------------------------------------------------


def test_newer_entry_replaces_a_waiting_one_of_the_same_uri(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    s.later(5)
    assert s.set(OTHER, b"two", uri=URI, at=START + 1) == ""
    assert s.value(JOB) is None
    assert s.value(URI) == b"two"
    assert s.stats()["entries"] == 1


@pytest.mark.parametrize("worked_on", [False, True])
def test_older_set_of_the_same_uri_is_stale_worked_on_or_not(s: Subject, worked_on: bool) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    if worked_on:
        s.lease()
    assert s.set(OTHER, b"two", uri=URI, at=START - 1) == "stale"
    assert s.value(OTHER) is None
    assert s.value(URI) == b"one"


def test_worked_on_entry_stays_and_the_uri_leads_to_the_new_one(s: Subject) -> None:
    s.set(JOB, b"one", uri=URI, at=START)
    s.lease()
    s.later(5)
    assert s.set(OTHER, b"two", uri=URI, at=START + 1) == ""
    assert s.value(JOB) == b"one"
    assert s.value(URI) == b"two"
    assert s.meta(OTHER).created_us == START + 5


def test_uri_that_is_the_primary_key_of_another_entry_exists(s: Subject) -> None:
    s.set(b"p", b"one", at=START)
    for _ in range(2):
        assert s.set(JOB, uri=b"p", at=START + 1) == "exists"
        s.get(b"p", timeout=SECOND)
    assert s.set(JOB, uri=b"p", at=START - 1) == "stale"
    assert s.value(b"p") == b"one"


# --- max-postpone ---------------------------------------------------------------------------------
# max-postpone: every sentence of docs/protocol.md about it, by example.


BOUND = 10 * SECOND


@pytest.fixture(params=[EngineSubject, Model], ids=["engine", "model"])
def bounded(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param(Rules(postpone_us_max=BOUND)))


def put_off(bounded: Subject, due: int, *, name: bytes = b"x", flags: int = 0) -> bytes:
    """SET work on the URI that is due so long after START."""
    bounded.later(1)
    key = b"a:1:%d:%s" % (START + due, name)
    assert bounded.set(key, uri=URI, at=bounded.now, flags=flags) == ""
    return key


def again(bounded: Subject, *, after: int = 1, delay: int = BOUND, flags: int = 0) -> bytes:
    """SET work on the URI, some time later, with the longest delay that is short."""
    bounded.later(after)
    key = b"a:1:%d:again" % (bounded.now + delay)
    assert bounded.set(key, uri=URI, at=bounded.now, flags=flags) == ""
    return key


@pytest.mark.parametrize("more", [0, 1])
def test_delay_of_exactly_the_bound_is_a_short_one(bounded: Subject, more: int) -> None:
    put_off(bounded, 0)
    key = again(bounded, after=SECOND, delay=BOUND + more)
    assert bounded.meta(key).not_before_us == (
        bounded.now + BOUND + 1 if more else START + 1 + BOUND
    )


def test_longer_delay_ends_the_chain_that_was_bounded(bounded: Subject) -> None:
    put_off(bounded, SECOND)
    assert bounded.meta(again(bounded, after=5 * SECOND)).not_before_us == START + SECOND + BOUND
    key = again(bounded, delay=BOUND + 1)
    assert bounded.meta(key).not_before_us == bounded.now + BOUND + 1


def test_longer_delay_and_its_chain_outlive_a_restart() -> None:
    bounded = Subject(EngineSubject(Rules(postpone_us_max=BOUND)))
    put_off(bounded, SECOND, flags=Flag.PERSIST)
    key = again(bounded, delay=60 * SECOND, flags=Flag.PERSIST)
    long = bounded.now + 60 * SECOND
    bounded.target.restart(bounded.now)
    assert bounded.meta(key).not_before_us == long
    bounded.now = long + 5 * SECOND
    key = again(bounded, flags=Flag.PERSIST)
    bounded.target.restart(bounded.now)
    assert bounded.meta(key).not_before_us == long + BOUND


def test_postpone_bound_of_0_is_none(bounded: Subject) -> None:
    bounded = bounded.under(postpone_us_max=0)
    put_off(bounded, SECOND)
    assert bounded.meta(put_off(bounded, 6000 * SECOND)).not_before_us == START + 6000 * SECOND


def test_lease_that_runs_out_starts_the_chain_anew_at_its_end(bounded: Subject) -> None:
    put_off(bounded, 0)
    token = bounded.lease(timeout=5 * SECOND)
    bounded.later(7 * SECOND)
    assert bounded.meta(again(bounded)).not_before_us == token + BOUND


def test_postpone_after_a_release_with_a_delay_counts_from_its_end(bounded: Subject) -> None:
    key = put_off(bounded, 0)
    bounded.release(key, bounded.lease(), ttl=3 * SECOND)
    due = bounded.meta(key).not_before_us
    assert due == bounded.now + 3 * SECOND
    assert bounded.meta(again(bounded, after=5 * SECOND)).not_before_us == due + BOUND


def test_release_with_a_delay_does_not_take_the_bound_back(bounded: Subject) -> None:
    put_off(bounded, 0)
    key = again(bounded)
    bounded.now = bounded.meta(key).not_before_us
    bounded.release(key, bounded.lease(), ttl=SECOND)
    assert bounded.meta(key).not_before_us == bounded.now + SECOND
