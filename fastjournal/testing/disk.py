"""Fault-injecting disk in memory: it fails on demand, and loses what was not synced.

It behaves like a real one under the loosest reading of POSIX:

- what was written but not synced survives a crash in part only: a prefix of random length, perhaps
  with zeros behind it; with ``holes``, random sectors in the middle are zeros too; with
  ``sectors``, any subset of its sectors survives;
- of names created, moved and removed since that directory's last sync any may survive a crash, a
  later one without an earlier one too; syncing a file does not sync its name;
- a failed write has written a random part; after a failed sync the unsynced bytes are read back
  as before, but no later sync makes them durable.

Everything is drawn from the seed, so the same calls give the same disk. It belongs to one thread.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterator

from fastjournal.disk import DiskSpace, link_failed, translating
from fastjournal.errors import LogLockedError
from fastjournal.testing.inodes import (
    DirectoryNode,
    FileNode,
    copy_directory,
    crash_directory,
    directory_at,
    file_at,
    names_of,
    node_at,
    nodes_below,
    os_error,
    parent_of,
    parts_of,
)


class SimulatedFile:
    """A file of a ``SimulatedDisk``, open for appending."""

    def __init__(self, disk: SimulatedDisk, path: str, file: FileNode) -> None:
        self.path = path
        self._disk = disk
        self._file = file

    def write(self, data: bytes) -> None:
        """Append all of ``data``, or a random part of it and fail."""
        self._disk._write(self.path, self._file, data)

    def sync(self) -> None:
        """Make all that was written durable."""
        self._disk._sync(self.path, self._file)

    def close(self) -> None:
        """Do nothing: closing does not sync."""


class SimulatedLock:
    """A lock held on a ``SimulatedDisk``; a crash ends it."""

    def __init__(self, file: FileNode, shared: bool) -> None:
        self._file = file
        self._shared = shared
        self._held = True

    def close(self) -> None:
        """Give it up."""
        if self._held:
            self._held = False
            if self._shared:
                self._file.shared -= 1
            else:
                self._file.exclusive = False


class SimulatedDisk:
    """A disk in memory with the interface of ``fastjournal.disk.Disk``.

    Args:
        seed: Seed of everything that is random before a crash.
        capacity_bytes: Bytes of all files together above which writes fail with ENOSPC; None: any.
        inodes_max: Files and directories above which none is created (ENOSPC); None: any.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        capacity_bytes: int | None = None,
        inodes_max: int | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.inodes_max = inodes_max
        self.calls: Counter[str] = Counter()
        """Calls so far, by method name."""
        self._random = random.Random(seed)
        self._root = DirectoryNode()
        self._failures: list[tuple[str, int, int]] = []

    # --- what a test does to it -----------------------------------------------------------------

    def fail_at(self, count: int, call: str = "any", error: int = errno.EIO) -> None:
        """Make a call from here on fail, once.

        Args:
            count: 1 is the next call.
            call: A method name (``write``, ``sync``, ``rename``...; ``sync`` is a file's) or
                ``any``.
            error: The errno it fails with.
        """
        self._failures.append((call, self._count(call) + count, error))

    def break_sectors(self, path: str, start: int, end: int) -> None:
        """Make every read of these bytes of a file fail with EIO from now on."""
        file_at(self._root, path).bad.append((start, end))

    def crash(self, seed: int, *, holes: bool = False, sectors: bool = False) -> SimulatedDisk:
        """Return the disk after a power loss at this instant; this one stays unchanged.

        Args:
            seed: Decides what survives.
            holes: Also lose sectors in the middle of unsynced bytes, keeping later ones.
            sectors: Instead, each unsynced sector survives or not by itself.
        """
        generator = random.Random(seed)
        disk = self._of_same_size(seed)
        disk._root = crash_directory(self._root, generator, holes, sectors)
        return disk

    def kill(self, seed: int = 0) -> SimulatedDisk:
        """Return the disk as another process finds it after this one was killed.

        Nothing written is lost, but what was not durable still is not; locks are free.
        """
        disk = self._of_same_size(seed)
        disk._root = copy_directory(self._root)
        return disk

    # --- the interface of Disk ------------------------------------------------------------------

    def open_append(self, path: str) -> SimulatedFile:
        """Open an existing file for appending."""
        with translating("open", path):
            self._call("open_append")
            return SimulatedFile(self, path, file_at(self._root, path))

    def create(self, path: str, *, like: str | None = None) -> SimulatedFile:
        """Create a file, which must not exist, for appending; it has no owner and no mode."""
        with translating("create", path):
            self._call("create")
            directory, name = parent_of(self._root, path)
            if name in directory.entries:
                raise os_error(errno.EEXIST)
            self._take_inode()
            file = FileNode()
            directory.change({name: file})
            return SimulatedFile(self, path, file)

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        with translating("read", path):
            self._call("read")
            return _read(file_at(self._root, path), 0, None)

    def read_slice(self, path: str, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset``, fewer at the end of the file."""
        with translating("read", path):
            self._call("read_slice")
            return _read(file_at(self._root, path), offset, offset + size)

    def size(self, path: str) -> int:
        """Return a file's length in bytes."""
        with translating("read", path):
            self._call("size")
            return len(file_at(self._root, path).data)

    def link_count(self, path: str) -> int:
        """Return how many names a file has."""
        with translating("read", path):
            self._call("link_count")
            return names_of(self._root, file_at(self._root, path))

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name."""
        try:
            node_at(self._root, path)
        except OSError:
            return False
        return True

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory of this name."""
        try:
            return isinstance(node_at(self._root, path), DirectoryNode)
        except OSError:
            return False

    def is_special(self, path: str) -> bool:
        """Return False: it has files and directories only."""
        return False

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        with translating("list", path):
            self._call("listdir")
            return sorted(directory_at(self._root, path).entries)

    def mkdir(self, path: str, *, like: str | None = None) -> None:
        """Create a directory and its parents, durably; it has no owner and no mode."""
        with translating("create directory", path):
            self._call("mkdir")
            directory = self._root
            for name in parts_of(path):
                if name not in directory.entries:
                    self._take_inode()
                    directory.change({name: DirectoryNode()})
                    directory.sync()
                node = directory.entries[name]
                if not isinstance(node, DirectoryNode):
                    raise os_error(errno.ENOTDIR)
                directory = node

    def rename(self, old: str, new: str) -> None:
        """Move a file or directory; across directories, a crash may keep either change alone."""
        with translating(f"rename to {new}", old):
            self._call("rename")
            source, source_name = parent_of(self._root, old)
            target, target_name = parent_of(self._root, new)
            node = node_at(self._root, old)
            replaced = target.entries.get(target_name)
            if isinstance(replaced, DirectoryNode) and (
                isinstance(node, FileNode) or replaced.entries
            ):
                raise os_error(errno.ENOTEMPTY)
            if source is target:
                source.change({source_name: None, target_name: node})
            else:
                target.change({target_name: node})
                source.change({source_name: None})

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        try:
            self._call("link")
            directory, name = parent_of(self._root, new)
            if name in directory.entries:
                raise os_error(errno.EEXIST)
            directory.change({name: file_at(self._root, old)})
        except OSError as error:
            raise link_failed(new, old, error) from error

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        with translating("remove", path):
            self._call("unlink")
            directory, name = parent_of(self._root, path)
            file_at(self._root, path)
            directory.change({name: None})

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        with translating("remove directory", path):
            self._call("rmdir")
            if directory_at(self._root, path).entries:
                raise os_error(errno.ENOTEMPTY)
            directory, name = parent_of(self._root, path)
            directory.change({name: None})

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to ``size`` bytes, durably."""
        with translating("truncate", path):
            self._call("truncate")
            file = file_at(self._root, path)
            del file.data[size:]
            file.data.extend(bytes(size - len(file.data)))
            file.synced = size
            file.lost = [(start, min(end, size)) for start, end in file.lost if start < size]

    def sync_directory(self, path: str) -> None:
        """Make names created, moved and removed in this directory durable."""
        with translating("sync directory", path):
            self._call("sync_directory")
            directory_at(self._root, path).sync()

    def lock(self, path: str, *, shared: bool = False) -> SimulatedLock:
        """Lock a file without waiting, creating it if needed."""
        with translating("lock", path):
            self._call("lock")
            directory, name = parent_of(self._root, path)
            if name not in directory.entries:
                self._take_inode()
                directory.change({name: FileNode()})
            file = file_at(self._root, path)
        if file.exclusive or (file.shared and not shared):
            raise LogLockedError("another process holds this lock", path=path)
        if shared:
            file.shared += 1
        else:
            file.exclusive = True
        return SimulatedLock(file, shared)

    def free_space(self, path: str) -> DiskSpace:
        """Return what may still be taken; a disk without a capacity has 1 TiB."""
        with translating("read free space", path):
            self._call("free_space")
            node_at(self._root, path)
        return DiskSpace(self._free_bytes(), self._free_inodes())

    # --- inside ---------------------------------------------------------------------------------

    def _call(self, call: str) -> None:
        self.calls[call] += 1
        for failure in self._failures:
            planned, count, error = failure
            if planned in {call, "any"} and self._count(planned) == count:
                self._failures.remove(failure)
                raise os_error(error)

    def _count(self, call: str) -> int:
        return self.calls.total() if call == "any" else self.calls[call]

    def _write(self, path: str, file: FileNode, data: bytes) -> None:
        with translating("write", path):
            try:
                self._call("write")
            except OSError:
                file.data += data[: self._random.randint(0, len(data))]
                raise
            free = len(data) if self.capacity_bytes is None else self._free_bytes()
            file.data += data[: max(free, 0)]
            if len(data) > free:
                raise os_error(errno.ENOSPC)

    def _sync(self, path: str, file: FileNode) -> None:
        with translating("sync", path):
            try:
                self._call("sync")
            except OSError:
                # the kernel marks the pages clean: a later sync succeeds and writes nothing
                file.lost.append((file.synced, len(file.data)))
                raise
            file.synced = len(file.data)

    def _of_same_size(self, seed: int) -> SimulatedDisk:
        return SimulatedDisk(seed, capacity_bytes=self.capacity_bytes, inodes_max=self.inodes_max)

    def _free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return 2**40
        return self.capacity_bytes - sum(len(file.data) for file in self._files())

    def _free_inodes(self) -> int | None:
        return (
            None
            if self.inodes_max is None
            else self.inodes_max - sum(1 for _ in nodes_below(self._root))
        )

    def _take_inode(self) -> None:
        if self._free_inodes() == 0:
            raise os_error(errno.ENOSPC)

    def _files(self) -> Iterator[FileNode]:
        return (node for node in nodes_below(self._root) if isinstance(node, FileNode))


def _read(file: FileNode, start: int, end: int | None) -> bytes:
    data = bytes(file.data[start:end])
    if any(bad_start < start + len(data) and start < bad_end for bad_start, bad_end in file.bad):
        raise os_error(errno.EIO)
    return data
