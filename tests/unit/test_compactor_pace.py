"""How cleaning shares the event loop with everybody else, by a clock that the tests set."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from fastjournald.tasks.compactor import LATE_SHARE, OTHERS_SHARE, TURN_SECONDS_MAX, CompactionPace

SLICE = 0.001


async def away(pace: CompactionPace, pressure: float = 0.0, used: float = SLICE) -> float:
    """Return how long cleaning gives way."""
    began = trio.current_time()
    await pace.give_way(used, pressure)
    return trio.current_time() - began


async def woken_late(pace: CompactionPace, clock: trio.testing.MockClock, seconds: float) -> None:
    """Give way while the event loop is busy for so long."""
    clock.autojump_threshold = float("inf")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pace.give_way, SLICE, 0.0)
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(OTHERS_SHARE * SLICE + seconds)
    clock.autojump_threshold = 0


@pytest.fixture
def pace() -> CompactionPace:
    return CompactionPace()


async def test_compactor_leaves_others_three_times_as_long(
    pace: CompactionPace, autojump_clock: trio.testing.MockClock
) -> None:
    assert await away(pace) == pytest.approx(OTHERS_SHARE * SLICE)
    assert await away(pace, used=2 * SLICE) == pytest.approx(2 * OTHERS_SHARE * SLICE)


async def test_pace_of_a_compactor_that_wakes_late_slows_down_and_recovers(
    pace: CompactionPace, autojump_clock: trio.testing.MockClock
) -> None:
    await woken_late(pace, autojump_clock, 0.1)
    waits = [await away(pace) for _ in range(40)]
    assert waits[0] > OTHERS_SHARE * SLICE + LATE_SHARE * 0.01
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] == pytest.approx(OTHERS_SHARE * SLICE, rel=0.05)


async def test_compactor_yields_less_the_more_it_is_behind(
    pace: CompactionPace, autojump_clock: trio.testing.MockClock
) -> None:
    waits = []
    for pressure in (0.0, 0.25, 0.5, 0.75, 1.0):
        fresh = CompactionPace()
        fresh._late = 0.01
        waits.append(await away(fresh, pressure))
    assert waits == sorted(waits, reverse=True)
    assert len(set(waits)) == len(waits)
    assert waits[-1] == 0


async def test_compactor_far_behind_has_half_of_what_others_had_up_to_a_bound(
    pace: CompactionPace, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = float("inf")
    turns = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pace.give_way, SLICE, 0.999)
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(1.0)
    with trio.CancelScope() as scope:
        # a call that does not give way is no checkpoint, so it is not cancelled
        scope.cancel()
        while True:
            await pace.give_way(SLICE, 1.0)
            turns += 1
    assert turns == round(TURN_SECONDS_MAX / SLICE) - 1
