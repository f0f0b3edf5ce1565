"""Taking of a remote log: its segments up to the newest checkpoint become event files.

A task reads one segment from the store (``history.remote_history``), and writes its events, in the
places of ``archive_taking``. Nothing in the store is changed. What was taken is in a file beside
the events, which is written when all of them are in place:

    OUTPUT/remote-log.json    {"log": UUID, "epoch": E, "number": N, "last": NUMBER, "gaps": [...]}

All behind chunk (E, N) was taken, or is a gap. The next run goes on there. A run that was killed is
repeated, and writes the same files; so do two runs at once. Without the file a run takes all that
the store has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec

from fastjournal.cmdlog.archive import ArchivedSegment
from fastjournal.errors import ForeignRemoteLogError, RemoteLogCorruptError
from fastjournal.remote.objects import ChunkId
from fastjournal.spark.execution.cluster_tasks import Here, translating_end
from fastjournal.spark.history.archive_taking import (
    DAMAGED,
    GONE,
    SEGMENTS_AT_ONCE,
    Outcome,
    put_events,
    versions_of,
)
from fastjournal.spark.history.coverage import MissingSegments
from fastjournal.spark.history.event_files import EventDirectory, EventFile
from fastjournal.spark.history.remote_history import (
    COLLECTED,
    HistoryPlan,
    ObjectGoneError,
    RemoteSegment,
    open_remote,
    plan_history,
    plan_in,
    read_segment,
)
from fastjournal.spark.storage.remote_checkpoints import newest_checkpoint
from fastjournal.spark.storage.table_files import DiskFiles
from fastjournal.versioned_json import decode_versioned

STATE_NAME = "remote-log.json"
_FORMAT = "fastjournal-taken-remote-log"
_VERSION = 1


class TakenLog(msgspec.Struct, frozen=True):
    """What was taken of a remote log."""

    log: str
    """UUID of the log."""
    epoch: int
    number: int
    """All up to this chunk of the epoch was taken."""
    last: int
    """Number of the last segment up to there."""
    gaps: list[MissingSegments] = msgspec.field(default_factory=list)
    format: str = _FORMAT
    version: int = _VERSION


class RemotePlaces(NamedTuple):
    """Where the tasks find segments, and put events."""

    url: str
    events: EventDirectory
    mask: int
    """Modes that files must not have: executors have another mask than this process."""


def read_taken(events: EventDirectory) -> TakenLog | None:
    """Return what was taken; None: nothing, or nobody says so.

    Raises:
        LogCorruptError: The file is damaged.
        LogFailedError: It cannot be read.
    """
    folder = events.path.rpartition("/")[0]
    if STATE_NAME not in events.files.names(folder):
        return None
    path = f"{folder}/{STATE_NAME}"
    data = events.files.read(path)
    return decode_versioned(data, TakenLog, format_name=_FORMAT, version=_VERSION, path=path)


class RemoteWork(NamedTuple):
    """What a run has to take."""

    log: str
    behind: ChunkId
    before: TakenLog | None
    plan: HistoryPlan

    @property
    def bytes(self) -> int:
        """Bytes of the segments."""
        return sum(one.bytes for one in self.plan.segments)


def find_work(url: str, events: EventDirectory) -> RemoteWork:
    """Return what a run has to take.

    Raises:
        ForeignRemoteLogError: The events are of another log.
        RemoteLogError: An object is damaged or missing, or the store refuses or does not answer.
        LogError: The file of what was taken, or the events, cannot be read.
    """
    store, before = open_remote(url), read_taken(events)
    log, behind, checkpoint = newest_checkpoint(store)
    if before is not None and before.log != log:
        raise ForeignRemoteLogError(
            f"the events are of the log {before.log}, and the remote log is {log}",
            path=f"{events.path.rpartition('/')[0]}/{STATE_NAME}",
            hint="name another --output, or another --history",
        )
    after = None if before is None else ChunkId(before.epoch, before.number)
    if after is not None and behind <= after:
        return RemoteWork(log, behind, before, HistoryPlan([], [], 0))
    known = {file.number for file in events.listed()}
    last = 0 if before is None else before.last
    plan = plan_in(
        store,
        lambda: plan_history(log, behind, checkpoint, after=after, last=last, known=known),
    )
    return RemoteWork(log, behind, before, plan)


class RemoteOutcome(NamedTuple):
    """Result of a run."""

    rows: int
    faults: list[str]
    """Sentences about segments that could not be read, and are gaps now."""


def take_remote(
    url: str, events: EventDirectory, executor: Executor | None = None, *, parallel: int = 1
) -> RemoteOutcome:
    """Take the segments of a remote log up to its newest checkpoint.

    Args:
        url: URL of the remote log; executors reach it.
        events: Where the events are put.
        executor: Runs the tasks; None: this process.
        parallel: Tasks that it runs at once.

    Raises:
        ForeignRemoteLogError: The events are of another log.
        RemoteLogError: An object is damaged or missing, or the store refuses or does not answer.
        LogError: Something could not be written; what was written counts.
    """
    return take_work(url, events, find_work(url, events), executor or Here(), parallel)


def take_work(
    url: str, events: EventDirectory, work: RemoteWork, executor: Executor, parallel: int
) -> RemoteOutcome:
    """Take what ``find_work`` has found; raises as ``take_remote``."""
    if isinstance(events.files, DiskFiles):
        events.files.remove_unfinished()
    rows, lost = _run(url, events, work.plan.segments, executor, parallel)
    gone = [one for one in lost if one.lost == GONE]
    if gone:
        # the primary has collected an object meanwhile; another one may have the same bytes
        again = find_work(url, events)
        wanted = {one.file.number for one in gone}
        segments = [one for one in again.plan.segments if one.number in wanted]
        more, still = _run(url, events, segments, executor, parallel)
        found = {one.number for one in segments} - {one.file.number for one in still}
        rows += more
        lost = [one for one in lost if one.file.number not in found]
    _write_taken(events, work, lost)
    return RemoteOutcome(rows, [one.why for one in lost])


def _run(
    url: str,
    events: EventDirectory,
    segments: Sequence[RemoteSegment],
    executor: Executor,
    parallel: int,
) -> tuple[int, list[Outcome]]:
    """Run the tasks; return the rows, and the outcomes of segments that could not be read."""
    mask = os.umask(0o077)
    os.umask(mask)
    task = partial(write_events, RemotePlaces(url, events, mask))
    rows, lost = 0, list[Outcome]()
    step = max(SEGMENTS_AT_ONCE, 2 * parallel)
    for begin in range(0, len(segments), step):
        part = segments[begin : begin + step]
        archived = [ArchivedSegment(one.number, one.crc32c) for one in part]
        versions = versions_of(archived, events.listed())
        others = [versions.get(one.number, ()) for one in part]
        hint = "free memory, and run fj-nightly again"
        with translating_end("a process that extracts events", hint):
            for outcome in executor.map(task, part, others):
                rows += outcome.rows
                if outcome.lost:
                    lost.append(outcome)
    return rows, lost


def _write_taken(events: EventDirectory, work: RemoteWork, lost: Sequence[Outcome]) -> None:
    if not work.plan.last:
        return
    before = work.before
    gaps = [*(() if before is None else before.gaps), *work.plan.gaps]
    for one in lost:
        reason = COLLECTED if one.lost == GONE else DAMAGED
        gaps.append(MissingSegments(one.file.number, one.file.number, None, None, reason))
    gaps.sort(key=attrgetter("first"))
    taken = TakenLog(work.log, work.behind.epoch, work.behind.number, work.plan.last, gaps)
    path = f"{events.path.rpartition('/')[0]}/{STATE_NAME}"
    events.files.put(path, msgspec.json.encode(taken))


def write_events(
    place: RemotePlaces, segment: RemoteSegment, others: Sequence[EventFile]
) -> Outcome:
    """Read a segment, and put its events into place.

    Args:
        place: Where.
        segment: The segment.
        others: Files of other versions of it.

    Raises:
        StoreUnavailableError: The store does not answer.
        StoreRefusedError: The store refuses this user.
        LogFailedError: Something cannot be written.
    """
    os.umask(os.umask(0o077) | place.mask)
    file = ArchivedSegment(segment.number, segment.crc32c)
    try:
        data = read_segment(open_remote(place.url), segment)
    except ObjectGoneError as error:
        return Outcome(file, lost=GONE, why=str(error))
    except (RemoteLogCorruptError, ForeignRemoteLogError) as error:
        return Outcome(file, lost=DAMAGED, why=str(error))
    return put_events(place.events, file, data, others)
