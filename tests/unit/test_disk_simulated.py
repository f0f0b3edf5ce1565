from __future__ import annotations

import errno

import pytest

from fastjournal.errors import LogFailedError
from fastjournal.testing.disk import SimulatedDisk

SEEDS = range(200)


def with_file(synced: bytes, unsynced: bytes = b"") -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("/log")
    file = disk.create("/log/a")
    file.write(synced)
    file.sync()
    disk.sync_directory("/log")
    file.write(unsynced)
    return disk


def test_synced_bytes_survive_every_crash() -> None:
    disk = with_file(b"synced")
    for seed in SEEDS:
        assert disk.crash(seed, holes=True).read("/log/a") == b"synced"


def test_unsynced_bytes_survive_as_a_prefix_perhaps_with_zeros() -> None:
    disk = with_file(b"synced", b"0123456789")
    tails = {disk.crash(seed).read("/log/a")[6:] for seed in SEEDS}
    assert {b"", b"0123456789"} < tails
    assert any(0 < len(tail) < 10 for tail in tails)
    assert any(tail.endswith(b"\0") for tail in tails)
    for tail in tails:
        assert b"0123456789".startswith(tail.rstrip(b"\0"))
        assert len(tail) <= 10


def test_holes_lose_sectors_before_others_that_survive() -> None:
    disk = with_file(b"synced", b"x" * 20_000)
    tails = [disk.crash(seed, holes=True).read("/log/a")[6:] for seed in SEEDS]
    assert any(b"\0x" in tail for tail in tails)
    assert all(set(tail) <= set(b"\0x") for tail in tails)
    assert not any(b"\0x" in disk.crash(seed).read("/log/a") for seed in SEEDS)


def test_crash_leaves_the_disk_as_it_is_and_the_same_seed_gives_the_same() -> None:
    disk = with_file(b"synced", b"0123456789")
    for seed in SEEDS:
        assert disk.crash(seed).read("/log/a") == disk.crash(seed).read("/log/a")
    assert disk.read("/log/a") == b"synced0123456789"


def test_names_of_an_unsynced_directory_survive_in_any_part() -> None:
    disk = with_file(b"a")
    disk.create("/log/b")
    disk.create("/log/c")
    seen = {tuple(disk.crash(seed).listdir("/log")) for seed in SEEDS}
    assert seen == {("a",), ("a", "b"), ("a", "c"), ("a", "b", "c")}


def test_move_is_done_or_not() -> None:
    disk = with_file(b"a")
    disk.create("/log/b").sync()
    disk.rename("/log/a", "/log/c")
    disk.unlink("/log/b")
    seen = {tuple(disk.crash(seed).listdir("/log")) for seed in SEEDS}
    assert seen == {("a",), ("a", "b"), ("b", "c"), ("c",)}
    disk.sync_directory("/log")
    assert {tuple(disk.crash(seed).listdir("/log")) for seed in SEEDS} == {("c",)}


def test_disk_keeps_two_names_of_a_file_one_file_after_a_crash() -> None:
    disk = with_file(b"a")
    disk.link("/log/a", "/log/b")
    disk.sync_directory("/log")
    after = disk.crash(1)
    after.open_append("/log/a").write(b"more")
    assert after.read("/log/b") == b"amore"


def test_bytes_that_survived_a_crash_survive_the_next() -> None:
    disk = with_file(b"synced", b"0123456789")
    disk.create("/log/b")
    for seed in SEEDS:
        after = disk.crash(seed)
        again = after.crash(seed + 1)
        assert again.listdir("/log") == after.listdir("/log")
        assert again.read("/log/a") == after.read("/log/a")


def test_killed_process_loses_nothing_but_makes_nothing_durable() -> None:
    disk = with_file(b"synced", b"0123456789")
    disk.lock("/log/append.lock")
    killed = disk.kill()
    assert killed.read("/log/a") == b"synced0123456789"
    killed.lock("/log/append.lock")
    assert any(killed.crash(seed).read("/log/a") == b"synced" for seed in SEEDS)
    killed.open_append("/log/a").sync()
    assert all(killed.crash(seed).size("/log/a") == 16 for seed in SEEDS)


@pytest.mark.parametrize("call", ["write", "any"])
def test_planned_call_fails_once_and_has_written_a_part(call: str) -> None:
    parts = set()
    for seed in SEEDS:
        disk = SimulatedDisk(seed)
        file = disk.create("/a")
        disk.fail_at(2, call, errno.EIO)
        file.write(b"one")
        with pytest.raises(LogFailedError, match="EIO"):
            file.write(b"0123456789")
        parts.add(disk.read("/a")[3:])
        file.write(b"")
    assert b"" in parts
    assert b"0123456789" in parts
    assert len(parts) > 5


def test_sync_after_a_failed_one_succeeds_and_saves_nothing_of_it() -> None:
    disk = with_file(b"synced")
    file = disk.open_append("/log/a")
    file.write(b"0123456789")
    disk.fail_at(1, "sync")
    with pytest.raises(LogFailedError, match="cannot sync"):
        file.sync()
    file.write(b"later")
    file.sync()
    assert disk.read("/log/a") == b"synced0123456789later"
    assert disk.crash(1).read("/log/a") == b"synced" + bytes(10) + b"later"
    disk.truncate("/log/a", 8)
    assert disk.crash(1).read("/log/a") == b"synced\0\0"


def test_full_disk_takes_what_fits() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    file = disk.create("/a")
    file.write(b"1234")
    assert disk.free_space("/").bytes == 6
    assert disk.free_space("/").inodes is None
    with pytest.raises(LogFailedError, match="ENOSPC"):
        file.write(b"567890x")
    assert disk.read("/a") == b"1234567890"
    disk.unlink("/a")
    disk.create("/b").write(b"1234567890")


def test_calls_are_counted_by_name() -> None:
    disk = with_file(b"a", b"b")
    assert disk.calls["write"] == 2
    assert disk.calls["sync"] == 1
    assert disk.calls["sync_directory"] == 1
