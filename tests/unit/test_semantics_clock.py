"""Steps of the clock: what lasts for a time lasts for it, and instants stay, by example."""

from __future__ import annotations

from typing import Any

import pytest

from fastjournal.protocol.constants import Flag, Function, ValueType
from tests.property.model_parts import Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject, request
from tests.unit.test_semantics_listen import ME, Listening

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"
HOURS = 7200 * SECOND


# --- a step ahead, as where the machine was suspended ---------------------------------------------


@pytest.mark.parametrize("step", [HOURS, -HOURS], ids=["ahead", "back"])
def test_lease_is_renewed_and_completed_with_its_token_behind_a_step(s: Subject, step: int) -> None:
    for key in (JOB, OTHER):
        s.set(key)
    token = s.lease(timeout=5 * SECOND, count=2)
    s.later(4 * SECOND)
    s.clock_steps(step)
    renewed = s.touch(JOB, token, ttl=5 * SECOND)
    assert renewed.error == ""
    assert renewed.timeout is not None
    assert s.now + 5 * SECOND <= renewed.timeout < s.now + 5 * SECOND + 2000
    assert s.delete(OTHER, token=token) == ""
    s.later(5 * SECOND)
    assert s.delete(JOB, token=renewed.timeout) == ""


def test_lease_over_by_the_clock_that_stepped_back_is_lost(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=5 * SECOND)
    s.clock_steps(-HOURS)
    s.now = token - HOURS
    assert s.delete(JOB, token=token) == "lease-lost", "though its token is an instant to come"


def test_lease_of_the_last_attempt_outlives_a_step_ahead_unburied(s: Subject) -> None:
    s = s.under(attempts_max=1)
    keys = [b"a:1:0:%d" % n for n in range(3)]
    for key in keys:
        s.set(key)
    token = s.lease(timeout=5 * SECOND, count=3)
    s.clock_steps(HOURS)
    assert s.stats()["buried"] == 0
    assert [s.delete(key, token=token) for key in keys] == ["", "", ""]


def test_repeated_touch_of_a_moved_lease_gets_a_token_that_is_its_end(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=5 * SECOND)
    s.touch(JOB, token, ttl=60 * SECOND)
    s.clock_steps(-HOURS)
    again = s.touch(JOB, token, ttl=10 * SECOND)
    assert again.timeout is not None
    assert s.now + 10 * SECOND <= again.timeout < s.now + 10 * SECOND + 2000


def test_lock_wait_and_interval_outlive_a_step_ahead(s: Subject) -> None:
    s.ask(request(Function.LIMIT, b"a", b'{"interval_us": 10000000}', kind=ValueType.STRING))
    for key in (JOB, OTHER, b"b:1:0:x"):
        s.set(key)
    s.lock(b"b:1:0:x", 5 * SECOND)
    s.delete(JOB, token=s.lease())
    s.listen(ttl=3 * SECOND, identifier=9)
    s.clock_steps(HOURS)
    assert s.serve() == []
    assert s.set(b"b:1:0:x", flags=Flag.OVERWRITE, at=START + 1) == ""
    s.later(3 * SECOND)
    ((_, reply),) = s.serve()
    assert reply.pairs == []
    s.later(2 * SECOND)
    assert s.jobs() == [b"b:1:0:x"]
    s.later(5 * SECOND)
    assert s.jobs() == [OTHER]


# --- a step back ----------------------------------------------------------------------------------


def test_clock_set_back_lets_durations_end_in_time(s: Subject) -> None:
    for domain in b"abc":
        s.set(b"%c:1:0:x" % domain)
    s.lease(b"a", timeout=5 * SECOND)
    s.release(b"b:1:0:x", s.lease(b"b"), ttl=5 * SECOND)
    s.pause(b"c", 5 * SECOND)
    s.listen(b"d", ttl=5 * SECOND, identifier=9)
    s.later(3 * SECOND)
    s.clock_steps(-HOURS)
    s.later(2 * SECOND - 1)
    assert s.jobs() == []
    assert s.serve() == []
    s.later(1001)
    assert sorted(s.jobs(count=3)) == [b"a:1:0:x", b"b:1:0:x", b"c:1:0:x"]
    assert s.meta(b"a:1:0:x").attempts == 1
    assert len(s.serve()) == 1


def test_instant_of_a_key_comes_once_more_behind_a_step_back(s: Subject) -> None:
    early, late = b"a:1:%d:x" % (START + SECOND), b"a:1:%d:y" % (START + 20 * SECOND)
    s.set(early)
    s.set(late)
    s.later(10 * SECOND)
    s.clock_steps(-10 * SECOND)
    assert s.jobs() == []
    assert s.next().timeout == START + SECOND
    s.later(SECOND)
    assert s.jobs() == [early]
    s.now = START + 20 * SECOND
    assert s.jobs() == [late]


def test_delay_of_leased_and_buried_work_moves_too(s: Subject) -> None:
    for key in (JOB, OTHER):
        s.set(key)
        s.release(key, s.lease(), ttl=SECOND)
    s.later(2 * SECOND)
    token = s.lease()
    s.bury(OTHER)
    s.clock_steps(-HOURS)
    s.release(JOB, token)
    assert s.jobs() == [JOB]
    s.kick(OTHER)
    assert s.jobs() == [OTHER]


def test_life_that_a_ttl_began_moves_with_the_clock_and_an_instant_stays(s: Subject) -> None:
    s.set(b"ttl", ttl=10 * SECOND)
    s.set(b"instant", timeout=START + 10 * SECOND)
    s.later(SECOND)
    s.set(b"read", ttl=10 * SECOND, at=START + 1)
    s.get(b"read")
    s.set(b"touched", at=START + 2)
    s.touch(b"touched", ttl=10 * SECOND)
    s.clock_steps(-HOURS)
    assert s.meta(b"touched").expires_us == START + 11 * SECOND
    assert s.meta(b"touched").created_us == START + SECOND
    assert s.meta(b"ttl").expires_us == START + SECOND - HOURS + 10 * SECOND
    assert s.meta(b"instant").expires_us == START + 10 * SECOND
    s.later(10 * SECOND)
    assert s.value(b"instant") == b"v"


def test_tombstone_lives_for_its_time_from_a_step_back_on(s: Subject) -> None:
    s = s.under(tombstone_ttl_us=60 * SECOND)
    long_ago = START - 2 * HOURS
    s.set(b"k", at=long_ago)
    s.delete(b"k", at=long_ago + 1)
    s.clock_steps(-HOURS)
    s.later(60 * SECOND - 1)
    assert s.set(b"k", at=long_ago) == "stale"
    s.later(1)
    assert s.set(b"k", at=long_ago) == ""


@pytest.mark.parametrize("step", [HOURS, -HOURS], ids=["ahead", "back"])
def test_newer_work_waits_for_a_moved_lease_on_its_uri(s: Subject, step: int) -> None:
    s.set(JOB, uri=URI)
    token = s.lease(timeout=5 * SECOND)
    s.set(OTHER, uri=URI, at=START + 1)
    s.clock_steps(step)
    assert s.next().timeout == token + step
    s.now = token + step
    assert s.jobs() == [OTHER]
    assert s.value(JOB) is None


# --- a clock that was ahead, and set right before a start -----------------------------------------


def restarted(s: Subject, step: int) -> Subject:
    """Kill the daemon, set the clock, and start it."""
    s.now += step
    s.target.restart(s.now)
    return s


@pytest.fixture
def kept() -> Subject:
    """An engine to which all writes are persistent."""
    return Subject(EngineSubject(Rules(attempts_max=2)))


def keep(s: Subject, key: bytes, **fields: Any) -> None:
    assert s.set(key, flags=Flag.PERSIST, **fields) == ""


def test_lease_that_was_renewed_ahead_begins_anew_from_there(kept: Subject) -> None:
    s = kept
    keep(s, JOB)
    s.touch(JOB, s.lease(timeout=5 * SECOND), ttl=20 * SECOND)
    restarted(s, -HOURS)
    s.later(20 * SECOND - 1)
    assert s.jobs() == []
    s.later(1002)
    assert s.jobs() == [JOB]


@pytest.mark.parametrize("kicked", [False, True])
def test_delay_of_a_clock_that_was_ahead_begins_anew(kept: Subject, kicked: bool) -> None:
    s = kept
    keep(s, JOB)
    s.release(JOB, s.lease(), ttl=5 * SECOND)
    if kicked:
        # it stands in the record of the entry itself from now on
        s.bury(JOB)
        s.kick(JOB)
    restarted(s, -HOURS)
    assert s.next().timeout == s.now + 5 * SECOND
    restarted(s, 0)
    s.later(5 * SECOND)
    assert s.jobs() == [JOB]


def test_instant_of_a_key_stays_at_a_start_behind_a_clock_that_was_ahead(kept: Subject) -> None:
    s = kept
    key = b"a:1:%d:x" % START
    keep(s, key)
    s.release(key, s.lease(), ttl=5 * SECOND)
    restarted(s, -HOURS)
    assert s.next().timeout == START


def test_expiry_of_a_clock_that_was_ahead_begins_anew_and_an_instant_stays(kept: Subject) -> None:
    s = kept
    for key in (b"touched", b"asked"):
        keep(s, key)
    keep(s, b"ttl", ttl=10 * SECOND)
    keep(s, b"given", timeout=START + 10 * SECOND)
    s.touch(b"touched", ttl=10 * SECOND)
    s.get(b"asked", flags=Flag.UPDATE_TIMEOUT, timeout=START + 10 * SECOND)
    s.pause(b"a", 10 * SECOND)
    s.later(SECOND)
    restarted(s, -HOURS)
    assert s.meta(b"touched").expires_us == s.now + 10 * SECOND
    assert s.meta(b"ttl").expires_us == s.now + 10 * SECOND
    assert s.stats(b"a")["paused_until"] == s.now + 10 * SECOND
    for key in (b"asked", b"given"):
        assert s.meta(key).expires_us == START + 10 * SECOND


def test_lease_that_a_step_moved_is_returned_at_a_start_behind_its_end(kept: Subject) -> None:
    s = kept
    for key in (JOB, b"b:1:0:x"):
        keep(s, key)
    s.lease(b"a", timeout=5 * SECOND)
    s.clock_steps(HOURS)
    s.lease(b"b", timeout=5 * SECOND)
    s.later(10 * SECOND)
    restarted(s, 0)
    assert s.meta(JOB).attempts == 0, "its worker could not renew it"
    assert s.jobs(b"b") == [b"b:1:0:x"]
    assert s.meta(b"b:1:0:x").attempts == 1, "this one was lost as ever"
    restarted(s, 0)
    assert s.meta(JOB).attempts == 0


# --- subscriptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [HOURS, -HOURS], ids=["ahead", "back"])
def test_subscription_lasts_behind_a_step_and_tells_what_changes(step: int) -> None:
    s = Listening()
    s.set(JOB, at=START - HOURS)
    assert s.listen_to(JOB).code == ""
    for number in (1, 2):
        assert s.set(JOB, at=START - HOURS + number, flags=Flag.OVERWRITE) == ""
        assert [reply.code for reply in s.notifications(ME)] == [""]
        s.clock_steps(step)
        s.later(SECOND)
