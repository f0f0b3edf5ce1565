"""From a daemon to the report: a real fastjournald, its snapshot, Spark on the Java of a wheel."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

import fastjournal.spark
from fastjournal.client import SyncClient
from fastjournal.cmdlog.format.layout import Command
from fastjournal.errors import LogCorruptError
from fastjournal.keys import build_journal_key
from fastjournal.spark import jobs
from fastjournal.spark.report import day_of, print_report, run_jobs
from fastjournal.testing.logs import START_US, SegmentBuilder
from tests.integration.daemon_process import DaemonProcess
from tests.spark.random_logs import by_position, replayed
from tests.spark.test_spark_views import read, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3600 * 1_000_000
OPTIONS = ("--cmdlog-seg-size", "4096")
NEVER_US = 4_000_000_000_000_000
# Commands that Spark's start script calls; java is not among them.
TOOLS = (
    "bash",
    "sh",
    "dirname",
    "env",
    "cat",
    "ls",
    "ps",
    "uname",
    "nice",
    "chmod",
    "readlink",
    "id",
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A daemon that has had all kinds of work, and the snapshot that it took."""
    directory = tmp_path_factory.mktemp("daemon")
    with (
        DaemonProcess(directory, *OPTIONS, "--archive-dir", f"{directory}/archive") as daemon,
        SyncClient(daemon.address) as client,
    ):
        for number in range(40):
            key = build_journal_key("web", f"{number}", priority=number % 3)
            client.set(key, b"v" * number, uri=f"http://web/{number}")
        for number in range(5):
            later = build_journal_key("later", f"{number}", not_before_us=NEVER_US)
            client.set(later, b"later")
        client.set("plain", b"value")
        client.set("plain", b"other", overwrite=True)
        done = client.next("web", count=10, lease_us=HOUR)
        assert done.token is not None
        for pair in done.pairs[:6]:
            client.delete(pair.key, token=done.token)
        client.release(done.pairs[6].key, done.token)
        # The page of a job that is worked on changes again.
        again = build_journal_key("web", "again")
        client.set(again, b"new", uri=done.pairs[7].uri)
        client.delete(build_journal_key("web", "39", priority=0))
        stats = client.stats("web")
        snapshot = client.snapshot()
        yield daemon, Path(snapshot), stats


def test_entries_of_a_snapshot_equal_the_replay(spark: SparkSession, work: Any) -> None:
    _, snapshot, _ = work
    rows = rows_of(read(spark, snapshot, "entries"))
    assert rows == replayed(snapshot)
    assert sum(row[-5] > 0 for row in rows) == 1


def test_spark_nightly_command_runs_without_a_java_of_the_system(
    spark: SparkSession, work: Any, tmp_path: Path
) -> None:
    daemon, _, stats = work
    path = tmp_path / "bin"
    path.mkdir()
    for tool in TOOLS:
        found = next(
            (Path(place, tool) for place in os.defpath.split(":") if Path(place, tool).exists()),
            None,
        )
        if found is not None:
            (path / tool).symlink_to(found)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAVA", "SPARK", "PYSPARK", "FASTJOURNAL"))
    }
    output = tmp_path / "out"
    code = "from fastjournal.spark.nightly import main; main()"
    archive = daemon.directory / "archive"
    options = ["--server", daemon.address, "--output", str(output), "--master", "local[2]"]
    options += ["--archive", str(archive)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *options],
        env={**environment, "PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr[-3000:]) == (0, "")
    directory = Path(done.stdout.splitlines()[-1])
    assert directory.parent == output
    wide = {str(path) for path in (output, *output.rglob("*")) if path.stat().st_mode & 0o027}
    assert not wide, "readable by others than the log"
    snapshot = sorted((daemon.log_path / "snapshots").iterdir())[-1]
    backlog = {row["domain"]: row for row in pq.read_table(directory / "backlog").to_pylist()}
    assert {name: backlog["web"][name] for name in jobs.BACKLOG_NUMBERS} == {
        name: stats[name] for name in jobs.BACKLOG_NUMBERS
    }
    assert backlog["later"]["delayed"] == 5
    entries = pq.read_table(directory / "entries")
    assert by_position([tuple(row.values()) for row in entries.to_pylist()]) == replayed(snapshot)

    # What happened, once, though compaction and other snapshots came in between.
    assert not list(archive.glob("*.log"))
    found = fastjournal.spark.events(spark, output).groupBy("event").count().collect()
    counts = {row["event"]: row["count"] for row in found}
    assert counts == {
        "set": 48,
        "replaced": 1,
        "leased": 10,
        "completed": 6,
        "returned": 1,
        "deleted": 1,
    }
    plain = pq.read_table(output / "events").to_pylist()
    assert Counter(row["event"] for row in plain) == counts

    # Once more on the same snapshot, in another process: the same rows, in their place.
    before = tables(directory)
    report = run_jobs(spark, str(snapshot), str(output))
    assert report.directory == str(directory)
    assert tables(directory) == before
    console = Console(file=io.StringIO(), width=120)
    print_report(report, console)
    said = console.file.getvalue()
    assert said in done.stdout


def tables(directory: Path) -> dict[str, list[dict[str, Any]]]:
    names = ("backlog", "entries", "throughput")
    return {name: pq.read_table(directory / name).to_pylist() for name in names}


def test_backlog_and_throughput_count_what_happened(spark: SparkSession, work: Any) -> None:
    _, snapshot, _ = work
    records = read(spark, snapshot, "records")
    in_all = jobs.throughput_in_all(jobs.throughput(records)).collect()
    web = next(row for row in in_all if row["domain"] == "web").asDict()
    assert {name: web[name] for name in jobs.THROUGHPUT_NUMBERS} == {
        "set": 41,
        "leased": 10,
        "completed": 6,
        "removed": 1,
        "returned": 1,
        "buried": 0,
    }
    assert sorted(row["domain"] for row in in_all) == ["later", "web"]


def test_throughput_is_by_minute_and_counts_no_entry_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    segment = SegmentBuilder(now_us=START_US - START_US % 60_000_000)
    first = segment.entry(b"web:001:5:x")
    segment.lease([first], START_US + HOUR)
    written = segment.now_us
    segment.now_us += 60_000_000
    segment.simple(Command.TIMEOUT_ATTEMPT, first)
    # Written again under a new id, as cleaning and the 256th attempt do.
    moved = segment.entry(b"web:001:5:x", timestamp=written)
    segment.simple(Command.DELETE, first)
    segment.fail(moved, b"no")
    (tmp_path / "000000001.log").write_bytes(bytes(segment))
    rows = jobs.throughput(read(spark, tmp_path, "records")).collect()
    found = [tuple(row[name] for name in jobs.THROUGHPUT_NUMBERS) for row in rows]
    assert [row["minute"] for row in rows] == [
        datetime(1970, 1, 1) + timedelta(microseconds=written + after) for after in (0, 60_000_000)
    ]
    assert found == [(1, 1, 0, 0, 0, 0), (0, 0, 0, 1, 1, 1)]


def test_log_that_is_no_snapshot_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "000000001.log").write_bytes(bytes(SegmentBuilder()))
    with pytest.raises(LogCorruptError, match="no manifest"):
        run_jobs(spark, str(tmp_path), str(tmp_path / "out"))


def test_report_date_is_that_of_the_snapshot_in_utc() -> None:
    midnight = int(datetime(2026, 11, 21, tzinfo=UTC).timestamp()) * 1_000_000
    assert day_of(midnight - 1) == "2026-11-20"
    assert day_of(midnight) == "2026-11-21"
