"""Scan runner: the key index is merged in idle slices that leave clients their turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastjournal import limits
from fastjournal.limits import (
    ALONE_WORK,
    FRESH_KEYS_MAX,
    GONE_BYTES_LEFT,
    GONE_KEYS_KEPT,
    GONE_KEYS_LEFT,
    GONE_KEYS_MAX,
    KEY_BYTES_MAX,
    RELIEVED_KEYS,
    SORTED_KEYS,
    TURN_WORK,
)
from fastjournal.protocol import Function
from fastjournald.admission.turn_budget import Share, TurnBudget
from fastjournald.engine.engine import Engine, Settings
from fastjournald.runtime import Counters
from fastjournald.tasks.scan_runner import ScanRunner

NUMBER = 20_000


async def test_idle_slices_merge_all_keys_and_none_does_more_than_the_work_of_a_turn() -> None:
    engine = Engine(Settings())
    index = engine.store.keys.sorted_keys()
    # keys that have gone are merged the fastest
    index.pending += [b"%d" % number for number in range(NUMBER)]
    index.sort_pending(NUMBER // 2)
    index.fresh = {b"fresh %d" % number: False for number in range(1000)}
    index.gone += [b"gone %d" % number for number in range(1000)]
    runtime: Any = SimpleNamespace(
        engine=engine, counters=Counters(), turns=TurnBudget(engine.store)
    )
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
    assert sum(works) >= NUMBER
    assert max(works) <= 2 * TURN_WORK, "two turns, where this task comes first and then last"


async def test_keys_that_have_gone_are_taken_out_in_a_turn_of_their_own() -> None:
    """The client whose requests removed them does not wait for that, and is as alone as before."""
    engine = Engine(Settings())
    index = engine.store.keys.sorted_keys()
    turns = TurnBudget(engine.store)
    runtime: Any = SimpleNamespace(engine=engine, counters=Counters(), turns=turns)
    waits: Any = None
    runner = ScanRunner(runtime, waits, waits)
    client = Share()
    engine.store.work += ALONE_WORK
    turns.charge(client)
    engine.store.work += ALONE_WORK
    turns.charge(client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.keep_index)
        await trio.testing.wait_all_tasks_blocked()
        left = GONE_KEYS_KEPT + TURN_WORK // limits.MERGE_WORK
        index.gone += [b"%d" % number for number in range(left)]
        # else the keys are taken out because nothing else is to be done
        engine.counters.requests[Function.DELETE] += 1
        work = engine.store.work
        runner.relieve_index()
        assert engine.store.work == work
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        assert len(index.gone) == GONE_KEYS_KEPT
        assert turns.slice_work == TURN_WORK
        nursery.cancel_scope.cancel()


def test_keys_that_have_gone_are_taken_out_at_once_where_they_are_far_too_many() -> None:
    engine = Engine(Settings())
    index = engine.store.keys.sorted_keys()
    waits: Any = None
    runtime: Any = SimpleNamespace(engine=engine, counters=Counters())
    number = GONE_KEYS_KEPT + GONE_KEYS_LEFT + 1
    index.gone += [b"%d" % at for at in range(number)]
    ScanRunner(runtime, waits, waits).relieve_index()
    assert len(index.gone) == number - RELIEVED_KEYS


@pytest.mark.parametrize(("key_bytes", "taken"), [(4, 0), (KEY_BYTES_MAX, RELIEVED_KEYS)])
def test_keys_that_have_gone_are_taken_out_at_once_where_they_are_few_and_long(
    key_bytes: int, taken: int
) -> None:
    engine = Engine(Settings())
    index = engine.store.keys.sorted_keys()
    waits: Any = None
    runtime: Any = SimpleNamespace(engine=engine, counters=Counters())
    number = GONE_BYTES_LEFT // KEY_BYTES_MAX
    assert GONE_KEYS_MAX < number < GONE_KEYS_LEFT
    index.gone += [b"%d" % at * (key_bytes // 4) for at in range(1000, 1000 + number)]
    ScanRunner(runtime, waits, waits).relieve_index()
    assert len(index.gone) == number - taken


async def test_sorted_runs_of_long_keys_are_merged_by_their_bytes_without_an_idle_moment(
    autojump_clock: MockClock,
) -> None:
    """Entries that are deleted leave their keys in runs, where nothing else has them."""
    engine = Engine(Settings())
    index = engine.store.keys.sorted_keys()
    index.pending += [b"%d" % at * (KEY_BYTES_MAX // 4) for at in range(1000, 9000)]
    index.sort_pending(NUMBER)
    assert index.run_keys < limits.RUN_KEYS_KEPT
    assert index.run_bytes > 8000 * KEY_BYTES_MAX
    runtime: Any = SimpleNamespace(
        engine=engine, counters=Counters(), turns=TurnBudget(engine.store)
    )
    waits: Any = None
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ScanRunner(runtime, waits, waits).keep_index)
            while index.run_bytes > limits.RUN_BYTES_KEPT:
                await trio.sleep(0.001)
                engine.counters.requests[Function.SET] += 1
            nursery.cancel_scope.cancel()
    assert index.run_keys > 0.9 * limits.RUN_BYTES_KEPT / (KEY_BYTES_MAX + 100)


def test_fresh_keys_get_into_a_run_where_they_are_too_many() -> None:
    engine = Engine(Settings())
    index = engine.store.keys.sorted_keys()
    waits: Any = None
    runtime: Any = SimpleNamespace(engine=engine, counters=Counters())
    index.fresh |= {b"%d" % at: True for at in range(FRESH_KEYS_MAX)}
    runner = ScanRunner(runtime, waits, waits)
    runner.relieve_index()
    assert len(index.fresh) == FRESH_KEYS_MAX
    index.fresh[b"one more"] = True
    runner.relieve_index()
    assert len(index.fresh) == FRESH_KEYS_MAX + 1 - SORTED_KEYS
    assert 0 < engine.store.work <= TURN_WORK


@pytest.mark.parametrize("keys_a_ms", [1, 20])
async def test_sorted_runs_become_few_keys_beside_a_stream_without_an_idle_moment(
    keys_a_ms: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RUN_KEYS_KEPT", 1000)
    engine = Engine(Settings())
    index = engine.store.keys.sorted_keys()
    for run in range(5):
        index.pending += [b"%d" % number for number in range(run, NUMBER, 5)]
        index.sort_pending(NUMBER)
    runtime: Any = SimpleNamespace(
        engine=engine, counters=Counters(), turns=TurnBudget(engine.store)
    )
    waits: Any = None
    runner = ScanRunner(runtime, waits, waits)
    noted = 0
    # of the event loop's clock, which does not pass while keys are merged
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.keep_index)
            while index.run_keys > limits.RUN_KEYS_KEPT:
                await trio.sleep(0.001)
                engine.counters.requests[Function.SET] += 1
                engine.counters.requests[Function.DELETE] += 1
                for number in range(noted, noted + keys_a_ms):
                    index.fresh[b"new %d" % number] = True
                    index.gone.append(b"old %d" % number)
                noted += keys_a_ms
                if len(index.fresh) > FRESH_KEYS_MAX or len(index.gone) > GONE_KEYS_MAX:
                    runner.relieve_index()
                assert len(index.fresh) <= FRESH_KEYS_MAX
                assert len(index.gone) < GONE_KEYS_KEPT + GONE_KEYS_LEFT
            nursery.cancel_scope.cancel()
    assert noted > 100
