"""fj-nightly beside a daemon that takes no snapshot: the archive is taken, and snapshots stay.

All events are of today, which no report of a day that has ended shows: no run starts Spark.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq

from fastjournal.client import SyncClient
from fastjournal.keys import build_journal_key
from tests.integration.daemon_process import DaemonProcess
from tests.integration.programs import installed
from tests.integration.worker_process import wait_until

UNAVAILABLE, IO = 69, 74
REQUESTS = 60
SEGMENTS = 5
"""Segments that these fill, with the last one."""
KEPT = 2
"""Snapshots that a run keeps."""


def options(directory: Path) -> tuple[str, ...]:
    """Return those of a daemon whose segments are small, with an archive."""
    archive = ("--archive-dir", str(directory / "archive"))
    return ("--cmdlog-seg-size", "4096", "--cmdlog-sync", "os", *archive)


def fill(daemon: DaemonProcess) -> None:
    """Fill segments, and wait until those that are sealed are in the archive."""
    with SyncClient(daemon.address) as client:
        for number in range(REQUESTS):
            client.set(build_journal_key("web", f"{number}"), b"x" * 200)
    wait_for_archive(daemon, len(list(daemon.log_path.glob("*.log"))) - 1)


def wait_for_archive(daemon: DaemonProcess, segments: int) -> None:
    wait_until(lambda: len(list((daemon.directory / "archive").glob("*.log"))) >= segments)


def run(directory: Path, address: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command on archive and output of a directory."""
    places = ("--archive", str(directory / "archive"), "--output", str(directory / "out"))
    return subprocess.run(
        [installed("fj-nightly"), "--server", address, "--keep-snapshots", str(KEPT), *places],
        capture_output=True,
        text=True,
        check=False,
    )


def check_taken(directory: Path, done: subprocess.CompletedProcess[str]) -> None:
    """Check that the archive is in the table, and that the report says what is missing."""
    assert list((directory / "archive").glob("*.log")) == []
    assert pq.read_table(directory / "out" / "events")["event"].to_pylist() == ["set"] * REQUESTS
    (report,) = (directory / "out" / "reports").iterdir()
    assert done.stdout.splitlines()[-1] == str(report)
    assert "so the state of the entries is not known" in report.read_text()
    assert len(done.stderr.splitlines()) == 1
    assert "the archive was taken, and the report has no state of the entries" in done.stderr


def test_archive_is_taken_while_a_nearly_full_disk_makes_the_daemon_read_only(
    tmp_path: Path,
) -> None:
    with DaemonProcess(tmp_path, *options(tmp_path)) as daemon:
        fill(daemon)
    with DaemonProcess(tmp_path, *options(tmp_path), "--min-free-bytes", str(1 << 50)) as daemon:
        wait_for_archive(daemon, SEGMENTS)
        done = run(tmp_path, daemon.address)
    assert done.returncode == 1
    assert done.stderr.startswith("fj-nightly: read-only: the disk is nearly full")
    check_taken(tmp_path, done)


def test_snapshot_of_a_run_that_failed_is_used_by_its_repetition(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, *options(tmp_path)) as daemon:
        fill(daemon)
        with SyncClient(daemon.address) as client:
            earlier = client.snapshot()
        events = tmp_path / "out" / "events" / "day=2026-11-20"
        events.mkdir(parents=True)
        (events / "theirs.parquet").touch()
        snapshots = daemon.log_path / "snapshots"
        seen = []
        for _ in range(2):
            done = run(tmp_path, daemon.address)
            assert (done.returncode, done.stdout) == (IO, "")
            assert "theirs.parquet is no file of the events" in done.stderr
            seen.append({path.name for path in snapshots.iterdir()})
        assert len(seen[0]) == KEPT
        assert Path(earlier).name in seen[0]
        assert seen == [seen[0]] * len(seen)
        # one that somebody removed is taken again
        (newer,) = seen[0] - {Path(earlier).name}
        shutil.rmtree(snapshots / newer)
        assert run(tmp_path, daemon.address).returncode == IO
        assert len({path.name for path in snapshots.iterdir()} - {newer}) == KEPT
