"""Disks: the real one and the simulated one do the same, and fail in the same words."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fastjournal.disk import Disk, OsDisk
from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.testing.disk import SimulatedDisk

Action = Callable[[Disk, str], object]


@pytest.fixture(params=["os", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return OsDisk() if request.param == "os" else SimulatedDisk()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    directory = str(tmp_path / "log" / "deep")
    disk.mkdir(directory)
    return directory


def write(disk: Disk, path: str, data: bytes) -> None:
    file = disk.create(path)
    file.write(data)
    file.sync()
    file.close()


def test_appended_bytes_are_read_back(disk: Disk, root: str) -> None:
    path = f"{root}/a"
    write(disk, path, b"one ")
    file = disk.open_append(path)
    file.write(b"two ")
    file.write(b"three")
    file.close()
    file.close()
    assert disk.read(path) == b"one two three"
    assert disk.size(path) == 13
    assert disk.read_slice(path, 4, 3) == b"two"
    assert disk.read_slice(path, 8, 100) == b"three"
    assert disk.read_slice(path, 100, 1) == b""


def test_second_name_shows_what_is_appended_to_the_first(disk: Disk, root: str) -> None:
    write(disk, f"{root}/a", b"a")
    disk.link(f"{root}/a", f"{root}/b")
    disk.open_append(f"{root}/a").write(b"more")
    assert disk.read(f"{root}/b") == b"amore"


def test_link_count_is_that_of_the_names_in_all_directories(disk: Disk, root: str) -> None:
    write(disk, f"{root}/a", b"same")
    write(disk, f"{root}/other", b"same")
    assert disk.link_count(f"{root}/a") == 1
    disk.mkdir(f"{root}/d/e")
    disk.link(f"{root}/a", f"{root}/d/e/b")
    assert disk.link_count(f"{root}/a") == disk.link_count(f"{root}/d/e/b") == 2
    disk.unlink(f"{root}/a")
    assert disk.link_count(f"{root}/d/e/b") == 1


@pytest.mark.parametrize("size", [0, 2, 5, 7])
def test_file_is_cut_or_filled_with_zeros(disk: Disk, root: str, size: int) -> None:
    write(disk, f"{root}/a", b"12345")
    disk.truncate(f"{root}/a", size)
    assert disk.read(f"{root}/a") == b"12345\0\0"[:size]


def test_file_where_a_directory_is_wanted_is_a_failure(disk: Disk, root: str) -> None:
    write(disk, f"{root}/a", b"a")
    disk.mkdir(root)
    for path in (f"{root}/a", f"{root}/a/b"):
        with pytest.raises(LogFailedError, match="cannot create directory") as caught:
            disk.mkdir(path)
        assert "move it away" in str(caught.value)


def test_directory_where_a_file_is_wanted_is_a_failure(disk: Disk, root: str) -> None:
    disk.mkdir(f"{root}/000000001.log")
    with pytest.raises(LogFailedError, match="cannot read") as caught:
        disk.read(f"{root}/000000001.log")
    assert "move it away" in str(caught.value)


FAILING: list[tuple[str, str, Action]] = [
    ("open", "ENOENT", lambda disk, root: disk.open_append(f"{root}/none")),
    ("create", "EEXIST", lambda disk, root: disk.create(f"{root}/file")),
    ("create", "ENOENT", lambda disk, root: disk.create(f"{root}/none/a")),
    ("read", "ENOENT", lambda disk, root: disk.read(f"{root}/none")),
    ("read", "ENOENT", lambda disk, root: disk.read_slice(f"{root}/none", 0, 1)),
    ("read", "ENOENT", lambda disk, root: disk.size(f"{root}/none")),
    ("read", "ENOENT", lambda disk, root: disk.link_count(f"{root}/none")),
    ("list", "ENOENT", lambda disk, root: disk.listdir(f"{root}/none")),
    ("list", "ENOTDIR", lambda disk, root: disk.listdir(f"{root}/file")),
    ("rename", "ENOENT", lambda disk, root: disk.rename(f"{root}/none", f"{root}/a")),
    ("link", "EEXIST", lambda disk, root: disk.link(f"{root}/file", f"{root}/full")),
    ("link", "ENOENT", lambda disk, root: disk.link(f"{root}/none", f"{root}/a")),
    ("remove", "ENOENT", lambda disk, root: disk.unlink(f"{root}/none")),
    ("remove directory", "ENOTEMPTY", lambda disk, root: disk.rmdir(f"{root}/full")),
    ("truncate", "ENOENT", lambda disk, root: disk.truncate(f"{root}/none", 0)),
    ("sync directory", "ENOENT", lambda disk, root: disk.sync_directory(f"{root}/none")),
    ("lock", "ENOENT", lambda disk, root: disk.lock(f"{root}/none/lock")),
    ("read free space", "ENOENT", lambda disk, root: disk.free_space(f"{root}/none")),
]


@pytest.mark.parametrize(("words", "name", "act"), FAILING)
def test_error_of_the_system_is_a_log_failure_with_its_path(
    disk: Disk, root: str, words: str, name: str, act: Action
) -> None:
    write(disk, f"{root}/file", b"x")
    disk.mkdir(f"{root}/full")
    write(disk, f"{root}/full/x", b"x")
    with pytest.raises(LogFailedError, match=f"cannot {words}.*{name}") as caught:
        act(disk, root)
    assert caught.value.path is not None
    assert caught.value.path.startswith(root)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    "action",
    [
        lambda disk, path: disk.size(path),
        lambda disk, path: disk.link_count(path),
        lambda disk, path: disk.read(path),
        lambda disk, path: disk.read_slice(path, 0, 9),
        lambda disk, path: disk.open_append(path),
        lambda disk, path: disk.truncate(path, 0),
    ],
)
@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_fifo_is_not_waited_for_and_no_device_is_read(
    tmp_path: Path, action: Action, name: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = str(tmp_path / name)
    with pytest.raises(LogFailedError, match=r"not a regular file|ENXIO") as caught:
        action(OsDisk(), path)
    assert caught.value.path == path


def test_lock_that_may_only_be_read_is_no_fifo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refusing(path: str, flags: int, mode: int = 0) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(LogFailedError, match="not a regular file"):
        OsDisk().lock(str(tmp_path / "lock"), shared=True)


def test_special_files_are_neither_files_nor_directories_nor_links(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    names = ["pipe", "socket", "/dev/null", "file", "link", ".", "none", "file/none"]
    special = [name for name in names if OsDisk().is_special(str(tmp_path / name))]
    assert special == ["pipe", "socket", "/dev/null"]


def test_lock_excludes_and_shared_ones_do_not_exclude_each_other(disk: Disk, root: str) -> None:
    path = f"{root}/lock"
    first, second = disk.lock(path, shared=True), disk.lock(path, shared=True)
    with pytest.raises(LogLockedError) as caught:
        disk.lock(path)
    assert caught.value.path == path
    first.close()
    first.close()
    with pytest.raises(LogLockedError):
        disk.lock(path)
    second.close()
    with_all = disk.lock(path)
    with pytest.raises(LogLockedError):
        disk.lock(path, shared=True)
    with_all.close()
    disk.lock(path, shared=True).close()


def test_disk_has_free_space(disk: Disk, root: str) -> None:
    assert disk.free_space(root).bytes > 0


def test_short_write_is_continued_until_all_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.write
    lengths = iter([3, 1, 2, 100])
    monkeypatch.setattr(
        os, "write", lambda descriptor, data: real_write(descriptor, data[: next(lengths)])
    )
    write(OsDisk(), str(tmp_path / "a"), b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize("first", [0, 4])
def test_system_that_writes_nothing_more_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    lengths = iter([first, 0])
    monkeypatch.setattr(os, "write", lambda descriptor, data: next(lengths))
    with pytest.raises(LogFailedError, match="the system wrote nothing"):
        write(OsDisk(), str(tmp_path / "a"), b"0123456789")


def test_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(LogFailedError) as caught:
        write(OsDisk(), str(tmp_path / "a"), b"x")
    assert str(caught.value) == (
        f"{tmp_path}/a: cannot sync: No space left on device (ENOSPC)"
        " (free some space on this file system, or inodes (df -i))"
    )


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_hard_link_that_is_refused_has_a_hint_of_its_own(
    number: int, disk: Disk, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    write(disk, f"{root}/a", b"one")
    if isinstance(disk, SimulatedDisk):
        disk.fail_at(1, "link", number)
    else:
        monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(LogFailedError, match="cannot link to") as caught:
        disk.link(f"{root}/a", f"{root}/b")
    assert caught.value.path == f"{root}/a"
    assert "hard links" in (caught.value.hint or "")
    assert ("remove old snapshots" in (caught.value.hint or "")) is (number == errno.EMLINK)
    assert disk.listdir(root) == ["a"]


# --- simulated disk -------------------------------------------------------------------------------


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
