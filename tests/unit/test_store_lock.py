"""Lock of an object store: claims of processes that live, hide, end, or were suspended.

A directory of this machine stands for the object store: the lock asks for no more than both have.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.fs
import pytest

from fastjournal.errors import LogLockedError
from fastjournal.spark.storage import store_lock
from fastjournal.spark.storage.store_lock import CLAIM_S, CLAIMS, Claim, StoreLock


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An object store; a put creates what is before the name."""
    (tmp_path / CLAIMS).mkdir()
    return pyarrow.fs.SubTreeFileSystem(str(tmp_path.parent), pyarrow.fs.LocalFileSystem())


def claim_of(process: int, tmp_path: Path) -> Path:
    """Put the claim of a process of this machine; return its file."""
    own = Claim.of_process()
    started = store_lock._started(process) or "1"
    path = tmp_path / CLAIMS / "other.json"
    path.write_bytes(msgspec.json.encode(Claim(own.boot, process, started)))
    return path


def ended_process() -> int:
    """Return the number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_claim_of_a_process_that_proc_hides_is_alive(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claim_of(os.getppid(), tmp_path)
    monkeypatch.setattr(store_lock, "_started", lambda process: None)
    with pytest.raises(LogLockedError, match="another fj-nightly works here"):
        StoreLock(store, tmp_path.name, Claim("boot", 1, "1"))
    assert claim.exists()


def test_claim_of_a_process_of_another_user_that_proc_hides_is_alive(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(process: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    claim = msgspec.json.decode(claim_of(os.getppid(), tmp_path).read_bytes(), type=Claim)
    monkeypatch.setattr(store_lock, "_started", lambda process: None)
    monkeypatch.setattr(os, "kill", refuse)
    assert not claim.is_dead


def test_claim_of_a_process_that_has_ended_is_dead(store: Any, tmp_path: Path) -> None:
    claim = claim_of(ended_process(), tmp_path)
    with StoreLock(store, tmp_path.name):
        assert not claim.exists()


def test_claim_of_an_earlier_process_of_the_same_number_is_dead(tmp_path: Path) -> None:
    assert Claim(Claim.of_process().boot, os.getpid(), "1").is_dead


def test_claim_without_a_possible_process_is_alive(store: Any, tmp_path: Path) -> None:
    own = Claim.of_process()
    for process in (-1, 0, 2**40):
        path = tmp_path / CLAIMS / "other.json"
        path.write_bytes(msgspec.json.encode(Claim(own.boot, process, "1")))
        with pytest.raises(LogLockedError, match="another fj-nightly works here"):
            StoreLock(store, tmp_path.name)


class VanishingStore:
    """Object store in which the other claim goes between its listing and its read."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def open_input_file(self, path: str) -> Any:
        self._files.delete_file(path)
        return self._files.open_input_file(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_claim_that_goes_while_it_is_looked_at_is_gone(store: Any, tmp_path: Path) -> None:
    claim = claim_of(os.getppid(), tmp_path)
    with StoreLock(VanishingStore(store), tmp_path.name) as lock:
        assert not claim.exists()
        lock.check()


def test_claim_ages_while_the_machine_is_suspended(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = [0.0]
    clock_gettime = time.clock_gettime

    def clock(number: int) -> float:
        return clock_gettime(number) + (slept[0] if number == time.CLOCK_BOOTTIME else 0)

    monkeypatch.setattr(time, "clock_gettime", clock)
    with StoreLock(store, tmp_path.name) as lock:
        lock.check()
        slept[0] = CLAIM_S
        with pytest.raises(LogLockedError, match="the lock was lost"):
            lock.check()


def test_lock_of_one_directory_is_held_twice_by_one_run(store: Any, tmp_path: Path) -> None:
    with (
        StoreLock(store, tmp_path.name) as first,
        StoreLock(store, tmp_path.name, held=[first.name]) as second,
    ):
        first.check()
        second.check()
        with pytest.raises(LogLockedError, match="another fj-nightly works here"):
            StoreLock(store, tmp_path.name, held=[first.name])
    assert list((tmp_path / CLAIMS).iterdir()) == []
