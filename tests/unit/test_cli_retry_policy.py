"""When a failed entry is tried again, and when it is enough."""

from __future__ import annotations

from fj_cli.retries import Retries, Verdict


def test_the_delay_doubles_up_to_its_bound() -> None:
    retries = Retries(10, 100, 0)
    assert [retries.failed(b"k", 0).delay_us for _ in range(6)] == [10, 20, 40, 80, 100, 100]
    assert retries.failed(b"other", 0) == Verdict(1, 10, False)


def test_leases_lost_elsewhere_count_as_attempts() -> None:
    retries = Retries(10, 10_000, 4)
    assert retries.attempts(b"k", 2) == 2
    assert retries.failed(b"k", 2) == Verdict(3, 40, False)
    assert retries.attempts(b"k", 2) == 3
    assert retries.failed(b"k", 2) == Verdict(4, 80, True)


def test_one_attempt_may_be_enough_and_zero_means_never() -> None:
    assert Retries(10, 100, 1).failed(b"k", 0).enough
    never = Retries(10, 100, 0)
    assert not any(never.failed(b"k", 1000).enough for _ in range(1000))


def test_what_is_done_starts_afresh() -> None:
    retries = Retries(10, 100, 2)
    retries.failed(b"k", 0)
    retries.forget(b"k")
    retries.forget(b"never seen")
    assert retries.failed(b"k", 0) == Verdict(1, 10, False)


def test_the_memory_is_bounded_and_the_longest_untouched_goes_first() -> None:
    retries = Retries(10, 100, 0)
    for n in range(100_001):
        retries.failed(b"%d" % n, 0)
        if n == 50:
            retries.failed(b"0", 0)
    assert retries.attempts(b"0", 0) == 2
    assert retries.attempts(b"1", 0) == 0
    assert retries.attempts(b"2", 0) == 1
