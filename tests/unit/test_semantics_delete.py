"""DELETE: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, Function
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


@pytest.mark.warm_only
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_empty_or_oversize_key_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.delete(key) == "bad-key"


@pytest.mark.rule("Keys: Deleting by any key deletes all of them")
@pytest.mark.parametrize("by", [JOB, URI])
def test_deleting_by_any_key_deletes_the_value_and_all_its_keys(s: Subject, by: bytes) -> None:
    s.set(JOB, uri=URI)
    assert s.delete(by) == ""
    assert (s.value(JOB), s.value(URI)) == (None, None)
    assert s.jobs() == []


def test_tombstone_stands_under_the_primary_key_only(s: Subject) -> None:
    s.set(JOB, uri=URI, at=START)
    s.delete(URI, at=START + 5)
    assert s.set(URI, at=START) == ""
    assert s.set(JOB, at=START + 5) == "stale"


@pytest.mark.rule(
    "Last writer wins (timestamps, tombstones): A smaller timestamp loses with `stale`"
)
def test_delete_with_a_smaller_timestamp_is_stale(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.delete(b"p", at=START - 1) == "stale"
    assert s.value(b"p") == b"v"


def test_delete_with_the_entrys_timestamp_wins(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.delete(b"p", at=START) == ""
    assert s.value(b"p") is None


def test_entry_worked_on_can_be_deleted_without_a_token(s: Subject) -> None:
    s.set(JOB, at=START)
    token = s.lease()
    assert s.delete(JOB, at=START + 1) == ""
    assert s.delete(JOB, token=token, at=START + 2) == "not-found"


# --- nothing there --------------------------------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.rule("Functions: 4 DELETE")
def test_deleting_nothing_is_not_found_and_leaves_a_tombstone(s: Subject) -> None:
    assert s.delete(b"p", at=START) == "not-found"
    assert s.set(b"p", at=START) == "stale"
    assert s.set(b"p", at=START + 1) == ""


@pytest.mark.warm_only
def test_older_delete_of_nothing_leaves_a_newer_tombstone(s: Subject) -> None:
    s.delete(b"p", at=START)
    assert s.delete(b"p", at=START - 5) == "not-found"
    assert s.set(b"p", at=START) == "stale"


@pytest.mark.warm_only
def test_delete_of_nothing_keeps_a_tombstone_longer(s: Subject) -> None:
    s = s.under(tombstone_ttl_us=SECOND)
    s.delete(b"p", at=START)
    s.later(SECOND - 1)
    s.delete(b"p", at=START - 5)
    s.later(SECOND - 1)
    assert s.set(b"p", at=START) == "stale"
    s.later(1)
    assert s.set(b"p", at=START) == ""


@pytest.mark.warm_only
def test_overwrite_of_nothing_is_not_found_and_removes_a_tombstone(s: Subject) -> None:
    s.delete(b"p", at=START)
    assert s.delete(b"p", at=START + 1, flags=Flag.OVERWRITE) == "not-found"
    assert s.set(b"p", at=START) == ""


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): A DELETE with a valid token")
def test_delete_with_a_token_of_a_missing_key_leaves_no_tombstone(s: Subject) -> None:
    assert s.delete(b"p", token=START, at=START) == "not-found"
    assert s.set(b"p", at=START - 5) == ""


@pytest.mark.warm_only
def test_delete_with_a_token_of_a_missing_key_keeps_a_tombstone(s: Subject) -> None:
    s.delete(b"p", at=START)
    assert s.delete(b"p", token=START, at=START, flags=Flag.OVERWRITE) == "not-found"
    assert s.set(b"p", at=START) == "stale"


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): A DELETE of a missing key")
@pytest.mark.parametrize("flags", [0, Flag.OVERWRITE])
def test_deleting_nothing_from_the_future_changes_nothing(s: Subject, flags: int) -> None:
    s.delete(b"q", at=START)
    for key in (b"p", b"q"):
        assert s.delete(key, at=START + 60 * SECOND + 1, flags=flags) == "not-found"
    assert [s.set(b"p", at=START), s.set(b"q", at=START), s.set(b"q", at=START + 1)] == [
        "",
        "stale",
        "",
    ]


# --- OVERWRITE ------------------------------------------------------------------------------------


@pytest.mark.rule("Flags of a request: 5 OVERWRITE", "Functions: 4 DELETE")
def test_overwrite_leaves_no_tombstone(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.delete(b"p", at=START + 5, flags=Flag.OVERWRITE) == ""
    assert s.set(b"p", b"again", at=START) == ""


@pytest.mark.warm_only
def test_overwrite_does_not_make_an_older_delete_win(s: Subject) -> None:
    s.set(b"p", at=START)
    assert s.delete(b"p", at=START - 1, flags=Flag.OVERWRITE) == "stale"


# --- completing a job -----------------------------------------------------------------------------


@pytest.mark.rule("Flags of a request: 6 WORKED_ON", "Functions: 4 DELETE")
def test_worker_completes_its_job_with_the_token(s: Subject) -> None:
    s.set(JOB)
    assert s.delete(JOB, token=s.lease()) == ""
    assert s.value(JOB) is None


def test_worker_completes_its_job_by_the_uri_too(s: Subject) -> None:
    s.set(JOB, uri=URI)
    assert s.delete(URI, token=s.lease()) == ""
    assert s.value(JOB) is None


@pytest.mark.rule("Functions: Lease tokens (fencing tokens)")
@pytest.mark.parametrize("difference", [-1, 1, 1000])
def test_token_is_compared_for_equality(s: Subject, difference: int) -> None:
    s.set(JOB)
    token = s.lease()
    assert s.delete(JOB, token=token + difference) == "lease-lost"
    assert s.value(JOB) == b"v"


@pytest.mark.warm_only
@pytest.mark.parametrize("token", [0, START])
def test_token_for_what_is_not_worked_on_is_lease_lost(s: Subject, token: int) -> None:
    s.set(JOB)
    assert s.delete(JOB, token=token) == "lease-lost"


def test_worker_that_lost_its_lease_cannot_finish_the_job(s: Subject) -> None:
    s.set(JOB)
    first = s.lease(timeout=SECOND)
    s.later(2 * SECOND)
    second = s.lease(timeout=SECOND)
    assert s.delete(JOB, token=first) == "lease-lost"
    assert s.delete(JOB, token=second) == ""


@pytest.mark.rule("Last writer wins (timestamps, tombstones): A DELETE with a valid token")
def test_delete_with_a_token_is_never_stale(s: Subject) -> None:
    s.set(JOB, at=START)
    assert s.delete(JOB, token=s.lease(), at=START - 999 * SECOND) == ""


@pytest.mark.rule("Last writer wins (timestamps, tombstones): A DELETE with a valid token")
def test_delete_leaves_a_tombstone_with_the_later_of_both_timestamps(s: Subject) -> None:
    s.set(JOB, at=START)
    s.delete(JOB, token=s.lease(), at=START - 9)
    s.set(OTHER, at=START)
    s.delete(OTHER, token=s.lease(), at=START + 9)
    assert [s.set(JOB, at=START), s.set(JOB, at=START + 1)] == ["stale", ""]
    assert [s.set(OTHER, at=START + 9), s.set(OTHER, at=START + 10)] == ["stale", ""]


@pytest.mark.rule("Last writer wins (timestamps, tombstones): A DELETE with a valid token")
@pytest.mark.parametrize("ahead", [60 * SECOND + 1, 90 * SECOND, 2**64 - 1 - START])
def test_worker_whose_clock_is_far_ahead_completes_its_job(s: Subject, ahead: int) -> None:
    s.set(JOB, at=START)
    assert s.delete(JOB, token=s.lease(), at=START + ahead) == ""
    assert s.jobs() == []


@pytest.mark.rule("Last writer wins (timestamps, tombstones): A DELETE with a valid token")
def test_tombstone_of_a_completion_from_a_clock_far_ahead_carries_the_daemons_time(
    s: Subject,
) -> None:
    """A wrong clock must not keep a key from being set again."""
    s.set(JOB, at=START)
    s.set(OTHER, at=START + 50 * SECOND)
    for key in (JOB, OTHER):
        assert s.delete(key, token=s.lease(), at=START + 90 * SECOND) == ""
    assert [s.set(JOB, at=START), s.set(JOB, at=START + 1)] == ["stale", ""]
    late = START + 50 * SECOND
    assert [s.set(OTHER, at=late), s.set(OTHER, at=late + 1)] == ["stale", ""]


@pytest.mark.rule("Last writer wins (timestamps, tombstones): A DELETE with a valid token")
def test_completion_from_a_clock_far_ahead_is_replayed_as_it_was() -> None:
    target = EngineSubject(Rules())
    s = Subject(target)
    s.set(JOB, at=START, flags=Flag.PERSIST)
    s.delete(JOB, token=s.lease(), at=START + 90 * SECOND)
    target.restart(s.now)
    assert [s.set(JOB, at=START), s.set(JOB, at=START + 1)] == ["stale", ""]


@pytest.mark.parametrize(("flags", "timeout"), [(Flag.WORKED_ON, None), (0, START)])
def test_delete_with_only_one_of_worked_on_and_timeout_is_bad_request(
    s: Subject, flags: int, timeout: int | None
) -> None:
    s.set(JOB)
    reply = s.ask(request(Function.DELETE, JOB, flags=flags, timeout=timeout))
    assert reply.code == "bad-request"
    assert s.value(JOB) == b"v"


# --- which error, where several apply -------------------------------------------------------------


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): Precedence of errors")
def test_delete_is_not_found_before_clock_skew(s: Subject) -> None:
    assert s.delete(b"p", at=START + 999 * SECOND) == "not-found"


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): Precedence of errors")
def test_token_is_looked_at_whatever_the_timestamp(s: Subject) -> None:
    s.set(JOB)
    assert s.delete(JOB, token=1, at=START + 60 * SECOND) == "lease-lost"
    assert s.delete(JOB, token=1, at=START + 60 * SECOND + 1) == "lease-lost"
    assert s.delete(JOB, at=START + 60 * SECOND + 1) == "clock-skew"


@pytest.mark.warm_only
@pytest.mark.rule("Last writer wins (timestamps, tombstones): Precedence of errors")
def test_lease_lost_comes_before_stale(s: Subject) -> None:
    s.set(JOB, at=START)
    assert s.delete(JOB, token=1, at=START - 1) == "lease-lost"
