"""Event table: archived segments become Parquet files, each once, with atomic commits.

    EVENTS/day=2026-11-20/segment=000000007-0a1b2c3d/part-0.parquet   rows of one segment and day
    EVENTS/_state/000000003.parquet         jobs that are alive at the end of a commit
    EVENTS/_gaps/000000003.parquet          segments that are missing, where a commit found some
    EVENTS/_commits/000000003.json          names all of them; written last, atomically

It stands on a disk of this machine or in an object store (``table_files``). Files count when a
commit names them. A crash before that leaves files that the next run removes; a crash behind it
leaves archived segments that the next run unlinks, for the commits have their names. The column
``segment`` is in the path. One process at a time writes: the caller holds a lock, and ``guard``
checks it before each file is written or removed.

A segment that grew while the daemon had no archive comes twice, with two checksums. The table takes
only those records of the longer version that are behind the end of the shorter one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import date

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.parquet

from fastjournal.cmdlog.archive_format import ArchivedSegment, list_archived, read_state
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError, LogLockedError
from fastjournal.spark.event_commits import (
    Commit,
    MissingSegments,
    TakenSegment,
    files_of,
    gap_table,
    kept_from,
    read_commits,
)
from fastjournal.spark.event_days import EventDay, RecordSpan, day_of
from fastjournal.spark.event_extractor import EventExtractor, History
from fastjournal.spark.event_gaps import gaps_between
from fastjournal.spark.event_records import segment_records
from fastjournal.spark.event_rows import job_table, table_jobs
from fastjournal.spark.files import SegmentFile
from fastjournal.spark.table_files import DiskFiles, TableFiles

SEGMENTS_A_COMMIT = 64


class EventTable:
    """The table ``events`` in a directory.

    Args:
        disk: Where the archive is.
        directory: The directory of the table; it is created.
        files: File system of the table; None: the disk.
        segments_a_commit: Segments after which a commit is made: a crash costs the work on so many.
        guard: Raises ``LogLockedError`` where the lock of the caller was lost.

    Raises:
        LogCorruptError: A commit cannot be understood.
        LogFailedError: Something cannot be read or created.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        files: TableFiles | None = None,
        segments_a_commit: int = SEGMENTS_A_COMMIT,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._files: TableFiles = DiskFiles(disk) if files is None else files
        self._segments_a_commit = segments_a_commit
        self._directory = directory
        self._guard = guard
        self.commits = list(read_commits(self._files, f"{directory}/_commits"))
        """All commits, in their order."""

    @property
    def taken(self) -> list[TakenSegment]:
        """All segments whose events are in the table, in the order of the commits."""
        return [segment for commit in self.commits for segment in commit.segments]

    @property
    def gaps(self) -> list[MissingSegments]:
        """Gaps of the history."""
        return [gap for commit in self.commits for gap in commit.gaps]

    @property
    def files(self) -> list[str]:
        """Paths of the Parquet files that count."""
        return [f"{self._directory}/{file}" for _, file in files_of(self.commits)]

    @property
    def kept_from(self) -> str:
        """UTC day before which events were pruned; empty: none were."""
        return kept_from(self.commits)

    # --- writing ----------------------------------------------------------------------------------

    def update(self, archive: str) -> int:
        """Take all segments of an archive, and unlink them; return the number of new events.

        Args:
            archive: Directory of the archive.

        Raises:
            LogLockedError: The lock of the caller was lost.
            LogFailedError: Something could not be read or written; what is committed counts.
        """
        self._remove_uncommitted()
        waiting = self._waiting(archive)
        rows = 0
        step = self._segments_a_commit
        for begin in range(0, len(waiting), step):
            rows += self._commit(archive, waiting[begin : begin + step])
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
            self._put_commit(self.commits[-1].pruning(str(first)))
        self._remove_uncommitted()

    def _waiting(self, archive: str) -> list[ArchivedSegment]:
        """Return the segments to take, a shorter version before a longer; unlink taken ones."""
        done = {(segment.number, segment.crc32c) for segment in self.taken}
        waiting = []
        for file in list_archived(self._disk, archive):
            path = f"{archive}/{file.name}"
            if (file.number, f"{file.crc32c:08x}") in done:
                self._unlink(path)
                continue
            try:
                waiting.append((file.number, self._disk.size(path), file))
            except LogFailedError:
                # where it is gone, the daemon has dropped it just now
                if self._disk.exists(path):
                    raise
        return [file for _, _, file in sorted(waiting)]

    def _commit(self, archive: str, files: list[ArchivedSegment]) -> int:
        disk, number = self._disk, len(self.commits) + 1
        history = self._history()
        extractor = EventExtractor(history)
        taken, gaps, damaged = list[TakenSegment](), self._missing(archive, files), list[str]()
        lost = dict[int, str]()
        for file in files:
            try:
                data = disk.read(f"{archive}/{file.name}")
            except LogFailedError:
                if disk.exists(f"{archive}/{file.name}"):
                    raise
                # the daemon has dropped it just now
                lost[file.number] = "dropped"
                continue
            try:
                taken.append(self._take(extractor, file, data, taken))
                # it has all that a shorter version had
                lost.pop(file.number, None)
            except LogCorruptError:
                lost[file.number] = "damaged"
                damaged.append(file.name)
        gaps += [MissingSegments(one, one, None, None, reason) for one, reason in lost.items()]
        state = f"_state/{number:09d}.parquet"
        self._write(state, job_table(history.jobs))
        if gaps:
            self._write(f"_gaps/{number:09d}.parquet", gap_table(gaps))
        commit = Commit(
            number=number,
            segments=taken,
            gaps=gaps,
            state=state,
            pauses=list(history.pauses.items()),
            limits=list(history.limits.items()),
            rows=sum(segment.rows for segment in taken),
        )
        self._put_commit(commit)
        for segment in taken:
            self._unlink(f"{archive}/{segment.number:09d}-{segment.crc32c}.log")
        for name in damaged:
            disk.rename(f"{archive}/{name}", f"{archive}/{name}.damaged")
        return commit.rows

    def _take(
        self,
        extractor: EventExtractor,
        file: ArchivedSegment,
        data: bytes,
        taken: list[TakenSegment],
    ) -> TakenSegment:
        """Write the events of a segment.

        Args:
            extractor: Extractor with the state before it.
            file: Name of the segment.
            data: Contents.
            taken: Segments before it in the commit.

        Raises:
            LogCorruptError: It is damaged; nothing of it counts.
        """
        if google_crc32c.value(data) != file.crc32c:
            raise LogCorruptError("the archived segment has another checksum", path=file.name)
        name = f"segment={file.number:09d}-{file.crc32c:08x}"
        segment = SegmentFile(file.name, file.number, len(data), False, False, file.crc32c)
        skipped = _taken_bytes([*self.taken, *taken], file.number, data)
        span = RecordSpan(skipped)
        days = defaultdict[str, EventDay](EventDay)
        # a damaged segment ends this before the first record changes the state
        for event in extractor.extract(span.records(segment_records(data, segment))):
            days[day_of(event.time)].add(event)
        files = []
        for day in [day for day in days if day < self.kept_from]:
            del days[day]
        for day, events in sorted(days.items()):
            files.append(f"day={day}/{name}/part-0.parquet")
            self._write(files[-1], events.table())
        count = sum(day.rows for day in days.values())
        return TakenSegment(
            file.number,
            f"{file.crc32c:08x}",
            len(data),
            span.first_us,
            span.last_us,
            count,
            files,
        )

    def _missing(self, archive: str, files: list[ArchivedSegment]) -> list[MissingSegments]:
        """Return the gaps before and between archived segments."""
        state = read_state(self._disk, archive)
        known = [] if state is None else [gap for gap in state.gaps if gap.reason != "merged"]
        numbers = [segment.number for segment in self.taken] + [file.number for file in files]
        present = [(number, number) for number in numbers]
        present += [(gap.first, gap.last) for gap in self.gaps]
        last = max(file.number for file in files)
        return [MissingSegments(*gap) for gap in gaps_between(present, known, last)]

    def _history(self) -> History:
        """Return the state at the end of the last commit."""
        if not self.commits:
            return History()
        commit = self.commits[-1]
        data = self._files.read(f"{self._directory}/{commit.state}")
        jobs = table_jobs(pa.parquet.read_table(pa.BufferReader(data)))
        return History(jobs, dict(commit.pauses), dict(commit.limits))

    # --- files ------------------------------------------------------------------------------------

    def _write(self, name: str, table: pa.Table) -> None:
        """Write a Parquet file; one that a crash has left is replaced."""
        sink = pa.BufferOutputStream()
        pa.parquet.write_table(table, sink, compression="zstd")
        self._guard()
        self._files.put(f"{self._directory}/{name}", sink.getvalue().to_pybytes())

    def _put_commit(self, commit: Commit) -> None:
        self._check_writer()
        if not commit.gaps:
            # one that a crash has left without its commit
            self._files.delete(f"{self._directory}/_gaps/{commit.number:09d}.parquet")
        data = msgspec.json.format(msgspec.json.encode(commit)) + b"\n"
        self._files.put(f"{self._directory}/_commits/{_commit_name(commit)}", data)
        self.commits.append(commit)
        for name in self._files.names(f"{self._directory}/_state"):
            # a later one may be that of another process, which came as this one was suspended
            if f"_state/{name}" < commit.state:
                self._files.delete(f"{self._directory}/_state/{name}")

    def _check_writer(self) -> None:
        """Check that no other process writes or has written the table."""
        self._guard()
        known = {_commit_name(commit) for commit in self.commits}
        for name in self._files.names(f"{self._directory}/_commits"):
            if name.endswith(".json") and name not in known:
                raise LogLockedError(
                    f"another process has written _commits/{name}",
                    path=self._directory,
                    hint="let one fj-nightly write a table, and run it again",
                )

    def _remove_uncommitted(self) -> None:
        """Remove files of events that a crash left without a commit."""
        committed = {file for _, file in files_of(self.commits)}
        found = [file for file in self._files.walk(self._directory) if file.startswith("day=")]
        # behind the listing: no file of a commit that this process does not know may go
        self._check_writer()
        for file in found:
            if file not in committed:
                self._guard()
                self._files.delete(f"{self._directory}/{file}")
        days = {file.partition("/")[0] for file in committed}
        for name in self._files.names(self._directory):
            if name.startswith("day=") and name not in days:
                self._guard()
                self._files.remove_empty(f"{self._directory}/{name}")

    def _unlink(self, path: str) -> None:
        if self._disk.exists(path):
            self._disk.unlink(path)


def _commit_name(commit: Commit) -> str:
    return f"{commit.number:09d}.json"


def _taken_bytes(taken: list[TakenSegment], number: int, data: bytes) -> int:
    """Return the bytes at the begin of a segment whose events were taken already."""
    return max(
        (
            before.bytes
            for before in taken
            if before.number == number
            and google_crc32c.value(data[: before.bytes]) == int(before.crc32c, 16)
        ),
        default=0,
    )
