"""Faulty calls of the operating system: kills, errors, short writes, and the loss of power.

``FaultyOs`` stands in modules in place of ``os``. Files are real, in memory if possible. It knows
what was synced: the bytes of a file and the names of a directory at their last sync. After a power
loss each sector that was not synced is old or new by itself, and so is each name.

A kill is ``KilledError`` at a call, which is done, done in part or not done. From then on every
call that changes something raises it again, until ``revive``: the code of a killed process does
not run, whatever it would clean up.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Final

import pytest

SECTOR_BYTES: Final = 64
"""Small, so that a record has several."""


class KilledError(BaseException):
    """Stands for SIGKILL; no ``except`` of a program catches it."""


class FaultyOs:
    """Module ``os`` as the programs see it.

    Args:
        random: Random numbers for faults and losses.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._left = 0
        """Calls until the fault; 0: none is planned."""
        self._fault = ""
        self._dead = False
        self._opened: dict[int, tuple[int, int]] = {}
        """Descriptors that the process has opened, and the files behind."""
        self._synced: dict[int, bytes] = {}
        """Bytes of each file at its last sync, by inode."""
        self._removed: dict[int, bytes] = {}
        """Bytes of files without a name."""
        self._names: dict[str, dict[str, int]] = {}
        """Names and inodes of each directory at its last sync."""
        self.faults = 0
        # all that changes nothing, without a call of Python in between
        calls = {name: getattr(os, name) for name in os.__all__ if not hasattr(type(self), name)}
        self.__dict__.update(calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # --- what a test does to it -----------------------------------------------------------------

    def plan(self, fault: str, calls: int) -> None:
        """Let a call from here on be the last one ("kill"), or fail ("full", "broken").

        Args:
            fault: Which.
            calls: 1 is the next call that changes something.
        """
        self._fault, self._left = fault, calls

    def revive(self) -> None:
        """Close what the process has open, with its locks: another one begins."""
        self._dead, self._left = False, 0
        for descriptor, file in self._opened.items():
            try:
                status = os.fstat(descriptor)
            except OSError:
                continue
            if (status.st_dev, status.st_ino) == file:
                os.close(descriptor)
        self._opened.clear()

    def switch(self, opened: dict[int, tuple[int, int]]) -> None:
        """Let another process make the calls from now on: these are its descriptors."""
        self._opened = opened

    def lose_power(self, directories: list[Path]) -> None:
        """Rebuild these directories from what was synced, and a random part of the rest."""
        for path in map(str, directories):
            if not os.path.exists(path):
                continue
            with os.scandir(path) as entries:
                now = {entry.name: entry.inode() for entry in entries if entry.is_file()}
            contents = {name: _content_at(f"{path}/{name}") for name in now}
            synced = self._names.get(path, {})
            kept: dict[str, bytes] = {}
            for name in sorted(now.keys() | synced.keys()):
                inode = self._random.choice((now.get(name), synced.get(name)))
                if inode is None:
                    continue
                same = inode == now.get(name)
                data = contents[name] if same else self._bytes_of(inode, now, contents)
                kept[name] = self._after_loss(data, self._synced.get(inode, b""))
            for name in now:
                os.unlink(f"{path}/{name}")
            # all are written before any is looked at: none has the inode of another
            for name, data in kept.items():
                _write_to(f"{path}/{name}", data)
            self._names[path] = {name: os.stat(f"{path}/{name}").st_ino for name in kept}
            self._synced |= {inode: kept[name] for name, inode in self._names[path].items()}
        self._removed.clear()

    def _bytes_of(self, inode: int, now: dict[str, int], contents: dict[str, bytes]) -> bytes:
        for name, other in now.items():
            if other == inode:
                return contents[name]
        return self._removed[inode]

    def _after_loss(self, now: bytes, synced: bytes) -> bytes:
        draw = self._random
        share = draw.choice((0.0, 0.3, 0.7, 1.0))
        length = max(len(synced), draw.choice((len(now), draw.randint(0, len(now)))))
        data = bytearray(synced.ljust(length, b"\0"))
        for start in range(0, length, SECTOR_BYTES):
            if draw.random() < share:
                end = min(start + SECTOR_BYTES, length, len(now))
                data[start:end] = now[start:end]
        return bytes(data)

    # --- calls ----------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        changes = bool(flags & os.O_CREAT)
        if changes:
            self._step()
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        status = os.fstat(descriptor)
        self._opened[descriptor] = (status.st_dev, status.st_ino)
        if flags & os.O_EXCL:
            self._synced.pop(status.st_ino, None)
        return descriptor

    def close(self, descriptor: int) -> None:
        self._opened.pop(descriptor, None)
        os.close(descriptor)

    def write(self, descriptor: int, data: bytes) -> int:
        return self._written(data, lambda part: os.write(descriptor, part))

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        return self._written(data, lambda part: os.pwrite(descriptor, part, offset))

    def punch_hole(self, descriptor: int, offset: int, size: int) -> bool:
        self._step()
        os.pwrite(descriptor, bytes(size), offset)
        return True

    def fdatasync(self, descriptor: int) -> None:
        self.fsync(descriptor)

    def fsync(self, descriptor: int) -> None:
        self._step()
        status = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(status.st_mode):
            files = (entry for entry in os.scandir(path) if entry.is_file())
            self._names[path] = {entry.name: entry.inode() for entry in files}
        else:
            self._synced[status.st_ino] = _content_at(f"/proc/self/fd/{descriptor}")

    def link(self, old: Any, new: Any) -> None:
        self._step()
        os.link(old, new)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._step()
        self._remember(path, dir_fd)
        os.unlink(path, dir_fd=dir_fd)

    def rename(self, old: Any, new: Any, **fds: Any) -> None:
        self._step()
        self._remember(new, fds.get("dst_dir_fd"))
        os.rename(old, new, **fds)

    def _remember(self, path: Any, dir_fd: int | None) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=dir_fd)
        except OSError:
            return
        status = os.fstat(descriptor)
        self._removed[status.st_ino] = os.pread(descriptor, status.st_size, 0)
        os.close(descriptor)

    def _written(self, data: bytes, write: Callable[[bytes], int]) -> int:
        part = data[: self._random.randint(0, len(data))]
        try:
            self._step()
        except KilledError:
            if self._fault == "kill":
                self._fault = ""
                write(self._random.choice((part, data)))
            raise
        except OSError as error:
            if part and error.errno == errno.ENOSPC:
                return write(part)
            raise
        return write(data)

    def _step(self) -> None:
        if self._dead:
            raise KilledError
        if self._left:
            self._left -= 1
            if not self._left:
                self.faults += 1
                if self._fault == "kill":
                    self._dead = True
                    raise KilledError
                number = errno.ENOSPC if self._fault == "full" else errno.EIO
                raise OSError(number, os.strerror(number))


def _content_at(path: str) -> bytes:
    """Return the bytes of a file, with fewer calls than a file object makes."""
    descriptor = os.open(path, os.O_RDONLY)
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    os.close(descriptor)
    return data


def _write_to(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    assert os.write(descriptor, data) == len(data)
    os.close(descriptor)


def install(faulty: FaultyOs, modules: list[ModuleType], patch: pytest.MonkeyPatch) -> None:
    """Let these modules call ``faulty`` where they would call ``os``."""
    for module in modules:
        patch.setattr(module, "os", faulty)
