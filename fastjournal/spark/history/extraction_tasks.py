"""Tasks of the extraction of events: one a segment, then one a shard of jobs.

1. ``read_segment`` decodes a segment, writes its rows by the home of their job, and returns the
   links between ids that it has.
2. ``route_segment``, where jobs move: writes their rows by the shard that folds them.
3. ``fold_shard`` folds the rows of its shard, segment after segment, over the state of its jobs;
   it writes events and the new state.

A task runs in this process, in one of a pool, or in an executor of Spark; between them stand files
in the directory of the table (``_work``). Names of all files have the identifier of the run, so
that a task that outlives its run spoils nothing: no commit names what it writes. Memory of a task
is bounded by a segment, or by the jobs of its shard and its rows of a segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fastjournal.cmdlog.archive_format import ArchivedSegment
from fastjournal.disk import Disk
from fastjournal.errors import LogCorruptError, LogFailedError
from fastjournal.spark.decoding.byte_arrays import Numbers
from fastjournal.spark.execution.shard_rows import cut_rows
from fastjournal.spark.history.commit_state import StoredState, read_jobs, write_jobs
from fastjournal.spark.history.day_tables import EventDay, day_of
from fastjournal.spark.history.event_records import ROWS_SCHEMA, read_rows, records_of
from fastjournal.spark.history.event_rows import LiveJob
from fastjournal.spark.history.extractor import EventExtractor, History
from fastjournal.spark.history.job_shards import Moves, homes_of, no_moves
from fastjournal.spark.history.record_context import OF_DOMAIN
from fastjournal.spark.records.segment_identity import NOTHING, Sealed, sealed_before
from fastjournal.spark.storage.files import SegmentFile
from fastjournal.spark.storage.table_files import DiskFiles, TableFiles

WORK = "_work"
GONE, DAMAGED = "gone", "damaged"
_MOVES = "moves"
_HOME, _MOVED = "home", "moved"


class CommitFiles(NamedTuple):
    """Places of the files of one commit."""

    disk: Disk
    archive: str
    files: TableFiles
    scratch: TableFiles
    """The same, for files that need not outlive the commit."""
    directory: str
    """Directory of the table."""
    run: str
    """Identifier of this run."""
    shards: int

    def of_task(self) -> CommitFiles:
        """Return the same for a task that may run twice at once, as Spark may let it."""
        if not isinstance(self.files, DiskFiles) or not isinstance(self.scratch, DiskFiles):
            return self
        return self._replace(files=self.files.of_task(), scratch=self.scratch.of_task())

    def path(self, name: str) -> str:
        """Return the path of a file between two tasks."""
        return f"{self.directory}/{WORK}/{self.run}/{name}.arrow"

    def put(self, name: str, table: pa.Table) -> None:
        """Write a file between two tasks."""
        sink = pa.BufferOutputStream()
        # a task has one processor: threads of its own would only wait for each other
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        self.scratch.put(self.path(name), sink.getvalue().to_pybytes())

    def get(self, name: str) -> pa.Table:
        """Return the rows of such a file."""
        source = pa.BufferReader(self.scratch.read(self.path(name)))
        options = pa.ipc.IpcReadOptions(use_threads=False)
        return pa.ipc.open_stream(source, options=options).read_all()

    def put_moves(self, moves: Moves) -> None:
        """Write the jobs that move, where there are some."""
        if moves:
            self.put(_MOVES, moves.table)

    def moves(self, count: int) -> Moves:
        """Return the jobs that move, so many."""
        return Moves.of_table(self.get(_MOVES)) if count else no_moves()


class Version(NamedTuple):
    """A version of a segment whose events are in the table."""

    bytes: int
    crc32c: int


class ReadSegment(NamedTuple):
    """Facts of a segment that a task has read."""

    file: ArchivedSegment
    lost: str = ""
    """Reason why nothing of it was read: ``GONE``, ``DAMAGED``; empty: all was."""
    bytes: int = 0
    first_us: int | None = None
    last_us: int | None = None
    homes: tuple[int, ...] = ()
    """Shards that have rows of it, by the homes of the jobs."""
    links: pa.Table | None = None
    before: Sealed = NOTHING
    """The segment before it, as its first record says."""

    @property
    def name(self) -> str:
        """Part of paths."""
        return f"{self.file.number:09d}-{self.file.crc32c:08x}"


def read_segment(
    work: CommitFiles, file: ArchivedSegment, versions: Sequence[Version]
) -> ReadSegment:
    """Read a segment, and write its rows by the homes of their jobs.

    Args:
        work: Places.
        file: The segment.
        versions: Shorter versions of it whose events were taken.

    Raises:
        LogFailedError: Something cannot be read or written.
    """
    work, path = work.of_task(), f"{work.archive}/{file.name}"
    try:
        data = work.disk.read(path)
    except LogFailedError:
        if work.disk.exists(path):
            raise
        return ReadSegment(file, GONE)
    if google_crc32c.value(data) != file.crc32c:
        return ReadSegment(file, DAMAGED)
    segment = SegmentFile(file.name, file.number, len(data), False, False, file.crc32c)
    taken = (one.bytes for one in versions if google_crc32c.value(data[: one.bytes]) == one.crc32c)
    try:
        rows = read_rows(data, segment, max(taken, default=0))
    except LogCorruptError:
        return ReadSegment(file, DAMAGED)
    found = ReadSegment(file, "", len(data), rows.first_us, rows.last_us)
    found = found._replace(before=sealed_before(data, segment))
    table = rows.table
    ids = table.column("target").combine_chunks()
    homes = homes_of(ids, work.shards)
    of_domains = np.bitwise_and(table.column("context").to_numpy(), OF_DOMAIN)
    homes[of_domains > 0] = 0
    written = _put_rows(work, f"{found.name}/{_HOME}", table, homes)
    return found._replace(homes=written, links=rows.links)


def _put_rows(work: CommitFiles, name: str, table: pa.Table, shards: Numbers) -> tuple[int, ...]:
    written = []
    for shard, rows in cut_rows(table, shards):
        work.put(f"{name}-{shard}", rows)
        written.append(shard)
    return tuple(written)


def route_segment(work: CommitFiles, moves: int, segment: ReadSegment) -> tuple[int, ...]:
    """Write the rows of jobs that move by the shard that folds them; return these shards.

    Args:
        work: Places.
        moves: Number of jobs that move.
        segment: The segment, as it was read.
    """
    work = work.of_task()
    found, shards = [], []
    moving = work.moves(moves)
    for home in segment.homes:
        table = work.get(f"{segment.name}/{_HOME}-{home}")
        ids = table.column("target").combine_chunks()
        goal = moving.shards_of(ids, np.full(len(ids), home))
        leaves = goal != home
        found.append(table.filter(pa.array(leaves)))
        shards.append(goal[leaves])
    if not found:
        return ()
    together = pa.concat_tables(found)
    return _put_rows(work, f"{segment.name}/{_MOVED}", together, np.concatenate(shards))


class FoldTask(NamedTuple):
    """Inputs of all shards."""

    segments: tuple[ReadSegment, ...]
    """In order."""
    routed: tuple[tuple[int, ...], ...]
    """For each of them the shards that rows of moving jobs were written for."""
    moves: int
    """Number of jobs that move."""
    before: StoredState | None
    """State before the segments; None: they are the first."""
    pauses: dict[bytes, int]
    limits: dict[bytes, tuple[int, int, int, int]]
    state: str
    """Directory of the state that is written."""
    kept_from: str
    """UTC day before which no events are written."""


class Folded(NamedTuple):
    """Results of a shard."""

    files: tuple[tuple[str, ...], ...]
    """For each segment the files with its events, from the directory of the table."""
    rows: tuple[int, ...]
    """For each segment the number of its events."""
    pauses: dict[bytes, int]
    limits: dict[bytes, tuple[int, int, int, int]]
    jobs: int
    """Live jobs."""
    state: dict[str, str]
    """Checksums of the files of its state by their names."""


def fold_shard(work: CommitFiles, task: FoldTask, shard: int) -> Folded:
    """Write the events of the jobs of a shard, and their state.

    Raises:
        LogCorruptError: The state before is missing or damaged.
        LogFailedError: Something cannot be read or written.
    """
    work = work.of_task()
    moves = work.moves(task.moves)
    jobs = dict[bytes, LiveJob]()
    if task.before is not None:
        jobs = read_jobs(work.files, task.before, shard, work.shards, moves)
    history = History(jobs)
    if shard == 0:
        history.pauses, history.limits = task.pauses, task.limits
    extractor = EventExtractor(history)
    files, counts = [], []
    for segment, routed in zip(task.segments, task.routed, strict=True):
        rows = _rows_of(work, segment, routed, shard, moves)
        days = defaultdict[str, EventDay](EventDay)
        for event in extractor.extract(records_of(rows, segment.file.number)):
            days[day_of(event.time)].add(event)
        written = []
        for day in sorted(days):
            if day >= task.kept_from:
                name = f"day={day}/segment={segment.name}/part-{shard:05d}-{work.run}.parquet"
                put_parquet(work.files, f"{work.directory}/{name}", days[day].table())
                written.append(name)
        files.append(tuple(written))
        counts.append(sum(found.rows for day, found in days.items() if day >= task.kept_from))
    place = f"{work.directory}/{task.state}"
    state = write_jobs(work.files, place, jobs, shard, work.shards)
    return Folded(tuple(files), tuple(counts), history.pauses, history.limits, len(jobs), state)


def _rows_of(
    work: CommitFiles, segment: ReadSegment, routed: Sequence[int], shard: int, moves: Moves
) -> pa.Table:
    """Return the rows of a segment that a shard folds, in order."""
    found = [ROWS_SCHEMA.empty_table()]
    if shard in segment.homes:
        table = work.get(f"{segment.name}/{_HOME}-{shard}")
        if moves:
            ids = table.column("target").combine_chunks()
            stays = moves.shards_of(ids, np.full(len(ids), shard)) == shard
            table = table.filter(pa.array(stays))
        found.append(table)
    if shard not in routed:
        return pa.concat_tables(found)
    found.append(work.get(f"{segment.name}/{_MOVED}-{shard}"))
    return pa.concat_tables(found).sort_by("offset")


def put_parquet(files: TableFiles, path: str, table: pa.Table) -> None:
    """Write a Parquet file."""
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink, compression="zstd")
    files.put(path, sink.getvalue().to_pybytes())
