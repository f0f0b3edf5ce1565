"""Event files by processes that are killed at any call of the system, one alone or two at once."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fastjournal.disk import OsDisk
from fastjournal.spark.execution.cluster_tasks import Here
from fastjournal.spark.history.archive_taking import take_archive, take_segments
from fastjournal.spark.history.coverage import gaps_of
from tests.property.event_archives import events_on, rows_of, waiting
from tests.property.test_event_files import over_midnight

CHANGES = ("create", "mkdir", "rename", "rmdir", "sync_directory", "unlink")
BEFORE, BEHIND, IN_PART = "before", "behind", "in part"
TRUTH = {1: 5, 2: 3}
"""Rows by segment."""


class Killed:
    """Ends its own process by SIGKILL at the nth change of the disk.

    Args:
        number: 1 is the next change.
        when: Before it, behind it, or when half of a write is done.
    """

    def __init__(self, number: int, when: str) -> None:
        self._left = number
        self._when = when

    def call(self, plain: Any, *arguments: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left == 0 and self._when == IN_PART and plain.__name__ == "write":
            plain(arguments[0][: len(arguments[0]) // 2])
        if self._left == 0 and self._when != BEHIND:
            os.kill(os.getpid(), signal.SIGKILL)
        found = plain(*arguments, **options)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


class KillingFile:
    """File whose writes and syncs count."""

    def __init__(self, file: Any, killed: Killed) -> None:
        self._file = file
        self._killed = killed

    def write(self, data: bytes) -> None:
        self._killed.call(self._file.write, data)

    def sync(self) -> None:
        self._killed.call(self._file.sync)

    def close(self) -> None:
        self._file.close()


class KillingDisk:
    """Disk of this machine whose changes count."""

    def __init__(self, killed: Killed) -> None:
        self._disk = OsDisk()
        self._killed = killed

    def create(self, path: str, **options: Any) -> KillingFile:
        return KillingFile(self._killed.call(self._disk.create, path, **options), self._killed)

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self._disk, name)
        if name not in CHANGES:
            return plain
        return lambda *arguments, **options: self._killed.call(plain, *arguments, **options)


@pytest.fixture(scope="module")
def segments() -> dict[str, bytes]:
    """Segments of an archive, the first of which is over midnight, by name."""
    run, _ = over_midnight()
    disk = run.log.disk
    return {path.rpartition("/")[2]: disk.read(path) for path in waiting(disk)}


def archive_of(segments: dict[str, bytes], directory: Path) -> Path:
    """Write an archive."""
    archive = directory / "archive"
    archive.mkdir(parents=True)
    for name, data in segments.items():
        (archive / name).write_bytes(data)
    return archive


def killed_run(archive: Path, output: Path, killed: Killed) -> int:
    """Start a run that is killed, in a process of its own; return its number."""
    process = os.fork()
    if process == 0:
        try:
            disk: Any = KillingDisk(killed)
            take_segments(disk, str(archive), events_on(disk, str(output)), Here(), 1)
        finally:
            os._exit(0)
    return process


def was_killed(process: int) -> bool:
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


def check(segments: dict[str, bytes], archive: Path, output: Path) -> None:
    """Check that nothing is doubled or lost, and that the next run takes the rest."""
    events = events_on(OsDisk(), str(output))
    left = {int(path.name[:9]) for path in archive.glob("*.log")}
    found = Counter(row["segment"] for row in rows_of(events))
    for number, rows in TRUTH.items():
        assert found[number] <= rows, "nothing is doubled"
        assert number in left or found[number] == rows, "nothing is lost"
    # a segment of which only one day was written is a gap until the next run
    named = [gap[:2] for gap in gaps_of(events.segments())]
    assert named == ([(1, 1)] if 0 < found[1] < TRUTH[1] else [])
    take_archive(OsDisk(), str(archive), events)
    assert Counter(row["segment"] for row in rows_of(events)) == TRUTH
    assert gaps_of(events.segments()) == []
    assert list(archive.glob("*.log")) == []
    assert [path.name for path in output.iterdir()] == ["events"]
    # and any number of repeats
    for name, data in segments.items():
        (archive / name).write_bytes(data)
    take_archive(OsDisk(), str(archive), events)
    assert Counter(row["segment"] for row in rows_of(events)) == TRUTH


@pytest.mark.parametrize("when", [BEFORE, BEHIND, IN_PART])
def test_event_files_of_a_run_that_is_killed_at_any_call_have_each_event_once(
    when: str, segments: dict[str, bytes], tmp_path: Path
) -> None:
    for number in range(1, 100):
        archive, output = archive_of(segments, tmp_path / str(number)), tmp_path / f"out{number}"
        killed = was_killed(killed_run(archive, output, Killed(number, when)))
        if not killed:
            break
        check(segments, archive, output)
        shutil.rmtree(output)
    assert not killed
    assert number > 20


def test_event_files_of_two_runs_at_once_that_are_killed_have_each_event_once(
    segments: dict[str, bytes], tmp_path: Path
) -> None:
    killed = Counter[int]()
    for number in range(1, 24, 2):
        archive, output = archive_of(segments, tmp_path / str(number)), tmp_path / f"out{number}"
        runs = [
            killed_run(archive, output, Killed(number + more, when))
            for more, when in ((0, BEFORE), (5, IN_PART), (99, BEHIND))
        ]
        killed[sum(map(was_killed, runs))] += 1
        check(segments, archive, output)
    assert killed[1] + killed[2] > 5
