"""Compactor of the daemon on a simulated disk: its order, its writes, and its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal.cmdlog.format.layout import SegmentInfo, pack_position
from fastjournal.cmdlog.recovery.recover import verify
from fastjournal.limits import UNDERSIZED_SEGMENTS_MAX
from fastjournal.protocol.constants import Flag, Function
from fastjournald.compaction.compact_segment import (
    DURABLE,
    Blocking,
    CompactionStoppedError,
    compact_segment,
)
from fastjournald.compaction.liveness import Liveness
from fastjournald.compaction.policy import awaited_most, bytes_usual
from fastjournald.compaction.segment_filter import SegmentFilter
from fastjournald.tasks.compactor import TURN_SECONDS_MAX, CompactionPace, Compactor
from fastjournald.wal.segment_usage import SegmentScore, SegmentUsage
from tests.property.compacted_log import LOG, CompactedLog, nothing_to_archive, runtime_of
from tests.property.subject import SECOND

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


def half_dead() -> CompactedLog:
    """A log whose only sealed segment is worth a rewrite."""
    log = CompactedLog(cmdlog_seg_size=SEGMENT_BYTES)
    log.fill(60)
    log.roll()
    log.empty(35)
    log.flush()
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


async def test_compaction_takes_only_segments_of_which_every_byte_is_stored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = overgrown()
    compactor = compactor_of(log)
    first, second, *others = [info.number for info in log.writer.sealed]
    end = pack_position(second, log.writer.sealed[1].bytes)
    remote = compactor._runtime.remote = SimpleNamespace(stored_position=end - 1)
    await compactor.compact()
    left = {info.number for info in log.writer.sealed}
    assert first not in left
    assert {second, *others} <= left
    remote.stored_position = end
    await compactor.compact()
    left = {info.number for info in log.writer.sealed}
    assert second not in left
    assert set(others) <= left
    log.check()


async def test_rewritten_segment_is_written_and_synced_in_pieces(
    autojump_clock: trio.testing.MockClock, monkeypatch: Any
) -> None:
    log = half_dead()
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
    log = half_dead()
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


# --- compactor pace -------------------------------------------------------------------------------
# How cleaning shares the event loop with everybody else, by a clock that the tests set.


SLICE = 0.001


@pytest.fixture
def pace() -> CompactionPace:
    return CompactionPace()


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


# --- segment filter -------------------------------------------------------------------------------
# Segment filter: which records of a segment stay, found out in slices.


SET, DELETE = Function.SET, Function.DELETE


def filter_of(log: CompactedLog, info: SegmentInfo) -> SegmentFilter:
    present = frozenset(segment.number for segment in log.writer.sealed)
    data = log.disk.read(f"{LOG}/{info.name}")
    store = log.engine.store
    liveness = Liveness(store, info.number, data, present, log.writer.next_number)
    return SegmentFilter(data, liveness)


def test_life_of_what_is_kept_counts() -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    until = log.clock.instant_us + 100 * SECOND
    log.fill(10, timeout=until)
    segment = filter_of(log, log.roll())
    segment.step(log.clock.instant_us)
    assert segment.liveness.expiries == [10 * until, 10]


def renamed_away_and_cleaned() -> CompactedLog:
    """A log of which the segment of a job was cleaned, and then that of its first RENAME."""
    log = CompactedLog(cmdlog_seg_size=65536)
    log.fill(10, size=1000)
    at = log.clock.instant_us
    log.done(SET, b"first", b"v" * 5000, flags=Flag.OVERWRITE, at=at)
    log.fill(30, key=b"more/%d", size=1000)
    job = log.roll()
    log.pass_time(1)
    log.done(Function.RENAME, b"first", uri=b"second")
    log.ask(DELETE, b"first", flags=Flag.OVERWRITE)
    log.done(SET, b"first", b"older", flags=Flag.OVERWRITE, at=at - SECOND)
    log.fill(10, key=b"again/%d", size=1000)
    rename = log.roll()
    log.pass_time(1)
    log.done(Function.RENAME, b"second", uri=b"third")
    log.roll()
    log.empty(30, key=b"more/%d")
    assert log.clean(job) == "rewritten"
    log.empty(10, key=b"again/%d")
    log.clean(rename)
    return log


def test_rename_that_goes_leaves_its_job_out_of_the_way_of_the_next_entry() -> None:
    log = renamed_away_and_cleaned()
    assert log.entry(b"first").value == b"older"
    log.check()
    log.restart()
    assert log.entry(b"first").value == b"older"
    assert log.entry(b"third").value == b"v" * 5000


def test_rename_that_goes_leaves_the_next_one_its_tombstone() -> None:
    log = renamed_away_and_cleaned()
    log.restart()
    late = log.ask(SET, b"second", b"late", at=log.clock.instant_us - 2 * SECOND)
    assert late.code == "stale"


# --- segment usage --------------------------------------------------------------------------------
# Segment usage table: live bytes in each segment of the log.


RUN = b"run one:"


def job(number: int, run: bytes = RUN) -> bytes:
    return run + number.to_bytes(8)


def space_of_three() -> SegmentUsage:
    """Jobs 10 to 19 are in segment 1, 20 to 29 in 2, all later ones in 3."""
    space = SegmentUsage()
    for number in (1, 2, 3):
        space.begins(job(10 * number), number)
    return space


PRESENT = frozenset((1, 2, 3))


def test_first_id_of_a_segment_counts() -> None:
    space = space_of_three()
    space.begins(job(35), 3)
    space.begins(job(40), 4)
    assert space.segment_of(job(34)) == 3
    assert space.segment_of(job(40)) == 4


def test_job_of_another_program_may_be_in_any_segment_of_that() -> None:
    space = space_of_three()
    space.foreign_last = 2
    assert space.may_return(b"x" * 16, 3, PRESENT) in (1, 2)
    space.was_compacted(1, 4, emptied=False)
    assert space.may_return(b"x" * 16, 3, PRESENT) == 2
    space.was_compacted(2, 4, emptied=False)
    assert space.may_return(b"x" * 16, 3, PRESENT) is None


def test_segment_is_looked_at_again_when_half_of_what_was_live_has_died() -> None:
    space = SegmentUsage()
    space.scores[1] = SegmentScore(100, live=1000)
    space.live[1] = 500
    assert not space.is_changed(1, 99, PRESENT)
    space.live[1] = 499
    assert space.is_changed(1, 99, PRESENT)
    space.live[1] = 1000
    assert space.is_changed(1, 100, PRESENT), "what ends by itself has ended"


def test_segment_that_could_not_be_cleaned_rests() -> None:
    space = SegmentUsage()
    space.scores[1] = SegmentScore(100, live=1000, failed=True)
    assert not space.is_changed(1, 99, PRESENT)
    assert space.is_changed(1, 100, PRESENT)


def test_segment_with_ends_of_pauses_is_looked_at_again_when_half_of_these_are_gone() -> None:
    space = SegmentUsage()
    space.paused(1, b"d", 50)
    space.paused(2, b"e", 50)
    space.scores[3] = SegmentScore(100, pauses=(b"d", b"e"))
    assert not space.is_changed(3, 49, PRESENT)
    space.remove_segment(1)
    assert not space.is_changed(3, 49, PRESENT)
    space.remove_segment(2)
    assert space.is_changed(3, 49, PRESENT)


def test_compaction_passes_over_an_awaited_segment_that_could_not_be_cleaned() -> None:
    usage, small = SegmentUsage(), range(10, 12 + UNDERSIZED_SEGMENTS_MAX)
    for number in small:
        usage.scores[number] = SegmentScore(100, waits=(1,) if number == 10 else (1, 2))
    infos = [SegmentInfo(number, 9, 0, None, None, 1) for number in (1, 2, *small)]
    present = frozenset(info.number for info in infos)
    store: Any = SimpleNamespace(journal=SimpleNamespace(usage=usage))
    log: Any = SimpleNamespace(sealed=infos, segment_bytes_max=1000)
    assert awaited_most(store, log, present, 99) == 1
    usage.scores[1] = SegmentScore(100, failed=True)
    assert awaited_most(store, log, present, 99) == 2
    assert awaited_most(store, log, present, 100) == 1
