"""Preparation of a nightly run: its inputs, and checks of all that may be wrong before any work.

The snapshot of a run is taken once after a day, also if runs of that day fail:

    OUTPUT/snapshot.json     the last one that a run took: {"server": ADDRESS, "snapshot": PATH}

A snapshot removes the oldest ones (``--keep-snapshots``), so a run that repeats a failed one takes
none: it reads that of the failed run, which is the first one after the day. If the daemon takes
none, a run still takes the archive: on a nearly full disk the archive holds the space.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from datetime import date, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs
from pyspark.sql import SparkSession

from fastjournal.clock import SystemClock
from fastjournal.cmdlog.archive import STATE_NAME, list_archived
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.cmdlog.snapshot import Manifest
from fastjournal.disk import OsDisk
from fastjournal.errors import (
    BadRequestError,
    FastjournalError,
    LogCorruptError,
    LogError,
    LogFailedError,
    LogLockedError,
)
from fastjournal.remote.objects import ChunkId, checkpoint_name, decode_checkpoint
from fastjournal.remote.store import ObjectStore
from fastjournal.spark.cluster.java import prepare_environment
from fastjournal.spark.cluster.java_errors import translating_start
from fastjournal.spark.execution.cluster_tasks import processors
from fastjournal.spark.history.archive_taking import ARCHIVE_LOCK
from fastjournal.spark.history.days import DAY_US, begin_us, checked_day, last_ended_day
from fastjournal.spark.history.remote_history import open_remote
from fastjournal.spark.nightly.day_store import DayStore, checked_output
from fastjournal.spark.query.paths import local_path
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
    below,
    check_outside_snapshots,
    modes_of,
    pyarrow_uri,
    resolve,
    translating,
)
from fastjournal.spark.storage.remote_checkpoints import (
    list_checkpoints,
    read_checkpoint,
    read_format,
    split_checkpoint,
)

FEW_PROCESSORS = 2
FEW_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:MetaspaceSize=128m"
"""Options of Java on few processors: one thread collects garbage, and not at the start yet."""
FEW_ENVIRONMENT = {"SPARK_DRIVER_MEMORY": "768m", "MALLOC_ARENA_MAX": "2"}
"""Memory of Java on few processors, unless it is set: the heap of 1 GiB that Spark gives it gets
full before it spills, and each of many threads keeps memory of its own."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_MODES = 0o640, 0o750
"""Modes of files and directories where no snapshot says them."""
_NAME_ARCHIVE = "name the daemon's --archive-dir"
_NAME_SNAPSHOT = "name the directory that 'fj-cli snapshot' printed"
_RIGHTS = (
    (os.R_OK, "list it"),
    (os.X_OK, "open files in it"),
    (os.W_OK, "remove files from it"),
)
_RECORD = "snapshot.json"


class Night(msgspec.Struct):
    """Inputs of a run."""

    day: date
    store: DayStore
    history: str
    """Path or URI of the directory with ``events``."""
    archive: str | None = None
    snapshot: str | None = None
    """Snapshot for the state; None: the stored state stays."""
    keep_days: int | None = None
    cluster: bool = False
    """Whether Spark may have executors on other machines; these take the archive then, too."""
    keep_events: int | None = None
    """Days whose events stay, that of the report and those before it; None: all."""
    remote_log: str | None = None
    """URL of the remote log that becomes events; its checkpoints are the snapshots."""


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
    if options["remote_log"] is not None:
        _check_alone(options)
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
    locked = set[tuple[int, int]]()
    for place in (history, store.uri):
        _lock(place, locked, stack)
    return Night(
        day=day,
        store=store,
        history=history,
        archive=archive,
        snapshot=snapshot,
        keep_days=options["keep_days"],
        cluster=may_be_cluster(options["master"]),
        keep_events=options["keep_events"],
        remote_log=options["remote_log"],
    )


def _check_alone(options: dict[str, Any]) -> None:
    """Check that nothing else is named from which snapshot or history come."""
    for other in ("snapshot", "archive"):
        if options[other] is not None:
            raise BadRequestError(
                f"--remote-log has what --{other} has: give one of them",
                hint="FASTJOURNAL_ARCHIVE and FASTJOURNAL_REMOTE_LOG in the environment count, too",
            )


def _lock(place: str, locked: set[tuple[int, int]], stack: ExitStack) -> None:
    """Lock a directory of this machine once: two paths may lead to it.

    In an object store runs do not exclude each other: one that writes a day which another one has
    written meanwhile ends there (``DayStore.describe``).
    """
    files, path = resolve(place)
    if isinstance(files, pa.fs.LocalFileSystem):
        with translating("create", path):
            os.makedirs(path, exist_ok=True)
            directory = os.stat(path)
        if (directory.st_dev, directory.st_ino) not in locked:
            locked.add((directory.st_dev, directory.st_ino))
            _lock_directory(path, stack)


def _lock_directory(path: str, stack: ExitStack) -> None:
    """Lock a directory of this machine."""
    try:
        stack.enter_context(closing(OsDisk().lock(f"{path}/nightly.lock")))
    except LogLockedError as error:
        raise LogLockedError(
            "another fj-nightly works here", path=path, hint="wait until it has ended"
        ) from error


def needs_snapshot(night: Night) -> bool:
    """Whether a snapshot taken now shows the state after the day, and none is there yet."""
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
    """Restrict the modes of files that this process creates to those of a log; return its mask.

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


# --- snapshot -------------------------------------------------------------------------------------


class _Taken(msgspec.Struct):
    """A snapshot that a run took."""

    server: str
    snapshot: str


def ensure_snapshot(night: Night, server: str, take: Callable[[], str]) -> FastjournalError | None:
    """Give a run a snapshot after its day; return why there is none.

    Args:
        night: Inputs; they get the snapshot.
        server: Address of the daemon.
        take: Takes a snapshot, and returns its path.

    Raises:
        BadRequestError: The address is none, or the archive is that of another daemon.
        FastjournalError: The daemon takes no snapshot, and there is no archive to take.
    """
    night.snapshot = _taken_before(night, server)
    if night.snapshot is None:
        try:
            night.snapshot = take()
        except BadRequestError:
            raise
        except FastjournalError as error:
            if night.archive is None:
                raise
            error.add_note("the archive was taken, and the report has no state of the entries")
            return error
        _record(night, _Taken(server, night.snapshot))
    if night.archive is not None:
        check_archived(night.archive, night.snapshot)
    return None


def ensure_checkpoint(night: Night) -> FastjournalError | None:
    """Give a run the first checkpoint after its day, if it needs one; return why there is none.

    Args:
        night: Inputs with a remote log; they get the checkpoint as their snapshot.

    Raises:
        RemoteLogError: There is no remote log, an object is damaged, or the store refuses or does
            not answer.
    """
    assert night.remote_log is not None
    store = open_remote(night.remote_log)
    checkpoints = list_checkpoints(store, read_format(store).checkpoint)
    state = night.store.states().get(str(night.day))
    if state is not None and state.taken_us is not None:
        return None
    end_us = begin_us(night.day + timedelta(days=1))
    at = bisect_left(checkpoints, end_us, key=lambda one: _time_of(store, one))
    for behind in checkpoints[at:]:
        checkpoint = read_checkpoint(store, behind)
        if checkpoint is not None and checkpoint.time_us >= end_us + DAY_US:
            return None  # it shows the state of another day
        if checkpoint is not None:
            night.snapshot = below(local_path(night.remote_log), checkpoint_name(behind))
            return None
    error = LogFailedError(
        f"no checkpoint was taken since {night.day} ended",
        path=night.remote_log,
        hint="a daemon takes one at least each hour, or at once: fj-cli remote checkpoint; then "
        "run fj-nightly again",
    )
    error.add_note("the report has no state of the entries, and no events since the last one")
    return error


def _time_of(store: ObjectStore, behind: ChunkId) -> int:
    """Return the instant of a checkpoint; 0: it was just collected, as are those before it."""
    content = store.get(checkpoint_name(behind))
    return 0 if content is None else decode_checkpoint(behind, content).time_us


def _taken_before(night: Night, server: str) -> str | None:
    """Return the snapshot that a failed run took after the day, if it is still there."""
    files, path = night.store.files, night.store.path
    if _RECORD not in files.names(path):
        return None
    # one that cannot be read is replaced, and a snapshot may have been removed since
    with suppress(msgspec.MsgspecError, LogError):
        taken = msgspec.json.decode(files.read(f"{path}/{_RECORD}"), type=_Taken)
        manifest = snapshot_manifest(taken.snapshot)
        if taken.server == server and manifest.taken_us >= begin_us(night.day + timedelta(days=1)):
            return taken.snapshot
    return None


def _record(night: Night, taken: _Taken) -> None:
    night.store.files.put(f"{night.store.path}/{_RECORD}", msgspec.json.encode(taken))


# --- checks of directories ------------------------------------------------------------------------


def snapshot_manifest(snapshot: str) -> Manifest:
    """Return the manifest of a snapshot.

    Raises:
        LogCorruptError: It is none, or is damaged.
        LogFailedError: It cannot be read.
    """
    if split_checkpoint(snapshot)[1] is not None:
        manifest = LogDirectory(snapshot).manifest
        assert manifest is not None
        return manifest
    files, path = resolve(snapshot)
    with translating("read", path):
        kind = files.get_file_info(path).type
    if kind != pa.fs.FileType.Directory:
        found = "nothing here" if kind == pa.fs.FileType.NotFound else "no directory here"
        raise LogFailedError(f"there is {found}", path=path, hint=_NAME_SNAPSHOT)
    manifest = LogDirectory(snapshot).manifest
    if manifest is None:
        raise LogCorruptError(
            "this is no snapshot: there is no manifest, or a daemon has started here",
            path=snapshot,
            hint=_NAME_SNAPSHOT,
        )
    return manifest


def check_archive(archive: str) -> None:
    """Check that a directory is an archive, or that of a daemon which has archived nothing so far.

    Raises:
        BadRequestError: It is neither.
        LogFailedError: This user may not take it.
    """
    if not os.path.isdir(archive):
        raise BadRequestError(f"--archive {archive} is no directory", hint=_NAME_ARCHIVE)
    _check_rights(archive)
    found = set(OsDisk().listdir(archive)) - {ARCHIVE_LOCK}
    if not _has_archived(archive) and found != {APPEND_LOCK}:
        raise BadRequestError(f"--archive {archive} holds no archive", hint=_NAME_ARCHIVE)


def _check_rights(archive: str) -> None:
    """Check that this process may take segments.

    Without the right to search the directory, each segment seems dropped by the daemon; without the
    right to write there, a run ends after the commit, at the first segment that it unlinks.
    """
    missing = [text for right, text in _RIGHTS if not os.access(archive, right, effective_ids=True)]
    if missing:
        raise LogFailedError(
            f"this user may not take the archive: it needs the right to {', '.join(missing)}",
            path=archive,
            hint="run fj-nightly as the user of the daemon, or give this one rwx",
        )


def mode_of_archived(archive: str) -> int:
    """Return the mode that all segments of an archive have at least; 0666 where there is none.

    Raises:
        LogFailedError: One cannot be looked at.
    """
    mode = 0o666
    for file in list_archived(OsDisk(), archive):
        path = f"{archive}/{file.name}"
        # the daemon may drop it at any time
        with translating("read", path), suppress(FileNotFoundError):
            mode &= os.stat(path).st_mode
    return mode | 0o600


def check_archived(archive: str, snapshot: str) -> None:
    """Check, after a snapshot, that the daemon which took it has archived something.

    It links all segments of the log before it takes the snapshot.

    Raises:
        BadRequestError: It has not: the archive is that of another daemon.
        LogError: The snapshot cannot be read.
    """
    if not _has_archived(archive) and snapshot_manifest(snapshot).segments:
        raise BadRequestError(
            f"--archive {archive} has nothing of the log of {snapshot}", hint=_NAME_ARCHIVE
        )


def _has_archived(archive: str) -> bool:
    disk = OsDisk()
    return disk.exists(f"{archive}/{STATE_NAME}") or bool(list_archived(disk, archive))
