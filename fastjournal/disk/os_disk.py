"""Disk: the interface that the command log needs, that of the system, errors with a hint."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol

import msgspec

from fastjournal.errors import LINKS_HINT, LINKS_REFUSED, LogFailedError, LogLockedError
from fastjournal.file_sync import sync_all, sync_data


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
    """Return the error for ``error``: "cannot write: No space left on device"."""
    number = error.errno or 0
    text = error.strerror or str(error)
    return LogFailedError(
        f"cannot {action}: {text} ({errno.errorcode.get(number, number)})",
        path=path,
        hint=_HINTS.get(number),
    )


def link_failed(new: str, path: str, error: OSError) -> LogFailedError:
    """Return the error for a failed hard link of ``path`` under the name ``new``."""
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
        action: The call, as words after "cannot".
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


class OsFile:
    """A file of the operating system, open for appending."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        """Append all of ``data``, in as many calls as the system wants."""
        try:
            written = os.write(self._descriptor, data)
            while written < len(data):
                part = os.write(self._descriptor, memoryview(data)[written:])
                if part == 0:
                    raise OSError(errno.EIO, "the system wrote nothing")
                written += part
        except OSError as error:
            raise failed("write", self.path, error) from error

    def sync(self) -> None:
        """Make all that was written durable."""
        try:
            sync_data(self._descriptor)
        except OSError as error:
            raise failed("sync", self.path, error) from error

    def close(self) -> None:
        """Close it, without a sync."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with translating("close", self.path):
                os.close(descriptor)


class OsLock:
    """A held flock; it ends with the process, however that ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Give it up."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _own(descriptor: int, like: str) -> None:
    """Give a new file or directory the owner and group of another, as far as is allowed."""
    status = os.stat(like)
    found = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) == (found.st_uid, found.st_gid):
        return
    with suppress(PermissionError):
        os.fchown(descriptor, status.st_uid, status.st_gid)
        return
    with suppress(PermissionError):
        os.fchown(descriptor, -1, status.st_gid)


def _own_as_root(descriptor: int, path: str) -> None:
    """Where root creates something, give it the owner of the directory that it is in."""
    if os.geteuid() == 0:
        _own(descriptor, os.path.dirname(path) or ".")


def _open_lock(path: str) -> int:
    try:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        except FileExistsError:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        _own_as_root(descriptor, path)
        return descriptor
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        try:
            return _open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            raise error from None


def _open_regular(path: str, flags: int) -> int:
    """Open a file; a FIFO, which would be waited for, or a device without an end is refused."""
    flags |= os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except BlockingIOError:
        # a file on which another program has a lease: it is asked to give that up
        descriptor = os.open(path, flags)
    try:
        _require_regular(path, os.fstat(descriptor))
    except (OSError, LogFailedError):
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise LogFailedError("not a regular file", path=path, hint="move it away")


class OsDisk:
    """The disk of the operating system."""

    def open_append(self, path: str) -> OsFile:
        """Open an existing file for appending."""
        with translating("open", path):
            return OsFile(path, _open_regular(path, os.O_WRONLY | os.O_APPEND))

    def create(self, path: str, *, like: str | None = None) -> OsFile:
        """Create a file, which must not exist, for appending; see ``Disk``."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        with translating("create", path):
            descriptor = os.open(path, flags, 0o640 if like is None else 0o600)
            file = OsFile(path, descriptor)
            try:
                if like is None:
                    _own_as_root(descriptor, path)
                else:
                    _own(descriptor, like)
                    os.fchmod(descriptor, stat.S_IMODE(os.stat(like).st_mode) & 0o666)
            except OSError:
                file.close()
                os.unlink(path)
                raise
            return file

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        with translating("read", path), open(path, "rb", buffering=0, opener=_open_regular) as file:
            return file.readall()

    def read_slice(self, path: str, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset``, fewer at the end of the file."""
        with translating("read", path), open(path, "rb", opener=_open_regular) as file:
            file.seek(offset)
            return file.read(size)

    def size(self, path: str) -> int:
        """Return a file's length in bytes."""
        with translating("read", path):
            status = os.stat(path)
            _require_regular(path, status)
            return status.st_size

    def link_count(self, path: str) -> int:
        """Return how many names (hard links) a file has."""
        with translating("read", path):
            status = os.stat(path)
            _require_regular(path, status)
            return status.st_nlink

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name."""
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        """Whether this is a directory itself, and no symbolic link to one."""
        return os.path.isdir(path) and not os.path.islink(path)

    def is_special(self, path: str) -> bool:
        """Whether this is neither file, directory nor link; also False where there is nothing."""
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise failed("read", path, error) from error
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        with translating("list", path):
            return sorted(os.listdir(path))

    def mkdir(self, path: str, *, like: str | None = None) -> None:
        """Create a directory and its parents, durably; see ``Disk``."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.mkdir(parent, like=like)
        with translating("create directory", path):
            mode = 0o750
            if like is not None:
                mode &= stat.S_IMODE(os.stat(like).st_mode) | 0o700
            try:
                os.mkdir(path, mode)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise
            else:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    _own_as_root(descriptor, os.path.abspath(path))
                finally:
                    os.close(descriptor)
        self.sync_directory(parent)

    def rename(self, old: str, new: str) -> None:
        """Move a file or directory."""
        with translating(f"rename to {new}", old):
            os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        try:
            os.link(old, new)
        except OSError as error:
            raise link_failed(new, old, error) from error

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        with translating("remove", path):
            os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        with translating("remove directory", path):
            os.rmdir(path)

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to ``size`` bytes, durably."""
        with translating("truncate", path):
            descriptor = _open_regular(path, os.O_WRONLY)
            try:
                os.ftruncate(descriptor, size)
                sync_all(descriptor)
            finally:
                os.close(descriptor)

    def sync_directory(self, path: str) -> None:
        """Make names created, moved and removed in this directory durable."""
        with translating("sync directory", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                sync_all(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: str, *, shared: bool = False) -> OsLock:
        """Lock a file (flock) without waiting; one that may only be read is locked all the same."""
        with translating("lock", path):
            descriptor = _open_lock(path)
            try:
                fcntl.flock(
                    descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
                )
            except BlockingIOError as error:
                os.close(descriptor)
                raise LogLockedError("another process holds this lock", path=path) from error
            except OSError:
                os.close(descriptor)
                raise
            return OsLock(descriptor)

    def free_space(self, path: str) -> DiskSpace:
        """Return what an ordinary user may still take of this file system."""
        with translating("read free space", path):
            status = os.statvfs(path)
        return DiskSpace(
            bytes=status.f_bavail * status.f_frsize,
            # a file system that creates inodes on demand reports none
            inodes=status.f_favail if status.f_files else None,
        )
