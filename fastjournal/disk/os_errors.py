"""Errors of the operating system as a ``LogFailedError`` with a hint."""

from __future__ import annotations

import errno
from types import TracebackType
from typing import Final

from fastjournal.errors import LINKS_HINT, LINKS_REFUSED, LogFailedError

_HINTS = {
    errno.ENOSPC: "free some space on this file system, or inodes (df -i)",
    errno.EDQUOT: "raise the quota of this user",
    errno.EACCES: "check the owner and mode of the directory",
    errno.EPERM: "check the owner and mode of the directory",
    errno.EROFS: "mount the file system writable",
    errno.EMFILE: "raise the limit of open files (LimitNOFILE)",
    errno.ENFILE: "raise the limit of open files of this machine",
    errno.ENOENT: "check that the directory exists",
    errno.EEXIST: "something else has this name: move it away, or use another directory",
    errno.EISDIR: "a directory has the name of a file: move it away",
    errno.ENOTDIR: "a file has the name of a directory: move it away, or use another directory",
    errno.EXDEV: "use a directory on the same file system",
    errno.EIO: "the device is failing: check the system's log, restore on another disk",
}


def failed(action: str, path: str, error: OSError) -> LogFailedError:
    """Return the error that stands for ``error``: "cannot write: No space left on device"."""
    number = error.errno or 0
    text = error.strerror or str(error)
    return LogFailedError(
        f"cannot {action}: {text} ({errno.errorcode.get(number, number)})",
        path=path,
        hint=_HINTS.get(number),
    )


def link_failed(new: str, path: str, error: OSError) -> LogFailedError:
    """Return the error that stands for that of a hard link of ``path`` under the name ``new``."""
    found = failed(f"link to {new}", path, error)
    if error.errno == errno.EMLINK:
        found.hint = (
            f"the file has as many links as it may have: remove old snapshots; or {LINKS_HINT}"
        )
    elif error.errno in LINKS_REFUSED:
        found.hint = LINKS_HINT
    return found


def lacks_room(error: LogFailedError) -> bool:
    """Whether a call failed because the disk, or the quota of the user, has no room."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


class OsErrorTranslation:
    """Context manager that raises every ``OSError`` of its block as the ``LogFailedError`` for it.

    Each call of a disk enters one: a class costs half of what a generator does.

    Args:
        action: The call, as words behind "cannot".
        path: File or directory that it is about.
    """

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: str) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise failed(self._action, self._path, error) from error


translating: Final = OsErrorTranslation
