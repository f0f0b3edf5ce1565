"""Log directory: its segments, the append lock and the reader lock.

``append.lock`` is locked exclusively for the life of the one process that appends.
``read.lock`` is locked shared by who reads segments, and exclusively while a sealed segment is
replaced or removed, so that a reader never sees one change under it. Both are flocks: they end with
the process, however it ends, and the files stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from fastjournal.cmdlog.format.layout import segment_number
from fastjournal.disk import Disk, DiskLock
from fastjournal.errors import LogLockedError
from fastjournal.limits import READ_LOCK_PATIENCE_S


def list_segments(disk: Disk, directory: str) -> list[int]:
    """Return the numbers of all segments in a log directory, ascending.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    numbers = (segment_number(name) for name in disk.listdir(directory))
    return sorted(number for number in numbers if number is not None)


APPEND_LOCK = "append.lock"
READ_LOCK = "read.lock"
_POLL_S = 0.05


def lock_append(disk: Disk, directory: str) -> DiskLock:
    """Become the one process that appends to the log; close the lock to stop being it.

    Raises:
        LogLockedError: Another process appends to this log.
        LogFailedError: The lock file cannot be opened.
    """
    path = f"{directory}/{APPEND_LOCK}"
    try:
        return disk.lock(path)
    except LogLockedError as error:
        raise LogLockedError(
            "another daemon appends to this log",
            path=path,
            hint=f"stop it, or use another directory; 'fuser {path}' names it",
        ) from error


def lock_read(disk: Disk, directory: str, *, exclusive: bool = False) -> DiskLock:
    """Keep sealed segments from being rewritten, or, exclusively, from being read.

    Args:
        disk: Where the log is.
        directory: Directory of the log.
        exclusive: To rewrite a segment.

    Raises:
        LogLockedError: It is held in a way that excludes this lock.
        LogFailedError: The lock file cannot be opened.
    """
    path = f"{directory}/{READ_LOCK}"
    try:
        return disk.lock(path, shared=not exclusive)
    except LogLockedError as error:
        doing = "reads this log" if exclusive else "rewrites a segment of this log"
        raise LogLockedError(
            f"another process {doing}", path=path, hint="try again when it is done"
        ) from error


@contextmanager
def lock_to_read(
    disk: Disk,
    directory: str,
    *,
    sleep: Callable[[float], object] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Keep sealed segments as they are while the block runs; wait while one is being replaced.

    Nothing is created: where there is no lock file, as in a snapshot or a copy, no daemon has
    started, and nothing changes. A file that may only be read can be locked.

    Args:
        disk: Where the log is.
        directory: Directory of the log, or a snapshot.
        sleep: Pauses for so many seconds.
        monotonic: Seconds of a clock that does not jump.

    Raises:
        LogLockedError: A segment was being replaced for all of ``READ_LOCK_PATIENCE_S``.
        LogFailedError: The lock file cannot be opened.
    """
    if not disk.exists(f"{directory}/{READ_LOCK}"):
        yield
        return
    end_s = monotonic() + READ_LOCK_PATIENCE_S
    while True:
        try:
            lock = lock_read(disk, directory)
            break
        except LogLockedError:
            if monotonic() >= end_s:
                raise
            sleep(_POLL_S)
    with closing(lock):
        yield
