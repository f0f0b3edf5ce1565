"""Garbage collection: young objects all the time, all objects only where the daemon is idle."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal.clock import WatchedClock
from fastjournal.testing.clock import ManualClock
from fastjournald.tasks.timers import Timers

FULL_SECONDS = 2.0
FULL_SECONDS_MAX = 10.0


async def test_full_collection_waits_for_an_idle_moment_but_not_for_ever(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournald.tasks.timers.FULL_COLLECTION_SECONDS", FULL_SECONDS)
    monkeypatch.setattr("fastjournald.tasks.timers.FULL_COLLECTION_SECONDS_MAX", FULL_SECONDS_MAX)
    requests: Counter[str] = Counter()
    runtime: Any = SimpleNamespace(
        engine=SimpleNamespace(counters=SimpleNamespace(requests=requests))
    )
    begun = trio.current_time()
    young, full = [], []

    def collect(generation: int = 2) -> None:
        (young if generation == 1 else full).append(trio.current_time() - begun)

    monkeypatch.setattr(gc, "collect", collect)
    with trio.move_on_after(20):
        async with trio.open_nursery() as nursery:
            timers = Timers(runtime, WatchedClock(ManualClock(1)), trio.lowlevel.checkpoint)
            nursery.start_soon(timers.collect_garbage)
            while trio.current_time() - begun < 15:
                requests["SET"] += 1
                await trio.sleep(0.1)
    at_last, *idle = full
    assert at_last == pytest.approx(FULL_SECONDS_MAX, abs=0.5)
    assert idle[0] == pytest.approx(15, abs=0.5)
    assert len(idle) == 3
    assert all(
        FULL_SECONDS <= after - before < FULL_SECONDS + 0.5 for before, after in pairwise(idle)
    )
    assert len(young) > 80
