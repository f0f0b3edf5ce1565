"""Store of the nightly tables: days that are replaced as a whole, and pruned.

    OUTPUT/hours/dt=2026-11-20/part-*.parquet   rows of one table and UTC day; so are the others
    OUTPUT/reports/2026-11-20.html              report of a day
    OUTPUT/_days/2026-11-20.json                what the tables of a day were computed from
    OUTPUT/_staging/...                         the same tree while it is built
    OUTPUT/_publish.json                        there while the staging tree takes its place

A run builds everything in the staging tree. Then it writes ``_publish.json`` and moves tables and
descriptions into place. A crash before that leaves a tree that the next run removes. A
crash behind it is finished by the next run before anything else. So each day is the old one or the
new one in the end, in all tables. Reports are made from tables in place, so they come in a second
publication, with descriptions that say what they show. Readers see each table of a day replaced by
two renames on this machine, and file by file in an object store.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs

from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.storage.files import (
    below,
    check_outside_snapshots,
    pyarrow_uri,
    read_file,
    resolve,
    translating,
)
from fastjournal.spark.storage.table_files import StoreFiles

STAGING = "_staging"
_PUBLISH = "_publish.json"
_PROBE = "_probe"
REPORTS = "reports"
DAYS = "_days"


class DayState(msgspec.Struct):
    """Description of the tables of one day."""

    source: str | None
    """Fingerprint of the events that they were computed from; None: there were none."""
    snapshot: str | None = None
    """Snapshot that the tables of the state were computed from; None: there are none."""
    taken_us: int | None = None
    """Instant of that snapshot, in microseconds since the Unix epoch."""
    sealed: int | None = None
    """Number of its last segment, if the history has it too."""
    reported: str | None = None
    """Fingerprint of what the report of the day shows; None: it is not known, or there is none."""


class _Publish(msgspec.Struct):
    """Moves from the staging tree, whose paths are the same in the output."""

    paths: dict[str, list[str]]
    """Names in each directory, so that a run that finishes the moves knows what is moved already;
    a file has none."""


class DayStore:
    """Store of tables by day in a directory on any file system that pyarrow reaches.

    Args:
        output: Path or URI.

    Raises:
        BadRequestError: It is in a snapshot, or none is named.
        LogFailedError: Nothing can be written there.
    """

    def __init__(self, output: str) -> None:
        uri = pyarrow_uri(output)
        self.uri = uri.rstrip("/") or uri
        self.guard: Callable[[], None] = lambda: None
        """Raises ``LogLockedError`` where the lock of the output was lost; asked before changes."""
        self.files, self.path = resolve(self.uri)
        check_outside_snapshots(self.files, self.path)
        self._local = isinstance(self.files, pa.fs.LocalFileSystem)
        with translating("write", self.path):
            self.files.create_dir(self.path, recursive=True)
            probe = f"{self.path}/{_PROBE}"
            with self.files.open_output_stream(probe) as file:
                file.write(b"fj-nightly")
            self.files.delete_file(probe)

    def staged(self, name: str) -> str:
        """Return the path or URI of a table, or of one day of it, while it is built."""
        return below(self.uri, f"{STAGING}/{name}")

    def begin(self) -> None:
        """Finish a publication that a crash cut, and remove what another one has built."""
        self.guard()
        self._finish()
        self._delete(f"{self.path}/{STAGING}")
        self._create(f"{self.path}/{STAGING}")

    def end(self) -> None:
        """Remove the staging tree."""
        self.guard()
        self._delete(f"{self.path}/{STAGING}")

    def write(self, name: str, data: bytes) -> None:
        """Write a file into the staging tree."""
        self.guard()
        path = f"{self.path}/{STAGING}/{name}"
        with translating("write", path):
            self.files.create_dir(path.rpartition("/")[0], recursive=True)
            with self.files.open_output_stream(path) as file:
                file.write(data)

    def place(self, name: str) -> str:
        """Return the path or URI of a file."""
        return f"{self.path}/{name}" if self._local else below(self.uri, name)

    def describe(self, day: date, state: DayState) -> None:
        """Write the description of a day into the staging tree."""
        self.write(f"{DAYS}/{day}.json", msgspec.json.encode(state))

    def publish(self, tables: Iterable[tuple[str, date]]) -> None:
        """Let the staging tree take its place: tables on days, descriptions, reports.

        A table without rows on a day is an empty directory then.
        """
        staging = f"{self.path}/{STAGING}"
        paths: dict[str, list[str]] = {}
        for table, day in tables:
            path = f"{table}/dt={day}"
            self._create(f"{staging}/{path}")
            paths[path] = self._names(f"{staging}/{path}")
        for folder in (DAYS, REPORTS):
            paths |= {f"{folder}/{name}": [] for name in self._names(f"{staging}/{folder}")}
        begun = f"{staging}/{_PUBLISH}"
        with translating("write", begun):
            with self.files.open_output_stream(begun) as file:
                file.write(msgspec.json.encode(_Publish(paths)))
            # Spark syncs no file: all that the record names has to outlive a power loss as it does
            for path, names in paths.items():
                for name in names:
                    self._sync(f"{staging}/{path}/{name}")
                self._sync(f"{staging}/{path}")
            self._sync_parents(staging, paths)
            self._sync(begun)
            self.guard()
            self.files.move(begun, f"{self.path}/{_PUBLISH}")
            self._sync(self.path)
        self._finish()

    def states(self) -> dict[str, DayState]:
        """Return the descriptions of all days.

        Raises:
            LogCorruptError: One cannot be understood.
        """
        folder = f"{self.path}/{DAYS}"
        found = {}
        for name in self._names(folder):
            if not name.endswith(".json"):
                continue
            data = read_file(self.files, f"{folder}/{name}")
            try:
                found[name.removesuffix(".json")] = msgspec.json.decode(data, type=DayState)
            except msgspec.MsgspecError as error:
                raise LogCorruptError(
                    f"not a description of a day: {error}",
                    path=f"{folder}/{name}",
                    hint="remove it: the day is computed again",
                ) from error
        return found

    def prune(self, tables: Iterable[str], days: Iterable[str]) -> None:
        """Remove days from all tables, their reports and descriptions."""
        for day in days:
            self.guard()
            for name in tables:
                self._delete(f"{self.path}/{name}/dt={day}")
            for name in (f"{REPORTS}/{day}.html", f"{DAYS}/{day}.json"):
                self._delete(f"{self.path}/{name}")

    def _finish(self) -> None:
        """Move what ``_publish.json`` names and is still in the staging tree."""
        journal = f"{self.path}/{_PUBLISH}"
        if self._kind(journal) != pa.fs.FileType.File:
            return
        try:
            publish = msgspec.json.decode(read_file(self.files, journal), type=_Publish)
        except msgspec.MsgspecError as error:
            raise LogCorruptError(
                f"not a publication: {error}",
                path=journal,
                hint="remove it: what was not published is computed again",
            ) from error
        with translating("write", self.path):
            for path, names in publish.paths.items():
                self._replace(f"{self.path}/{STAGING}/{path}", f"{self.path}/{path}", names)
            self._sync_parents(self.path, publish.paths)
            self.files.delete_file(journal)
            self._delete(f"{self.path}/{STAGING}")

    def _replace(self, source: str, target: str, names: Collection[str] = ()) -> None:
        """Move a file, or a directory with files of these names, in place of another one."""
        kind = self._kind(source)
        if kind == pa.fs.FileType.NotFound:
            return  # it was moved before a crash
        self._create(target.rpartition("/")[0])
        if kind == pa.fs.FileType.File:
            self._sync(source)
            self.files.move(source, target)
        elif self._local:
            old = f"{target.rpartition('/')[0]}/_old"
            self._delete(old)
            with suppress(FileNotFoundError):
                os.rename(target, old)
            os.rename(source, target)
            self._delete(old)
        else:
            self._create(target)
            staged = self._names(source)
            for name in self._names(target):
                # a name that is staged no more was moved before a crash
                if name in staged or name not in names:
                    self._delete(f"{target}/{name}")
            for name in staged:
                self.files.move(f"{source}/{name}", f"{target}/{name}")

    def _sync_parents(self, tree: str, paths: Iterable[str]) -> None:
        """Sync a tree's directory, and those in it that have these paths."""
        for parent in sorted({path.rpartition("/")[0] for path in paths}):
            self._sync(f"{tree}/{parent}")
        self._sync(tree)

    def _sync(self, path: str) -> None:
        """Sync a file or a directory of this machine."""
        if self._local:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _create(self, path: str) -> None:
        with translating("create", path):
            self.files.create_dir(path, recursive=True)

    def _delete(self, path: str) -> None:
        """Remove a file or a tree, if it is there; of a link only the link itself."""
        if self._local and os.path.islink(path):
            with translating("remove", path):
                os.unlink(path)
        elif self._kind(path) != pa.fs.FileType.Directory:
            StoreFiles(self.files).delete(path)
        else:
            with translating("remove", path):
                if self._local:
                    shutil.rmtree(path)
                else:
                    self.files.delete_dir(path)

    def _kind(self, path: str) -> Any:
        with translating("read", path):
            return self.files.get_file_info(path).type

    def _names(self, path: str) -> list[str]:
        return StoreFiles(self.files).names(path)


def checked_output(output: str) -> DayStore:
    """Return the store of an output.

    Raises:
        BadRequestError: It is in a snapshot, or none is named.
        LogFailedError: Nothing can be written there; the message says what to do.
    """
    try:
        return DayStore(output)
    except LogFailedError as error:
        # HDFS names each place without a library on a line of its own
        first = error.message.split("\n")[0]
        raise LogFailedError(
            f"the output cannot be written: {first}",
            path=output,
            hint="name another --output, or give this user the right to write there",
        ) from error
