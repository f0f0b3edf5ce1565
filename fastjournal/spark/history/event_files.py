"""Event files: one for each archived segment and UTC day, in Parquet, which any reader reads.

    EVENTS/day=2026-11-20/segment-000000007-0a1b2c3d.parquet    day = UTC day of the event

A segment always gives the same events, and its file is named by its number and its CRC-32C. So a
file is written whole, once or again with the same rows. There is no commit, lock or state, and a
crash, a repeat and two concurrent writers change nothing. A segment over midnight has a file for
each day. On the day of its first record it has one in any case, so that one without events leaves
an empty file.

The footer of each file has the facts in the segment about itself, as JSON under the key
``fastjournal`` (``SegmentFacts``): its span of time, the segment before it, and the rows of each of
its files. So missing files are detected (``history.coverage``), also after a kill between two days.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from fastjournal.errors import LogCorruptError
from fastjournal.spark.history.days import begin_us
from fastjournal.spark.history.event_rows import EventDay, fitted
from fastjournal.spark.storage.files import below
from fastjournal.spark.storage.table_files import DiskFiles, TableFiles, open_files
from fastjournal.versioned_json import Crc32cDigits, decode_versioned

EVENTS = "events"
BESIDE = "events-new"
"""Directory beside that of the events in which files of a disk are written: no reader of Parquet
that takes the whole directory finds an unfinished one."""
_KEY = b"fastjournal"
_FORMAT = "fastjournal-events"
_VERSION = 1
_NAME = re.compile(r"day=(\d{4}-\d{2}-\d{2})/segment-(\d{9})-([0-9a-f]{8})\.parquet")
_FOOTER_BYTES = 64 * 1024
"""More than a footer of these columns takes, unless a file has many row groups."""
_OTHER_ROWS = "the file has other rows than its segment gave"
_REPAIR = "put the archived segment {} back, if it is there, and run fj-nightly again; or remove it"


class SegmentBefore(msgspec.Struct, frozen=True):
    """The segment before one, as the first record of that says; no bytes: it names only that."""

    number: int
    bytes: int
    crc32c: Crc32cDigits


class SegmentFacts(msgspec.Struct, frozen=True):
    """Facts of a segment, which each of its files has."""

    number: int
    crc32c: Crc32cDigits
    bytes: int
    first_us: int | None
    """Earliest time of a record, in microseconds since the Unix epoch; None: there is none."""
    last_us: int | None
    """Latest time of a record."""
    before: SegmentBefore | None
    """None: it names none."""
    rows: dict[str, int]
    """Number of rows of each of its files, by UTC day."""
    format: str = _FORMAT
    version: int = _VERSION

    @property
    def name(self) -> str:
        """Number and checksum, as in the names of its files."""
        return f"{self.number:09d}-{self.crc32c}"

    def path(self, day: str) -> str:
        """Return the path of one of its files, from the directory of the events."""
        return f"day={day}/segment-{self.name}.parquet"


class EventFile(NamedTuple):
    """A file with events; they sort by day and segment."""

    day: str
    number: int
    crc32c: str
    path: str
    """From the directory of the events."""

    @property
    def segment(self) -> str:
        """Number and checksum of the segment."""
        return f"{self.number:09d}-{self.crc32c}"


class TakenSegment(msgspec.Struct, frozen=True):
    """A segment whose events are there."""

    facts: SegmentFacts
    lacking: tuple[str, ...] = ()
    """UTC days whose file is not there, and was not pruned."""

    @property
    def number(self) -> int:
        """Number of the segment."""
        return self.facts.number

    @property
    def version(self) -> tuple[int, int, str]:
        """Number, bytes and checksum: a segment that grew has several."""
        return self.facts.number, self.facts.bytes, self.facts.crc32c


class EventDirectory:
    """Directory with event files.

    Args:
        files: File system.
        path: Path of the directory.
    """

    def __init__(self, files: TableFiles, path: str) -> None:
        self.files = files
        self.path = path

    def listed(self) -> list[EventFile]:
        """Return the files in order, by their names alone.

        Raises:
            LogCorruptError: Another program, or an older release, has written here.
            LogFailedError: The directory cannot be read.
        """
        found = []
        for path in self.files.walk(self.path):
            match = _NAME.fullmatch(path)
            if match is not None:
                found.append(EventFile(match[1], int(match[2]), match[3], path))
            elif not any(part.startswith((".", "_")) for part in path.split("/")):
                raise LogCorruptError(
                    f"{path} is no file of the events: another program, or an older release, has "
                    "written here",
                    path=self.path,
                    hint="name another --output or --history, or move this directory away",
                )
        return sorted(found)

    def segments(self, files: Iterable[EventFile] | None = None) -> list[TakenSegment]:
        """Return the segments whose events are there, in order; a shorter version comes first.

        Args:
            files: Their files, from ``listed``; None: all that are there.

        Raises:
            LogCorruptError: A file is not as it was written.
            LogFailedError: One cannot be read.
        """
        found = self.listed() if files is None else list(files)
        facts = dict(zip(found, self.files.each(self.facts, found), strict=True))
        days = defaultdict[str, set[str]](set)
        for file in found:
            days[file.segment].add(file.day)
        first = min((file.day for file in found), default="")
        taken = {
            file.segment: TakenSegment(
                one,
                tuple(day for day in sorted(one.rows) if first < day not in days[file.segment]),
            )
            for file, one in facts.items()
        }
        return sorted(taken.values(), key=lambda one: one.version)

    def facts(self, file: EventFile) -> SegmentFacts:
        """Return what a file says of its segment.

        Raises:
            LogCorruptError: It has other rows than its segment gave.
            LogFailedError: It cannot be read.
        """
        path = f"{self.path}/{file.path}"
        tail = self.files.tail(path, _FOOTER_BYTES)
        try:
            found = pa.parquet.read_metadata(pa.BufferReader(tail))
        except (OSError, pa.ArrowException):
            # one with many row groups has a longer footer
            found = _parquet(path, file, self.files.read(path)).metadata
        return _facts(path, file, found)

    def read(self, file: EventFile) -> pa.Table:
        """Return the rows of a file.

        Raises:
            LogCorruptError: They are not those that its segment gave.
            LogFailedError: It cannot be read.
        """
        path = f"{self.path}/{file.path}"
        opened = _parquet(path, file, self.files.read(path))
        _facts(path, file, opened.metadata)
        try:
            table = fitted(opened.read(use_threads=False))
        except (OSError, pa.ArrowException) as error:
            raise _other(path, f"the file is damaged ({error})", file) from error
        if not set(pc.unique(table["segment"]).to_pylist()) <= {file.number}:
            raise _other(path, _OTHER_ROWS, file)
        return table

    def put(self, facts: SegmentFacts, day: str, rows: EventDay) -> None:
        """Put one of the files of a segment into its place, whole and durably.

        Raises:
            LogFailedError: It cannot be written.
        """
        table = rows.table()
        sink = pa.BufferOutputStream()
        schema = table.schema.with_metadata({_KEY: msgspec.json.encode(facts)})
        pa.parquet.write_table(table.cast(schema), sink, compression="zstd")
        self.files.put(f"{self.path}/{facts.path(day)}", sink.getvalue().to_pybytes())

    def remove(self, files: Iterable[EventFile]) -> None:
        """Remove files of whole days, the oldest first: what is missing then, was pruned.

        Raises:
            LogFailedError: Something could not be removed; the next run removes what is left.
        """
        old = sorted(files)
        for file in old:
            self.files.delete(f"{self.path}/{file.path}")
        for day in sorted({file.day for file in old}):
            self.files.remove_empty(f"{self.path}/day={day}")


def open_events(output: str) -> tuple[str, EventDirectory]:
    """Return the path or URI of the events of an output, and their directory.

    Raises:
        LogFailedError: The scheme is unknown, or its file system cannot be reached.
    """
    files, path = open_files(output, beside=BESIDE)
    place = path if isinstance(files, DiskFiles) else output
    return below(place, EVENTS), EventDirectory(files, f"{path}/{EVENTS}")


def kept_from_us(files: Iterable[EventFile]) -> int | None:
    """Return the begin of the first day that has events; before it they may have been pruned."""
    first = min((file.day for file in files), default=None)
    return None if first is None else begin_us(date.fromisoformat(first))


def _parquet(path: str, file: EventFile, data: bytes) -> pa.parquet.ParquetFile:
    try:
        return pa.parquet.ParquetFile(pa.BufferReader(data))
    except (OSError, pa.ArrowException) as error:
        raise _other(path, f"the file is damaged ({error})", file) from error


def _facts(path: str, file: EventFile, footer: pa.parquet.FileMetaData) -> SegmentFacts:
    data = (footer.metadata or {}).get(_KEY)
    if data is None:
        raise _other(path, "another program has written this file", file)
    facts = decode_versioned(data, SegmentFacts, format_name=_FORMAT, version=_VERSION, path=path)
    if facts.path(file.day) != file.path or facts.rows.get(file.day) != footer.num_rows:
        raise _other(path, _OTHER_ROWS, file)
    return facts


def _other(path: str, text: str, file: EventFile) -> LogCorruptError:
    return LogCorruptError(text, path=path, hint=_REPAIR.format(f"{file.segment}.log"))
