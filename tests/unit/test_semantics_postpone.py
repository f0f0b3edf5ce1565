"""max-postpone: every sentence of docs/protocol.md about it, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag
from tests.property.model import Model
from tests.property.model_parts import U64_MAX, Rules
from tests.property.subject import SECOND, START, EngineSubject, Subject

URI = b"http://example.org/"
BOUND = 10 * SECOND


@pytest.fixture(params=[EngineSubject, Model], ids=["engine", "model"])
def s(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param(Rules(postpone_us_max=BOUND)))


def put_off(s: Subject, due: int, *, name: bytes = b"x", flags: int = 0) -> bytes:
    """SET work on the URI that is due so long after START."""
    s.later(1)
    key = b"a:1:%d:%s" % (START + due, name)
    assert s.set(key, uri=URI, at=s.now, flags=flags) == ""
    return key


def again(s: Subject, *, after: int = 1, delay: int = BOUND, flags: int = 0) -> bytes:
    """SET work on the URI, some time later, with the longest delay that is short."""
    s.later(after)
    key = b"a:1:%d:again" % (s.now + delay)
    assert s.set(key, uri=URI, at=s.now, flags=flags) == ""
    return key


def test_uri_that_is_set_again_and_again_does_run(s: Subject) -> None:
    for n in range(100):
        if s.jobs():
            break
        s.later(SECOND)
        s.set(b"a:1:%d:%d" % (s.now + 5 * SECOND, n), uri=URI, at=s.now)
    else:
        pytest.fail("it never ran")
    assert s.now - START <= 6 * SECOND + BOUND


@pytest.mark.rule("Postponing (max-postpone): If a SET replaces a waiting journal entry of its URI")
def test_sets_put_off_waiting_work_by_the_bound_at_most(s: Subject) -> None:
    put_off(s, SECOND)
    key = again(s, after=5 * SECOND)
    assert s.meta(key).not_before_us == START + SECOND + BOUND
    assert s.next().timeout == START + SECOND + BOUND
    s.now = START + SECOND + BOUND
    assert s.jobs() == [key]


@pytest.mark.rule("Postponing (max-postpone): If a SET replaces a waiting journal entry of its URI")
def test_bound_counts_from_the_first_due_time_of_the_chain(s: Subject) -> None:
    for due in (SECOND, 5 * SECOND, 9 * SECOND):
        assert s.meta(put_off(s, due)).not_before_us == START + due
    assert s.meta(again(s, after=5 * SECOND)).not_before_us == START + SECOND + BOUND


@pytest.mark.rule("Postponing (max-postpone): A SET with a longer delay means it")
def test_set_with_a_longer_delay_than_the_bound_means_it(s: Subject) -> None:
    put_off(s, SECOND)
    key = put_off(s, 60 * SECOND)
    assert s.meta(key).not_before_us == START + 60 * SECOND
    assert s.next().timeout == START + 60 * SECOND
    s.now = START + 60 * SECOND
    assert s.jobs() == [key]


@pytest.mark.rule("Postponing (max-postpone): A SET with a longer delay means it")
@pytest.mark.parametrize("more", [0, 1])
def test_delay_of_exactly_the_bound_is_a_short_one(s: Subject, more: int) -> None:
    put_off(s, 0)
    key = again(s, after=SECOND, delay=BOUND + more)
    assert s.meta(key).not_before_us == (s.now + BOUND + 1 if more else START + 1 + BOUND)


@pytest.mark.rule("Postponing (max-postpone): A SET with a longer delay means it")
def test_longer_delay_begins_a_new_chain(s: Subject) -> None:
    put_off(s, SECOND)
    long = s.meta(again(s, delay=60 * SECOND)).not_before_us
    s.now = long - SECOND
    soon = s.meta(again(s)).not_before_us
    assert soon == s.now + BOUND
    assert s.meta(again(s, after=5 * SECOND)).not_before_us == long + BOUND


def test_longer_delay_ends_the_chain_that_was_bounded(s: Subject) -> None:
    put_off(s, SECOND)
    assert s.meta(again(s, after=5 * SECOND)).not_before_us == START + SECOND + BOUND
    key = again(s, delay=BOUND + 1)
    assert s.meta(key).not_before_us == s.now + BOUND + 1


def test_longer_delay_and_its_chain_outlive_a_restart() -> None:
    target = EngineSubject(Rules(postpone_us_max=BOUND))
    s = Subject(target)
    put_off(s, SECOND, flags=Flag.PERSIST)
    key = again(s, delay=60 * SECOND, flags=Flag.PERSIST)
    long = s.now + 60 * SECOND
    target.restart(s.now)
    assert s.meta(key).not_before_us == long
    s.now = long + 5 * SECOND
    key = again(s, flags=Flag.PERSIST)
    target.restart(s.now)
    assert s.meta(key).not_before_us == long + BOUND


def test_work_that_names_no_instant_was_first_due_when_it_was_created(s: Subject) -> None:
    s.set(b"a:1:0:x", uri=URI)
    key = again(s, after=SECOND)
    assert s.meta(key).not_before_us == START + BOUND


def test_set_that_makes_it_due_earlier_is_obeyed(s: Subject) -> None:
    put_off(s, 30 * SECOND)
    key = put_off(s, SECOND)
    assert s.meta(key).not_before_us == START + SECOND


@pytest.mark.rule("Metadata block, 68 bytes: 56 not before")
def test_effective_instant_is_the_order_of_work(s: Subject) -> None:
    put_off(s, SECOND)
    key = again(s, after=5 * SECOND)
    before, behind = START + BOUND, START + SECOND + BOUND + 1
    for instant in (behind, before):
        s.set(b"a:1:%d:z" % instant, at=s.now)
    s.later(120 * SECOND)
    assert s.jobs(count=3) == [b"a:1:%d:z" % before, key, b"a:1:%d:z" % behind]


def test_postpone_bound_of_0_is_none(s: Subject) -> None:
    s = s.under(postpone_us_max=0)
    put_off(s, SECOND)
    assert s.meta(put_off(s, 6000 * SECOND)).not_before_us == START + 6000 * SECOND


def test_bound_beyond_the_last_instant_is_none(s: Subject) -> None:
    s = s.under(postpone_us_max=U64_MAX)
    put_off(s, SECOND)
    assert s.meta(put_off(s, 6000 * SECOND)).not_before_us == START + 6000 * SECOND


def test_postpone_needs_a_uri(s: Subject) -> None:
    s.set(b"a:1:0:x")
    s.later(1)
    key = b"a:1:%d:y" % (START + 60 * SECOND)
    s.set(key, at=s.now)
    assert s.meta(key).not_before_us == START + 60 * SECOND


def test_postpone_chain_behind_running_work_is_a_new_one(s: Subject) -> None:
    put_off(s, 0)
    s.lease(timeout=SECOND)
    key = put_off(s, 60 * SECOND)
    assert s.meta(key).not_before_us == START + 60 * SECOND
    s.now = START + 65 * SECOND
    assert s.meta(again(s)).not_before_us == START + 70 * SECOND


def test_release_starts_the_chain_anew(s: Subject) -> None:
    key = put_off(s, 0)
    s.later(5 * SECOND)
    released_at = s.now
    s.release(key, s.lease())
    assert s.meta(again(s)).not_before_us == released_at + BOUND


@pytest.mark.rule("Postponing (max-postpone): If a SET replaces a waiting journal entry of its URI")
def test_lease_that_runs_out_starts_the_chain_anew_at_its_end(s: Subject) -> None:
    put_off(s, 0)
    token = s.lease(timeout=5 * SECOND)
    s.later(7 * SECOND)
    assert s.meta(again(s)).not_before_us == token + BOUND


def test_postpone_after_a_release_with_a_delay_counts_from_its_end(s: Subject) -> None:
    key = put_off(s, 0)
    s.release(key, s.lease(), ttl=3 * SECOND)
    due = s.meta(key).not_before_us
    assert due == s.now + 3 * SECOND
    assert s.meta(again(s, after=5 * SECOND)).not_before_us == due + BOUND


@pytest.mark.rule("NEXT: After a RELEASE with ttl the end of that delay")
def test_release_with_a_delay_does_not_take_the_bound_back(s: Subject) -> None:
    put_off(s, 0)
    key = again(s)
    s.now = s.meta(key).not_before_us
    s.release(key, s.lease(), ttl=SECOND)
    assert s.meta(key).not_before_us == s.now + SECOND


def test_kick_starts_the_chain_anew(s: Subject) -> None:
    key = put_off(s, 0)
    s.bury(key)
    s.later(5 * SECOND)
    s.kick(key)
    kicked_at = s.now
    assert s.meta(again(s)).not_before_us == kicked_at + BOUND


def test_postponement_bound_of_a_buried_entry_does_not_hold_for_its_successor(s: Subject) -> None:
    key = put_off(s, 0)
    s.bury(key)
    assert s.meta(again(s)).not_before_us == s.now + BOUND


@pytest.mark.rule("Postponing (max-postpone): If a SET replaces a waiting journal entry of its URI")
def test_set_over_the_same_key_and_uri_goes_on_with_the_chain(s: Subject) -> None:
    put_off(s, SECOND)
    key = again(s, after=5 * SECOND)
    s.later(1)
    assert s.set(key, uri=URI, flags=Flag.OVERWRITE, at=s.now) == ""
    assert s.meta(key).not_before_us == START + SECOND + BOUND
    s.later(1)
    assert s.set(key, flags=Flag.OVERWRITE, at=s.now) == ""
    assert s.meta(key).not_before_us == START + SECOND + BOUND


def test_set_over_the_same_key_with_another_uri_is_other_work(s: Subject) -> None:
    put_off(s, SECOND)
    key = again(s, after=5 * SECOND)
    due = s.now + BOUND
    s.later(1)
    assert s.set(key, uri=b"other", flags=Flag.OVERWRITE, at=s.now) == ""
    assert s.meta(key).not_before_us == due


def test_plain_entries_have_no_first_due_time(s: Subject) -> None:
    s.set(b"p", uri=URI)
    assert s.meta(put_off(s, 60 * SECOND)).not_before_us == START + 60 * SECOND
    s.later(1)
    s.set(b"q", uri=URI, at=s.now)
    assert s.meta(b"q").not_before_us == 0
