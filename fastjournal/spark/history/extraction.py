"""Extraction of the events of some segments, by tasks that run side by side: one a segment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from functools import partial
from typing import TypeAlias

from fastjournal.cmdlog.archive_format import ArchivedSegment
from fastjournal.errors import LogFailedError
from fastjournal.spark.history.extraction_tasks import (
    GONE,
    CommitFiles,
    ReadSegment,
    Version,
    read_segment,
)

Versions: TypeAlias = Mapping[int, Sequence[Version]]
"""Segments whose events are in the table, by number."""


def read_segments(
    executor: Executor, work: CommitFiles, files: Sequence[ArchivedSegment], before: Versions
) -> list[ReadSegment]:
    """Write the events of segments; nothing counts without a commit.

    Args:
        executor: Runs the tasks.
        work: Places.
        files: The segments in order; a shorter version of one before a longer.
        before: The table before them.

    Returns:
        All of them in order, also those that were dropped or are damaged.

    Raises:
        LogFailedError: Something cannot be read or written, or a process was ended.
    """
    try:
        return _read(executor, work, files, before)
    except BrokenExecutor as error:
        raise LogFailedError(
            "a process that extracts events was ended from outside",
            hint="free memory, and run fj-nightly again",
        ) from error


def _read(
    executor: Executor, work: CommitFiles, files: Sequence[ArchivedSegment], before: Versions
) -> list[ReadSegment]:
    """Read segments; a longer version of one behind a shorter, which it has to know."""
    rounds = defaultdict[int, list[ArchivedSegment]](list)
    seen = defaultdict[int, int](int)
    for file in files:
        rounds[seen[file.number]].append(file)
        seen[file.number] += 1
    versions = {number: list(known) for number, known in before.items()}
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
