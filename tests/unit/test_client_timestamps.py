"""Timestamps of writes: never the same one twice in a process."""

from __future__ import annotations

import threading

from fastjournal.clock import SystemClock, TimestampSource, unique_timestamp


class ScriptedClock:
    def __init__(self, *instants: int) -> None:
        self._instants = list(instants)

    def now_us(self) -> int:
        return self._instants.pop(0)


def test_a_clock_that_stands_still_or_jumps_back_repeats_no_timestamp() -> None:
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


def test_the_shared_source_follows_the_clock_of_the_machine() -> None:
    before = SystemClock().now_us()
    first, second = unique_timestamp(), unique_timestamp()
    assert before <= first < second
