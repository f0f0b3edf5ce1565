"""Windowed file: a file of a foreign journal of any size, of which a window is in memory."""

from __future__ import annotations

import errno

from fastjournal.disk import Disk
from fastjournal.errors import LogFailedError

WINDOW_BYTES = 256 * 1024
NO_FILE = "this is a directory, or a link that leads to no file, or it is gone"
_NO_FILE_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


def find_size(disk: Disk, path: str) -> int | None:
    """Return the bytes of a file that a directory lists; None: it is no file, nor a link to one.

    Raises:
        LogFailedError: It cannot be read.
    """
    try:
        return disk.size(path)
    except LogFailedError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _NO_FILE_ERRORS:
            return None
        raise


class WindowedFile:
    """A file that is read forward in windows, by offset.

    Attributes:
        path: Where it is.
        size: Its bytes when it was opened; what is appended later does not exist.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.size = disk.size(path)
        self._start = 0
        self._data = b""

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset``, fewer at the end of the file."""
        start = offset - self._start
        if start < 0 or start + size > len(self._data):
            if size > WINDOW_BYTES:
                # a large value alone, which the window need not hold beside
                return self._disk.read_slice(self.path, offset, min(size, self.size - offset))
            wanted = min(WINDOW_BYTES, self.size - offset)
            self._data = self._disk.read_slice(self.path, offset, max(wanted, 0))
            self._start, start = offset, 0
        return self._data[start : start + size]

    def has_only_zeros(self, offset: int) -> bool:
        """Whether zeros stand from an offset to the end of the file, and one at least."""
        at = offset
        while at < self.size and not self.read(at, WINDOW_BYTES).strip(b"\0"):
            at += WINDOW_BYTES
        return offset < self.size <= at


class WindowedFiles:
    """The files of a journal, of which the one that was read last is open.

    Args:
        disk: Disk of the files.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: WindowedFile | None = None

    def at(self, path: str) -> WindowedFile:
        """Return a file, with its window where it is the file of the call before."""
        if self._file is None or self._file.path != path:
            self._file = WindowedFile(self._disk, path)
        return self._file
