"""Fencing: whoever has lost a lease changes nothing with its token, whatever it asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastjournal.protocol.constants import Flag
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


def test_lease_that_went_to_somebody_else_is_lost(s: Subject, ask: By) -> None:
    slow = leased(s)
    s.now = slow
    quick = lease(s)
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


def test_entries_of_one_reply_share_a_token_and_each_needs_its_own_end(s: Subject, ask: By) -> None:
    s.set(JOB)
    s.set(OTHER)
    token = s.lease(timeout=LEASE, count=2)
    assert ask(s, OTHER, token) == ""
    assert s.meta(JOB).worked_on_until_us == token
    assert ask(s, JOB, token) == ""


def test_newer_work_for_the_same_uri_leaves_the_lease_to_its_holder(s: Subject, ask: By) -> None:
    token = leased(s, uri=URI)
    s.later(1)
    s.set(OTHER, uri=URI, at=s.now)
    assert ask(s, OTHER, token) == "lease-lost"
    assert ask(s, JOB, token) == ""


@pytest.mark.parametrize("token", [0, 1, 2**64 - 1])
def test_token_of_an_entry_without_lease_does_not_exist(s: Subject, ask: By, token: int) -> None:
    s.set(JOB)
    assert_lost(s, ask, token)


# --- restarts -------------------------------------------------------------------------------------


def restart(s: Subject) -> None:
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
