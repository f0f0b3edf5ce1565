"""Compactor of the daemon on a simulated disk: its order, its writes, and its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal.cmdlog.recovery.recover import verify
from fastjournald.compaction.compact_segment import (
    DURABLE,
    Blocking,
    CompactionStoppedError,
    compact_segment,
)
from fastjournald.compaction.policy import bytes_usual
from fastjournald.tasks.compactor import CompactionPace, Compactor
from tests.property.compacted_log import LOG, CompactedLog, nothing_to_archive, runtime_of

SEGMENT_BYTES = 16 * 1024


def compactor_of(
    log: CompactedLog, wait_durable: Callable[[int], Awaitable[None]] | None = None
) -> Compactor:
    return Compactor(runtime_of(log, wait_durable), nothing_to_archive)


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


async def test_log_that_is_too_large_is_made_small_enough_and_no_smaller(
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


async def test_rewritten_segment_is_written_and_synced_in_pieces(
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
    monkeypatch.setattr("fastjournald.compaction.compact_segment.WRITTEN_BYTES_MAX", 1000)
    await compactor_of(log).compact()
    assert len(syncs) > 3
    assert max(after - before for before, after in zip([0, *syncs], syncs, strict=False)) < 1500
    assert syncs[-1] == log.writer.sealed[0].bytes == log.disk.size("/log/000000001.log")
    log.check()


def half_dead() -> CompactedLog:
    """A log whose only sealed segment is worth a rewrite."""
    log = CompactedLog(cmdlog_seg_size=SEGMENT_BYTES)
    log.fill(60)
    log.roll()
    log.empty(35)
    log.flush()
    return log


async def test_compactor_that_is_cancelled_before_the_replacement_leaves_no_file_beside(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = half_dead()
    beside = []

    async def cancelled(mark: int) -> None:
        log.flush()
        beside.append(log.disk.exists(f"{LOG}/000000001.log.rw"))
        scope.cancel()
        await trio.lowlevel.checkpoint()

    with trio.CancelScope() as scope:
        await compactor_of(log, cancelled).compact()
    assert scope.cancelled_caught
    assert beside == [True]
    assert verify(log.disk, LOG) == []
    log.check()


def test_compaction_that_is_stopped_at_any_step_leaves_no_file_beside() -> None:
    beside = []
    for steps in range(1, 1000):
        log = half_dead()
        info, state = log.writer.sealed[0], log.state()
        compaction = compact_segment(
            log.engine.store, log.writer, log.disk, LOG, info, log.clock.instant_us
        )
        answer: Any = None
        with suppress(StopIteration):
            for _ in range(steps):
                wanted = compaction.send(answer)
                if wanted is DURABLE:
                    log.flush()
                answer = wanted.call() if isinstance(wanted, Blocking) else log.clock.instant_us
            beside.append(log.disk.exists(f"{LOG}/{info.name}.rw"))
            with pytest.raises(CompactionStoppedError):
                compaction.throw(CompactionStoppedError())
            assert verify(log.disk, LOG) == []
            log.restart()
            assert log.state() == state
            continue
        break
    assert beside.count(True) >= 3, beside
    assert not log.disk.exists(f"{LOG}/{info.name}.rw")


async def test_compaction_lets_no_snapshot_begin_before_all_entries_know_of_a_replaced_segment(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CompactedLog(cmdlog_seg_size=SEGMENT_BYTES)
    log.fill(60)
    log.roll()
    log.empty(35)
    log.flush()
    compactor = compactor_of(log)
    lock, usage = compactor._runtime.segments_free, log.engine.journal.usage
    seen: list[tuple[bool, bool]] = []

    async def noted(_pace: CompactionPace, _used: float, _debt: float) -> None:
        await trio.lowlevel.checkpoint()
        seen.append((bool(usage.replaced), lock.locked()))

    monkeypatch.setattr(CompactionPace, "give_way", noted)
    await compactor._compact(log.writer.sealed[0])
    # others have their turn while positions are told; elsewhere a snapshot may begin
    assert {(False, False), (True, True)} == set(seen)
    assert not lock.locked()
    log.check()
