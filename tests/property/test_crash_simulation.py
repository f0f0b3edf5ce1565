"""Promises 1 and 5 in simulation: thousands of crashes at random calls of a fault-injecting disk.

FASTJOURNAL_CRASH_SEEDS=20000 looks at so many seeds instead of the usual number. The same seed
gives the same run: ``test_determinism.py``.
"""

from __future__ import annotations

import errno
import os
import random

import pytest

from fastjournal.cmdlog.recovery.recover import verify
from fastjournal.cmdlog.recovery.scan import HEADER_BYTES, scan_segment
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.protocol import Flag, Function, decode_reply
from fastjournal.testing.workq_rules import assert_workq_accepts
from fastjournald.config.options import Config
from tests.property.crash_snapshots import SNAPSHOTS
from tests.property.crashing_daemon import LOG, CrashingDaemon, until_it_starts
from tests.property.subject import SECOND, START, request

pytestmark = pytest.mark.usefixtures("native")

SEEDS = int(os.environ.get("FASTJOURNAL_CRASH_SEEDS", "400"))
GROUPS = 8
LIVES = 6
"""Lives of the daemon on one disk."""

CALLS = ("any", "write", "sync", "create", "sync_directory", "rename", "unlink", "link", "read")
"""Calls of the disk; one of each life fails, perhaps."""


def options(seed: int) -> Config:
    draw = random.Random(~seed)
    return Config(
        cmdlog_path=LOG,
        cmdlog_sync=draw.choice(("always", "always", "always", "interval", "os")),
        cmdlog_seg_size=draw.choice((600, 2500, 100_000)),
        default_lease=draw.choice((20, 1000)),
        max_attempts=draw.choice((0, 2)),
        tombstone_ttl=draw.choice((5, 3600)),
        memory_limit=seed % 5 == 4,
    )


def live_and_crash(daemon: CrashingDaemon) -> None:
    """One life, from a start to a failure, a kill or a power loss."""
    draw, config = daemon.draw, daemon.config
    if draw.random() < 0.6:
        call = draw.choice(CALLS)
        count = draw.randint(1, {"any": 40, "write": 12, "sync": 12}.get(call, 4))
        daemon.disk.fail_at(count, call, draw.choice((errno.EIO, errno.ENOSPC)))
    try:
        daemon.live(draw.randint(1, 40))
        if draw.random() < 0.1:
            daemon.writer.close()
            daemon.acknowledge()
    except LogFailedError:
        settled = daemon.writer.settled
        # else it was a segment that could not be replaced
        for attempt in (
            () if not daemon.writer.failed else (daemon.writer.flush, daemon.writer.roll)
        ):
            with pytest.raises(LogFailedError):
                attempt()
        assert daemon.writer.settled == settled
    if config.cmdlog_sync == "always" and draw.random() < 0.7:
        daemon.lose_power()
    else:
        daemon.be_killed()
    if draw.random() < 0.2:
        daemon.disk.fail_at(draw.randint(1, 20))
    until_it_starts(daemon)


def run(seed: int) -> CrashingDaemon:
    """Several lives on one disk."""
    daemon = CrashingDaemon(seed, options(seed), exact=seed % 3 != 0)
    for _ in range(LIVES):
        live_and_crash(daemon)
        disk = daemon.disk.kill()
        names = [name for name in disk.listdir(LOG) if name.endswith(".log")]
        assert_workq_accepts(disk.read(f"{LOG}/{name}") for name in names)
        assert_losses_are_known(daemon)
    return daemon


def assert_losses_are_known(daemon: CrashingDaemon) -> None:
    """A sealed segment that is cut at a record, or gone, is damage at the next start."""
    draw = random.Random(daemon.clock.instant_us)
    writes = daemon.disk.calls["write"]
    try:
        # what the start has to say of them
        daemon.writer.write()
    except LogFailedError:
        return
    disk = daemon.disk.kill()
    if daemon.disk.calls["write"] > writes:
        # else the start has just read the same bytes, and refuses damage
        assert not any(found.damage for found in verify(disk, LOG))
    names = [name for name in disk.listdir(LOG) if name.endswith(".log")]
    if len(names) < 2:
        return
    path = f"{LOG}/{draw.choice(names[:-1])}"
    if draw.random() < 0.3:
        disk.unlink(path)
    else:
        spans = list(scan_segment(disk.read(path)).spans())
        disk.truncate(path, draw.choice([HEADER_BYTES, *(end for _, _, end in spans[:-1])]))
    assert any(found.path == path for found in verify(disk, LOG) if found.damage)


@pytest.mark.parametrize("group", range(GROUPS))
def test_crash_keeps_acknowledged_changes_and_leaves_no_half_ones(group: int) -> None:
    daemons = [run(seed) for seed in range(group, SEEDS, GROUPS)]
    assert len(daemons) >= SEEDS // GROUPS
    assert sum(daemon.moved_ends for daemon in daemons) > 0, "suspensions met leases"
    assert sum(daemon.snapshots.indexed for daemon in daemons) > 0, "snapshots have entries"


def test_crash_that_loses_unsynced_sectors_stops_the_start_or_harms_nothing() -> None:
    """A hole in the middle looks like damage; ``--repair`` goes on without it."""
    refused = 0
    for seed in range(60):
        config = options(seed)
        config.cmdlog_sync = "always"
        daemon = CrashingDaemon(seed, config, exact=True)
        daemon.live(30)
        for _ in range(20):
            daemon.ask()
        daemon.writer.write()
        daemon.lose_power(holes=True)
        try:
            daemon.recover()
        except LogCorruptError:
            refused += 1
            before = {name: daemon.disk.read(f"{LOG}/{name}") for name in daemon.disk.listdir(LOG)}
            with pytest.raises(LogCorruptError):
                daemon.recover()
            after = {name: daemon.disk.read(f"{LOG}/{name}") for name in daemon.disk.listdir(LOG)}
            assert after == before, "a refused start changed something"
            until_it_starts(daemon, repair=True)
        live_and_crash(daemon)
    assert 0 < refused < 60


def test_sync_that_failed_has_its_changes_written_again_at_the_start() -> None:
    """The system reads it back, but a later sync would say that all is well and write nothing."""
    daemon = CrashingDaemon(1, Config(cmdlog_path=LOG), exact=True)
    daemon.commit()
    set_ = request(Function.SET, b"a:1:0:key", b"v", flags=Flag.PERSIST, at=START)
    daemon.engine.handle("session", set_, daemon.clock.instant_us)
    daemon.writer.write()
    daemon.disk.fail_at(1, "sync")
    with pytest.raises(LogFailedError):
        daemon.writer.sync()
    daemon.take_down()
    daemon.be_killed()
    daemon.recover()
    again = daemon.engine.handle("session", set_, daemon.clock.instant_us + SECOND)
    assert again is not None
    assert decode_reply(again).error == ""
    assert daemon.writer.settled == daemon.writer.appended, "told OK at once: it is there already"
    for seed in range(20):
        disk = daemon.disk.crash(seed)
        found = CrashingDaemon(seed, daemon.config, exact=True)
        found.disk, found.steps = disk, []
        found.recover()
        assert found.engine.store.find(b"a:1:0:key") is not None


def test_disk_without_room_for_the_copy_does_not_stop_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    daemon = CrashingDaemon(1, Config(cmdlog_path=LOG), exact=True)
    for _ in range(20):
        daemon.ask()
    daemon.commit()
    daemon.be_killed()
    (name,) = (name for name in daemon.disk.listdir(LOG) if name.endswith(".log"))
    size = daemon.disk.size(f"{LOG}/{name}")
    for room, error, said in (
        (size, 0, False),
        (size - 1, 0, True),
        # no inode, or a quota, which the free bytes do not tell
        (size, errno.ENOSPC, True),
        (size, errno.EDQUOT, True),
    ):
        daemon.disk.capacity_bytes = size + room
        if error:
            daemon.disk.fail_at(1, "create", error)
        caplog.clear()
        daemon.recover()
        assert ("not-written-anew" in caplog.text) is said
        assert daemon.disk.listdir(LOG) == [name]


def test_restart_on_a_disk_without_room_for_the_copy_begins_no_segment() -> None:
    """Each start on a full disk, with work that ends, would take one more of the last inodes."""
    daemon = CrashingDaemon(1, Config(cmdlog_path=LOG), exact=True)
    for _ in range(20):
        daemon.ask()
    daemon.commit()
    for _ in range(5):
        daemon.be_killed()
        daemon.disk.fail_at(1, "create", errno.ENOSPC)
        daemon.recover()
        daemon.ask()
        daemon.commit()
        assert len([name for name in daemon.disk.listdir(LOG) if name.endswith(".log")]) == 1


def test_snapshot_does_not_change_where_the_last_segment_could_not_be_copied() -> None:
    daemon = CrashingDaemon(1, Config(cmdlog_path=LOG), exact=True)
    for _ in range(20):
        daemon.ask()
    daemon.commit()
    daemon.writer.roll()
    path = take_snapshot(
        daemon.disk, LOG, SNAPSHOTS, list(daemon.writer.sealed), daemon.clock.instant_us
    )
    (name,) = (name for name in daemon.disk.listdir(path) if name.endswith(".log"))
    before = daemon.disk.read(f"{path}/{name}")
    daemon.be_killed()
    daemon.disk.capacity_bytes = 0
    daemon.recover()
    daemon.disk.capacity_bytes = None
    for _ in range(20):
        daemon.ask()
    daemon.commit()
    assert daemon.writer.appended > 0
    assert daemon.disk.read(f"{path}/{name}") == before
    daemon.be_killed()
    daemon.recover()
    daemon.engine.check()


def test_recovery_finds_nothing_odd_where_time_was_applied_in_the_smallest_parts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastjournald.engine.engine.ADVANCE_WORK_MAX", 1)
    for seed in (3, 35, 73, 77, 93, 126):
        run(seed)
    assert "event=found" in caplog.text
    assert "event=odd" not in caplog.text
