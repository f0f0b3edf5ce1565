"""Steps of the clock, as the daemon sees and tells them."""

from __future__ import annotations

import pytest

from fastjournal.clock import WatchedClock
from fastjournal.testing.clock import ManualClock
from tests.unit.test_metrics import SECOND, START, Subject

BEHIND = "fastjournal_clock_behind_seconds"
HOUR = 3600 * SECOND


class LateClock(ManualClock):
    """A clock whose process is not running between some looks at the steady one."""

    __slots__ = ("waits_us",)

    def __init__(self) -> None:
        super().__init__(START)
        self.waits_us: list[int] = []
        """For how long, at each of the next looks."""

    def monotonic_us(self) -> int:
        """Return the steady time, after a while."""
        self.instant_us += self.waits_us.pop(0) if self.waits_us else 0
        return super().monotonic_us()


def watched(clock: ManualClock) -> tuple[WatchedClock, list[tuple[int, int]]]:
    """Return a watched clock, and the steps that it tells."""
    told: list[tuple[int, int]] = []
    watch = WatchedClock(clock)
    watch.on_step = lambda now, step_us: told.append((now, step_us))
    return watch, told


def test_clock_that_is_corrected_by_little_is_stepped_when_it_adds_up() -> None:
    clock = ManualClock(START)
    watch, told = watched(clock)
    for _ in range(3):
        clock.step(-400_000)
        clock.instant_us += SECOND
        watch.look()
    assert told == [(clock.instant_us, -1_200_000)]


def test_clock_takes_no_step_from_a_process_that_waited_between_two_looks() -> None:
    clock = LateClock()
    watch, told = watched(clock)
    clock.waits_us = [0, 5 * SECOND, 0, 5 * SECOND, 0, 0]
    watch.look()
    assert told == []
    assert clock.waits_us == [], "it has looked until the looks were close together"


def test_clock_that_is_set_ahead_and_back_is_told_once_and_again_when_it_has_caught_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    subject = Subject()
    timers = subject.server.timers
    caplog.clear()

    def events() -> list[str]:
        timers.check_clock()
        timers.check_clock()
        said = [record.getMessage().split(" leases")[0] for record in caplog.records]
        caplog.clear()
        return [line.split(" what")[0] for line in said]

    subject.set(b"k")
    assert events() == []
    subject.clock.step(HOUR)
    assert events() == ["event=clock-stepped seconds=+3600.0"]
    subject.set(b"k2")
    subject.clock.step(-HOUR)
    back = "event=clock-stepped seconds=-3600.0"
    assert events() == [back, "event=clock-behind seconds=3600.0"]
    assert subject.figures()[BEHIND] == 3600
    assert subject.page("/readyz").body.startswith(b"starting")
    subject.clock.instant_us += 3599 * SECOND
    assert events() == []
    subject.clock.instant_us += 2 * SECOND
    assert events() == ["event=clock-caught-up"]
    figures = subject.figures()
    assert figures[BEHIND] == 0
    assert figures["fastjournal_uptime_seconds"] == 3601, "steps are no time"
    subject.set(b"k3")
    subject.clock.step(-SECOND // 2)
    assert events() == [], "clocks are corrected by a little all the time"
    subject.clock.step(-HOUR)
    assert len(events()) == 2
    figures = subject.figures()
    assert figures["fastjournal_clock_steps_total{ahead}"] == 1
    assert figures["fastjournal_clock_steps_total{back}"] == 2
