"""Snapshots: whole or not there, verified, pruned."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from fastjournal.cmdlog.format.layout import SEGMENT_HEADER, Command, SegmentInfo
from fastjournal.cmdlog.format.records import encode_simple, encode_time
from fastjournal.cmdlog.live_index import LiveIndexWriter
from fastjournal.cmdlog.locks import lock_append
from fastjournal.cmdlog.snapshot import (
    begin_snapshot,
    list_snapshots,
    prune_snapshots,
    read_manifest,
    remove_partial_snapshots,
    snapshot_name,
    take_snapshot,
    verify_snapshot,
)
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournal.disk import Disk, OsDisk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.testing.disk import SimulatedDisk

NOW = 1_795_169_472_123_456
RECORD = encode_simple(Command.DELETE, encode_time(NOW), bytes(16))
SNAPSHOTS = "/log/snapshots"


def a_log(disk: Disk, directory: str, segments: int = 3) -> LogWriter:
    writer = LogWriter(
        disk,
        directory,
        segment_bytes_max=1000,
        sync=SyncPolicy.ALWAYS,
        active=None,
        sealed=[],
        segment_start=lambda previous, now_us: RECORD,
    )
    for number in range(segments):
        writer.append(RECORD, 1, NOW + number)
        writer.roll()
    return writer


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("/log")
    return disk


def take(disk: Disk, segments: list[SegmentInfo], now_us: int = NOW) -> str:
    """Take a snapshot with a live index, of one entry in each segment."""
    partial = begin_snapshot(disk, "/log", SNAPSHOTS, segments, now_us)
    try:
        writer = LiveIndexWriter(partial.create_live_index().write, now_us, segments)
        for segment in segments:
            writer.add_run(segment.number, [len(SEGMENT_HEADER)])
        written = writer.finish()
    except LogFailedError:
        partial.remove()
        raise
    return partial.finish(written)


def test_snapshot_after_any_crash_is_whole_or_a_partial_that_can_be_removed(
    disk: SimulatedDisk,
) -> None:
    writer = a_log(disk, "/log", 2)
    whole = partial = 0
    for count in range(1, 20):
        before = disk.kill()
        before.fail_at(count)
        with suppress(LogFailedError):
            take(before, writer.sealed)
        for seed in range(30):
            after = before.crash(seed)
            for path in list_snapshots(after, SNAPSHOTS):
                verify_snapshot(after, path)
                whole += 1
            partial += len(remove_partial_snapshots(after, SNAPSHOTS))
            assert remove_partial_snapshots(after, SNAPSHOTS) == []
            take(after, writer.sealed, NOW + 1)
    assert whole
    assert partial


def test_snapshot_that_fails_leaves_nothing_and_the_next_one_is_whole(disk: SimulatedDisk) -> None:
    writer = a_log(disk, "/log")
    take(disk, writer.sealed)
    failures = 0
    for count in range(1, 20):
        after = disk.kill()
        after.fail_at(count, error=errno.ENOSPC)
        with suppress(LogFailedError):
            take(after, writer.sealed, NOW + 1)
            continue
        failures += 1
        # but what is whole but for the last sync
        assert {Path(path).name for path in list_snapshots(after, SNAPSHOTS)} == set(
            after.listdir(SNAPSHOTS)
        )
        verify_snapshot(after, take(after, writer.sealed, NOW + 2))
    assert failures >= 3 + 6


def test_snapshot_on_another_file_system_fails_with_a_hint(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log = tmp_path_factory.mktemp("log")
    if os.stat("/dev/shm").st_dev == log.stat().st_dev:
        pytest.skip("there is no second file system")
    disk = OsDisk()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        writer = a_log(disk, str(log))
        with pytest.raises(LogFailedError, match="EXDEV") as raised:
            take_snapshot(disk, str(log), f"{elsewhere}/snapshots", writer.sealed, NOW)
        assert raised.value.hint == "use a directory on the same file system"
        assert os.listdir(f"{elsewhere}/snapshots") == []


def test_snapshot_that_was_returned_survives_every_crash(disk: SimulatedDisk) -> None:
    writer = a_log(disk, "/log", 2)
    path = take(disk, writer.sealed)
    for seed in range(50):
        assert len(verify_snapshot(disk.crash(seed), path).segments) == 2


def test_snapshots_are_none_without_a_directory(disk: SimulatedDisk) -> None:
    assert list_snapshots(disk, "/none") == []
    assert remove_partial_snapshots(disk, "/none") == []


def test_snapshot_of_an_instant_with_one_is_refused_and_the_first_stays(
    disk: SimulatedDisk,
) -> None:
    writer = a_log(disk, "/log", 1)
    path = take(disk, writer.sealed)
    with pytest.raises(LogFailedError):
        take(disk, writer.sealed)
    verify_snapshot(disk, path)


def edit(disk: SimulatedDisk, path: str, old: bytes, new: bytes) -> None:
    data = disk.read(path)
    assert old in data
    disk.unlink(path)
    disk.create(path).write(data.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("MANIFEST.json", b"fastjournal-snapshot", b"other", "a file of format 'other'"),
        ("MANIFEST.json", b'"version": 1', b'"version": 2', "version 2"),
        ("MANIFEST.json", b"{", b"", "not a file of format"),
        ("MANIFEST.json", b"fastjournal-snapshot", b"\xff", "not a file of format"),
        ("MANIFEST.json", b'"taken_us"', b'"taken"', "not a file of format"),
        ("MANIFEST.json", b'"number": 1', b'"number": 3', "do not agree"),
        ("MANIFEST.json", b'"records": 4', b'"records": 5', "do not agree"),
        ("MANIFEST.json", b'"bytes": 164', b'"bytes": 163', "do not agree"),
        ("LIVE", b"FJLIVE", b"FJlive", "checksum"),
        ("LIVE", b"FJLIVEND", b"FJLIVEN", "163 bytes, not 164"),
        ("000000002.log", RECORD, RECORD + b"x", "84 bytes, not 82"),
        ("000000002.log", b"\x05", b"\x06", "checksum"),
    ],
)
def test_snapshot_check_names_whatever_was_changed(
    disk: SimulatedDisk, file: str, old: bytes, new: bytes, words: str
) -> None:
    writer = a_log(disk, "/log", 2)
    path = take(disk, writer.sealed)
    edit(disk, f"{path}/{file}", old, new)
    with pytest.raises(LogCorruptError, match=words) as caught:
        verify_snapshot(disk, path)
    assert caught.value.path == f"{path}/{file}"


def test_snapshot_check_reads_the_live_index(disk: SimulatedDisk) -> None:
    writer = a_log(disk, "/log", 2)
    for taken_us, segments, offsets, words in (
        (NOW + 1, writer.sealed, [8], "the live index is of other segments than those that"),
        (NOW, writer.sealed[:1], [8], "the live index is of other segments than those that"),
        (NOW, writer.sealed, [8, 8], "records of segment 1 are there twice"),
    ):
        partial = begin_snapshot(disk, "/log", SNAPSHOTS, writer.sealed, NOW)
        index = LiveIndexWriter(partial.create_live_index().write, taken_us, segments)
        for offset in offsets:
            index.add_run(1, [offset])
        path = partial.finish(index.finish())
        with pytest.raises(LogCorruptError, match=words) as caught:
            verify_snapshot(disk, path)
        assert caught.value.path == f"{path}/LIVE"
        assert prune_snapshots(disk, SNAPSHOTS, 1) == []
        take(disk, writer.sealed, NOW + 1)
        assert prune_snapshots(disk, SNAPSHOTS, 1) == [path]
        prune_all(disk)


def prune_all(disk: SimulatedDisk) -> None:
    for path in list_snapshots(disk, SNAPSHOTS):
        disk.rename(path, f"{path}.partial")
    remove_partial_snapshots(disk, SNAPSHOTS)


def test_live_index_that_the_manifest_names_has_to_be_there(disk: SimulatedDisk) -> None:
    path = take(disk, a_log(disk, "/log", 2).sealed)
    disk.unlink(f"{path}/LIVE")
    with pytest.raises(LogCorruptError, match="LIVE: this file is missing from the snapshot"):
        verify_snapshot(disk, path)


def test_missing_or_additional_file_is_named(disk: SimulatedDisk) -> None:
    writer = a_log(disk, "/log", 2)
    path = take(disk, writer.sealed)
    disk.create(f"{path}/000000009.log")
    with pytest.raises(LogCorruptError, match=r"000000009\.log: this file is not in the manifest"):
        verify_snapshot(disk, path)
    disk.unlink(f"{path}/000000009.log")
    disk.unlink(f"{path}/000000001.log")
    with pytest.raises(LogCorruptError, match=r"000000001\.log: this file is missing"):
        verify_snapshot(disk, path)
    assert read_manifest(disk, path).records == 4


def test_pruning_leaves_a_log_that_a_daemon_started_on_and_does_not_count_it() -> None:
    with tempfile.TemporaryDirectory() as directory:
        disk = OsDisk()
        log, snapshots = f"{directory}/log", f"{directory}/snapshots"
        disk.mkdir(log)
        sealed = a_log(disk, log).sealed
        paths = [take_snapshot(disk, log, snapshots, sealed, NOW + day) for day in range(5)]
        lock_append(disk, paths[0]).close()
        assert list_snapshots(disk, snapshots) == paths[1:]
        (Path(paths[1]) / "notes.txt").write_bytes(b"of somebody")
        Path(paths[2], "MANIFEST.json").write_bytes(b"{}")
        elsewhere = Path(directory) / "elsewhere"
        Path(paths[3]).rename(elsewhere)
        Path(paths[3]).symlink_to(elsewhere)
        before = {path: sorted(os.listdir(path)) for path in [*paths, elsewhere]}
        later = take_snapshot(disk, log, snapshots, sealed, NOW + 9)
        assert prune_snapshots(disk, snapshots, 1) == [paths[4]]
        assert not os.path.exists(paths[4])
        del before[paths[4]]
        assert {path: sorted(os.listdir(path)) for path in before} == before
        assert list_snapshots(disk, snapshots)[-1] == later


def test_interrupted_snapshots_go_where_nothing_else_is_in_them(tmp_path: Path) -> None:
    disk = OsDisk()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "000000001.log").write_bytes(b"")
    snapshots = tmp_path / "snapshots"
    for number, name in enumerate(("000000001.log", "append.lock", "notes.txt")):
        path = snapshots / f"{snapshot_name(NOW + number)}.partial"
        path.mkdir(parents=True)
        (path / name).write_bytes(b"")
    link = snapshots / f"{snapshot_name(NOW + 9)}.partial"
    link.symlink_to(tmp_path / "elsewhere")
    removed = remove_partial_snapshots(disk, str(snapshots))
    assert removed == [str(snapshots / f"{snapshot_name(NOW)}.partial")]
    assert len(list(snapshots.iterdir())) == 3
    assert (tmp_path / "elsewhere" / "000000001.log").exists()


def test_snapshot_that_a_daemon_starts_on_while_it_is_pruned_stays(disk: SimulatedDisk) -> None:
    sealed = a_log(disk, "/log").sealed
    path = take(disk, sealed)
    take(disk, sealed, NOW + 1)

    class Racing:
        def __getattr__(self, name: str) -> object:
            return getattr(disk, name)

        def rename(self, old: str, new: str) -> None:
            if old == path:
                lock_append(disk, path)
            disk.rename(old, new)

    assert prune_snapshots(cast("Disk", Racing()), SNAPSHOTS, 1) == []
    assert "append.lock" in disk.listdir(path)
    assert disk.exists(f"{path}/000000001.log")


def test_snapshot_whose_removal_is_cut_short_is_whole_or_partial() -> None:
    calls = SimulatedDisk()
    calls.mkdir("/log")
    paths = [take(calls, a_log(calls, "/log").sealed, NOW), take(calls, [], NOW + 1)]
    before = calls.calls.total()
    prune_snapshots(calls, SNAPSHOTS, 1)
    outcomes = set()
    for call in range(1, calls.calls.total() - before + 1):
        for seed in range(20):
            disk = SimulatedDisk(seed)
            disk.mkdir("/log")
            take(disk, a_log(disk, "/log").sealed, NOW)
            take(disk, [], NOW + 1)
            disk.fail_at(call)
            with pytest.raises(LogFailedError):
                prune_snapshots(disk, SNAPSHOTS, 1)
            after = disk.crash(seed)
            left = list_snapshots(after, SNAPSHOTS)
            assert left in (paths, paths[1:])
            for path in left:
                verify_snapshot(after, path)
            remove_partial_snapshots(after, SNAPSHOTS)
            assert len(after.listdir(SNAPSHOTS)) == len(left)
            outcomes.add(len(left))
    assert outcomes == {1, 2}
