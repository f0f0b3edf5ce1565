"""Inodes of a simulated disk: path lookup, errors, and their state after a power loss."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator


def os_error(number: int) -> OSError:
    """Return the error of the system with this errno."""
    return OSError(number, os.strerror(number))


def parts_of(path: str) -> list[str]:
    """Return the names in a path."""
    return [part for part in path.split("/") if part]


def node_at(root: DirectoryNode, path: str) -> Node:
    """Return the file or directory that a path leads to.

    Raises:
        OSError: ENOENT or ENOTDIR.
    """
    node: Node = root
    for name in path.split("/"):
        if not name:
            continue
        if not isinstance(node, DirectoryNode):
            raise os_error(errno.ENOTDIR)
        found = node.entries.get(name)
        if found is None:
            raise os_error(errno.ENOENT)
        node = found
    return node


def file_at(root: DirectoryNode, path: str) -> FileNode:
    """Return the file that a path leads to.

    Raises:
        OSError: As by ``node_at``; EISDIR: it is a directory.
    """
    node = node_at(root, path)
    if isinstance(node, DirectoryNode):
        raise os_error(errno.EISDIR)
    return node


def directory_at(root: DirectoryNode, path: str) -> DirectoryNode:
    """Return the directory that a path leads to.

    Raises:
        OSError: As by ``node_at``; ENOTDIR: it is a file.
    """
    node = node_at(root, path)
    if isinstance(node, FileNode):
        raise os_error(errno.ENOTDIR)
    return node


def parent_of(root: DirectoryNode, path: str) -> tuple[DirectoryNode, str]:
    """Return the directory that a path's last name is in, or would be, and that name.

    Raises:
        OSError: As by ``directory_at``.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    return directory_at(root, parent), name


def nodes_below(root: DirectoryNode) -> Iterator[Node]:
    """Yield all files and directories below a directory, each once."""
    directories, seen = [root], set()
    while directories:
        for node in directories.pop().entries.values():
            if isinstance(node, DirectoryNode):
                directories.append(node)
            elif id(node) in seen:
                continue
            seen.add(id(node))
            yield node


SECTOR_BYTES = 512
"""A hole in what was not synced starts and ends at such a boundary."""

IN_ORDER = 0.5
"""Share of the crashes that keep no later name without an earlier one, as journaling systems do."""


class FileNode:
    """A file: ``data[:synced]`` is durable except ``lost``; bytes in ``bad`` are unreadable."""

    __slots__ = ("bad", "data", "exclusive", "lost", "shared", "synced")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = len(data)
        self.lost: list[tuple[int, int]] = []
        self.bad: list[tuple[int, int]] = []
        self.shared = 0
        self.exclusive = False

    def copy(self) -> FileNode:
        """Return a copy that nobody has locked."""
        new = FileNode()
        new.data = self.data[:]
        new.synced = self.synced
        new.lost = self.lost[:]
        new.bad = self.bad[:]
        return new


class DirectoryNode:
    """A directory: ``pending`` are the changes since ``durable`` in their order."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[dict[str, Node | None]] = []

    def change(self, change: dict[str, Node | None]) -> None:
        """Do a change, durable with the next sync of this directory."""
        apply_change(self.entries, change)
        self.pending.append(change)

    def sync(self) -> None:
        """Make every change durable."""
        self.durable = dict(self.entries)
        self.pending.clear()


Node = FileNode | DirectoryNode


def apply_change(entries: dict[str, Node], change: dict[str, Node | None]) -> None:
    """Set names to their new nodes; None removes one."""
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def names_of(directory: DirectoryNode, file: FileNode) -> int:
    """Return how many names a file has in a directory tree. O(number of files)."""
    return sum(
        names_of(node, file) if isinstance(node, DirectoryNode) else node is file
        for node in directory.entries.values()
    )


def copy_directory(root: DirectoryNode) -> DirectoryNode:
    """Return a copy of a directory tree as it is, where nothing is locked.

    A file with several names stays one file, whether these are durable or not.
    """
    return _copy_directory(root, {})


def _copy_directory(old: DirectoryNode, copies: dict[int, Node]) -> DirectoryNode:
    new = copies[id(old)] = DirectoryNode()
    new.entries = {name: _copy(node, copies) for name, node in old.entries.items()}
    new.durable = {name: _copy(node, copies) for name, node in old.durable.items()}
    for change in old.pending:
        new.pending.append({name: node and _copy(node, copies) for name, node in change.items()})
    return new


def _copy(old: Node, copies: dict[int, Node]) -> Node:
    new = copies.get(id(old))
    if new is None:
        if isinstance(old, DirectoryNode):
            return _copy_directory(old, copies)
        new = copies[id(old)] = old.copy()
    return new


def crash_directory(
    root: DirectoryNode, generator: random.Random, holes: bool, sectors: bool
) -> DirectoryNode:
    """Return a copy of a directory tree as it is after a power loss.

    A file with several names stays one file.
    """
    files: dict[int, FileNode] = {}

    def after_crash(old: DirectoryNode) -> DirectoryNode:
        entries = dict(old.durable)
        in_order = generator.random() < IN_ORDER
        length = generator.randint(0, len(old.pending))
        for number, change in enumerate(old.pending):
            if number < length if in_order else generator.random() < 0.5:
                apply_change(entries, change)
        new = DirectoryNode()
        for name, node in entries.items():
            if isinstance(node, DirectoryNode):
                new.entries[name] = after_crash(node)
            else:
                if id(node) not in files:
                    files[id(node)] = (
                        scatter_file(node, generator)
                        if sectors
                        else crash_file(node, generator, holes)
                    )
                new.entries[name] = files[id(node)]
        new.durable = dict(new.entries)
        return new

    return after_crash(root)


def crash_file(old: FileNode, generator: random.Random, holes: bool) -> FileNode:
    """Return what a power loss leaves of a file."""
    length, synced = len(old.data), old.synced
    data = old.data[:]
    for start, end in old.lost:
        data[start:end] = bytes(end - start)
    if length > synced:
        kept = generator.choice((synced, length, generator.randint(synced, length)))
        if holes:
            for _ in range(generator.randint(0, 3)):
                start = max(
                    synced, generator.randint(synced, length) // SECTOR_BYTES * SECTOR_BYTES
                )
                end = min(length, start + SECTOR_BYTES * generator.randint(1, 4))
                data[start:end] = bytes(end - start)
        # the length may have been kept where the bytes were not
        zeros = generator.choice((0, 0, generator.randint(0, length - kept)))
        data[kept:] = bytes(zeros)
    new = FileNode(bytes(data))
    new.bad = old.bad[:]
    return new


def scatter_file(old: FileNode, generator: random.Random) -> FileNode:
    """Return what is left where each sector of what was not synced survives by itself."""
    data = old.data[:]
    for start, end in old.lost:
        data[start:end] = bytes(end - start)
    length, synced = len(data), old.synced
    if length > synced:
        share = generator.choice((0.2, 0.5, 0.8))
        stale = generator.random() < 0.3
        first = synced // SECTOR_BYTES * SECTOR_BYTES
        for sector in range(first, length, SECTOR_BYTES):
            if generator.random() >= share:
                start, end = max(synced, sector), min(sector + SECTOR_BYTES, length)
                size = end - start
                data[start:end] = generator.randbytes(size) if stale else bytes(size)
        if generator.random() < 0.3:
            # nor did the last change of the file's length
            sectors = (length - first) // SECTOR_BYTES
            del data[max(synced, first + SECTOR_BYTES * generator.randint(0, sectors)) :]
    new = FileNode(bytes(data))
    new.bad = old.bad[:]
    return new
