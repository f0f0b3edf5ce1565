"""Files of events and of tables: on a disk of this machine, or in an object store.

Both put a file whole. On a disk it is written elsewhere, synced and renamed into its place. An
object store shows an object when its upload has been completed: it needs no rename, and an upload
that a crash cut is never seen.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs

from fastjournal.disk import Disk, OsDisk
from fastjournal.errors import LogFailedError
from fastjournal.spark.storage.files import read_file, resolve, translating

REQUESTS_AT_ONCE = 16
"""Requests to an object store, which answers each in tens of milliseconds."""
_UNFINISHED = re.compile(r".+\.[0-9a-f]{32}\.new", re.DOTALL)

Given = TypeVar("Given")
Result = TypeVar("Result")


class TableFiles(Protocol):
    """File system, as far as tables need one. All raise ``LogFailedError``."""

    def read(self, path: str) -> bytes:
        """Return a whole file."""

    def tail(self, path: str, size: int) -> bytes:
        """Return the last bytes of a file, all of it where it is shorter."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none if it is not there."""

    def walk(self, path: str) -> list[str]:
        """Return the paths of all files below a directory, from there, sorted."""

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it: whole and durably. Its directory is created."""

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""

    def remove_empty(self, path: str) -> None:
        """Remove a directory, if neither it nor directories in it hold a file."""

    def each(self, function: Callable[[Given], Result], given: Iterable[Given]) -> list[Result]:
        """Return what a function returns for each of some arguments, many at once in a store."""


def open_files(directory: str, *, beside: str = "") -> tuple[TableFiles, str]:
    """Return the file system of a path or URI, and its path there.

    Args:
        directory: The path or URI.
        beside: Name of a directory in it, in which files of a disk are written before they are
            put into place; empty: beside their place.

    Raises:
        LogFailedError: The scheme is unknown, or its file system cannot be reached.
    """
    files, path = resolve(directory)
    if isinstance(files, pa.fs.LocalFileSystem):
        return DiskFiles(OsDisk(), f"{path}/{beside}" if beside else ""), path
    return StoreFiles(files), path


class DiskFiles:
    """Files on a disk of this machine.

    Args:
        disk: The disk.
        beside: Directory in which files are written, on the same file system; empty: that of their
            place. A crash leaves them there, as ``<name>.<identifier>.new``, and
            ``remove_unfinished`` removes them.
    """

    def __init__(self, disk: Disk, beside: str = "") -> None:
        self._disk = disk
        self._beside = beside

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        return self._disk.read(path)

    def tail(self, path: str, size: int) -> bytes:
        """Return the last bytes of a file."""
        whole = self._disk.size(path)
        return self._disk.read_slice(path, max(whole - size, 0), size)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none if it is not there."""
        return sorted(self._disk.listdir(path)) if self._disk.exists(path) else []

    def walk(self, path: str) -> list[str]:
        """Return the paths of all files below a directory, from there, sorted."""
        return sorted(self._below(path, ""))

    def put(self, path: str, data: bytes) -> None:
        """Write a file elsewhere, and rename it into its place. Several may put one at once."""
        parent, _, name = path.rpartition("/")
        beside = f"{self._beside or parent}/{name}.{uuid.uuid4().hex}.new"
        self._disk.mkdir(self._beside or parent)
        with closing(self._disk.create(beside)) as file:
            file.write(data)
            file.sync()
        self._disk.mkdir(parent)
        self._disk.rename(beside, path)
        self._disk.sync_directory(parent)

    def remove_unfinished(self) -> None:
        """Remove the files that were not put into place; nobody may write one meanwhile.

        Files there under other names are not of ours, and stay.
        """
        for name in self.names(self._beside):
            if _UNFINISHED.fullmatch(name):
                self.delete(f"{self._beside}/{name}")
        if self._disk.exists(self._beside) and not self.names(self._beside):
            self._disk.rmdir(self._beside)

    def delete(self, path: str) -> None:
        """Remove a file, if it is there; another process may remove it, too."""
        try:
            self._disk.unlink(path)
        except LogFailedError:
            if self._disk.exists(path):
                raise

    def remove_empty(self, path: str) -> None:
        """Remove a directory, if neither it nor directories in it hold a file."""
        for name in self.names(path):
            if self._disk.is_directory(f"{path}/{name}"):
                self.remove_empty(f"{path}/{name}")
        if self._disk.exists(path) and not self.names(path):
            self._disk.rmdir(path)

    def each(self, function: Callable[[Given], Result], given: Iterable[Given]) -> list[Result]:
        """Return what a function returns for each of some arguments."""
        return [function(one) for one in given]

    def _below(self, path: str, prefix: str) -> Iterator[str]:
        for name in self.names(path):
            if self._disk.is_directory(f"{path}/{name}"):
                yield from self._below(f"{path}/{name}", f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}"


class StoreFiles:
    """Files in an object store.

    Args:
        files: File system of pyarrow.
    """

    def __init__(self, files: Any) -> None:
        self._files = files

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        return read_file(self._files, path)

    def tail(self, path: str, size: int) -> bytes:
        """Return the last bytes of an object."""
        with translating("read", path), self._files.open_input_file(path) as file:
            file.seek(max(file.size() - size, 0))
            data: bytes = file.read()
            return data

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none if it is not there."""
        return sorted(str(info.base_name) for info in self._list(path, recursive=False))

    def walk(self, path: str) -> list[str]:
        """Return the paths of all files below a directory, from there, sorted."""
        found = (info.path for info in self._list(path, recursive=True) if info.is_file)
        return sorted(str(one).removeprefix(f"{path}/") for one in found)

    def put(self, path: str, data: bytes) -> None:
        """Write an object; it is there when its upload has been completed.

        A stream of pyarrow that is closed, or collected, completes the upload with the bytes that
        it has, and SIGINT may come before these. Signals end only the main thread of Python, so
        another one writes, which this one waits for.
        """
        with translating("write", path), ThreadPoolExecutor(1) as thread:
            thread.submit(self._upload, path, data).result()

    def delete(self, path: str) -> None:
        """Remove an object, if it is there."""
        with translating("remove", path):
            if self._files.get_file_info(path).type == pa.fs.FileType.File:
                with suppress(FileNotFoundError):  # another process may remove it, too
                    self._files.delete_file(path)

    def remove_empty(self, path: str) -> None:
        """Remove objects that represent directories without any file."""
        if not self.walk(path):
            with translating("remove", path):
                self._files.delete_dir(path)

    def each(self, function: Callable[[Given], Result], given: Iterable[Given]) -> list[Result]:
        """Return what a function returns for each of some arguments."""
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            return list(threads.map(function, given))

    def _upload(self, path: str, data: bytes) -> None:
        with self._files.open_output_stream(path) as file:
            file.write(data)

    def _list(self, path: str, *, recursive: bool) -> list[Any]:
        selector = pa.fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        with translating("list", path):
            return list(self._files.get_file_info(selector))
