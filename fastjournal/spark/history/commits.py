"""Commits of the table of events: the files that count, and the gaps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from fastjournal.errors import LogCorruptError
from fastjournal.spark.storage.table_files import TableFiles
from fastjournal.versioned_json import Crc32cDigits, decode_versioned

_FORMAT = "fastjournal-events"
_VERSION = 4


class TakenSegment(msgspec.Struct, frozen=True):
    """A segment whose events are in the table."""

    number: int
    crc32c: Crc32cDigits
    bytes: int
    first_us: int | None
    """Earliest time of a record, in microseconds since the Unix epoch; None: there is none."""
    last_us: int | None
    """Latest time of a record."""
    rows: int
    files: list[str]
    """Paths from the directory of the table."""


class MissingSegments(msgspec.Struct, frozen=True):
    """Segments, side by side, of which the table has no events."""

    first: int
    last: int
    first_us: int | None
    last_us: int | None
    reason: str
    """Reason that the archive gives, else ``missing`` or ``damaged``."""


_GAP_SCHEMA = pa.schema(
    [
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
        ("reason", pa.string()),
    ]
)


class Commit(msgspec.Struct, frozen=True):
    """Addition to the table, all or nothing."""

    number: int
    segments: list[TakenSegment]
    gaps: list[MissingSegments]
    rows: int
    kept_from: str | None = None
    """UTC day before which no file counts from this commit on; None: it prunes nothing."""
    format: str = _FORMAT
    version: int = _VERSION

    def pruning(self, kept_from: str) -> Commit:
        """Return the commit behind this one that only prunes."""
        return msgspec.structs.replace(
            self,
            number=self.number + 1,
            segments=[],
            gaps=[],
            rows=0,
            kept_from=kept_from,
            version=_VERSION,
        )

    def missing(self, gaps: list[MissingSegments]) -> Commit:
        """Return the commit behind this one that only names gaps."""
        return msgspec.structs.replace(
            self,
            number=self.number + 1,
            segments=[],
            gaps=gaps,
            rows=0,
            kept_from=None,
            version=_VERSION,
        )


def gap_table(gaps: Iterable[MissingSegments]) -> pa.Table:
    """Return gaps as an Arrow table."""
    return pa.Table.from_pylist([msgspec.structs.asdict(gap) for gap in gaps], _GAP_SCHEMA)


def read_commits(files: TableFiles, directory: str) -> Iterator[Commit]:
    """Yield the commits in a directory, in their order.

    Raises:
        LogCorruptError: One cannot be understood, or is missing.
        LogFailedError: One cannot be read.
    """
    names = [name for name in files.names(directory) if name.endswith(".json")]
    for number, name in enumerate(names, 1):
        path = f"{directory}/{name}"
        commit = decode_commit(files.read(path), path)
        if commit.number != number:
            raise LogCorruptError(
                f"commit {number} of the table of events is missing",
                path=f"{directory}/{number:09d}.json",
                hint="copy it from the place that the table came from: its events do not count "
                "without it",
            )
        yield commit


def kept_from(commits: Iterable[Commit]) -> str:
    """Return the UTC day before which no file counts; empty: all count."""
    return max((commit.kept_from or "" for commit in commits), default="")


def files_of(commits: Iterable[Commit]) -> Iterator[tuple[int, str]]:
    """Yield number of the segment, and path from the directory of the table, of each file."""
    found = list(commits)
    first = kept_from(found)
    for commit in found:
        for segment in commit.segments:
            for file in segment.files:
                if file.partition("/")[0].removeprefix("day=") >= first:
                    yield segment.number, file


def decode_commit(data: bytes, path: str) -> Commit:
    """Return a commit.

    Args:
        data: Contents of its file.
        path: The file, for errors.

    Raises:
        LogCorruptError: It cannot be understood.
    """
    if not data:
        raise LogCorruptError(
            "the commit is empty",
            path=path,
            hint="copy it from the place that the table came from. A run unlinks segments behind "
            "their commit: only if it is the last one, and the archive still has the first segment "
            "behind those of the one before, remove it and run fj-nightly again",
        )
    return decode_versioned(data, Commit, format_name=_FORMAT, version=_VERSION, path=path)
