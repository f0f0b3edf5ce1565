from __future__ import annotations

import pytest

from tests.unit.test_metrics import SECOND, Subject

GAUGE = "fastjournal_clock_behind_seconds"


@pytest.mark.rule("STATS: `clock_behind_us`")
def test_clock_that_leaps_and_comes_back_is_told_once_and_again_when_it_has_caught_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    subject = Subject()
    timers = subject.server.timers
    caplog.clear()

    def events() -> list[str]:
        timers.check_clock()
        timers.check_clock()
        said = [record.getMessage().split()[0] for record in caplog.records]
        caplog.clear()
        return said

    subject.set(b"k")
    assert events() == []
    subject.clock.instant_us += 3600 * SECOND
    subject.set(b"k2")
    assert events() == []
    subject.clock.instant_us -= 3600 * SECOND
    assert events() == ["event=clock-behind"]
    assert subject.figures()[GAUGE] == 3600
    subject.clock.instant_us += 3599 * SECOND
    assert events() == []
    subject.clock.instant_us += 2 * SECOND
    assert events() == ["event=clock-caught-up"]
    assert subject.figures()[GAUGE] == 0
    subject.set(b"k3")
    subject.clock.instant_us -= SECOND // 2
    assert events() == [], "clocks are corrected by a little all the time"
    subject.clock.instant_us -= 3600 * SECOND
    assert events() == ["event=clock-behind"]
