"""Nightly run on an S3 server: the installed command, its kill, and readers of its tables."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import fastjournal.spark
from fastjournal.cmdlog.archive import FORMAT, VERSION, ArchiveState, write_state
from fastjournal.cmdlog.snapshot import take_snapshot
from fastjournal.disk import OsDisk
from fastjournal.spark.storage.table_files import StoreFiles
from fj_cli.demo.history import HistoryLedger, Simulation
from fj_cli.demo.players import load_changes
from tests.integration.programs import Program, installed, run_program
from tests.spark.s3_server import BUCKET, s3_server

if TYPE_CHECKING:
    from tests.spark.java_machine import JavaMachine

UNTIL_US = int(datetime(2026, 11, 22, 2, 30, tzinfo=UTC).timestamp()) * 1_000_000
DAY = date(2026, 11, 21)
OUTPUT = f"s3://{BUCKET}/night"
WAIT_S = 400


class Simulated(NamedTuple):
    """Simulated days with their archive and snapshot."""

    ledger: HistoryLedger
    archive: Path
    snapshot: str
    settings: dict[str, str]
    """Environment of all who use the server: executors too."""

    @property
    def arguments(self) -> list[str]:
        """Arguments of a run."""
        given = ["--snapshot", self.snapshot, "--archive", str(self.archive), "--output", OUTPUT]
        return [installed("fj-nightly"), *given, "--date", str(DAY), "--master", "local[2]"]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    directory = tmp_path_factory.mktemp("s3")
    changes = load_changes()[-600:]
    ledger = Simulation(directory / "log", changes, until_us=UNTIL_US, days=3).run()
    archive = directory / "archive"
    archive.mkdir()
    for info in ledger.segments:
        os.link(directory / "log" / info.name, archive / f"{info.number:09d}-{info.crc32c:08x}.log")
    state = ArchiveState(FORMAT, VERSION, len(ledger.segments) + 1, None, ())
    write_state(OsDisk(), str(archive), state)
    snapshots = str(directory / "snapshots")
    snapshot = take_snapshot(OsDisk(), str(directory / "log"), snapshots, ledger.segments, UNTIL_US)
    with s3_server() as settings:
        yield Simulated(ledger, archive, snapshot, settings)


@pytest.fixture
def machine_on_s3(simulated: Simulated, java_machine: JavaMachine) -> Iterator[JavaMachine]:
    """Machine whose executors have the settings of the server, as a user gives them to Spark."""
    settings = {f"spark.executorEnv.{name}": text for name, text in simulated.settings.items()}
    with java_machine.configured(settings):
        yield java_machine


def listed() -> set[str]:
    """Return the objects of the output."""
    files, path = pyarrow.fs.FileSystem.from_uri(OUTPUT)
    return set(StoreFiles(files).walk(path))


def kill_with_events(arguments: list[str]) -> None:
    """Run and kill it when the first events are there."""
    with Program(arguments) as process:
        deadline = time.monotonic() + WAIT_S
        while not any(name.startswith("events/day=") for name in listed()):
            assert process.poll() is None
            assert time.monotonic() < deadline, "it goes on"
            time.sleep(0.03)
        process.kill()


@pytest.mark.spark
def test_event_files_on_s3_have_each_event_once_though_fj_nightly_was_killed(
    simulated: Simulated, machine_on_s3: JavaMachine
) -> None:
    kill_with_events(simulated.arguments)
    run_program(simulated.arguments, check=True, env=os.environ | machine_on_s3.lend())
    truth = Counter[tuple[str, str]]()
    for (day, _, kind), count in simulated.ledger.events.items():
        truth[day, kind] += count

    spark = machine_on_s3.session()
    view = fastjournal.spark.events(spark, OUTPUT).select("day", "event").collect()
    assert Counter((str(row.day), row.event) for row in view) == truth
    source = spark.read.format("fastjournal").option("view", "events").load(f"s3a{OUTPUT[2:]}")
    assert source.count() == truth.total()
    plain = pq.read_table(f"{OUTPUT}/events", columns=["day", "event"]).to_pylist()
    assert Counter((str(row["day"]), row["event"]) for row in plain) == truth

    day = truth_of_day(truth)
    throughput = pq.read_table(f"{OUTPUT}/throughput/dt={DAY}").to_pylist()
    assert {kind: sum(row[kind] for row in throughput) for kind in day} == day
    entries = pq.read_table(f"{OUTPUT}/entries/dt={DAY}", columns=["key"])
    assert entries.num_rows == len(simulated.ledger.live)
    backlog = pq.read_table(f"{OUTPUT}/backlog/dt={DAY}").to_pylist()
    assert sum(row["entries"] for row in backlog) == len(simulated.ledger.live)
    assert f"reports/{DAY}.html" in listed()
    assert list(simulated.archive.glob("*.log")) == []
    assert not any("staging/" in name for name in listed())


def truth_of_day(truth: Counter[tuple[str, str]]) -> dict[str, int]:
    return {kind: count for (day, kind), count in truth.items() if day == str(DAY)}


def test_output_and_history_of_one_place_may_be_written_in_several_ways(
    simulated: Simulated,
) -> None:
    """Behind ``?`` are options of the client; they are no part of the place."""
    day = ["--date", "2020-01-01", "--output", OUTPUT]
    for history in (f"{OUTPUT}/", f"{OUTPUT}?region=us-east-1", OUTPUT.replace("s3:", "s3a:")):
        run_program([installed("fj-nightly"), *day, "--history", history], check=True)
    assert "reports/2020-01-01.html" in listed()


def test_output_without_a_bucket_is_an_error_before_any_work(simulated: Simulated) -> None:
    arguments = [one.replace(BUCKET, "nowhere") for one in simulated.arguments]
    found = run_program(arguments, capture_output=True, text=True)
    assert found.returncode == 74
    assert "the output cannot be written" in found.stderr
