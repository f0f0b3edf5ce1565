"""Path lookup in a simulated disk: the inode that a path leads to, or the error of the system."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from fastjournal.testing.inodes import DirectoryNode, FileNode, Node


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
