"""Inputs of a nightly run, and checks of the directories that they name."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import date

import msgspec
import pyarrow as pa
import pyarrow.fs

from fastjournal.cmdlog.archive_format import STATE_NAME, list_archived
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.cmdlog.snapshot import Manifest
from fastjournal.disk import OsDisk
from fastjournal.errors import BadRequestError, LogCorruptError, LogFailedError
from fastjournal.spark.history.event_table import ARCHIVE_LOCK
from fastjournal.spark.nightly.day_store import DayStore
from fastjournal.spark.storage.files import LogDirectory, resolve, translating

_NAME_ARCHIVE = "name the daemon's --archive-dir"
_NAME_SNAPSHOT = "name the directory that 'fj-cli snapshot' printed"
_RIGHTS = (
    (os.R_OK, "list it"),
    (os.X_OK, "open files in it"),
    (os.W_OK, "remove files from it"),
)


class Night(msgspec.Struct):
    """Inputs of a run."""

    day: date
    store: DayStore
    history: str
    """Path or URI of the directory in which ``events`` stands."""
    archive: str | None = None
    snapshot: str | None = None
    """Snapshot of which the state is computed; None: the state stays as it is stored."""
    keep_days: int | None = None
    cluster: bool = False
    """Whether Spark may have executors on other machines; these take the archive then, too."""
    keep_events: int | None = None
    """Days whose events stay, that of the report and those before it; None: all."""


def snapshot_manifest(snapshot: str) -> Manifest:
    """Return the manifest of a snapshot.

    Raises:
        LogCorruptError: It is none, or is damaged.
        LogFailedError: It cannot be read.
    """
    files, path = resolve(snapshot)
    with translating("read", path):
        kind = files.get_file_info(path).type
    if kind != pa.fs.FileType.Directory:
        found = "nothing here" if kind == pa.fs.FileType.NotFound else "no directory here"
        raise LogFailedError(f"there is {found}", path=path, hint=_NAME_SNAPSHOT)
    manifest = LogDirectory(snapshot).manifest
    if manifest is None:
        raise LogCorruptError(
            "there is no manifest, so this is no snapshot",
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

    Where it may not search the directory, each segment looks as if the daemon had dropped it; where
    it may not write there, a run ends behind the commit, at the first segment that it unlinks.
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
    """Check, behind a snapshot, that the daemon which took it has archived something.

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
