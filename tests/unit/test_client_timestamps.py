"""Timestamps of writes: never the same one twice in a process."""

from __future__ import annotations

import threading

from fastjournal.clock import TimestampSource
from fastjournal.limits import TIMESTAMP_SLICE_US, TIMESTAMP_SLICES_MAX
from fastjournal.testing.clock import ManualClock

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND


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
