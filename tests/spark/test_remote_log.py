"""Spark on a remote log: views in place, nightly report without the primary's machine, faults."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import fastjournal.spark
from fastjournal.disk import OsDisk
from fastjournal.errors import FastjournalError, LogCorruptError, RemoteLogCorruptError
from fastjournal.remote.file_store import FileStore
from fastjournal.remote.objects import chunk_name
from fastjournal.remote.open_store import open_store
from fastjournal.spark.cluster.java_errors import translating_workers
from fastjournal.spark.data_source.source import FastjournalSource
from fastjournal.spark.export.snapshot_export import export_snapshot
from fastjournal.spark.history.days import DAY_US
from fastjournal.spark.history.events_view import history_parts
from fastjournal.spark.history.remote_taking import STATE_NAME, take_remote
from fastjournal.spark.live_entries.entry_parts import find_parts
from fastjournal.spark.storage.files import LogDirectory
from fj_cli.demo.history import HistoryLedger, Simulation
from fj_cli.demo.players import load_changes
from tests.integration.programs import Program, installed, run_program
from tests.integration.remote_uploader import RemoteWriter
from tests.integration.test_remote_log_restore import START, busy, installation
from tests.property.event_archives import events_on
from tests.property.event_archives import rows_of as event_rows
from tests.spark.live_snapshots import take_live_snapshot
from tests.spark.random_logs import replayed
from tests.spark.s3_server import BUCKET, s3_server
from tests.spark.test_spark_views import as_told, read, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.java_machine import JavaMachine

URL = f"s3://{BUCKET}/logs/main"


class Made(NamedTuple):
    """Remote log of a real daemon in a directory, and what was live at its newest checkpoint."""

    store: Path
    expected: list[tuple[Any, ...]]
    snapshot: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("remote")
    store = directory / "store"
    with installation(directory / "first", FileStore(str(store))) as running:
        busy(running)
        running.uploader.now_us = (START + 9) * 1_000_000
        snapshot = running.snapshot()
        running.uploader.checkpoint(snapshot)
    expected = replayed(snapshot)
    assert len(expected) == 50
    return Made(store, expected, snapshot)


@pytest.fixture(scope="module")
def settings(made: Made) -> Iterator[dict[str, str]]:
    """Server with a copy of the remote log at ``URL``."""
    with s3_server() as given:
        target, path = pyarrow.fs.FileSystem.from_uri(URL)
        local = pyarrow.fs.LocalFileSystem()
        pyarrow.fs.copy_files(
            str(made.store), path, source_filesystem=local, destination_filesystem=target
        )
        yield given


@pytest.fixture
def spark_on_s3(settings: dict[str, str], java_machine: JavaMachine) -> Iterator[SparkSession]:
    given = {f"spark.executorEnv.{name}": text for name, text in settings.items()}
    with java_machine.configured(given):
        yield java_machine.session()


# --- views ----------------------------------------------------------------------------------------


@pytest.mark.spark
def test_views_of_a_remote_log_on_s3_are_those_of_the_snapshot(
    made: Made, spark_on_s3: SparkSession
) -> None:
    spark = spark_on_s3
    for url in (URL, URL.replace("s3:", "s3a:")):
        found = spark.read.format("fastjournal").load(url, view="entries", instants="us")
        assert rows_of(found) == as_told(made.expected)
    whole = "key", "value", "size", "time_us", "command", "operation", "segment", "offset"
    expected = read(spark, made.snapshot, "records").select(*whole)
    records = spark.read.format("fastjournal").load(URL)
    assert rows_of(records.select(*whole)) == rows_of(expected)
    spark.sql(
        f"CREATE TEMPORARY VIEW live USING fastjournal OPTIONS (path '{URL}', view 'entries')"
    )
    (row,) = spark.sql(
        "SELECT count(*) AS n, count(DISTINCT segment) AS segments FROM live"
    ).collect()
    assert row.n == len(made.expected)
    assert row.segments > 1
    spark.sql("DROP VIEW live")
    events = spark.read.format("fastjournal").load(URL, view="events")
    kinds = Counter(one.event for one in events.select("event").collect())
    # in seven rounds of work
    assert (kinds["leased"], kinds["completed"], kinds["set"]) == (90, 90, 360)
    assert fastjournal.spark.event_span(URL) == fastjournal.spark.event_span(str(made.store))


@pytest.mark.spark
def test_views_of_a_remote_log_in_a_directory_with_and_without_its_live_index(
    made: Made, spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "a store"
    shutil.copytree(made.store, store)
    newest = LogDirectory(store)
    index = store / "live" / newest.name
    assert newest.live_bytes == index.stat().st_size
    assert [part.live is None for part in find_parts(str(store))] == [False]
    for path in (str(store), store.as_uri(), newest.uri):
        found = spark.read.format("fastjournal").load(path, view="entries", instants="us")
        assert rows_of(found) == as_told(made.expected)
    assert export_snapshot(store, tmp_path / "out", processes=1).rows == len(made.expected)
    events = events_on(OsDisk(), str(tmp_path / "output"))
    take_remote(store.as_uri(), events)
    view = read(spark, store, "events").collect()
    columns = [name for name in view[0].asDict() if name in event_rows(events)[0]]
    seen = Counter((row.event, row.segment, row.offset) for row in view)
    assert seen == Counter(
        (row["event"], row["segment"], row["offset"]) for row in event_rows(events)
    )
    assert columns

    index.unlink()
    assert [part.live for part in find_parts(str(store))] == [None]
    assert rows_of(read(spark, store, "entries", instants="us")) == as_told(made.expected)
    # an older checkpoint is named by its path
    first = min((store / "checkpoints").glob("0000000001-*.json"))
    older = rows_of(read(spark, first, "entries", instants="us"))
    assert len(older) == 50
    assert older != as_told(made.expected)


@pytest.mark.spark
def test_damaged_chunk_ends_the_view_of_events_or_is_a_row(
    made: Made, spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(made.store, store)
    rows = read(spark, store, "events").select("segment").collect()
    parts = [part.remote for part in history_parts(str(store))]
    # compaction has rewritten it before a checkpoint listed it
    harmed = next(one for one in parts if one is not None and one.chunks)
    path = store / chunk_name(harmed.chunks[-1])
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    where = f"{chunk_name(harmed.chunks[-1])} at offset 70: the checksum of its bytes is wrong"
    with pytest.raises(RemoteLogCorruptError, match=where), translating_workers():
        read(spark, store, "events").collect()
    found = read(spark, store, "events", mode="permissive").select("segment", "_corrupt").collect()
    assert [where in row["_corrupt"] for row in found if row["_corrupt"]] == [True]
    others = [row["segment"] for row in rows if row["segment"] != harmed.number]
    assert Counter(row["segment"] for row in found if not row["_corrupt"]) == Counter(others)
    assert len(others) < len(rows)


def checked(path: str, view: str = "entries") -> None:
    """Load as far as the driver does, without Java."""
    FastjournalSource({"path": path, "view": view}).check_directories()


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return what changes the newest of the objects that a pattern names."""

    def harm(store: Path) -> None:
        path = max(store.glob(name))
        path.write_bytes(change(path.read_bytes()))

    return harm


def removed(name: str) -> Callable[[Path], None]:
    """Return what removes all objects that a pattern names."""

    def harm(store: Path) -> None:
        for path in store.glob(name):
            path.unlink()

    return harm


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (removed("format.json"), "holds objects of a remote log, and no format.json"),
        (
            changed("format.json", lambda data: data[:20]),
            "store/format.json: it cannot be read: Input data was truncated",
        ),
        (
            changed("format.json", lambda data: data.replace(b'"format":1', b'"format":7')),
            "store/format.json: it has format 7, this release reads 1",
        ),
        (
            changed("checkpoints/*", lambda data: data[:30]),
            "it cannot be read: Input data was truncated",
        ),
        (
            changed("checkpoints/*", lambda data: data.replace(b'"format":1', b'"format":7')),
            "it has format 7, this release reads 1",
        ),
        (removed("checkpoints/*"), "store/checkpoints: there is no checkpoint"),
        (removed("segments/*/*"), "lists this segment, and it is not there"),
        (changed("segments/*/*", lambda data: data[:-1]), "and not those that its name says"),
        (changed("live/*", lambda data: data[:-1]), "the live index is torn"),
        (
            changed("live/*", lambda data: data[:7] + b"\2" + data[8:]),
            "a live index of version 2, and this release reads version 1",
        ),
        (changed("live/*", lambda _: b"nothing of ours"), "this is no live index of fastjournal"),
    ],
)
def test_remote_log_that_cannot_be_read_is_one_sentence(
    made: Made, tmp_path: Path, harm: Callable[[Path], None], sentence: str
) -> None:
    store = tmp_path / "store"
    shutil.copytree(made.store, store)
    checked(str(store))
    harm(store)
    with pytest.raises(FastjournalError) as error:
        checked(str(store))
    assert sentence in str(error.value)
    assert str(store) in str(error.value)


def test_live_index_of_another_checkpoint_is_an_error(made: Made, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(made.store, store)
    first = min((store / "checkpoints").glob("0000000001-*.json"))
    newest = LogDirectory(store)
    assert newest.name != first.stem
    (store / "live" / newest.name).rename(store / "live" / first.stem)
    checked(str(store))
    with pytest.raises(LogCorruptError, match="of other segments than those that the checkpoint"):
        checked(str(first))
    first.unlink()
    with pytest.raises(RemoteLogCorruptError, match="the checkpoint is not there"):
        checked(str(first))


# --- nightly report -------------------------------------------------------------------------------

UNTIL_US = int(datetime(2026, 11, 22, 2, 30, tzinfo=UTC).timestamp()) * 1_000_000
FIRST, SECOND = date(2026, 11, 20), date(2026, 11, 21)
OUTPUT = f"s3://{BUCKET}/night"
LOG_URL = f"s3://{BUCKET}/remote/log"
WAIT_S = 400


class Nights:
    """Simulated days, whose log a primary stores from night to night."""

    def __init__(self, directory: Path) -> None:
        changes = load_changes()[-600:]
        self._log = directory / "log"
        with patch("fj_cli.demo.history.SEGMENT_BYTES", 1 << 14):
            life = Simulation(self._log, changes, until_us=UNTIL_US, days=3)
            self.ledger: HistoryLedger = life.run()
        self._directory = directory
        self.remote = RemoteWriter(open_store(LOG_URL))
        self._stored = 0
        self.truth = Counter[tuple[str, str]]()
        for (day, _, kind), count in self.ledger.events.items():
            self.truth[day, kind] += count

    def store_until(self, us: int) -> None:
        """Store the log up to the first segment that ends behind an instant; take a checkpoint."""
        segments = {}
        for info in self.ledger.segments:
            data = (self._log / info.name).read_bytes()
            segments[info.number] = data
            if info.number > self._stored:
                assert info.last_us is not None
                self.remote.now_us = info.last_us
                self.remote.put(info.number, data, 1 << 16)
                self._stored = info.number
            if info.last_us is not None and info.last_us > us:
                break
        part = self._directory / f"until-{us}"
        part.mkdir()
        for info in self.ledger.segments[: len(segments)]:
            os.link(self._log / info.name, part / info.name)
        live = take_live_snapshot(part, self._directory / "snapshots", taken_us=self.remote.now_us)
        self.remote.upload_segments(segments, (live / "LIVE").read_bytes())
        shutil.rmtree(self._directory / "snapshots")


@pytest.fixture(scope="module")
def nights(settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Nights:
    del settings
    return Nights(tmp_path_factory.mktemp("nights"))


def midnight(day: date) -> int:
    """Return the end of a UTC day."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return int(begin.timestamp()) * 1_000_000 + DAY_US


def arguments(day: date, *more: str) -> list[str]:
    given = ["--remote-log", LOG_URL, "--output", OUTPUT, "--date", str(day)]
    return [installed("fj-nightly"), *given, "--master", "local[2]", *more]


def listed() -> dict[str, Any]:
    """Return the objects of the output, and when they were written."""
    files, path = pyarrow.fs.FileSystem.from_uri(OUTPUT)
    selector = pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True)
    found = files.get_file_info(selector)
    return {one.path.removeprefix(f"{path}/"): one.mtime for one in found if one.is_file}


def kill_with_new_events(given: list[str]) -> None:
    """Run and kill it when the first new events are there."""
    before = listed().keys()
    with Program(given) as process:
        deadline = time.monotonic() + WAIT_S
        while not any(name.startswith("events/day=") for name in listed().keys() - before):
            assert process.poll() is None
            assert time.monotonic() < deadline, "it goes on"
            time.sleep(0.03)
        process.kill()


def table(name: str, day: date) -> list[dict[str, Any]]:
    return list(pq.read_table(f"{OUTPUT}/{name}/dt={day}").to_pylist())


@pytest.mark.spark
def test_fj_nightly_reports_night_after_night_from_the_remote_log_alone(
    nights: Nights, settings: dict[str, str], java_machine: JavaMachine, tmp_path: Path
) -> None:
    given = {f"spark.executorEnv.{name}": text for name, text in settings.items()}
    # no daemon, no archive, no snapshot: nothing of the primary's machine
    environment = {"FASTJOURNAL_SERVER": f"unix:{tmp_path}/nobody"}
    with java_machine.configured(given):
        nights.store_until(midnight(FIRST))
        first = arguments(FIRST)
        run_program(first, check=True, env=os.environ | java_machine.lend() | environment)
        before = listed()
        assert f"reports/{FIRST}.html" in before
        assert STATE_NAME in before
        assert table("backlog", FIRST)

        # what was taken is not read again: it is not there
        for name, _ in nights.remote._store.list("log"):
            nights.remote._store.delete(name)
        nights.remote.take(b"2" * 16)
        nights.store_until(UNTIL_US)
        second = arguments(SECOND)
        kill_with_new_events(second)
        run_program(second, check=True, env=os.environ | java_machine.lend() | environment)

        found = Counter((str(row.day), row.event) for row in events_of(java_machine))
    assert found == nights.truth
    for day in (FIRST, SECOND):
        of_day = {kind: n for (on, kind), n in nights.truth.items() if on == str(day)}
        throughput = table("throughput", day)
        assert {kind: sum(row[kind] for row in throughput) for kind in of_day} == of_day
    entries = pq.read_table(f"{OUTPUT}/entries/dt={SECOND}", columns=["key"])
    assert entries.num_rows == len(nights.ledger.live)
    after = listed()
    assert f"reports/{SECOND}.html" in after
    of_first = [name for name in before if name.startswith("events/")]
    assert [after[name] for name in of_first] == [before[name] for name in of_first]
    assert not any("staging/" in name for name in after)


def events_of(machine: JavaMachine) -> list[Any]:
    return list(
        fastjournal.spark.events(machine.session(), OUTPUT).select("day", "event").collect()
    )


@pytest.mark.spark
def test_night_before_the_first_checkpoint_of_the_next_day_has_events_and_no_state(
    nights: Nights, settings: dict[str, str], java_machine: JavaMachine, tmp_path: Path
) -> None:
    del settings
    output = tmp_path / "output"
    day = date(2026, 11, 22)  # which the last checkpoint is in
    given = ["--remote-log", LOG_URL, "--output", str(output), "--date", str(day)]
    del nights
    done = run_program(
        [installed("fj-nightly"), *given],
        env=os.environ | java_machine.lend(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 74
    assert f"no checkpoint was taken since {day} ended" in done.stderr
    assert "fj-cli remote checkpoint" in done.stderr
    assert (output / "reports" / f"{day}.html").exists()
    assert list((output / "events").rglob("*.parquet"))


@pytest.mark.parametrize(
    ("url", "environment", "code", "sentence"),
    [
        (f"s3://{BUCKET}/nothing", {}, 74, "format.json: the prefix holds no remote log"),
        ("s3://nowhere/log", {}, 2, "there is no such bucket"),
        ("ftp://somewhere/log", {}, 2, "ftp://somewhere/log is no URL of an object store"),
        (
            LOG_URL,
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            69,
            "format.json: the request failed",
        ),
        ("file:///nowhere/at/all", {}, 74, "/nowhere/at/all/format.json: the prefix holds no"),
    ],
)
def test_fj_nightly_names_what_is_wrong_with_the_remote_log_before_any_work(
    settings: dict[str, str],
    tmp_path: Path,
    url: str,
    environment: dict[str, str],
    code: int,
    sentence: str,
) -> None:
    given = [installed("fj-nightly"), "--remote-log", url, "--output", str(tmp_path / "output")]
    done = run_program(
        given, env=os.environ | settings | environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert sentence in done.stderr
    assert not Path("/nowhere").exists()
    assert list((tmp_path / "output").iterdir()) == [tmp_path / "output" / "nightly.lock"]


def test_remote_log_goes_with_no_other_source_of_snapshot_and_history(tmp_path: Path) -> None:
    given = [installed("fj-nightly"), "--remote-log", "file:///x", "--output", str(tmp_path)]
    for other in ("--archive", "--snapshot"):
        done = run_program([*given, other, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 2
        assert f"--remote-log has what {other} has: give one of them" in done.stderr
