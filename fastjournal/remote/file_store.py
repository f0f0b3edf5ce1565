"""Object store in a directory of a local file system: create-if-absent by link(2), all of it
synced.

For tests and for a second disk of the same machine. Network file systems are refused as far as the
kernel names them: their link and their listing are not what this store promises.

A new object is written to a file in ``tmp``, synced, and linked under its name; then its directory
is synced, and the name in ``tmp`` is removed. So an object with a second name may not survive a
power loss yet: whoever meets it syncs its directory first.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from fastjournal.disk import OsDisk
from fastjournal.errors import LogFailedError, StoreRefusedError, StoreUnavailableError
from fastjournal.remote.store import Listed, first_names

_TEMPORARY = "tmp"
_COPY_BYTES = 1 << 20
_NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"}
)
_MOUNTS = "/proc/self/mountinfo"


class FileStore:
    """An object store in a directory, with the interface of ``ObjectStore``.

    Args:
        directory: The prefix; it is created.

    Raises:
        StoreRefusedError: The directory is on a network file system.
        StoreUnavailableError: It cannot be created.
    """

    def __init__(self, directory: str) -> None:
        self._root = os.path.abspath(directory)
        self._disk = OsDisk()
        with _translating():
            self._disk.mkdir(f"{self._root}/{_TEMPORARY}")
        kind = file_system(os.path.realpath(self._root))
        if kind in _NETWORK or kind.startswith("fuse"):
            raise StoreRefusedError(
                f"a file system of type {kind} may be of a network",
                path=self._root,
                hint="use an object store, or a directory of a local file system",
            )

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, if it does not exist."""
        with _translating():
            return self._create(name, self._write(data, ""))

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        return self._read(name, None)

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        """Return a part of an object, or None."""
        return self._read(name, (start, length))

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[Listed]:
        """Return the objects of a folder behind a name, sorted."""
        found: list[Listed] = []
        for path, _, files in os.walk(f"{self._root}/{folder}"):
            for file in files:
                name = os.path.relpath(f"{path}/{file}", self._root)
                try:
                    found.append(Listed(name, os.stat(f"{path}/{file}").st_size))
                except FileNotFoundError:
                    continue
        return first_names(found, after, limit)

    def delete(self, name: str) -> None:
        """Remove an object, if there is one."""
        with _translating():
            if self._disk.exists(self._path(name)):
                self._disk.unlink(self._path(name))
                self._disk.sync_directory(os.path.dirname(self._path(name)))

    def overwrite(self, name: str, data: bytes | None, path: str = "") -> None:
        """Write an object from bytes or from a file."""
        with _translating():
            temporary = self._write(data, path)
            target = self._target(name)
            self._disk.rename(temporary, target)
            self._disk.sync_directory(os.path.dirname(target))

    def copy(self, source: str, target: str) -> bool:
        """Copy an object, if there is one."""
        if not os.path.lexists(self._path(source)):
            return False
        self.overwrite(target, None, self._path(source))
        return True

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _target(self, name: str) -> str:
        target = self._path(name)
        self._disk.mkdir(os.path.dirname(target))
        return target

    def _write(self, data: bytes | None, source: str) -> str:
        """Write a file in ``tmp``, durably, and return its path."""
        path = f"{self._root}/{_TEMPORARY}/{secrets.token_hex(8)}"
        file = self._disk.create(path)
        try:
            if data is not None:
                file.write(data)
            offset = 0
            while data is None and (piece := self._disk.read_slice(source, offset, _COPY_BYTES)):
                file.write(piece)
                offset += len(piece)
            file.sync()
        finally:
            file.close()
        return path

    def _create(self, name: str, temporary: str) -> bool:
        target = self._target(name)
        try:
            self._disk.link(temporary, target)
            created = True
        except LogFailedError as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
            created = False
        self._disk.sync_directory(os.path.dirname(target))
        self._disk.unlink(temporary)
        return created

    def _read(self, name: str, part: tuple[int, int] | None) -> bytes | None:
        path = self._path(name)
        try:
            with _translating():
                if self._disk.link_count(path) > 1:
                    self._disk.sync_directory(os.path.dirname(path))
                if part is None:
                    return self._disk.read(path)
                return self._disk.read_slice(path, *part)
        except StoreUnavailableError as error:
            cause = error.__cause__
            if cause is not None and isinstance(cause.__cause__, FileNotFoundError):
                return None
            raise


def file_system(path: str) -> str:
    """Return the type of the file system of a path; empty where the system does not tell."""
    found = ("", "")
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                fields, _, rest = line.partition(" - ")
                mount = fields.split(" ")[4].replace("\\040", " ")
                inside = mount in ("/", path) or path.startswith(mount + "/")
                if inside and len(mount) >= len(found[0]):
                    found = (mount, rest.split(" ")[0])
    except FileNotFoundError:
        pass
    return found[1]


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except LogFailedError as error:
        raise StoreUnavailableError(error.message, path=error.path, hint=error.hint) from error
