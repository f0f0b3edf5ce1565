"""Stream of events in a real Spark that is killed: exactly once, and no segment goes too early."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastjournal.cmdlog.archive import FORMAT, VERSION, ArchiveState, write_state
from fastjournal.disk import OsDisk
from fj_cli.demo import history
from fj_cli.demo.history import Simulation
from fj_cli.demo.players import load_changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNTIL_US = int(datetime(2026, 11, 22, 2, 30, tzinfo=UTC).timestamp()) * 1_000_000
WAIT_S = 400
START = """
import sys
import fastjournal.spark
from fastjournal.spark.session import SMALL_OPTIONS
archive, checkpoint, output, size = sys.argv[1:]
spark = fastjournal.spark.start_session("local[2]", options=SMALL_OPTIONS)
"""
PIPELINE = """
stream = spark.readStream.format("fastjournal").option("view", "events")
stream = stream.option("cleanSource", "delete")
stream = stream.option("maxBytesPerTrigger", size).load(archive)
query = stream.writeStream.option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start(output, format="parquet").awaitTermination()
"""


def committed(checkpoint: Path) -> list[int]:
    """Return the batches that Spark knows to be done."""
    return sorted(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))


@pytest.mark.spark
def test_stream_of_events_counts_each_event_once_when_spark_is_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SEGMENT_BYTES", 32 * 1024)
    changes = load_changes()[-400:]
    ledger = Simulation(tmp_path / "log", changes, until_us=UNTIL_US, days=2).run()
    archive = tmp_path / "archive"
    archive.mkdir()
    state = ArchiveState(FORMAT, VERSION, len(ledger.segments) + 1, None, ())
    write_state(OsDisk(), str(archive), state)
    for info in ledger.segments:
        os.link(tmp_path / "log" / info.name, archive / f"{info.number:09d}-{info.crc32c:08x}.log")
    names = sorted(path.name for path in archive.glob("*.log"))
    assert len(names) > 3
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    places = [str(place) for place in (archive, checkpoint, output)]
    arguments = [*places, str(ledger.segments[0].bytes + 1)]
    command = [sys.executable, "-c", START + PIPELINE, *arguments]
    draw = random.Random(5)
    with subprocess.Popen(command, start_new_session=True) as process:
        deadline = time.monotonic() + WAIT_S
        while len(committed(checkpoint)) < 2:
            left = {path.name for path in archive.glob("*.log")}
            # listed before the commits are: a batch has one segment at most
            assert left >= set(names[len(committed(checkpoint)) :]), "none goes before its commit"
            assert process.poll() is None
            assert time.monotonic() < deadline, "it goes on"
            time.sleep(draw.random() / 100)
        os.killpg(process.pid, signal.SIGKILL)
    done = len(committed(checkpoint))
    assert done < len(names), "it was killed in the middle"
    assert {path.name for path in archive.glob("*.log")} >= set(names[done:])
    # the next process that runs it is this one
    names_of_places = ("archive", "checkpoint", "output", "size")
    exec(PIPELINE, {"spark": spark, **dict(zip(names_of_places, arguments, strict=True))})
    truth = Counter[tuple[str, str]]()
    for (day, _, kind), count in ledger.events.items():
        truth[day, kind] += count
    found = spark.read.parquet(str(output)).selectExpr("CAST(time AS DATE) AS day", "event")
    assert Counter((str(row.day), row.event) for row in found.collect()) == truth
    left = sorted(path.name for path in archive.glob("*.log"))
    # the last batch is committed when the next one begins, and a batch may end inside a segment
    assert left == names[len(names) - len(left) :]
    assert len(left) <= 2
