"""Temporary files of a spool: hidden files of killed writers, removed when they are old."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from typing import Final

from fastjournal.errors import SpoolFailedError
from fastjournal.spool.slots import (
    FILE_MODE,
    SLOT_SUFFIX,
    TEMPORARY_SUFFIX,
    link_slot,
    spool_failed,
)

log = logging.getLogger("fj_forwarder")

TEMPORARY_SECONDS_MAX: Final = 3600
"""A file that a killed writer was about to create is removed when it is so old; the directory is
searched for such files as often."""

_TRIAL: Final = "link-trial"
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TemporaryFiles:
    """Temporary files of one spool.

    Args:
        directory: The spool.
    """

    def __init__(self, directory: str) -> None:
        self._directory: Final = directory
        self._from_us = 0

    def try_link(self) -> None:
        """Log that no writer can create a slot, where the file system allows no hard links.

        The forwarder itself makes none, and drop-ins may be renamed.
        """
        trial = os.path.join(self._directory, f".{_TRIAL}.{secrets.token_hex(8)}{SLOT_SUFFIX}")
        first, second = f"{trial}.1{TEMPORARY_SUFFIX}", f"{trial}.2{TEMPORARY_SUFFIX}"
        try:
            os.close(os.open(first, _NEW_FILE, FILE_MODE))
            try:
                link_slot(first, second)
                os.unlink(second)
            finally:
                os.unlink(first)
        except SpoolFailedError as error:
            log.error(
                "%s; no program but one that renames a drop-in can write to this spool", error
            )
        except OSError as error:
            log.warning("%s", spool_failed("try a hard link", first, error))

    def tidy(self, now_us: int, wall_us: int) -> None:
        """Remove the old ones, unless that was done in the last hour.

        Args:
            now_us: The time, by a clock that does not jump.
            wall_us: The time, by the clock of the file system.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        if now_us >= self._from_us:
            self._from_us = now_us + TEMPORARY_SECONDS_MAX * 1_000_000
            self.remove_old(wall_us)

    def remove_old(self, wall_us: int) -> None:
        """Remove what writers that were killed while creating a slot left behind.

        A file that cannot be removed stays, and is named in the log.

        Raises:
            SpoolFailedError: The directory cannot be read.
        """
        oldest_s = wall_us / 1_000_000 - TEMPORARY_SECONDS_MAX
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    ours = entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX)
                    if ours and SLOT_SUFFIX in entry.name:
                        _remove(entry, oldest_s)
        except OSError as error:
            raise spool_failed("tidy the spool", self._directory, error) from error


def _remove(entry: os.DirEntry[str], oldest_s: float) -> None:
    """Remove a file that is old enough; what is no file was made by nobody of the spool."""
    try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_mtime < oldest_s:
            os.unlink(entry.path)
    except (FileNotFoundError, PermissionError):
        pass  # others removed it, or may do so
    except OSError as error:
        log.warning("%s", spool_failed("remove an old file", entry.path, error))
