"""Locks of a log: one process appends, readers share, a rewrite waits for them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fastjournal.cmdlog.locks import READ_LOCK, lock_append, lock_read, lock_to_read
from fastjournal.disk import OsDisk
from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.limits import READ_LOCK_PATIENCE_S

HOLDER = """
import sys
from fastjournal.cmdlog.locks import lock_append
from fastjournal.disk import OsDisk
lock = lock_append(OsDisk(), sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_lock_lets_one_process_append_and_its_death_frees_the_log(tmp_path: Path) -> None:
    directory = str(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LogLockedError, match="another daemon") as caught:
            lock_append(OsDisk(), directory)
        assert caught.value.path == f"{directory}/append.lock"
        assert "fuser" in str(caught.value)
        holder.kill()
        holder.wait()
    lock_append(OsDisk(), directory).close()


def test_reader_waits_until_a_segment_is_replaced_and_then_keeps_it_so(tmp_path: Path) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    rewrite = lock_read(disk, directory, exclusive=True)
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            rewrite.close()

    with lock_to_read(disk, directory, sleep=sleep, monotonic=lambda: 0.0):
        assert len(pauses) == 3
        with pytest.raises(LogLockedError):
            lock_read(disk, directory, exclusive=True)
    lock_read(disk, directory, exclusive=True).close()


def test_reader_that_waits_too_long_is_told_so(tmp_path: Path) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    with (
        closing(lock_read(disk, directory, exclusive=True)),
        pytest.raises(LogLockedError, match="rewrites a segment"),
        lock_to_read(disk, directory, sleep=sleep, monotonic=lambda: now),
    ):
        pass
    assert READ_LOCK_PATIENCE_S <= now < READ_LOCK_PATIENCE_S + 1


def test_lock_file_that_may_only_be_read_is_locked_and_one_that_is_not_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, directory = OsDisk(), str(tmp_path)
    lock_read(disk, directory).close()
    open_ = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return open_(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with lock_to_read(disk, directory), pytest.raises(LogLockedError):
        lock_read(disk, directory, exclusive=True)
    (tmp_path / READ_LOCK).unlink()
    with lock_to_read(disk, directory):
        pass
    with pytest.raises(LogFailedError, match="EROFS"):
        lock_read(disk, directory)
