"""Event table: archived segments become Parquet files, each once, with atomic commits.

    EVENTS/day=2026-11-20/segment=000000007-0a1b2c3d/part-*.parquet   rows of one segment and day
    EVENTS/_gaps/000000003.parquet          segments that are missing, where a commit found some
    EVENTS/_commits/000000003.json          names all of them; written last, atomically
    EVENTS/_work/                           names the run that works now

It stands on a disk of this machine or in an object store (``table_files``). Files count when a
commit names them. A crash before that leaves files that the next run removes; a crash behind it
leaves archived segments that the next run unlinks, for the commits have their names. The column
``segment`` is in the path. One process at a time writes: the caller holds a lock, and ``guard``
checks it before each file is written or removed.

A segment that grew while the daemon had no archive comes twice, with two checksums. The table takes
only those records of the longer version that are behind the end of the shorter one.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from datetime import date
from typing import NamedTuple

from fastjournal.cmdlog.archive_format import (
    ArchivedSegment,
    Gap,
    gaps_between,
    list_whole,
    read_state,
)
from fastjournal.disk import Disk, DiskLock
from fastjournal.errors import LogFailedError, LogLockedError
from fastjournal.spark.execution.process_pool import Here
from fastjournal.spark.history.commits import (
    Commit,
    MissingSegments,
    TakenSegment,
    files_of,
    gap_table,
    kept_from,
)
from fastjournal.spark.history.extraction import read_segments
from fastjournal.spark.history.extraction_tasks import (
    DAMAGED,
    WORK,
    CommitFiles,
    ReadSegment,
    Version,
    put_parquet,
)
from fastjournal.spark.history.gaps import gaps_of, grown_segments, lost_segments
from fastjournal.spark.history.table_directory import EventDirectory
from fastjournal.spark.storage.table_files import DiskFiles, TableFiles

SEGMENTS_A_COMMIT = 64
ARCHIVE_LOCK = "_nightly.lock"
"""File in an archive that is locked while a table takes its segments, each of which is unlinked."""
_RUN = "run.json"
"""File that says durably that a run has begun: files with its identifier are its own."""


class WaitingSegment(NamedTuple):
    """Segment of the archive that was not taken so far; they sort as they are taken."""

    number: int
    bytes: int
    file: ArchivedSegment


def _lock(disk: Disk, archive: str) -> DiskLock:
    try:
        return disk.lock(f"{archive}/{ARCHIVE_LOCK}")
    except LogLockedError as error:
        raise LogLockedError(
            "another fj-nightly takes the segments of this archive",
            path=archive,
            hint="let one pipeline take an archive; if it is this one, wait until the other has "
            "ended",
        ) from error


class EventTable:
    """The table ``events`` in a directory.

    Args:
        disk: Where the archive is.
        directory: The directory of the table; it is created.
        files: File system of the table; None: the disk.
        segments_a_commit: Segments after which a commit is made: a crash costs the work on so many;
            None: ``SEGMENTS_A_COMMIT``, or more where more tasks run at once.
        guard: Raises ``LogLockedError`` where the lock of the caller was lost.

    Raises:
        LogCorruptError: A commit cannot be understood, or is missing.
        LogFailedError: Something cannot be read or created.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        files: TableFiles | None = None,
        segments_a_commit: int | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._files: TableFiles = DiskFiles(disk) if files is None else files
        self._segments_a_commit = segments_a_commit
        self._directory = EventDirectory(self._files, directory, guard)
        self._path = directory

    @property
    def commits(self) -> list[Commit]:
        """All commits, in their order."""
        return self._directory.commits

    @property
    def taken(self) -> list[TakenSegment]:
        """All segments whose events are in the table, in the order of the commits."""
        return [segment for commit in self.commits for segment in commit.segments]

    @property
    def gaps(self) -> list[MissingSegments]:
        """Gaps of the history."""
        return gaps_of(self.commits)

    @property
    def files(self) -> list[str]:
        """Paths of the Parquet files that count."""
        return [f"{self._path}/{file}" for _, file in files_of(self.commits)]

    @property
    def kept_from(self) -> str:
        """UTC day before which events were pruned; empty: none were."""
        return kept_from(self.commits)

    # --- writing ----------------------------------------------------------------------------------

    def update(self, archive: str, executor: Executor | None = None, *, parallel: int = 1) -> int:
        """Take all segments of an archive, and unlink them; return the number of new events.

        Args:
            archive: Directory of the archive.
            executor: Runs the tasks (``extraction_tasks``); None: this process.
            parallel: Tasks that it runs at once.

        Raises:
            LogLockedError: The lock of the caller was lost, or another table takes the archive.
            LogFailedError: Something could not be read or written; what is committed counts.
        """
        with closing(_lock(self._disk, archive)):
            return self._update(archive, executor, parallel)

    def _update(self, archive: str, executor: Executor | None, parallel: int) -> int:
        self._directory.remove_uncommitted()
        # before the listing, in which all segments are then that this state knows
        state = read_state(self._disk, archive)
        waiting = self._waiting(archive)
        rows = 0
        step = self._segments_a_commit or max(SEGMENTS_A_COMMIT, 2 * parallel)
        for begin in range(0, len(waiting), step):
            part = waiting[begin : begin + step]
            rows += self._commit(archive, part, executor or Here())
        if state is not None and self.commits:
            self._name_last(archive, state.next - 1)
        return rows

    def prune(self, first: date) -> None:
        """Remove the events of the days before one; a commit names that day before files go.

        Segments stay known, and so do gaps: an archive that comes late adds no event to these days.

        Args:
            first: The first day that stays.

        Raises:
            LogLockedError: The lock of the caller was lost.
            LogFailedError: Something could not be written; the next run removes what is left.
        """
        days = {file.partition("/")[0].removeprefix("day=") for _, file in files_of(self.commits)}
        if days and min(days) < str(first):
            self._directory.put_commit(self.commits[-1].pruning(str(first)))
        self._directory.remove_uncommitted()

    def _waiting(self, archive: str) -> list[WaitingSegment]:
        """Return the segments to take, a shorter version before a longer; unlink taken ones."""
        done = {(segment.number, segment.crc32c) for segment in self.taken}
        waiting = list[WaitingSegment]()
        known = [segment.number for segment in self.taken] + [gap.last for gap in self.gaps]
        for file in list_whole(self._disk, archive, max(known, default=0)):
            path = f"{archive}/{file.name}"
            if (file.number, f"{file.crc32c:08x}") in done:
                self._unlink(path)
                continue
            try:
                waiting.append(WaitingSegment(file.number, self._disk.size(path), file))
            except LogFailedError:
                # where it is gone, the daemon has dropped it just now
                if self._disk.exists(path):
                    raise
        return sorted(waiting)

    def _commit(self, archive: str, waiting: list[WaitingSegment], executor: Executor) -> int:
        disk, number, run = self._disk, len(self.commits) + 1, uuid.uuid4().hex[:12]
        files = [one.file for one in waiting]
        gaps = self._missing(archive, files, max(file.number for file in files))
        work = CommitFiles(disk, archive, self._files, self._path, run, self.kept_from)
        self._files.put(self._directory.path(f"{WORK}/{run}/{_RUN}"), b"{}")
        versions = defaultdict[int, list[Version]](list)
        for segment in self.taken:
            versions[segment.number].append(Version(segment.bytes, int(segment.crc32c, 16)))
        read = read_segments(executor, work, files, versions)
        taken = [_taken(one) for one in read if not one.lost]
        # behind the reading: the daemon names a segment as dropped before it removes the file
        gaps += lost_segments(read, self._known_gaps(archive), self.gaps)
        gaps += grown_segments(read, [*self.taken, *taken], self.gaps)
        if gaps:
            self._put_gaps(number, gaps)
        commit = Commit(number, taken, gaps, sum(segment.rows for segment in taken))
        self._directory.put_commit(commit)
        self._directory.remove_work()
        for segment in taken:
            self._unlink(f"{archive}/{segment.number:09d}-{segment.crc32c}.log")
        for one in read:
            if one.lost == DAMAGED:
                disk.rename(f"{archive}/{one.file.name}", f"{archive}/{one.file.name}.damaged")
        return commit.rows

    def _name_last(self, archive: str, last: int) -> None:
        """Name the last segments where they are missing: none behind them shows it."""
        if gaps := self._missing(archive, [], last):
            commit = self.commits[-1].missing(gaps)
            self._put_gaps(commit.number, gaps)
            self._directory.put_commit(commit)

    def _put_gaps(self, number: int, gaps: list[MissingSegments]) -> None:
        """Write the file of the gaps that a commit names."""
        path = self._directory.path(f"_gaps/{number:09d}.parquet")
        put_parquet(self._files, path, gap_table(gaps))

    def _missing(
        self, archive: str, files: list[ArchivedSegment], last: int
    ) -> list[MissingSegments]:
        """Return the gaps before and between archived segments, up to one number."""
        # behind the listing: the daemon names a segment as dropped before it removes the file
        known = self._known_gaps(archive)
        numbers = [segment.number for segment in self.taken] + [file.number for file in files]
        present = [(number, number) for number in numbers]
        present += [(gap.first, gap.last) for gap in self.gaps]
        return [MissingSegments(*gap) for gap in gaps_between(present, known, last)]

    def _known_gaps(self, archive: str) -> list[Gap]:
        """Return the gaps that the archive names."""
        state = read_state(self._disk, archive)
        return [] if state is None else [gap for gap in state.gaps if gap.reason != "merged"]

    def _unlink(self, path: str) -> None:
        if self._disk.exists(path):
            self._disk.unlink(path)


def _taken(segment: ReadSegment) -> TakenSegment:
    return TakenSegment(
        segment.file.number,
        f"{segment.file.crc32c:08x}",
        segment.bytes,
        segment.first_us,
        segment.last_us,
        segment.rows,
        sorted(segment.files),
    )
