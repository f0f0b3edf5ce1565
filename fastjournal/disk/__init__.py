"""Disk: the only place that touches files for the command log.

``Disk`` is what the log needs of a disk, ``OsDisk`` is the real one (``os_disk``); a fault-
injecting one in memory is ``fastjournal.testing.disk``. Paths are strings. An ``OSError`` never
leaves this package: it becomes a ``LogFailedError`` with the path, the system's words and a hint,
or, for a lock that another process holds, a ``LogLockedError``. So everything here raises
``LogFailedError``.

A file that root creates belongs to the owner of its directory: a repair or a start as root leaves
nothing that the service cannot read.
"""

from __future__ import annotations

from fastjournal.disk.os_disk import (
    Disk,
    DiskFile,
    DiskLock,
    DiskSpace,
    OsDisk,
    OsFile,
    OsLock,
    failed,
    lacks_room,
    link_failed,
    translating,
)

__all__ = [
    "Disk",
    "DiskFile",
    "DiskLock",
    "DiskSpace",
    "OsDisk",
    "OsFile",
    "OsLock",
    "failed",
    "lacks_room",
    "link_failed",
    "translating",
]
