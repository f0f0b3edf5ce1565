"""Archive of sealed segments: links, bound, gaps, and logs that are not the one it knows."""

from __future__ import annotations

import errno
import time
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from fastjournal.cmdlog.archive import (
    STATE_NAME,
    Archive,
    ArchivedSegment,
    list_archived,
    read_state,
)
from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.cmdlog.snapshot import read_manifest, take_snapshot
from fastjournal.errors import ConfigError, LogCorruptError, LogFailedError
from fastjournal.limits import ARCHIVE_GAPS_MAX, ARCHIVE_RETRY_SECONDS
from fastjournal.testing.disk import SimulatedDisk
from fastjournald.compaction.compact_segment import AWAITS_ARCHIVE
from fastjournald.compaction.policy import bytes_slowed, candidates
from fastjournald.recovery.recover import open_archive, try_link
from fastjournald.tasks.archiver import Archiver
from tests.property.compacted_log import LOG, CompactedLog

ARCHIVE = "/archive"
SEGMENT_BYTES = 16 * 1024
"""More than a test writes before it rolls."""


GAP = (
    b'[{"first":1,"last":9999999999,"segments":1,"bytes":0,"first_us":null,"last_us":null,'
    b'"reason":"dropped"}]'
)
"""Gap that ends at a number that no segment has."""


def archived_log(bytes_max: int = 0, **options: int) -> CompactedLog:
    """A log that was begun with an archive."""
    log = CompactedLog(**{"cmdlog_seg_size": SEGMENT_BYTES, **options})
    log.config.archive_dir, log.config.archive_bytes_max = ARCHIVE, bytes_max
    log.disk.mkdir(ARCHIVE)
    return log


def opened(log: CompactedLog) -> Archive:
    return open_archive(log.disk, log.config, log.engine.journal.usage, log.writer)


def archived(bytes_max: int = 0) -> tuple[CompactedLog, Archive]:
    log = archived_log(bytes_max)
    return log, opened(log)


def link_all(log: CompactedLog, archive: Archive) -> None:
    if infos := archive.waiting(log.writer.sealed):
        archive.take(infos)
    archive.enforce_bound()
    log.engine.journal.usage.archived_before = archive.next


def half_dead(log: CompactedLog) -> SegmentInfo:
    """Seal a segment of which compaction leaves a part."""
    log.pass_time(1)
    log.fill(30)
    info = log.roll()
    log.empty(20)
    log.flush()
    return info


def numbers(log: CompactedLog) -> list[int]:
    return [file.number for file in list_archived(log.disk, ARCHIVE)]


def test_compaction_leaves_a_segment_alone_until_its_link_is_durable() -> None:
    log, archive = archived()
    info = half_dead(log)
    whole = log.disk.read(f"{LOG}/{info.name}")
    assert candidates(log.engine.store, log.writer, log.clock.instant_us) == []
    assert log.clean(info) == AWAITS_ARCHIVE
    # the link itself; its name; the state; its name
    for call, count in (("link", 1), ("sync_directory", 1), ("sync", 1), ("sync_directory", 2)):
        log.disk.fail_at(count, call)
        with pytest.raises(LogFailedError):
            link_all(log, archive)
        assert log.clean(info) == AWAITS_ARCHIVE
    link_all(log, archive)
    assert log.clean(info) == "rewritten"
    assert log.disk.read(f"{ARCHIVE}/{ArchivedSegment(1, info.crc32c).name}") == whole


def test_segments_that_were_compacted_before_there_was_an_archive_are_gaps() -> None:
    log = CompactedLog(cmdlog_seg_size=SEGMENT_BYTES)
    rewritten = half_dead(log)
    log.fill(30, key=b"gone/%d")
    removed = log.roll()
    log.empty(30, key=b"gone/%d")
    whole = log.roll()
    assert [log.clean(info) for info in (rewritten, removed)] == ["rewritten", "removed"]
    log.flush()
    log.disk.mkdir(ARCHIVE)
    log.config.archive_dir = ARCHIVE
    log.restart()
    archive = opened(log)
    link_all(log, archive)
    assert numbers(log) == [whole.number, whole.number + 1]
    (gap,) = archive.gaps
    assert (gap.first, gap.last, gap.segments) == (rewritten.number, removed.number, 2)
    assert gap.reason == "compacted"
    assert archive.missed == 2
    assert read_state(log.disk, ARCHIVE).gaps == (gap,)
    path = take_snapshot(log.disk, LOG, "/snapshots", log.writer.sealed, 1, archive.gaps)
    assert read_manifest(log.disk, path).archive_gaps == (gap,)


def test_bound_of_one_segment_keeps_the_newest() -> None:
    bound = 1000
    log, archive = archived(bound)
    for _ in range(3):
        log.pass_time(1)
        log.fill(20)
        info = log.roll()
        assert info.bytes > bound
        link_all(log, archive)
        assert numbers(log) == [info.number]
        assert (archive.segments, archive.bytes) == (1, info.bytes)
    (gap,) = archive.gaps
    assert (gap.first, gap.last, gap.reason) == (1, info.number - 1, "dropped")
    archive.enforce_bound()
    assert numbers(log) == [info.number]


def test_bound_drops_the_oldest_and_tells_it_before_the_link_goes() -> None:
    log, archive = archived(bytes_max=12_000)
    infos = []
    for _ in range(4):
        log.fill(20)
        log.pass_time(1)
        infos.append(log.roll())
    archive.take(archive.waiting(log.writer.sealed))
    assert sum(info.bytes for info in infos[:2]) < 12_000 < sum(info.bytes for info in infos[1:])
    log.disk.fail_at(1, "unlink")
    with pytest.raises(LogFailedError):
        archive.enforce_bound()
    state = read_state(log.disk, ARCHIVE)
    (gap,) = state.gaps
    assert numbers(log) == [1, 2, 3, 4]
    archive.enforce_bound()
    assert numbers(log) == list(range(gap.last + 1, 5))
    assert (gap.first, gap.reason, gap.segments) == (1, "dropped", gap.last)
    assert gap.bytes == sum(info.bytes for info in infos[: gap.last])
    assert gap.first_us == infos[0].first_us
    assert gap.last_us == infos[gap.last].first_us, "not before the last record, and known"
    assert archive.bytes <= 12_000
    assert (archive.segments, archive.gaps) == (4 - gap.last, (gap,))


def test_log_that_is_older_than_its_archive_is_archived_from_there_on() -> None:
    """Else a crash before the first link would pass for one behind it."""
    log, archive = archived()
    half_dead(log)
    path = take_snapshot(log.disk, LOG, "/snapshots", log.writer.sealed, 1)
    copy = {name: log.disk.read(f"{path}/{name}") for name in log.disk.listdir(path)}
    for _ in range(3):
        half_dead(log)
    link_all(log, archive)
    for name in log.segments():
        log.disk.unlink(f"{LOG}/{name}")
    log.disk.create(f"{LOG}/000000001.log").write(copy["000000001.log"])
    log.disk = log.disk.kill()
    log.start()
    assert opened(log).next == 2
    log.fill(3)
    log.restart()
    archive = opened(log)
    link_all(log, archive)
    assert numbers(log) == [1, 2, 2, 3, 4], "one of each history"
    assert archive.gaps == ()


def test_segment_that_grew_while_nobody_archived_is_archived_again() -> None:
    log, archive = archived()
    half_dead(log)
    last = log.roll()
    link_all(log, archive)
    log.config.archive_dir = ""
    log.restart()
    log.fill(3)
    assert log.writer.active is not None
    assert log.writer.active.number == last.number
    log.config.archive_dir = ARCHIVE
    log.restart()
    archive = opened(log)
    link_all(log, archive)
    assert numbers(log) == [1, 2, 2]
    assert archive.gaps == ()


def test_state_that_cannot_be_understood_stops_the_start_and_says_what_to_do() -> None:
    log = archived_log()
    head = b'{"format":"fastjournal-archive","version":1,"next":5,"gaps":[],"last":'
    last = b'{"number":4,"bytes":9,"crc32c":"no digits"}'
    absurd = (head + b"null}").replace(b":5", b":-5"), head.replace(b"[]", GAP) + b"null}"
    for text in (b"{}", b"\xff", b"[1", head + last + b"}", head + b"4}", *absurd):
        log.disk.create(f"{ARCHIVE}/{STATE_NAME}").write(text)
        with pytest.raises(LogCorruptError, match="remove it"):
            opened(log)
        log.disk.unlink(f"{ARCHIVE}/{STATE_NAME}")


def test_gaps_are_joined_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastjournal.cmdlog.archive.ARCHIVE_GAPS_MAX", 2)
    assert ARCHIVE_GAPS_MAX > 2
    log, archive = archived()
    for _ in range(4):
        half_dead(log)
        half_dead(log)
        first, _ = archive.waiting(log.writer.sealed)
        archive.skip([first])
        link_all(log, archive)
    assert [(gap.first, gap.last, gap.segments, gap.reason) for gap in archive.gaps] == [
        (1, 5, 3, "merged"),
        (7, 7, 1, "not-linked"),
    ]
    assert archive.gaps[0].bytes > 0


REFUSED_LINKS = [
    *(errno.EXDEV, errno.EPERM, errno.EACCES, errno.EROFS),
    *(errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK),
]


@pytest.mark.parametrize("number", REFUSED_LINKS)
def test_directory_that_takes_no_link_of_the_log_is_bad_configuration(number: int) -> None:
    disk = SimulatedDisk()
    for path in (LOG, ARCHIVE):
        disk.mkdir(path)
    disk.create(f"{LOG}/append.lock")
    disk.fail_at(1, "link", number)
    with pytest.raises(ConfigError, match="--archive-dir"):
        try_link(disk, LOG, ARCHIVE)
    disk.fail_at(1, "link", errno.ENOSPC)
    try_link(disk, LOG, ARCHIVE)
    try_link(disk, LOG, ARCHIVE)
    assert disk.listdir(ARCHIVE) == []


def archiver_of(log: CompactedLog, archive: Archive) -> Archiver:
    runtime: Any = SimpleNamespace(archive=archive, engine=log.engine, writer=log.writer)
    return Archiver(runtime)


async def test_link_that_fails_is_tried_again_and_skipped_when_the_log_is_too_large(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    log, archive = archived()
    archiver = archiver_of(log, archive)
    half_dead(log)
    log.disk.fail_at(1, "link", errno.ENOSPC)
    for _ in range(3):
        await archiver.archive_sealed()
    assert archive.failures == 1, "it waits before it tries again"
    assert log.engine.journal.usage.awaits_archive(1)
    await trio.sleep(ARCHIVE_RETRY_SECONDS)
    await archiver.archive_sealed()
    assert not log.engine.journal.usage.awaits_archive(1)
    assert numbers(log) == [1]

    while log.writer.log_bytes <= bytes_slowed(log.engine.store, log.writer) + 2 * SEGMENT_BYTES:
        half_dead(log)
    log.disk.fail_at(1, "link", errno.EMLINK)
    await archiver.archive_sealed()
    usage = log.engine.journal.usage
    assert archive.missed > 0, "compaction has to go on"
    assert usage.archived_before == archive.next == 2 + archive.missed
    assert usage.awaits_archive(log.writer.sealed[-1].number), "no more than it takes"
    assert "reason=not-linked first=2" in caplog.text
    await trio.sleep(ARCHIVE_RETRY_SECONDS)
    await archiver.archive_sealed()
    (gap,) = archive.gaps
    assert (gap.first, gap.segments) == (2, archive.missed)
    assert numbers(log)[1] == archive.missed + 2


async def test_link_that_fails_is_skipped_on_a_full_disk_where_nothing_in_it_is_live(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log, archive = archived()
    for _ in range(2):
        log.pass_time(1)
        log.fill(10)
        log.roll()
    log.engine.context.read_only = True
    log.disk.fail_at(1, "link", errno.ENOSPC)
    await archiver_of(log, archive).archive_sealed()
    assert archive.missed == 1
    assert archive.next == 2


async def test_archiver_counts_what_a_reader_has_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log, archive = archived()
    half_dead(log)
    deadline = time.monotonic() + 60
    async with trio.open_nursery() as nursery:
        nursery.start_soon(archiver_of(log, archive).run)
        # links are made in a thread, for which the clock of the test does not wait
        while (archive.segments, archive.bytes) != (1, log.writer.sealed[0].bytes):
            assert time.monotonic() < deadline
            await trio.sleep(1)
        for file in list_archived(log.disk, ARCHIVE):
            log.disk.unlink(f"{ARCHIVE}/{file.name}")
        while (archive.segments, archive.bytes) != (0, 0):
            assert time.monotonic() < deadline
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
