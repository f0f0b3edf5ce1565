"""Sync of a file by what the system has: fdatasync, F_FULLFSYNC of macOS, fsync.

An fsync of macOS leaves the data in the cache of the drive; F_FULLFSYNC does not. Source: fsync(2)
of macOS. The system is asked at each call, for a test takes a function away.
"""

from __future__ import annotations

import errno
import fcntl
import os

_REFUSED = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)
"""A file system without F_FULLFSYNC, as some of a network are."""


def sync_data(descriptor: int) -> None:
    """Make the data of a file durable; ``OSError`` as it comes."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        sync_all(descriptor)


def sync_all(descriptor: int) -> None:
    """Make data and metadata of a file, or the names in a directory, durable."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        try:
            fcntl.fcntl(descriptor, full_sync)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        else:
            return
    os.fsync(descriptor)
