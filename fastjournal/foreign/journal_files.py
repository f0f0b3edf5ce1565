"""Files of a foreign journal: those to write, in a directory of their own, and those to read.

A file of any size is read through a window in memory.

A Kestrel journal of a queue has several files, in the order in which they are read: ``<queue>`` is
appended to, ``<queue>.<timestamp>`` are older ones, in the order of the numbers, and
``<queue>.<timestamp>.pack`` replaces all files up to that number. Names with ``~~`` are temporary.
Sockets, FIFOs and devices are no journals: they are left out.
"""

from __future__ import annotations

import errno
import os
import re

from fastjournal.disk import Disk, DiskFile
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
        """Whether only zeros are from an offset to the end of the file, and at least one."""
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


BUFFER_BYTES = 1 << 20


class JournalFiles:
    """Writes one file after the other, in large pieces, each synced when it ends.

    Attributes:
        files: Number of files so far.
        bytes: Bytes of all files so far.
        file_bytes: Bytes of the file that is open.

    Args:
        disk: Where they are.
        directory: Exists.
        like: A file whose mode they get.
    """

    def __init__(self, disk: Disk, directory: str, like: str) -> None:
        self._disk = disk
        self._directory = directory
        self._like = like
        self._file: DiskFile | None = None
        self._buffer = bytearray()
        self.files = self.bytes = self.file_bytes = 0

    def begin(self, name: str) -> None:
        """End the file that is open, and create another."""
        self.end()
        self._file = self._disk.create(f"{self._directory}/{name}", like=self._like)
        self.files += 1

    def write(self, data: bytes) -> None:
        """Append to the file that is open."""
        self._buffer += data
        self.bytes += len(data)
        self.file_bytes += len(data)
        if len(self._buffer) >= BUFFER_BYTES:
            self._flush()

    def end(self) -> None:
        """Sync and close the file that is open, if there is one."""
        if self._file is None:
            return
        try:
            self._flush()
            self._file.sync()
        finally:
            self.close()

    def close(self) -> None:
        """Close the file that is open, without a sync; the rest of it is lost."""
        file, self._file = self._file, None
        self._buffer.clear()
        self.file_bytes = 0
        if file is not None:
            file.close()

    def _flush(self) -> None:
        assert self._file is not None
        self._file.write(bytes(self._buffer))
        self._buffer.clear()


_OLDER = re.compile(rb"(.+)\.([0-9]+)(\.pack)?", re.DOTALL)
_TEMPORARY = b"~~"
_CURRENT = float("inf")


def list_queues(disk: Disk, directory: str) -> dict[bytes, list[str]]:
    """Return the paths of the files of each queue, in their order; queues in that of their names.

    Raises:
        LogFailedError: The directory cannot be read.
    """
    found: dict[bytes, list[tuple[float, bool, str]]] = {}
    for text in disk.listdir(directory):
        name, path = os.fsencode(text), f"{directory}/{text}"
        if _TEMPORARY in name or disk.is_directory(path) or disk.is_special(path):
            continue
        older = _OLDER.fullmatch(name)
        if older is None:
            found.setdefault(name, []).append((_CURRENT, False, path))
        else:
            file = (int(older[2]), older[3] is not None, path)
            found.setdefault(older[1], []).append(file)
    return {name: _in_order(found[name]) for name in sorted(found)}


def _in_order(files: list[tuple[float, bool, str]]) -> list[str]:
    """Leave out the files that the newest pack replaces."""
    packed = max((number for number, is_pack, _ in files if is_pack), default=-1)
    return [
        path
        for number, is_pack, path in sorted(files)
        if number > packed or (is_pack and number == packed)
    ]
