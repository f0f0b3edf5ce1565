"""Store of the nightly tables: days that are replaced, and pruned.

    OUTPUT/hours/dt=2026-11-20/hours-1.parquet   one file for each table and UTC day; of entries,
                                                 and where a cluster writes, there may be more
    OUTPUT/reports/2026-11-20.html               report of a day
    OUTPUT/days/2026-11-20.json                  what the tables of a day were computed from, and
                                                 their files with checksums; the last of the day
    OUTPUT/nightly-staging/...                   tables while Spark writes them

A description counts for what it names. It loses the tables that are to be replaced before the first
of them is, and names the new ones when all of them are durably in place. So a run that was killed
anywhere leaves a day of which those tables are computed again. A reader of Parquet sees the file of
each table and day replaced at once; what reads by the descriptions never sees a mixture.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.fs

from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.spark.history.coverage import Span
from fastjournal.spark.storage.files import (
    below,
    check_outside_snapshots,
    pyarrow_uri,
    resolve,
    sync,
    translating,
)
from fastjournal.spark.storage.table_files import open_files
from fastjournal.versioned_json import Crc32cDigits

STAGING = "nightly-staging"
_PROBE = "nightly.probe"
REPORTS = "reports"
DAYS = "days"
_CHUNK_BYTES = 1 << 24
_OLD = timedelta(days=1)
"""Age of staging trees of killed runs in a store: no run takes so long."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a table."""

    name: str
    bytes: int
    crc32c: Crc32cDigits


class HistoryTables(msgspec.Struct, frozen=True):
    """Tables of a day that were computed from its events."""

    segments: list[str]
    """Segments of the files of events, by number and checksum."""
    jobs: int
    """Version of the jobs."""
    tables: dict[str, list[StoredFile]] = msgspec.field(default_factory=dict)


class StateTables(msgspec.Struct, frozen=True):
    """Tables of a day that were computed from a snapshot after it."""

    snapshot: str
    taken_us: int
    """Instant of the snapshot, in microseconds since the Unix epoch."""
    sealed: int | None
    """Number of its last segment, if the history has it too."""
    tables: dict[str, list[StoredFile]] = msgspec.field(default_factory=dict)


class DayState(msgspec.Struct, frozen=True):
    """Description of one day."""

    history: HistoryTables | None = None
    state: StateTables | None = None
    covered: list[Span] | None = None
    """Spans and gaps of the day that its report shows; None: there is none of these tables."""

    @property
    def snapshot(self) -> str | None:
        """Snapshot of the tables of the state."""
        return None if self.state is None else self.state.snapshot

    @property
    def taken_us(self) -> int | None:
        """Instant of that snapshot, in microseconds since the Unix epoch."""
        return None if self.state is None else self.state.taken_us

    def files(self, table: str) -> list[StoredFile]:
        """Return the files of a table."""
        parts = [part.tables for part in (self.history, self.state) if part is not None]
        return [file for part in parts for file in part.get(table, ())]


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
        self.raw, self.path = resolve(self.uri)
        check_outside_snapshots(self.raw, self.path)
        self.is_local = isinstance(self.raw, pa.fs.LocalFileSystem)
        self.files, _ = open_files(self.uri)
        # in a store runs do not exclude each other
        self._staging = STAGING if self.is_local else f"{STAGING}/{uuid.uuid4().hex}"
        self._known: dict[str, bytes] = {}
        """Descriptions as this run knows them."""
        with translating("write", self.path):
            self.raw.create_dir(self.path, recursive=True)
        probe = f"{self.path}/{_PROBE}"
        self.files.put(probe, b"fj-nightly")
        with translating("read", probe):
            self._now = self.raw.get_file_info(probe).mtime
            """Instant of the begin, by the clock of the store."""
        self.files.delete(probe)

    def staged(self, name: str) -> str:
        """Return the path or URI of a table, or of one day of it, while it is built."""
        return below(self.uri, f"{self._staging}/{name}")

    def place(self, name: str) -> str:
        """Return the path or URI of a file."""
        return f"{self.path}/{name}" if self.is_local else below(self.uri, name)

    def begin(self) -> None:
        """Remove the staging trees of other runs."""
        for tree in (self._staging, *self._old_trees()):
            self._delete_tree(f"{self.path}/{tree}")
        with translating("create", self.path):
            self.raw.create_dir(f"{self.path}/{self._staging}", recursive=True)

    def end(self) -> None:
        """Remove the staging tree."""
        self._delete_tree(f"{self.path}/{self._staging}")

    def states(self) -> dict[str, DayState]:
        """Return the descriptions of all days.

        Raises:
            LogCorruptError: One cannot be understood.
        """
        folder = f"{self.path}/{DAYS}"
        names = [name for name in self.files.names(folder) if name.endswith(".json")]
        found = self.files.each(self.files.read, [f"{folder}/{name}" for name in names])
        self._known = {
            name.removesuffix(".json"): data for name, data in zip(names, found, strict=True)
        }
        return {day: _decoded(data, f"{folder}/{day}.json") for day, data in self._known.items()}

    def publish(
        self,
        states: dict[str, DayState],
        days: Mapping[str, HistoryTables | StateTables],
        tables: Collection[str],
    ) -> None:
        """Move tables in the staging tree to their places.

        Args:
            states: Descriptions of all days; those of these days are replaced.
            days: Sources of the tables of each day, without their files.
            tables: Names of the tables: each of these days has them, perhaps without rows.

        Raises:
            LogLockedError: Another run has written one of these days meanwhile.
            LogFailedError: Something cannot be written. The next run computes it again.
        """
        for day, new in days.items():
            part = "history" if isinstance(new, HistoryTables) else "state"
            if day in states:
                states[day] = msgspec.structs.replace(states[day], covered=None, **{part: None})
                self.describe(day, states[day])
        for day, new in days.items():
            part = "history" if isinstance(new, HistoryTables) else "state"
            new = msgspec.structs.replace(
                new, tables={table: self._move(table, day) for table in tables}
            )
            old = states.get(day, DayState())
            states[day] = msgspec.structs.replace(old, covered=None, **{part: new})
            self.describe(day, states[day])

    def describe(self, day: str, state: DayState) -> None:
        """Put the description of a day.

        Raises:
            LogLockedError: Another run has written it meanwhile.
        """
        path = f"{self.path}/{DAYS}/{day}.json"
        with translating("read", path):
            is_there = self.raw.get_file_info(path).type == pa.fs.FileType.File
        there = self.files.read(path) if is_there else None
        if there != self._known.get(day):
            raise LogLockedError(
                "another fj-nightly has written this day", path=path, hint="run it again"
            )
        data = msgspec.json.encode(state)
        if data == there:
            return
        self.files.put(path, data)
        self._known[day] = data

    def put_report(self, day: str, page: bytes) -> str:
        """Put the report of a day; return its path or URI."""
        self.files.put(f"{self.path}/{REPORTS}/{day}.html", page)
        return self.place(f"{REPORTS}/{day}.html")

    def read(self, table: str, day: str, file: StoredFile) -> bytes:
        """Return a file of a table.

        Raises:
            LogCorruptError: It is not the one that the description of the day names.
            LogFailedError: It cannot be read.
        """
        path = f"{self.path}/{table}/dt={day}/{file.name}"
        data = self.files.read(path)
        if len(data) != file.bytes or f"{google_crc32c.value(data):08x}" != file.crc32c:
            raise LogCorruptError(
                f"the file is another one than {DAYS}/{day}.json names",
                path=path,
                hint=f"remove {DAYS}/{day}.json: the day is computed again",
            )
        return data

    def prune(self, tables: Iterable[str], days: Iterable[str]) -> None:
        """Remove days: the description first, then tables and reports."""
        for day in days:
            self.files.delete(f"{self.path}/{DAYS}/{day}.json")
            self._known.pop(day, None)
            for name in tables:
                self._delete_tree(f"{self.path}/{name}/dt={day}")
            self.files.delete(f"{self.path}/{REPORTS}/{day}.html")

    def _move(self, table: str, day: str) -> list[StoredFile]:
        """Move the files of a table into place, and remove all others of the day."""
        place = f"{table}/dt={day}"
        source, target = f"{self.path}/{self._staging}/{place}", f"{self.path}/{place}"
        names = [
            name
            for name in self.files.names(source)
            if name.endswith(".parquet") and not name.startswith((".", "_"))
        ]
        moved = []
        with translating("write", target):
            if names:
                self.raw.create_dir(target, recursive=True)
            for number, name in enumerate(names, 1):
                # Spark skips files whose names begin with a dot or an underscore
                moved.append(self._sum(f"{source}/{name}", f"{table}-{number}.parquet"))
                # Spark syncs no file: what a description names has to outlive a power loss
                sync(self.raw, f"{source}/{name}")
                self.raw.move(f"{source}/{name}", f"{target}/{moved[-1].name}")
        kept = {file.name for file in moved}
        for name in self.files.names(target):
            if name not in kept:
                self.files.delete(f"{target}/{name}")
        with translating("write", target):
            if names:
                for synced in (target, f"{self.path}/{table}", self.path):
                    sync(self.raw, synced)
        return moved

    def _old_trees(self) -> list[str]:
        """Return the staging trees of a store that no run has written to for long."""
        if self.is_local:
            return []
        place, newest = f"{self.path}/{STAGING}", dict[str, Any]()
        selector = pa.fs.FileSelector(place, allow_not_found=True, recursive=True)
        with translating("list", place):
            for info in self.raw.get_file_info(selector):
                if info.is_file:
                    tree = info.path.removeprefix(f"{place}/").partition("/")[0]
                    newest[tree] = max(newest.get(tree, info.mtime), info.mtime)
        return [f"{STAGING}/{tree}" for tree, at in newest.items() if self._now - at > _OLD]

    def _sum(self, path: str, name: str) -> StoredFile:
        """Return a file with its checksum, under the name that it gets."""
        checksum = size = 0
        with self.raw.open_input_stream(path) as file:
            while data := file.read(_CHUNK_BYTES):
                checksum = google_crc32c.extend(checksum, data)
                size += len(data)
        return StoredFile(name, size, f"{checksum:08x}")

    def _delete_tree(self, path: str) -> None:
        """Remove a file or a tree, if it is there; of a link only the link itself."""
        if self.is_local and os.path.islink(path):
            with translating("remove", path):
                os.unlink(path)
            return
        with translating("remove", path):
            kind = self.raw.get_file_info(path).type
            if kind == pa.fs.FileType.Directory and self.is_local:
                shutil.rmtree(path)
            elif kind == pa.fs.FileType.Directory:
                self.raw.delete_dir(path)
        if kind == pa.fs.FileType.File:
            self.files.delete(path)


def _decoded(data: bytes, path: str) -> DayState:
    try:
        return msgspec.json.decode(data, type=DayState)
    except msgspec.MsgspecError as error:
        raise LogCorruptError(
            f"not a description of a day: {error}",
            path=path,
            hint="remove it: the day is computed again",
        ) from error


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
