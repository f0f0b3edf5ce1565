"""Spark on a cluster: two executors in processes of their own get the package from an archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import numpy as np
import pyspark

import fastjournal
from fastjournal.cmdlog.format.layout import segment_name
from fastjournal.disk import OsDisk
from fastjournal.remote.file_store import FileStore
from fastjournal.spark.history.archive_taking import take_archive
from fastjournal.spark.history.remote_taking import take_remote
from fastjournal.testing.logs import SegmentBuilder
from tests.integration.remote_uploader import RemoteWriter
from tests.property.event_archives import archived as archived_run
from tests.property.event_archives import events_on, rows_of
from tests.property.event_ledger import EventLedger
from tests.property.ledger_run import LedgerRun
from tests.spark.java_machine import JavaMachine

JOB = """
import json, os, sys
import fastjournal.spark
from fastjournal.disk import OsDisk
from fastjournal.spark.execution.cluster_tasks import ClusterTasks
from fastjournal.spark.history.archive_taking import take_archive
from fastjournal.spark.history.event_files import open_events
from fastjournal.spark.history.remote_taking import find_work, take_work
from fastjournal.spark.session import SMALL_OPTIONS

options = {
    **SMALL_OPTIONS,
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.archives": os.path.abspath("environment.tar.gz") + "#environment",
    "spark.executor.memory": "512m",
    # as for users: the session that the machine is of interprets expressions
    "spark.sql.codegen.factoryMode": "FALLBACK",
    # both executors, before the first task
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}
spark = fastjournal.spark.start_session("local-cluster[2,1,512]", options=options)
def where(_):
    import fastjournal, time
    # so long that both have some
    time.sleep(0.3)
    return fastjournal.__file__
told = {"app": spark.sparkContext.applicationId}
told["packages"] = sorted(set(spark.sparkContext.parallelize(range(8), 8).map(where).collect()))
reader = spark.read.format("fastjournal").schema("id STRING")
told["rows"] = reader.load(sys.argv[1]).count()
told["entries"] = [row.id for row in reader.load(sys.argv[1], view="entries").collect()]
tasks = ClusterTasks(spark)
told["parallel"] = tasks.parallel
events = open_events(sys.argv[3])[1]
told["events"] = take_archive(OsDisk(), sys.argv[2], events, tasks, parallel=tasks.parallel)
url, events = sys.argv[4], open_events(sys.argv[5])[1]
told["remote"] = take_work(url, events, find_work(url, events), tasks, tasks.parallel)
view = spark.read.format("fastjournal").load(url, view="events")
told["segments"] = view.rdd.getNumPartitions()
told["view"] = view.count()
told["live"] = spark.read.format("fastjournal").load(url, view="entries").count()
spark.stop()
print(json.dumps(told))
"""


def test_spark_cluster_reads_with_the_package_of_an_archive(
    java_machine: JavaMachine, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    segment = SegmentBuilder()
    segment.entry(b"web:001:5:x")
    (log / segment_name(1)).write_bytes(bytes(segment))
    archived, table = tmp_path / "archive", str(tmp_path / "cluster")
    run = LedgerRun(EventLedger(5), 150, lambda _: None)
    run.run()
    write_archive(archived, run)
    here = events_on(OsDisk(), str(tmp_path / "here"))
    assert take_archive(OsDisk(), str(archived), here) == run.ledger.counts.total()
    write_archive(archived, run)
    # executors of a cluster read a remote log, too
    remote, segments = RemoteWriter(FileStore(str(tmp_path / "remote"))), sealed_segments(5)
    for number, data in segments.items():
        remote.put(number, data, 200)
    remote.upload_segments(segments)
    (tmp_path / "remote/segments").rename(tmp_path / "away")
    of_remote = events_on(OsDisk(), str(tmp_path / "remote here"))
    assert take_remote(str(tmp_path / "remote"), of_remote) == (15, [])
    (tmp_path / "away").rename(tmp_path / "remote/segments")
    url, remote_table = (tmp_path / "remote").as_uri(), str(tmp_path / "of-remote")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    package = Path(fastjournal.__file__).parent
    # with its bytecode, as tools that pack environments do: else two processes compile all of it;
    # without files that another process is writing
    shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("*.pyc.*"))
    # the other packages, hundreds of megabytes, stay where they are
    (site / "others.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    # the interpreter has one path, of the directory of an executor and of that of the driver's Java
    (java_machine.directory / "environment").symlink_to(environment)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(environment, arcname=".")
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        ["environment/bin/python", "job.py", str(log), str(archived), table, url, remote_table],
        cwd=tmp_path,
        env=os.environ | java_machine.lend() | {"PYSPARK_PYTHON": "./environment/bin/python"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    work = Path(pyspark.__file__).parent / "work" / told["app"]
    shutil.rmtree(work)
    # not the one of this process, and not the one of the driver
    found = [Path(package).relative_to(work).parts[:3] for package in told["packages"]]
    assert found == [(executor, "environment", "lib") for executor in ("0", "1")]
    assert told["rows"] == 2
    assert told["entries"] == ["x"]
    # executors have taken the archive, with the rows that one process finds
    assert told["parallel"] == 2
    assert told["events"] == run.ledger.counts.total()
    assert list(archived.glob("*.log")) == []
    assert rows_of(events_on(OsDisk(), table)) == rows_of(here)
    assert told["remote"] == [15, []]
    assert rows_of(events_on(OsDisk(), remote_table)) == rows_of(of_remote)
    assert (told["segments"], told["view"], told["live"]) == (5, 15, 15)


def sealed_segments(count: int) -> dict[int, bytes]:
    """Return so many segments of three SETs."""
    run, _ = archived_run(count)
    return {int(name[:9]): data for name, data in sorted(run.kept.items())}


def write_archive(archive: Path, run: LedgerRun) -> None:
    archive.mkdir(exist_ok=True)
    for name, data in run.kept.items():
        (archive / name).write_bytes(data)


def test_session_starts_where_the_path_of_the_package_has_a_blank(tmp_path: Path) -> None:
    place = tmp_path / "a blank"
    shutil.copytree(Path(fastjournal.__file__).parent, place / "fastjournal")
    script = (
        "from fastjournal.spark import start_session\n"
        "import fastjournal\n"
        "spark = start_session('local[1]')\n"
        "print(fastjournal.__file__, spark.range(3).count())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{place}/fastjournal/__init__.py 3\n", done.stderr
    assert "log4j" not in done.stderr
