"""Preparation of a nightly run: everything that may be wrong is tried before any work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from typing import Any

import pyarrow as pa
import pyarrow.fs
from pyspark.sql import SparkSession

from fastjournal.clock import SystemClock
from fastjournal.disk import OsDisk
from fastjournal.errors import LogLockedError
from fastjournal.spark.cluster.java import prepare_environment
from fastjournal.spark.cluster.java_errors import translating_start
from fastjournal.spark.execution.process_pool import processors
from fastjournal.spark.history.days import checked_day, last_ended_day
from fastjournal.spark.nightly.day_store import checked_output
from fastjournal.spark.nightly.inputs import (
    Night,
    check_archive,
    mode_of_archived,
    snapshot_manifest,
)
from fastjournal.spark.nightly.night_snapshot import ensure_snapshot
from fastjournal.spark.nightly.report.console import print_report
from fastjournal.spark.nightly.run import run_night
from fastjournal.spark.session import (
    SMALL_BYTES,
    SMALL_OPTIONS,
    check_listens,
    check_master,
    may_be_cluster,
    start_session,
)
from fastjournal.spark.storage.files import (
    LogDirectory,
    check_outside_snapshots,
    modes_of,
    pyarrow_uri,
    resolve,
    translating,
)
from fastjournal.spark.storage.store_lock import StoreLock

__all__ = [
    "ensure_snapshot",
    "needs_snapshot",
    "prepare",
    "print_report",
    "restrict",
    "run_night",
    "start",
]

FEW_PROCESSORS = 2
FEW_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:MetaspaceSize=128m"
"""Options of Java on few processors: one thread collects garbage, and not at the start yet."""
FEW_ENVIRONMENT = {"SPARK_DRIVER_MEMORY": "768m", "MALLOC_ARENA_MAX": "2"}
"""Memory of Java on few processors, unless it is set: the heap of 1 GiB that Spark gives it gets
full before it spills, and each of many threads keeps memory of its own."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_MODES = 0o640, 0o750
"""Modes of files and directories where no snapshot says them."""


def prepare(options: dict[str, Any], stack: ExitStack) -> Night:
    """Return the inputs of a run.

    Args:
        options: Options of the command.
        stack: Holds the lock of the tables.

    Raises:
        BadRequestError: The day has not ended, or a directory or the master is not what the option
            says.
        CannotConnectError: Spark's master does not listen.
        JavaMissingError: There is no Java.
        LogLockedError: Another run works on the tables.
        LogError: Snapshot or output cannot be used.
    """
    snapshot, archive, history = options["snapshot"], options["archive"], options["history"]
    now_us = SystemClock().now_us()
    if snapshot is not None:
        now_us = min(snapshot_manifest(snapshot).taken_us, now_us)
    day = checked_day(options["date"], now_us)
    check_master(options["master"], "--master")
    if archive is not None:
        check_archive(archive)
    if history is not None:
        check_outside_snapshots(*resolve(history))
    prepare_environment()
    check_listens(options["master"])
    restrict(snapshot, archive)
    store = checked_output(options["output"])
    history = store.uri if history is None else pyarrow_uri(history)
    store.guard = _lock(dict.fromkeys((history, store.uri)), stack)
    return Night(
        day=day,
        store=store,
        history=history,
        archive=archive,
        snapshot=snapshot,
        keep_days=options["keep_days"],
        cluster=may_be_cluster(options["master"]),
        keep_events=options["keep_events"],
    )


def _lock(places: Iterable[str], stack: ExitStack) -> Callable[[], None]:
    """Lock directories; return what checks that the locks hold.

    Args:
        places: Paths or URIs; two of them may lead to one directory, which is locked once.
        stack: Holds the locks.
    """
    locked = set[tuple[int, int]]()
    claims = list[StoreLock]()
    for place in places:
        files, path = resolve(place)
        if not isinstance(files, pa.fs.LocalFileSystem):
            held = [claim.name for claim in claims]
            claims.append(stack.enter_context(StoreLock(files, path, held=held)))
            continue
        with translating("create", path):
            os.makedirs(path, exist_ok=True)
            directory = os.stat(path)
        if (directory.st_dev, directory.st_ino) not in locked:
            locked.add((directory.st_dev, directory.st_ino))
            _lock_directory(path, stack)

    def check() -> None:
        for claim in claims:
            claim.check()

    return check


def _lock_directory(path: str, stack: ExitStack) -> None:
    """Lock a directory of this machine."""
    try:
        stack.enter_context(closing(OsDisk().lock(f"{path}/_nightly.lock")))
    except LogLockedError as error:
        raise LogLockedError(
            "another fj-nightly works here", path=path, hint="wait until it has ended"
        ) from error


def needs_snapshot(night: Night) -> bool:
    """Whether a snapshot taken now shows the state behind the day, and none is there yet."""
    if night.day != last_ended_day(SystemClock().now_us()):
        return False
    state = night.store.states().get(str(night.day))
    return state is None or state.taken_us is None


def start(master: str | None, snapshot: str | None, stack: ExitStack) -> SparkSession:
    """Return a session whose files only users may read who may read the log.

    Args:
        master: Spark's master; None: what ``spark-submit`` gave, else this machine.
        snapshot: Snapshot that is read; None: there is none.
        stack: Stops the session.

    Raises:
        CannotConnectError: Spark does not start.
        LogError: The snapshot cannot be read.
    """
    size = 0
    if snapshot is not None:
        size = sum(segment.bytes for segment in LogDirectory(snapshot).segments)
    settings = dict(SMALL_OPTIONS) if size <= SMALL_BYTES else {}
    if not may_be_cluster(master) and processors() <= FEW_PROCESSORS:
        for name, value in FEW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        settings[_JAVA_OPTIONS] = f"{FEW_JAVA_OPTIONS} {settings.get(_JAVA_OPTIONS, '')}".strip()
    settings["spark.hadoop.fs.permissions.umask-mode"] = f"{restrict(snapshot):03o}"
    with translating_start(master):
        spark = start_session(master, name="fj-nightly", options=settings)
    stack.callback(spark.stop)
    return spark


def restrict(snapshot: str | None, archive: str | None = None) -> int:
    """Let this process create files with the modes of a log at most; return its mask.

    A mask that was narrower before stays, so that of Spark is as narrow as the archive's.

    Args:
        snapshot: Snapshot of the log; None: there is none.
        archive: Its archive, whose segments say the modes where there is no snapshot.
    """
    file_mode, directory_mode = _MODES if snapshot is None else modes_of(LogDirectory(snapshot))
    if archive is not None:
        file_mode &= mode_of_archived(archive)
    # one mask for both: read and write as the files have them, search as the directory has it
    mask = 0o777 & ~(file_mode & 0o666 | directory_mode & 0o111)
    narrowed = os.umask(0o077) | mask
    os.umask(narrowed)
    return narrowed
