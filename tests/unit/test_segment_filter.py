"""Segment filter: which records of a segment stay, found out in slices."""

from __future__ import annotations

from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.limits import FILTERED_BYTES_MAX
from fastjournal.protocol.constants import Flag, Function
from fastjournald.compaction.liveness import Liveness
from fastjournald.compaction.segment_filter import SegmentFilter
from tests.property.compacted_log import LOG, CompactedLog
from tests.property.subject import SECOND

SET, DELETE = Function.SET, Function.DELETE


def filter_of(log: CompactedLog, info: SegmentInfo) -> SegmentFilter:
    present = frozenset(segment.number for segment in log.writer.sealed)
    data = log.disk.read(f"{LOG}/{info.name}")
    store = log.engine.store
    liveness = Liveness(store, info.number, data, present, log.writer.next_number)
    return SegmentFilter(data, liveness)


def test_removal_is_kept_as_long_as_an_earlier_segment_may_have_its_job() -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    log.fill(30)
    log.roll()
    log.fill(30, key=b"own/%d")
    log.empty(20)
    log.empty(20, key=b"own/%d")
    info = log.roll()
    segment = filter_of(log, info)
    segment.step(log.clock.instant_us)
    removed_elsewhere, live = 20, 10
    assert len(segment._spans) // 3 == 1 + removed_elsewhere + live
    assert segment.liveness.removals.waits == {1}


def test_life_of_what_is_kept_counts() -> None:
    log = CompactedLog(cmdlog_seg_size=65536)
    until = log.clock.instant_us + 100 * SECOND
    log.fill(10, timeout=until)
    segment = filter_of(log, log.roll())
    segment.step(log.clock.instant_us)
    assert segment.liveness.expiries == [10 * until, 10]


def test_segment_is_looked_at_in_steps() -> None:
    log = CompactedLog(cmdlog_seg_size=16 * FILTERED_BYTES_MAX)
    log.fill(1000, size=200)
    segment = filter_of(log, log.roll())
    steps = 0
    while not segment.done:
        segment.step(log.clock.instant_us)
        steps += 1
    assert steps >= len(segment.data) // FILTERED_BYTES_MAX
    assert len(segment._spans) // 3 == 1001


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
