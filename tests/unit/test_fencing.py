"""Fencing: whoever has lost a lease changes nothing with its token, whatever it asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastjournal.protocol.constants import Flag, State
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"
LEASE = 10 * SECOND

By = Callable[[Subject, bytes, int], str]

FUNCTIONS: dict[str, By] = {
    "touch": lambda s, key, token: s.touch(key, token, ttl=LEASE).code,
    "release": lambda s, key, token: s.release(key, token),
    "bury": lambda s, key, token: s.bury(key, token, b"why"),
    "delete": lambda s, key, token: s.delete(key, token=token, at=s.now),
}


@pytest.fixture
def engine() -> Subject:
    return Subject(EngineSubject(Rules()))


@pytest.fixture(params=FUNCTIONS.values(), ids=FUNCTIONS)
def ask(request: pytest.FixtureRequest) -> By:
    by: By = request.param
    return by


def leased(s: Subject, key: bytes = JOB, **fields: object) -> int:
    """SET a job and lease it; return the token."""
    assert s.set(key, **fields) == ""
    return lease(s)


def lease(s: Subject) -> int:
    return s.lease(timeout=LEASE)


def assert_lost(s: Subject, ask: By, token: int) -> None:
    """The token does nothing, neither now nor for whoever holds the lease."""
    before = s.meta(JOB)
    assert ask(s, JOB, token) == "lease-lost"
    assert s.meta(JOB) == before


def test_holder_of_the_lease_may(s: Subject, ask: By) -> None:
    assert ask(s, JOB, leased(s)) == ""


def test_fencing_holds_up_to_the_last_microsecond(s: Subject, ask: By) -> None:
    token = leased(s)
    s.now = token - 1
    assert ask(s, JOB, token) == ""


def test_fencing_holds_by_a_further_key_too(s: Subject, ask: By) -> None:
    token = leased(s, uri=URI)
    assert ask(s, URI, token + 1) == "lease-lost"
    assert ask(s, URI, token) == ""


@pytest.mark.parametrize("late", [0, 1, 3600 * SECOND])
def test_lease_that_is_over_is_lost(s: Subject, ask: By, late: int) -> None:
    token = leased(s)
    s.now = token + late
    assert_lost(s, ask, token)


@pytest.mark.rule("Errors: `lease-lost`")
def test_lease_that_went_to_somebody_else_is_lost(s: Subject, ask: By) -> None:
    slow = leased(s)
    s.now = slow
    quick = lease(s)
    assert_lost(s, ask, slow)
    assert ask(s, JOB, quick) == ""


def test_fencing_holds_where_both_leases_end_in_the_same_millisecond(s: Subject, ask: By) -> None:
    slow = leased(s)
    s.release(JOB, slow)
    quick = lease(s)
    assert quick // 1000 == slow // 1000
    assert_lost(s, ask, slow)
    assert ask(s, JOB, quick) == ""


def test_fencing_holds_where_a_set_came_between_and_the_counter_comes_round(
    engine: Subject, ask: By
) -> None:
    slow = leased(engine)
    assert engine.set(JOB, b"new", flags=Flag.OVERWRITE, at=START + 1) == ""
    assert isinstance(engine.target, EngineSubject)
    engine.target.engine.context.tokens.count = slow % 1000
    quick = lease(engine)
    assert_lost(engine, ask, slow)
    assert ask(engine, JOB, quick) == ""


def test_token_of_another_entry_is_none_of_this_one(s: Subject, ask: By) -> None:
    s.set(JOB)
    s.set(OTHER)
    mine, others = lease(s), lease(s)
    assert_lost(s, ask, others)
    assert ask(s, JOB, mine) == ""


def test_entries_of_one_reply_share_a_token_and_each_needs_its_own_end(s: Subject, ask: By) -> None:
    s.set(JOB)
    s.set(OTHER)
    token = s.lease(timeout=LEASE, count=2)
    assert ask(s, OTHER, token) == ""
    assert s.meta(JOB).worked_on_until_us == token
    assert ask(s, JOB, token) == ""


def test_extension_takes_the_token_before_it_away(s: Subject, ask: By) -> None:
    first = leased(s)
    second = s.touch(JOB, first, ttl=LEASE).timeout
    assert second is not None
    if ask is FUNCTIONS["touch"]:
        # a repeat of the extension: it says which token stands, and changes nothing
        before = s.meta(JOB)
        assert ask(s, JOB, first) == ""
        assert s.meta(JOB) == before
        return
    assert_lost(s, ask, first)
    assert ask(s, JOB, second) == ""


@pytest.mark.parametrize("end", ["release", "bury"])
def test_token_of_a_released_or_buried_entry_is_lost(s: Subject, ask: By, end: str) -> None:
    token = leased(s)
    assert FUNCTIONS[end](s, JOB, token) == ""
    assert_lost(s, ask, token)


def test_set_over_the_entry_takes_the_lease_away(s: Subject, ask: By) -> None:
    token = leased(s)
    s.later(1)
    s.set(JOB, b"new", flags=Flag.OVERWRITE, at=s.now)
    assert_lost(s, ask, token)
    assert ask(s, JOB, lease(s)) == ""


def test_repeated_set_takes_nothing_away(s: Subject, ask: By) -> None:
    token = leased(s)
    assert s.set(JOB) == ""
    assert ask(s, JOB, token) == ""


def test_fencing_after_burial_and_kick_counts_only_the_new_lease(s: Subject, ask: By) -> None:
    slow = leased(s)
    s.bury(JOB)
    assert_lost(s, ask, slow)
    s.kick(JOB)
    assert_lost(s, ask, slow)
    quick = lease(s)
    assert_lost(s, ask, slow)
    assert ask(s, JOB, quick) == ""


def test_newer_work_for_the_same_uri_leaves_the_lease_to_its_holder(s: Subject, ask: By) -> None:
    token = leased(s, uri=URI)
    s.later(1)
    s.set(OTHER, uri=URI, at=s.now)
    assert ask(s, OTHER, token) == "lease-lost"
    assert ask(s, JOB, token) == ""


def test_token_of_a_deleted_entry_does_not_hold_for_its_successor(s: Subject, ask: By) -> None:
    token = leased(s)
    s.later(1)
    s.delete(JOB, at=s.now)
    assert ask(s, JOB, token) == "not-found"
    s.later(1)
    s.set(JOB, at=s.now)
    assert_lost(s, ask, token)


@pytest.mark.parametrize("token", [0, 1, 2**64 - 1])
def test_token_of_an_entry_without_lease_does_not_exist(s: Subject, ask: By, token: int) -> None:
    s.set(JOB)
    assert_lost(s, ask, token)


def test_lease_by_get_counts_like_one_by_next(s: Subject, ask: By) -> None:
    s.set(b"p")
    token = s.get(b"p", timeout=LEASE).timeout
    assert token is not None
    assert ask(s, b"p", token + 1) == "lease-lost"
    assert ask(s, b"p", token) == ""


# --- attempts -------------------------------------------------------------------------------------


def test_attempts_count_leases_that_ran_out_and_nothing_else(s: Subject) -> None:
    token = leased(s)
    s.release(JOB, token)
    s.touch(JOB, lease(s), ttl=LEASE)
    s.bury(JOB)
    s.kick(JOB)
    assert s.meta(JOB).attempts == 0
    s.now = lease(s)
    assert s.meta(JOB).attempts == 1


def test_fencing_excludes_the_last_worker_after_the_burial_at_max_attempts(
    s: Subject, ask: By
) -> None:
    s = s.under(attempts_max=3)
    s.set(JOB)
    for attempts in (1, 2, 3):
        s.now = token = lease(s)
        meta = s.meta(JOB)
        assert (meta.attempts, bool(meta.state & State.BURIED)) == (attempts, attempts == 3)
    assert s.stats(JOB, flags=Flag.DATA)["state"] == "buried"
    assert_lost(s, ask, token)


# --- restarts -------------------------------------------------------------------------------------


def restart(s: Subject) -> None:
    assert isinstance(s.target, EngineSubject)
    s.target.restart(s.now)


def test_restart_keeps_the_lease(engine: Subject, ask: By) -> None:
    token = leased(engine, flags=Flag.PERSIST)
    restart(engine)
    assert ask(engine, JOB, token + 1) == "lease-lost"
    assert ask(engine, JOB, token) == ""


def test_restart_keeps_an_extension(engine: Subject, ask: By) -> None:
    first = leased(engine, flags=Flag.PERSIST)
    second = engine.touch(JOB, first, ttl=2 * LEASE).timeout
    assert second is not None
    restart(engine)
    assert_lost(engine, ask, first)
    assert ask(engine, JOB, second) == ""


def test_lease_that_ended_while_the_daemon_was_down_is_lost(engine: Subject, ask: By) -> None:
    token = leased(engine, flags=Flag.PERSIST)
    engine.now = token
    restart(engine)
    assert_lost(engine, ask, token)
    assert engine.meta(JOB).attempts == 1


def test_restart_forgets_no_loss(engine: Subject, ask: By) -> None:
    slow = leased(engine, flags=Flag.PERSIST)
    engine.release(JOB, slow)
    restart(engine)
    quick = lease(engine)
    restart(engine)
    assert quick // 1000 == slow // 1000
    assert_lost(engine, ask, slow)
    assert ask(engine, JOB, quick) == ""


@pytest.mark.rule("Functions: Lease tokens (fencing tokens)")
def test_counter_of_tokens_goes_on_over_a_restart(engine: Subject) -> None:
    token = leased(engine, flags=Flag.PERSIST)
    for _ in range(5):
        engine.release(JOB, token)
        restart(engine)
        again = lease(engine)
        assert again == token + 1
        token = again


def test_burial_and_kick_outlast_restarts(engine: Subject, ask: By) -> None:
    slow = leased(engine, flags=Flag.PERSIST, at=START)
    engine.bury(JOB, slow, b"why")
    restart(engine)
    assert engine.stats(JOB, flags=Flag.DATA)["buried_reason"] == "why"
    assert_lost(engine, ask, slow)
    engine.bury(JOB, reason=b"other")
    restart(engine)
    assert engine.stats(JOB, flags=Flag.DATA)["buried_reason"] == "other"
    assert engine.kick_domain(b"a") == 1
    restart(engine)
    assert_lost(engine, ask, slow)
    assert ask(engine, JOB, lease(engine)) == ""
