"""Which segments the daemon cleans when, on a simulated disk, without its other parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from tests.door.compaction import Backpressure, bytes_usual
from tests.door.daemon import Counters
from tests.door.places import patch_module
from tests.door.tasks import Compactor
from tests.property.compacted_log import CompactedLog

SEGMENT_BYTES = 16 * 1024


def compactor_of(log: CompactedLog) -> Compactor:
    async def durable(mark: int) -> None:
        log.flush()

    runtime: Any = SimpleNamespace(
        engine=log.engine,
        writer=log.writer,
        disk=log.disk,
        config=log.config,
        clock=log.clock,
        wake_tasks=lambda: None,
        commit=SimpleNamespace(wait_durable=durable),
        segments_free=trio.Lock(),
        counters=Counters(),
        backpressure=Backpressure(log.engine, log.writer, compacts=True),
    )
    return Compactor(runtime)


def overgrown() -> CompactedLog:
    """A log of which a tenth is live, all of it in the last segments."""
    log = CompactedLog(cmdlog_seg_size=SEGMENT_BYTES)
    for _ in range(10):
        log.fill(200)
        log.pass_time(1)
    log.roll()
    return log


def bound(log: CompactedLog) -> int:
    return bytes_usual(log.engine.store, log.writer)


async def test_a_log_that_is_too_large_is_made_small_enough_and_no_smaller(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = overgrown()
    compactor = compactor_of(log)
    outcomes = compactor._runtime.counters.compaction_outcomes
    assert log.log_bytes() > 2 * bound(log)
    await compactor.compact(only_excess=True)
    assert bound(log) - 2 * SEGMENT_BYTES < log.log_bytes() <= bound(log)
    cleaned = outcomes.total()
    await compactor.compact(only_excess=True)
    assert outcomes.total() == cleaned
    await compactor.compact()
    assert log.log_bytes() < bound(log) - SEGMENT_BYTES
    log.check()


async def test_what_is_left_of_a_segment_is_written_and_synced_in_pieces(
    autojump_clock: trio.testing.MockClock, monkeypatch: Any
) -> None:
    log = CompactedLog(cmdlog_seg_size=SEGMENT_BYTES)
    log.fill(60)
    log.roll()
    log.empty(35)
    log.flush()
    syncs = []
    create = log.disk.create

    def counting(path: str, **options: Any) -> Any:
        file = create(path, **options)
        sync = file.sync

        def counted() -> None:
            syncs.append(log.disk.size(path))
            sync()

        monkeypatch.setattr(file, "sync", counted)
        return file

    monkeypatch.setattr(log.disk, "create", counting)
    patch_module(monkeypatch, "WRITTEN_BYTES_MAX", 1000)
    await compactor_of(log).compact()
    assert len(syncs) > 3
    assert max(after - before for before, after in zip([0, *syncs], syncs, strict=False)) < 1500
    assert syncs[-1] == log.writer.sealed[0].bytes == log.disk.size("/log/000000001.log")
    log.check()
