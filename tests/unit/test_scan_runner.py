"""Scan runner: the key index is merged in idle slices that leave clients their turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from fastjournal.limits import TURN_WORK
from tests.door.daemon import Counters
from tests.door.engine import Engine, Settings
from tests.door.tasks import ScanRunner

KEYS = 20_000


async def test_idle_slices_merge_all_keys_and_none_does_more_than_the_work_of_a_turn() -> None:
    engine = Engine(Settings())
    index = engine.store.keys.sorted_keys()
    # keys that have gone are merged the fastest
    index.pending += [b"%d" % number for number in range(KEYS)]
    index.sort_pending(KEYS // 2)
    runtime: Any = SimpleNamespace(engine=engine, counters=Counters())
    waits: Any = None
    works = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ScanRunner(runtime, waits, waits).keep_index)
            while not index.idle():
                before = engine.store.work
                await trio.lowlevel.checkpoint()
                works.append(engine.store.work - before)
            nursery.cancel_scope.cancel()
    assert list(index) == []
    assert sum(works) >= KEYS
    assert max(works) <= 2 * TURN_WORK, "two turns, where this task comes first and then last"
