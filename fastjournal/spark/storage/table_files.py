"""Files of the table of events: on a disk of this machine, or in an object store.

Both replace a file atomically. On a disk it is written beside its place, synced and renamed. An
object store shows an object when its upload has been completed: it needs no rename, and an upload
that a crash cut is never seen.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs

from fastjournal.disk import Disk, OsDisk
from fastjournal.spark.storage.files import below, read_file, resolve, translating


class TableFiles(Protocol):
    """File system, as far as the table of events needs one. All raise ``LogFailedError``."""

    def read(self, path: str) -> bytes:
        """Return a whole file."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none if it is not there."""

    def walk(self, path: str) -> list[str]:
        """Return the paths of all files below a directory, from there, sorted."""

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it: atomically and durably. Its directory is created."""

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""

    def settle(self, paths: Iterable[str]) -> None:
        """Make the removal of files durable."""

    def remove_empty(self, path: str) -> None:
        """Remove a directory, if neither it nor directories in it hold a file."""


def open_table(output: str) -> tuple[str, TableFiles, str]:
    """Return the table ``events`` of an output: path or URI, file system, and its path there.

    Raises:
        LogFailedError: The scheme is unknown, or its file system cannot be reached.
    """
    files, path = open_files(output)
    place = path if isinstance(files, DiskFiles) else output
    return below(place, "events"), files, f"{path}/events"


def open_files(directory: str, *, writer: str = "") -> tuple[TableFiles, str]:
    """Return the file system of a path or URI, and its path there.

    Args:
        directory: The path or URI.
        writer: Identifier of one of several writers of a file at once, see ``DiskFiles``.

    Raises:
        LogFailedError: The scheme is unknown, or its file system cannot be reached.
    """
    files, path = resolve(directory)
    if isinstance(files, pa.fs.LocalFileSystem):
        return DiskFiles(OsDisk(), writer=writer), path
    return StoreFiles(files), path


class DiskFiles:
    """Files on a disk of this machine.

    Args:
        disk: The disk.
        writer: Identifier of one of several writers of a file at once. The file beside, which a
            crash leaves, has it in its name: ``_<name>.<writer>.new``. The caller removes it.
        syncs: Whether files have to survive a power loss.
    """

    def __init__(self, disk: Disk, *, writer: str = "", syncs: bool = True) -> None:
        self._disk = disk
        self._syncs = syncs
        self._beside = f".{writer}.new" if writer else ".new"

    def of_task(self) -> DiskFiles:
        """Return the same for a task that may run twice at once."""
        return DiskFiles(self._disk, writer=uuid.uuid4().hex, syncs=self._syncs)

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        return self._disk.read(path)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none if it is not there."""
        return sorted(self._disk.listdir(path)) if self._disk.exists(path) else []

    def walk(self, path: str) -> list[str]:
        """Return the paths of all files below a directory, from there, sorted."""
        return sorted(self._below(path, ""))

    def put(self, path: str, data: bytes) -> None:
        """Write a file beside its place, where no reader of Parquet looks, and rename it."""
        parent, _, name = path.rpartition("/")
        beside = f"{parent}/_{name}{self._beside}"
        self._disk.mkdir(parent)
        if self._disk.exists(beside):
            self._disk.unlink(beside)
        with closing(self._disk.create(beside)) as file:
            file.write(data)
            if self._syncs:
                file.sync()
        self._disk.rename(beside, path)
        if self._syncs:
            self._disk.sync_directory(parent)

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""
        if self._disk.exists(path):
            self._disk.unlink(path)

    def settle(self, paths: Iterable[str]) -> None:
        """Make the removal of files durable, by syncs of their directories."""
        for parent in sorted({path.rpartition("/")[0] for path in paths}):
            if self._disk.exists(parent):
                self._disk.sync_directory(parent)

    def remove_empty(self, path: str) -> None:
        """Remove a directory, if neither it nor directories in it hold a file."""
        for name in self.names(path):
            if self._disk.is_directory(f"{path}/{name}"):
                self.remove_empty(f"{path}/{name}")
        if not self.names(path):
            self._disk.rmdir(path)

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

    def settle(self, paths: Iterable[str]) -> None:
        """Do nothing: an object that was removed stays so."""

    def remove_empty(self, path: str) -> None:
        """Remove objects that stand for directories without any file."""
        if not self.walk(path):
            with translating("remove", path):
                self._files.delete_dir(path)

    def _upload(self, path: str, data: bytes) -> None:
        with self._files.open_output_stream(path) as file:
            file.write(data)

    def _list(self, path: str, *, recursive: bool) -> list[Any]:
        selector = pa.fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        with translating("list", path):
            return list(self._files.get_file_info(selector))
