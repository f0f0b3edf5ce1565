"""Archive at the start: its directory, a trial link, and the segments that wait for their links."""

from __future__ import annotations

import errno
import logging

from fastjournal.cmdlog.archive import Archive
from fastjournal.cmdlog.locks import APPEND_LOCK
from fastjournal.cmdlog.writer import LogWriter
from fastjournal.disk import Disk
from fastjournal.errors import LINKS_REFUSED, ConfigError, LogFailedError
from fastjournal.loglines import LogEvent, Sentence
from fastjournald.config.options import Config
from fastjournald.wal.segment_usage import SegmentUsage

LOG = logging.getLogger("fastjournald")

_TRIAL = "link.trial"

_REFUSALS = {
    errno.EXDEV: "is on another file system than the log; the archive is hard links",
    **dict.fromkeys(LINKS_REFUSED, "its file system, or its owner, allows no hard links"),
    errno.EACCES: "cannot be written to by this user",
    errno.EROFS: "is on a file system that is mounted read-only",
}


def make_archive_directory(disk: Disk, log_directory: str, directory: str) -> None:
    """Make the directory, where it is missing, as private as the log's.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        disk.mkdir(directory, like=log_directory)
    except LogFailedError as error:
        raise ConfigError(f"--archive-dir: {error.message}", path=directory) from error


def try_link(disk: Disk, log_directory: str, directory: str) -> None:
    """Link a file of the log into the archive, and remove the link again.

    Where only the space for a name is missing, the daemon starts all the same: workers must be able
    to finish on a full disk.

    Args:
        disk: Where log and archive are.
        log_directory: Directory of the log, with its lock file.
        directory: Directory of the archive; the caller holds its lock.

    Raises:
        ConfigError: No segment could ever be linked there.
    """
    trial = f"{directory}/{_TRIAL}"
    try:
        if disk.exists(trial):
            disk.unlink(trial)
        disk.link(f"{log_directory}/{APPEND_LOCK}", trial)
        disk.unlink(trial)
    except LogFailedError as error:
        cause = error.__cause__
        refusal = _REFUSALS.get(cause.errno or 0) if isinstance(cause, OSError) else None
        if refusal is not None:
            raise ConfigError(
                f"--archive-dir: {refusal}",
                path=directory,
                hint="name a directory beside the log, which this user may write to",
            ) from error
        LOG.warning(LogEvent("archive-trial-failed", path=directory, error=Sentence(error)))


def open_archive(disk: Disk, config: Config, usage: SegmentUsage, writer: LogWriter) -> Archive:
    """Read the state of the archive, and find out which segments of the log wait for their links.

    Args:
        disk: Where log and archive are; the lock of the archive is held.
        config: Options.
        usage: Segment usage table; compaction waits from here on for the links.
        writer: Writer of the log, as recovery has left it.

    Raises:
        LogCorruptError: The state cannot be understood.
        LogFailedError: It cannot be read; or this is another log, and it cannot be written.
    """
    archive = Archive(disk, config.cmdlog_path, config.archive_dir, config.archive_bytes_max)
    warning = archive.resume(writer.sealed, usage.sealed_as, writer.next_number)
    usage.archived_before = archive.next
    if warning:
        LOG.warning(
            LogEvent("archive-of-another-log", path=archive.directory, reason=Sentence(warning))
        )
    return archive
