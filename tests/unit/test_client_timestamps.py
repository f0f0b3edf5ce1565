"""Timestamps of writes: never the same one twice in a process."""

from __future__ import annotations

import random
import threading

from fastjournal.clock import SystemClock, TimestampSource, unique_timestamp
from fastjournal.limits import CLOCK_SKEW_US_MAX, TIMESTAMP_SLICE_US, TIMESTAMP_SLICES_MAX
from fastjournal.testing.clock import ManualClock

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


class ScriptedClock:
    def __init__(self, *instants: int) -> None:
        self._instants = list(instants)

    def now_us(self) -> int:
        return self._instants.pop(0)


def test_clock_that_stands_still_or_jumps_back_repeats_no_timestamp() -> None:
    source = TimestampSource(ScriptedClock(100, 100, 40, 102, 500))
    assert [source.next_us() for _ in range(5)] == [100, 101, 102, 103, 500]


def test_threads_share_the_source_without_repeats() -> None:
    source = TimestampSource(ScriptedClock(*([7] * 4000)))
    taken: list[list[int]] = [[] for _ in range(4)]

    def take(mine: list[int]) -> None:
        mine.extend(source.next_us() for _ in range(1000))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stamp for mine in taken for stamp in mine) == list(range(7, 4007))


def test_shared_source_follows_the_clock_of_the_machine() -> None:
    before = SystemClock().now_us()
    first, second = unique_timestamp(), unique_timestamp()
    assert before <= first < second


def test_timestamps_after_a_jump_forward_and_back_are_those_of_the_clock_again() -> None:
    clock = ManualClock(NOW)
    source = TimestampSource(clock)
    source.next_us()
    clock.instant_us = NOW + 3600 * SECOND
    assert source.next_us() == NOW + 3600 * SECOND
    clock.instant_us = NOW + 1 * SECOND
    assert source.next_us() == NOW + 1 * SECOND


def test_step_back_within_the_skew_keeps_newest_wins() -> None:
    """The daemon has the write just before, and a smaller timestamp would lose against it."""
    clock = ManualClock(NOW)
    source = TimestampSource(clock)
    clock.instant_us = NOW + CLOCK_SKEW_US_MAX
    source.next_us()
    clock.instant_us = NOW + 1
    assert source.next_us() == NOW + CLOCK_SKEW_US_MAX + 1
    assert source.next_us() == NOW + CLOCK_SKEW_US_MAX + 2


def test_clock_set_back_into_its_own_past_repeats_no_timestamp_and_stays_near() -> None:
    """An hour a day ahead, then right: each instant of the last 23 hours comes a second time."""
    clock = ManualClock(NOW)
    source = TimestampSource(clock)
    given = set()
    for _ in range(600):
        clock.instant_us += SECOND
        given.add(source.next_us())
    clock.instant_us -= 590 * SECOND
    for _ in range(1200):
        clock.instant_us += SECOND // 2
        stamp = source.next_us()
        assert stamp not in given
        assert 0 <= stamp - clock.instant_us <= TIMESTAMP_SLICE_US
        given.add(stamp)


def test_clock_that_jumps_at_random_repeats_no_timestamp_and_never_poisons_the_process() -> None:
    rng = random.Random(7)
    clock = ManualClock(NOW)
    source = TimestampSource(clock)
    given: set[int] = set()
    for _ in range(20_000):
        if rng.random() < 0.01:
            clock.instant_us = NOW + rng.randrange(-300 * SECOND, 300 * SECOND)
        clock.instant_us += rng.choice((0, 1, 17, 1000, SECOND))
        stamp = source.next_us()
        assert stamp not in given
        assert 0 <= stamp - clock.instant_us <= CLOCK_SKEW_US_MAX + TIMESTAMP_SLICE_US
        given.add(stamp)


def test_memory_of_given_timestamps_is_bounded() -> None:
    clock = ManualClock(NOW)
    source = TimestampSource(clock)
    for _ in range(TIMESTAMP_SLICES_MAX + 100):
        clock.instant_us += TIMESTAMP_SLICE_US
        source.next_us()
    assert len(source._given) == TIMESTAMP_SLICES_MAX
    clock.instant_us -= TIMESTAMP_SLICES_MAX // 2 * TIMESTAMP_SLICE_US
    assert source.next_us() == clock.instant_us + 1


class Interrupting:
    """A clock that is read in the middle of giving a timestamp, and then asks for another one."""

    def __init__(self) -> None:
        self.source = TimestampSource(self)
        self.given: list[int] = []
        self._interruptions = 3

    def now_us(self) -> int:
        if self._interruptions:
            self._interruptions -= 1
            self.given.append(self.source.next_us())
        return 1_000_000


def test_signal_handler_in_the_middle_of_giving_a_timestamp_gets_another_one() -> None:
    clock = Interrupting()
    thread = threading.Thread(
        target=lambda: clock.given.append(clock.source.next_us()), daemon=True
    )
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for itself"
    assert len(set(clock.given)) == 4
