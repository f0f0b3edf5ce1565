"""Errors of the operating system as a ``LogFailedError`` with a hint."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from fastjournal.errors import LogFailedError

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


def lacks_room(error: LogFailedError) -> bool:
    """Whether a call failed because the disk, or the quota of the user, has no room."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def translating(action: str, path: str) -> Iterator[None]:
    """Raise every ``OSError`` of the block as the ``LogFailedError`` that stands for it."""
    try:
        yield
    except OSError as error:
        raise failed(action, path, error) from error
