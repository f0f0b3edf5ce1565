"""Interface of a disk: what the command log needs of it."""

from __future__ import annotations

from typing import Protocol

import msgspec


class DiskFile(Protocol):
    """A file open for appending."""

    @property
    def path(self) -> str:
        """Where it was opened."""

    def write(self, data: bytes) -> None:
        """Append all of ``data``; on failure any part of it may be in the file."""

    def sync(self) -> None:
        """Make all that was written durable (fdatasync); may run in another thread than write."""

    def close(self) -> None:
        """Close it, without a sync; a second call does nothing."""


class DiskLock(Protocol):
    """A held lock."""

    def close(self) -> None:
        """Give it up; a second call does nothing."""


class DiskSpace(msgspec.Struct, frozen=True):
    """Free space of a file system, for an ordinary user."""

    bytes: int
    inodes: int | None
    """Files and directories; None: the file system makes inodes as they are needed."""


class Disk(Protocol):
    """Interface of the disk as the command log uses it."""

    def open_append(self, path: str) -> DiskFile:
        """Open an existing file for appending."""

    def create(self, path: str, *, like: str | None = None) -> DiskFile:
        """Create a file, which must not exist, for appending.

        ``like``: a file whose mode it gets, and whose owner as far as this process may give it.
        """

    def read(self, path: str) -> bytes:
        """Return the whole file."""

    def read_slice(self, path: str, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset``, fewer at the end of the file."""

    def size(self, path: str) -> int:
        """Return a file's length in bytes."""

    def link_count(self, path: str) -> int:
        """Return how many names (hard links) a file has."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name."""

    def is_directory(self, path: str) -> bool:
        """Whether this is a directory itself, and no symbolic link to one."""

    def is_special(self, path: str) -> bool:
        """Whether this is neither file, directory nor link: a socket, a FIFO, a device."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def mkdir(self, path: str, *, like: str | None = None) -> None:
        """Create a directory and its parents, durably; nothing happens where it exists.

        ``like``: a directory whose mode it gets, where others may do less in that than usual.
        """

    def rename(self, old: str, new: str) -> None:
        """Move a file or directory; a file at ``new`` is replaced at once."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, which must not exist."""

    def unlink(self, path: str) -> None:
        """Remove a file's name."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to ``size`` bytes, durably."""

    def sync_directory(self, path: str) -> None:
        """Make names created, moved and removed in this directory durable."""

    def lock(self, path: str, *, shared: bool = False) -> DiskLock:
        """Lock a file (flock), creating it if needed, without waiting.

        Raises:
            LogLockedError: It is held in a way that excludes this lock.
        """

    def free_space(self, path: str) -> DiskSpace:
        """Return what an ordinary user may still take of this file system."""
