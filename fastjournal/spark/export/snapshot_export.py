"""Export of a snapshot: its live entries as Parquet, without Spark or Java.

    DESTINATION/entries-<snapshot>.parquet    zstd, sorted by domain, about 1 M rows a row group
    DESTINATION/entries-<snapshot>-2.parquet  the domains after those, of a large snapshot
    DESTINATION/_manifest.json                which snapshot, which files
    DESTINATION/_SUCCESS                      empty; written last

The columns are those of the Spark view ``entries``. The manifest is one JSON object::

    {"format": "fastjournal-export", "version": 1, "snapshot": str, "taken_us": int,
     "segments": [{"name": str, "bytes": int, "crc32c": str}, ...],
     "files": [{"name": str, "bytes": int, "rows": int}], "rows": int}

A Parquet file is written under a name that starts with ``_``, which readers of Parquet
directories skip, and then renamed. A second export to the same place removes ``_SUCCESS``
first and the files that the manifest there names last; a directory that holds anything else is
refused. In between the manifest names all of them, so that an export can follow one that was cut
anywhere. Readers that wait for ``_SUCCESS`` therefore see a whole export or none, also after
a power loss: on this machine each file is synced before its rename, and the directory when an
old ``_SUCCESS`` was removed, when the manifest names all, and before and after ``_SUCCESS``.

On this machine files and directory are readable only by users who may read the snapshot.

Processes read the entries of parts of the snapshot (``live_entries.entry_parts``), sort them by
domain (``export.entry_sort``), and write a file of neighbouring domains each. Memory does not grow
with the snapshot, except without a live index: then one process replays it, like a starting
daemon.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from fastjournal.cmdlog.snapshot import Manifest
from fastjournal.errors import BadRequestError, LogCorruptError
from fastjournal.spark.execution.cluster_tasks import process_pool, processors, translating_end
from fastjournal.spark.export.entry_sort import (
    DomainRange,
    RunGroup,
    find_ranges,
    read_range,
    write_runs,
)
from fastjournal.spark.live_entries.entry_parts import (
    EntryPart,
    find_index,
    parts_of_index,
    read_part,
)
from fastjournal.spark.live_entries.fetch import ENTRY_ARROW_SCHEMA
from fastjournal.spark.storage.files import (
    LogDirectory,
    check_outside_snapshots,
    create_directory,
    create_file,
    modes_of,
    read_file,
    resolve,
    sync,
    translating,
)
from fastjournal.versioned_json import decode_versioned

ROW_GROUP_ROWS = 1_000_000
ROW_GROUP_BYTES = 256 * 1024 * 1024
"""Before compression; a row group of large values ends here, so that memory stays bounded."""
FILE_BYTES = 4 * 1024 * 1024 * 1024
"""Most bytes of the entries of a file: S3 renames by a copy, and copies no object above 5 GiB."""
PART_BYTES = 48 * 1024 * 1024
"""A snapshot of no more bytes is exported in this process."""

MANIFEST_NAME = "_manifest.json"
SUCCESS_NAME = "_SUCCESS"
_FEW_VALUES = (
    "domain", "priority", "state", "value_type", "ttl", "attempts", "worked_on_until", "superseded",
    "reason", "segment",
)  # fmt: skip
"""Columns that are written with a dictionary."""
_PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": list(_FEW_VALUES)}
_ENDED = "free memory, or call fastjournal.spark.export_snapshot with processes=1"
_BEHIND = 2
"""Tasks for each process that wait or run, and files."""
_Found = TypeVar("_Found")
_FORMAT = "fastjournal-export"
_VERSION = 1


class ExportedFile(msgspec.Struct):
    """A Parquet file of an export."""

    name: str
    bytes: int
    rows: int


class SourceSegment(msgspec.Struct):
    """A segment of the snapshot that was exported."""

    name: str
    bytes: int
    crc32c: str


class ExportManifest(msgspec.Struct):
    """Manifest of an export: its files, and its snapshot."""

    snapshot: str
    """Name of the snapshot's directory."""
    taken_us: int
    """When the snapshot was taken, in microseconds since the Unix epoch."""
    segments: list[SourceSegment]
    files: list[ExportedFile]
    rows: int
    format: str = _FORMAT
    version: int = _VERSION


def export_snapshot(
    snapshot: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    on_progress: Callable[[int, int], None] | None = None,
    processes: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> ExportManifest:
    """Write the live entries of a snapshot as Parquet; see the module for what comes of it.

    Args:
        snapshot: Path or URI of the snapshot's directory.
        destination: Path or URI of a directory; it is created, or holds an earlier export.
        on_progress: Called with what has been done and what there is to do, in bytes.
        processes: Processes that read and write; None: one for each processor, for a snapshot
            larger than ``PART_BYTES``. More than one need a main module that can be imported.
        scratch: Local directory for temporary files, about as large as the entries; None: the
            system's.

    Raises:
        BadRequestError: The destination holds something else, or is in a snapshot.
        LogCorruptError: The snapshot is damaged, or is none.
        LogFailedError: Something cannot be read or written.
    """
    source = LogDirectory(snapshot)
    if source.manifest is None:
        raise LogCorruptError(
            "this is no snapshot: there is no manifest, or a daemon has started here",
            path=source.path,
            hint="name the directory that 'fj-cli snapshot' printed",
        )
    if processes is None:
        processes = processors() if source.manifest.bytes > PART_BYTES else 1
    target = _Target(destination, *modes_of(source))
    progress = _ExportProgress(source.manifest.bytes, on_progress)
    with (
        _advising(),
        target.cleaned_up(),
        translating("use a temporary directory", str(scratch or tempfile.gettempdir())),
        tempfile.TemporaryDirectory(prefix="fastjournal-export-", dir=scratch) as directory,
        translating_end("a process of the export", _ENDED),
        process_pool(processes) as pool,
    ):
        parts = parts_of_index(source.uri, source.segments, find_index(source))
        waiting = _BEHIND * processes if processes > 1 else 0
        tasks = [(write_part, part, f"{directory}/runs-{at}") for at, part in enumerate(parts)]
        groups: list[RunGroup] = []
        for part, found in zip(parts, _in_turn(pool, waiting, tasks), strict=True):
            groups += found
            progress.add(part.bytes)
        stem = f"entries-{source.name}"
        shares = share_out(find_ranges(groups), processes)
        files = []
        for file in target.write(pool, waiting, stem, shares):
            files.append(file)
            progress.add(source.manifest.bytes // len(shares))
        manifest = _describe(source, source.manifest, files)
        target.finish(manifest)
    progress.finish()
    return manifest


def write_part(part: EntryPart, path: str) -> list[RunGroup]:
    """Write the entries of a part of the snapshot as sorted runs."""
    return write_runs(path, read_part(part, ENTRY_ARROW_SCHEMA.names, permissive=False))


def share_out(ranges: Sequence[DomainRange], processes: int) -> list[list[DomainRange]]:
    """Return the ranges of each file, one file at least: a few files for each process."""
    rows, size = (sum(column) for column in ((r.rows for r in ranges), (r.bytes for r in ranges)))
    groups = max(rows // ROW_GROUP_ROWS, size // ROW_GROUP_BYTES)
    files = max(min(groups, _BEHIND * processes), -(-size // FILE_BYTES), 1)
    found: list[list[DomainRange]] = [[]]
    done = 0
    for one in ranges:
        if done * files >= len(found) * size and found[-1]:
            found.append([])
        found[-1].append(one)
        done += one.bytes
    return found


def _in_turn(
    pool: Executor, waiting: int, tasks: Iterable[tuple[Callable[..., _Found], *tuple[Any, ...]]]
) -> Iterator[_Found]:
    """Run tasks, a bounded number at once; yield their results in order."""
    running: deque[Future[_Found]] = deque()
    for task, *arguments in tasks:
        running.append(pool.submit(task, *arguments))
        if len(running) > waiting:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


@contextmanager
def _advising() -> Iterator[None]:
    """Add the advice to the error of a damaged snapshot: the readers advise their options."""
    try:
        yield
    except LogCorruptError as error:
        error.hint = "export another snapshot, or restore the file"
        raise


class _ExportProgress:
    """Bytes of the snapshot, twice each: entries are read and sorted, and written."""

    def __init__(self, size: int, tell: Callable[[int, int], None] | None) -> None:
        self._all = 2 * size
        self._done = 0
        self._tell = tell

    def add(self, size: int) -> None:
        self._done = min(self._done + size, self._all)
        if self._tell is not None:
            self._tell(self._done, self._all)

    def finish(self) -> None:
        self.add(self._all)


class _Target:
    """The directory that an export is written to."""

    def __init__(
        self, destination: str | os.PathLike[str], file_mode: int, directory_mode: int
    ) -> None:
        self._destination = os.fspath(destination)
        self._files, self._path = resolve(destination)
        check_outside_snapshots(self._files, self._path)
        self._file_mode, self._directory_mode = file_mode, directory_mode
        self._old: list[str] = []
        self._created: list[str] = []
        """Directories that were created, the innermost first."""
        self._temporary: list[str] = []
        """Paths of the temporary files that were begun."""
        with translating("list", self._path):
            selector = pa.fs.FileSelector(self._path, allow_not_found=True)
            names = {info.base_name for info in self._files.get_file_info(selector)}
        if MANIFEST_NAME in names:
            self._old = [name for name in self._read_old() if name in names]
        own = {MANIFEST_NAME, SUCCESS_NAME, *self._old}
        foreign = sorted(name for name in names - own if not name.startswith(_TEMPORARY))
        if foreign:
            raise BadRequestError(
                f"the destination holds {foreign[0]}, which is of no earlier export",
                path=self._path,
                hint="choose an empty or new directory",
            )
        self._rest = sorted(name for name in names if name.startswith(_TEMPORARY))

    def _read_old(self) -> list[str]:
        path = f"{self._path}/{MANIFEST_NAME}"
        data = read_file(self._files, path)
        try:
            old = decode_versioned(
                data, ExportManifest, format_name=_FORMAT, version=_VERSION, path=path
            )
        except LogCorruptError as error:
            raise BadRequestError(
                error.message, path=path, hint="choose an empty or new directory"
            ) from error
        return [file.name for file in old.files]

    @contextmanager
    def cleaned_up(self) -> Iterator[None]:
        """Delete what was begun where the block ends early, also by an interrupt."""
        try:
            yield
        except BaseException:  # also an interrupt
            for path in self._temporary:
                # those that were moved are not there
                with suppress(OSError, pa.ArrowException):
                    self._files.delete_file(path)
            for path in self._created:
                with suppress(OSError, pa.ArrowException):
                    if not self._files.get_file_info(pa.fs.FileSelector(path)):
                        self._files.delete_dir(path)
            raise

    def write(
        self, pool: Executor, waiting: int, stem: str, shares: Sequence[Sequence[DomainRange]]
    ) -> Iterator[ExportedFile]:
        """Write the Parquet files under temporary names, and yield each that is there."""
        with translating("write", self._path):
            self._created = list(self._missing())
            create_directory(self._files, self._path, self._directory_mode)
            for old in self._rest:
                self._files.delete_file(f"{self._path}/{old}")
        tasks = []
        for number, share in enumerate(shares, 1):
            name = f"{stem}.parquet" if number == 1 else f"{stem}-{number}.parquet"
            path = f"{self._path}/{_TEMPORARY}{name}"
            self._temporary.append(path)
            tasks.append((write_file, self._destination, path, name, self._file_mode, share))
        yield from _in_turn(pool, waiting, tasks)

    def _missing(self) -> Iterator[str]:
        """Yield the directories that are not there, the innermost first."""
        path = self._path
        while path and self._files.get_file_info(path).type == pa.fs.FileType.NotFound:
            yield path
            path = path.rpartition("/")[0]

    def finish(self, manifest: ExportManifest) -> None:
        """Move everything to its place, ``_SUCCESS`` last."""
        names = [file.name for file in manifest.files]
        old = [name for name in self._old if name not in names]
        with translating("write", self._path):
            success = f"{self._path}/{SUCCESS_NAME}"
            if self._files.get_file_info(success).type != pa.fs.FileType.NotFound:
                self._files.delete_file(success)
                sync(self._files, self._path)
            # both, until the old ones are removed: the next export has to know them for its own
            both = [*manifest.files, *(ExportedFile(name, 0, 0) for name in old)]
            self._put_manifest(msgspec.structs.replace(manifest, files=both))
            sync(self._files, self._path)
            for name in names:
                self._files.move(f"{self._path}/{_TEMPORARY}{name}", f"{self._path}/{name}")
            for name in old:
                self._files.delete_file(f"{self._path}/{name}")
            self._put_manifest(manifest)
            for path in (self._path, *map(os.path.dirname, self._created)):
                sync(self._files, path)
            self._put(SUCCESS_NAME, b"")
            sync(self._files, self._path)

    def _put_manifest(self, manifest: ExportManifest) -> None:
        self._put(MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=1))

    def _put(self, name: str, data: bytes) -> None:
        temporary = f"{self._path}/{_TEMPORARY}{name}"
        self._temporary.append(temporary)
        create_file(self._files, temporary, self._file_mode)
        with self._files.open_output_stream(temporary) as file:
            file.write(data)
        sync(self._files, temporary)
        self._files.move(temporary, f"{self._path}/{name}")


_TEMPORARY = "_temporary-"


def write_file(
    destination: str, path: str, name: str, mode: int, ranges: Sequence[DomainRange]
) -> ExportedFile:
    """Write a Parquet file of the entries of some ranges, in order.

    Args:
        destination: Path or URI of its directory.
        path: Its path on that file system, under its temporary name.
        name: Its name.
        mode: Mode that it may have at most.
        ranges: Ranges of the entries.
    """
    files, _ = resolve(destination)
    rows = 0
    batches = chain.from_iterable(map(read_range, ranges))
    with translating("write", path):
        create_file(files, path, mode)
        with (
            files.open_output_stream(path, compression=None) as sink,
            pa.parquet.ParquetWriter(sink, ENTRY_ARROW_SCHEMA, **_PARQUET) as writer,
        ):
            for table in _row_groups(batches):
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                rows += table.num_rows
                # while the next one is gathered, this one need not be in memory
                del table
        sync(files, path)
        size = files.get_file_info(path).size
    return ExportedFile(name, size, rows)


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gather batches into tables of one row group each; at least one, to give an empty file."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        while len(batch):
            part = batch.slice(0, ROW_GROUP_ROWS - rows)
            batch = batch.slice(len(part))
            group.append(part)
            rows += len(part)
            size += part.nbytes
            if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
                yield pa.Table.from_batches(group, ENTRY_ARROW_SCHEMA)
                group, rows, size = [], 0, 0
    if group:
        yield pa.Table.from_batches(group, ENTRY_ARROW_SCHEMA)


def _describe(
    source: LogDirectory, manifest: Manifest, files: list[ExportedFile]
) -> ExportManifest:
    segments = [SourceSegment(s.name, s.bytes, s.crc32c) for s in manifest.segments]
    rows = sum(file.rows for file in files)
    return ExportManifest(source.name, manifest.taken_us, segments, files, rows)
