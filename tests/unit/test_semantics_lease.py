"""Leases, RELEASE and TOUCH: every sentence of docs/protocol.md about them, by example."""

from __future__ import annotations

import pytest

from fastjournal.protocol.constants import Flag, Function, State
from tests.property.model_parts import U64_MAX
from tests.property.subject import SECOND, START, Subject, request

JOB = b"a:1:0:x"
OTHER = b"a:1:0:y"
URI = b"http://example.org/"


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.rule("Functions: Lease tokens (fencing tokens)")
def test_token_is_the_end_of_the_lease_with_a_counter_in_its_last_digits(s: Subject) -> None:
    s.now += 123
    for n in range(3):
        s.set(b"a:1:0:%d" % n)
    first, second, third = (s.lease(timeout=10 * SECOND) for _ in range(3))
    assert first // 1000 * 1000 == START + 10 * SECOND + 1000, "rounded up"
    assert (second - first, third - second) == (1, 1)


@pytest.mark.rule("Functions: Lease tokens (fencing tokens)")
def test_counter_goes_on_modulo_1000(s: Subject) -> None:
    s.set(JOB)
    first = s.lease(timeout=10 * SECOND)
    s.release(JOB, first)
    tokens = [first]
    for _ in range(998):
        tokens.append(s.lease(timeout=10 * SECOND))
        s.release(JOB, tokens[-1])
    s.set(OTHER, flags=Flag.OVERWRITE)
    assert len({token % 1000 for token in tokens}) == 999
    assert {token // 1000 for token in tokens} == {first // 1000}


@pytest.mark.rule("Functions: Lease tokens (fencing tokens)")
def test_token_that_would_equal_the_entrys_previous_one_takes_the_next(s: Subject) -> None:
    s.set(JOB)
    first = s.lease(timeout=10 * SECOND)
    s.release(JOB, first)
    s.set(b"b:1:0:x")
    for _ in range(999):
        s.release(b"b:1:0:x", s.lease(b"b", timeout=10 * SECOND))
    again = s.lease(b"a", timeout=10 * SECOND)
    assert again == first // 1000 * 1000 + (first + 1) % 1000
    assert s.delete(JOB, token=first) == "lease-lost"


def test_next_without_work_is_no_lease_operation(s: Subject) -> None:
    s.set(JOB)
    s.set(OTHER)
    first = s.lease(timeout=10 * SECOND)
    s.next(b"none", timeout=10 * SECOND)
    s.get(b"missing", timeout=10 * SECOND)
    assert s.lease(timeout=10 * SECOND) == first + 1


@pytest.mark.rule("Last writer wins (timestamps, tombstones): The last instant")
def test_lease_beyond_the_last_instant_ends_with_it(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=U64_MAX)
    assert U64_MAX - 2000 < token <= U64_MAX
    assert s.delete(JOB, token=token) == ""


# --- the end of a lease ---------------------------------------------------------------------------


def test_lease_ends_at_its_token_and_not_before(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=SECOND)
    s.now = token - 1
    assert s.jobs() == []
    s.now = token
    assert s.jobs() == [JOB]


@pytest.mark.rule("Metadata block, 68 bytes: 66 attempts", "NEXT: Lost lease")
def test_lease_that_runs_out_returns_the_entry_attempts_one_higher(s: Subject) -> None:
    s.set(JOB, at=START)
    s.set(OTHER, at=START)
    for attempts in (1, 2):
        s.lease(timeout=SECOND)
        s.later(2 * SECOND)
        meta = s.meta(JOB)
        assert (meta.attempts, meta.worked_on_until_us, meta.timestamp_us) == (attempts, 0, START)
    assert s.jobs(count=2) == [JOB, OTHER]


@pytest.mark.rule("NEXT: Lost lease")
def test_lease_that_ends_at_max_attempts_buries_the_entry(s: Subject) -> None:
    s = s.under(attempts_max=2)
    s.set(JOB)
    for buried in (False, True):
        s.lease(timeout=SECOND)
        s.later(2 * SECOND)
        assert bool(s.meta(JOB).state & State.BURIED) is buried
    assert s.jobs() == []


def test_lease_that_ends_without_max_attempts_never_buries(s: Subject) -> None:
    s.set(JOB)
    for _ in range(50):
        s.lease(timeout=SECOND)
        s.later(2 * SECOND)
    meta = s.meta(JOB)
    assert (meta.attempts, meta.state & State.BURIED) == (50, 0)


def test_plain_entrys_lease_runs_out_too(s: Subject) -> None:
    s.set(b"p")
    s.get(b"p", timeout=SECOND)
    s.later(2 * SECOND)
    meta = s.meta(b"p")
    assert (meta.attempts, meta.worked_on_until_us) == (1, 0)


@pytest.mark.rule("NEXT: Lost lease")
def test_plain_entry_is_not_buried_for_its_attempts(s: Subject) -> None:
    s = s.under(attempts_max=1)
    s.set(b"p")
    s.get(b"p", timeout=SECOND)
    s.later(2 * SECOND)
    assert s.get(b"p", timeout=SECOND).code == ""


@pytest.mark.rule("Last writer wins (timestamps, tombstones): A leased entry does not expire")
def test_entry_worked_on_does_not_expire_before_its_lease_ends(s: Subject) -> None:
    s.set(JOB, timeout=START + SECOND)
    token = s.lease(timeout=10 * SECOND)
    s.later(5 * SECOND)
    assert s.value(JOB) == b"v"
    s.now = token
    assert s.value(JOB) is None


def test_expired_entry_that_is_released_is_gone(s: Subject) -> None:
    s.set(JOB, timeout=START + SECOND)
    token = s.lease(timeout=10 * SECOND)
    s.later(5 * SECOND)
    assert s.release(JOB, token) == ""
    assert s.jobs() == []
    assert s.value(JOB) is None


def test_job_can_be_completed_after_its_expiry(s: Subject) -> None:
    s.set(JOB, timeout=START + SECOND)
    token = s.lease(timeout=10 * SECOND)
    s.later(5 * SECOND)
    assert s.delete(JOB, token=token) == ""


# --- RELEASE --------------------------------------------------------------------------------------


@pytest.mark.rule("Functions: 13 RELEASE")
@pytest.mark.parametrize("by", [JOB, URI])
def test_released_entry_is_ready_again_with_attempts_and_arrival_kept(
    s: Subject, by: bytes
) -> None:
    s.set(JOB, uri=URI, at=START)
    s.set(OTHER, at=START)
    s.lease(timeout=SECOND)
    s.later(2 * SECOND)
    assert s.release(by, s.lease(), at=START + 9) == ""
    meta = s.meta(JOB)
    assert (meta.attempts, meta.worked_on_until_us, meta.timestamp_us) == (1, 0, START)
    assert s.jobs(count=2) == [JOB, OTHER]


@pytest.mark.rule("Flags of a request: 14 TTL", "Functions: 13 RELEASE")
def test_release_with_ttl_is_not_before_now_plus_ttl(s: Subject) -> None:
    s.set(JOB)
    assert s.release(JOB, s.lease(), ttl=SECOND) == ""
    assert s.meta(JOB).not_before_us == START + SECOND
    assert s.next().timeout == START + SECOND
    s.later(SECOND)
    assert s.jobs() == [JOB]


@pytest.mark.rule("NEXT: After a RELEASE with ttl the end of that delay")
def test_release_never_makes_work_start_before_its_timestamp(s: Subject) -> None:
    key = b"a:1:%d:x" % (START + 60 * SECOND)
    s.set(key)
    token = s.get(key, timeout=SECOND).timeout
    assert token is not None
    s.release(key, token, ttl=SECOND)
    assert s.meta(key).not_before_us == START + 60 * SECOND


def test_release_without_ttl_keeps_a_delay_that_still_runs(s: Subject) -> None:
    s.set(JOB)
    s.release(JOB, s.lease(), ttl=60 * SECOND)
    token = s.get(JOB, timeout=SECOND).timeout
    assert token is not None
    s.release(JOB, token)
    assert s.next().timeout == START + 60 * SECOND


@pytest.mark.rule("NEXT: After a RELEASE with ttl the end of that delay")
def test_delayed_entry_has_its_place_by_the_end_of_its_delay(s: Subject) -> None:
    later = b"a:1:%d:z" % (START + 2 * SECOND)
    for key in (JOB, OTHER, later):
        s.set(key)
    s.release(JOB, s.lease(), ttl=SECOND)
    s.later(3 * SECOND)
    assert s.jobs(count=3) == [OTHER, JOB, later]


def test_released_plain_entry_has_no_delay(s: Subject) -> None:
    s.set(b"p")
    token = s.get(b"p", timeout=SECOND).timeout
    assert token is not None
    assert s.release(b"p", token, ttl=SECOND) == ""
    assert s.meta(b"p").not_before_us == 0


@pytest.mark.warm_only
@pytest.mark.rule("Functions: Bad arguments")
@pytest.mark.parametrize(
    ("flags", "timeout"), [(0, None), (Flag.WORKED_ON, None), (0, START), (Flag.OVERWRITE, START)]
)
def test_release_needs_a_token(s: Subject, flags: int, timeout: int | None) -> None:
    s.set(JOB)
    reply = s.ask(request(Function.RELEASE, JOB, flags=flags, timeout=timeout))
    assert reply.code == "bad-request"


@pytest.mark.warm_only
@pytest.mark.parametrize("token", [0, 1])
def test_release_of_what_is_not_worked_on_is_lease_lost(s: Subject, token: int) -> None:
    s.set(JOB)
    assert s.release(JOB, token) == "lease-lost"


def test_release_with_another_token_is_lease_lost(s: Subject) -> None:
    s.set(JOB)
    token = s.lease()
    assert s.release(JOB, token + 1) == "lease-lost"
    assert s.delete(JOB, token=token) == ""


@pytest.mark.warm_only
def test_release_of_nothing_is_not_found(s: Subject) -> None:
    assert s.release(JOB, 1) == "not-found"


@pytest.mark.warm_only
@pytest.mark.parametrize("key", [b"", b"k" * 4097])
def test_empty_or_oversize_key_is_bad_key(s: Subject, key: bytes) -> None:
    assert s.release(key, 1) == "bad-key"
    assert s.touch(key, 1, ttl=1).code == "bad-key"
    assert s.touch(key, ttl=1).code == "bad-key"


# --- TOUCH ----------------------------------------------------------------------------------------


@pytest.mark.rule("Functions: 14 TOUCH")
def test_touch_with_a_token_moves_the_end_of_the_lease(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=SECOND)
    reply = s.touch(JOB, token, ttl=10 * SECOND)
    assert (reply.error, reply.pairs) == ("", None)
    assert reply.timeout is not None
    assert reply.timeout // 1000 == (START + 10 * SECOND) // 1000
    assert s.meta(JOB).worked_on_until_us == reply.timeout
    s.later(5 * SECOND)
    assert s.next().timeout == reply.timeout
    assert s.delete(JOB, token=token) == "lease-lost"
    assert s.delete(JOB, token=reply.timeout) == ""


def test_touch_is_a_lease_operation(s: Subject) -> None:
    s.set(JOB)
    first = s.lease(timeout=SECOND)
    second = s.touch(JOB, first, ttl=SECOND).timeout
    assert second == first + 1


@pytest.mark.rule("Functions: a TOUCH with the token that the lease had before its last TO")
def test_touch_repeated_with_the_token_before_changes_nothing_that_lasts_as_long(
    s: Subject,
) -> None:
    s.set(JOB)
    first = s.lease(timeout=SECOND)
    second = s.touch(JOB, first, ttl=9 * SECOND).timeout
    assert second is not None
    assert s.touch(JOB, first, ttl=9 * SECOND).timeout == second
    s.later(3 * SECOND)
    assert s.touch(JOB, first, ttl=6 * SECOND).timeout == second
    assert s.meta(JOB).worked_on_until_us == second
    # all else needs the token that stands
    assert s.delete(JOB, token=first) == s.release(JOB, first) == "lease-lost"
    third = s.touch(JOB, second, ttl=9 * SECOND).timeout
    assert s.touch(JOB, first, ttl=SECOND).code == "lease-lost"
    assert s.touch(JOB, second, ttl=SECOND).timeout == third
    s.later(20 * SECOND)
    assert s.touch(JOB, second, ttl=SECOND).code == "lease-lost"


@pytest.mark.rule("Functions: a TOUCH with the token that the lease had before its last TO")
@pytest.mark.parametrize("length", [9 * SECOND, 3600 * SECOND])
def test_touch_repeated_is_carried_out_where_the_lease_would_end_before(
    s: Subject, length: int
) -> None:
    s.set(JOB)
    first = s.lease(timeout=SECOND)
    second = s.touch(JOB, first, ttl=9 * SECOND).timeout
    assert second is not None
    s.later(3 * SECOND)
    third = s.touch(JOB, first, ttl=length).timeout
    assert third is not None
    assert third // 1000 == (s.now + length) // 1000
    assert s.meta(JOB).worked_on_until_us == third
    s.later(3 * SECOND)
    # that reply may be lost too; and the one before may come after all
    fourth = s.touch(JOB, first, ttl=length).timeout
    assert fourth is not None
    assert fourth // 1000 == (s.now + length) // 1000
    fifth = s.touch(JOB, third, ttl=2 * length).timeout
    assert fifth is not None
    assert fifth > fourth
    assert s.touch(JOB, third, ttl=SECOND).timeout == fifth
    # who has shown a newer token has no older one to repeat
    assert s.touch(JOB, first, ttl=SECOND).code == "lease-lost"
    assert s.touch(JOB, second, ttl=SECOND).code == "lease-lost"
    for lost in (first, second, third, fourth):
        assert s.delete(JOB, token=lost) == "lease-lost"
    assert s.delete(JOB, token=fifth) == ""


@pytest.mark.rule("Functions: a lease token is no secret")
def test_lease_token_is_in_metadata_and_stats(s: Subject) -> None:
    s.set(JOB)
    token = s.lease(timeout=SECOND)
    assert s.meta(JOB).worked_on_until_us == token
    assert s.stats(JOB, flags=Flag.DATA)["worked_on_until"] == token


def test_touch_with_a_token_of_an_earlier_lease_is_no_repeat(s: Subject) -> None:
    s.set(JOB)
    first = s.lease(timeout=SECOND)
    second = s.touch(JOB, first, ttl=9 * SECOND).timeout
    assert second is not None
    assert s.release(JOB, second) == ""
    assert s.touch(JOB, first, ttl=SECOND).code == "lease-lost"
    third = s.lease(timeout=SECOND)
    for token in (first, second):
        assert s.touch(JOB, token, ttl=SECOND).code == "lease-lost"
    s.touch(JOB, third, ttl=SECOND)
    for token in (first, second):
        assert s.touch(JOB, token, ttl=SECOND).code == "lease-lost"


def test_touch_can_shorten_a_lease(s: Subject) -> None:
    s.set(JOB)
    s.touch(JOB, s.lease(), ttl=SECOND)
    s.later(2 * SECOND)
    assert s.meta(JOB).attempts == 1
    assert s.jobs() == [JOB]


@pytest.mark.rule("Functions: 14 TOUCH")
def test_touch_without_a_token_makes_the_expiry_now_plus_ttl(s: Subject) -> None:
    s.set(b"p", at=START - 5)
    s.later(9)
    reply = s.touch(b"p", ttl=SECOND)
    assert (reply.error, reply.timeout, reply.pairs) == ("", None, None)
    meta = s.meta(b"p")
    assert (meta.expires_us, meta.ttl_us) == (START + 9 + SECOND, 0)
    assert (meta.timestamp_us, meta.modified_us) == (START - 5, START)


def test_touch_without_a_token_can_bring_the_expiry_forward(s: Subject) -> None:
    s.set(b"p", timeout=START + 60 * SECOND)
    s.touch(b"p", ttl=SECOND)
    s.later(SECOND)
    assert s.value(b"p") is None


@pytest.mark.rule("Errors: `bad-request`", "Functions: Bad arguments")
def test_touch_without_ttl_is_bad_request(s: Subject) -> None:
    s.set(JOB)
    assert s.touch(JOB).code == "bad-request"
    assert s.touch(JOB, s.lease()).code == "bad-request"


@pytest.mark.warm_only
@pytest.mark.rule("Functions: Bad arguments")
@pytest.mark.parametrize(("flags", "timeout"), [(Flag.WORKED_ON, None), (0, START)])
def test_lease_with_only_one_of_worked_on_and_timeout_is_bad_request(
    s: Subject, flags: int, timeout: int | None
) -> None:
    s.set(JOB)
    reply = s.ask(request(Function.TOUCH, JOB, flags=flags, timeout=timeout, ttl=1))
    assert reply.code == "bad-request"


@pytest.mark.parametrize("token", [0, 1])
def test_touch_with_a_wrong_token_is_lease_lost(s: Subject, token: int) -> None:
    s.set(JOB)
    assert s.touch(JOB, token, ttl=1).code == "lease-lost"
    s.lease()
    assert s.touch(JOB, token, ttl=1).code == "lease-lost"


@pytest.mark.warm_only
def test_touch_of_nothing_is_not_found(s: Subject) -> None:
    assert s.touch(JOB, 1, ttl=1).code == "not-found"
    assert s.touch(JOB, ttl=1).code == "not-found"


@pytest.mark.parametrize("function", [Function.RELEASE, Function.TOUCH])
def test_release_and_touch_do_not_look_at_the_timestamp(s: Subject, function: Function) -> None:
    s.set(JOB, at=START)
    for at in (0, START + 999 * SECOND):
        token = s.lease()
        reply = s.ask(request(function, JOB, flags=Flag.WORKED_ON, timeout=token, ttl=0, at=at))
        assert reply.error == ""
        s.later(SECOND)
