"""Extraction of the events of some segments, by tasks that run side by side.

``extraction_tasks`` has the tasks. Their results are facts of segments, and the links between ids:
one for each entry that these segments write again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor
from functools import partial
from typing import NamedTuple

from fastjournal.cmdlog.archive_format import ArchivedSegment
from fastjournal.errors import LogFailedError
from fastjournal.spark.history.commit_state import StoredState
from fastjournal.spark.history.commits import TakenSegment
from fastjournal.spark.history.extraction_tasks import (
    GONE,
    CommitFiles,
    Folded,
    FoldTask,
    ReadSegment,
    Version,
    fold_shard,
    read_segment,
    route_segment,
)
from fastjournal.spark.history.job_shards import Moves, find_moves


class Before(NamedTuple):
    """The table before the segments."""

    versions: dict[int, list[Version]]
    """Segments that are in it, by number."""
    state: StoredState | None
    pauses: dict[bytes, int]
    limits: dict[bytes, tuple[int, int, int, int]]
    kept_from: str


class Extracted(NamedTuple):
    """Results of an extraction."""

    read: list[ReadSegment]
    """All of them in order, also those that were dropped or are damaged."""
    taken: list[TakenSegment]
    """Those whose events are in the table."""
    state: dict[str, str]
    """Checksums of the files of the new state by their names."""
    pauses: dict[bytes, int]
    limits: dict[bytes, tuple[int, int, int, int]]
    jobs: int
    """Live jobs at their end."""


def extract_events(
    executor: Executor,
    work: CommitFiles,
    files: Sequence[ArchivedSegment],
    before: Before,
    state: str,
) -> Extracted:
    """Write the events of segments, and the state at their end; nothing counts without a commit.

    Args:
        executor: Runs the tasks.
        work: Places.
        files: The segments in order; a shorter version of one before a longer.
        before: The table before them.
        state: Directory of the new state, from that of the table.

    Raises:
        LogCorruptError: The state of the table is missing or damaged.
        LogFailedError: Something cannot be read or written, or a process was ended.
    """
    try:
        return _extract(executor, work, files, before, state)
    except BrokenExecutor as error:
        raise LogFailedError(
            "a process that extracts events was ended from outside",
            hint="free memory, and run fj-nightly again",
        ) from error


def _extract(
    executor: Executor,
    work: CommitFiles,
    files: Sequence[ArchivedSegment],
    before: Before,
    state: str,
) -> Extracted:
    found = _read(executor, work, files, before)
    good = [one for one in found if not one.lost]
    moves = find_moves([one.links for one in good if one.links is not None], work.shards)
    # links are for this process only
    segments = tuple(one._replace(links=None) for one in good)
    task = FoldTask(
        segments,
        _route(executor, work, segments, moves),
        len(moves),
        before.state,
        before.pauses,
        before.limits,
        state,
        before.kept_from,
    )
    folded = list(executor.map(partial(fold_shard, work, task), range(work.shards)))
    return Extracted(
        found,
        [_taken(one, index, folded) for index, one in enumerate(segments)],
        {name: crc32c for one in folded for name, crc32c in one.state.items()},
        folded[0].pauses,
        folded[0].limits,
        sum(one.jobs for one in folded),
    )


def _read(
    executor: Executor, work: CommitFiles, files: Sequence[ArchivedSegment], before: Before
) -> list[ReadSegment]:
    """Read segments; a longer version of one behind a shorter, which it has to know."""
    rounds = defaultdict[int, list[ArchivedSegment]](list)
    seen = defaultdict[int, int](int)
    for file in files:
        rounds[seen[file.number]].append(file)
        seen[file.number] += 1
    versions = {number: list(known) for number, known in before.versions.items()}
    found = dict[ArchivedSegment, ReadSegment]()
    for number in sorted(rounds):
        known = [versions.get(file.number, []) for file in rounds[number]]
        for one in executor.map(partial(read_segment, work), rounds[number], known):
            _check_gone(work, one)
            found[one.file] = one
            if not one.lost:
                version = Version(one.bytes, one.file.crc32c)
                versions.setdefault(one.file.number, []).append(version)
    return [found[file] for file in files]


def _check_gone(work: CommitFiles, segment: ReadSegment) -> None:
    """Check that a segment that a task has not found is not there at all."""
    path = f"{work.archive}/{segment.file.name}"
    if segment.lost == GONE and work.disk.exists(path):
        raise LogFailedError(
            "an executor does not find the archived segment",
            path=path,
            hint="the archive has to be on a path that all executors reach; or run with "
            "--master local[*] where it is",
        )


def _route(
    executor: Executor, work: CommitFiles, segments: tuple[ReadSegment, ...], moves: Moves
) -> tuple[tuple[int, ...], ...]:
    if not moves:
        return tuple(() for _ in segments)
    work.put_moves(moves)
    return tuple(executor.map(partial(route_segment, work, len(moves)), segments))


def _taken(segment: ReadSegment, index: int, folded: Sequence[Folded]) -> TakenSegment:
    files = [file for one in folded for file in one.files[index]]
    return TakenSegment(
        segment.file.number,
        f"{segment.file.crc32c:08x}",
        segment.bytes,
        segment.first_us,
        segment.last_us,
        sum(one.rows[index] for one in folded),
        sorted(files),
    )
