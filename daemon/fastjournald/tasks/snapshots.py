"""Snapshots: takes one on request of a client, and removes the oldest on request; links the log for
a checkpoint of the remote log.

A snapshot shows the instant at which its last segment is sealed. The segments are linked at once,
while compaction may change none. Its live index is written afterwards, beside all other work: in
slices of the event loop, between which other tasks have most of the time if they have work. Files
are written and synced in threads.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import perf_counter, thread_time
from typing import NamedTuple

import trio

from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.cmdlog.live_index import LiveIndexWriter, WrittenIndex
from fastjournal.cmdlog.snapshot import PartialSnapshot, begin_snapshot, prune_snapshots
from fastjournal.errors import LogFailedError
from fastjournal.limits import WRITTEN_BYTES_MAX
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.protocol import (
    ErrorCode,
    Function,
    Pair,
    Reply,
    Request,
    ValueType,
    encode_reply,
)
from fastjournald.runtime import Runtime
from fastjournald.tasks.free_space import FreeSpace, room_bytes
from fastjournald.wal.live_capture import CapturedRun, LiveCapture

LOG = logging.getLogger("fastjournald")

SLICE_SECONDS = 0.0005
"""So long is a slice of the walk over all entries."""

STEP_ENTRIES = 128
"""Entries between two reads of the clock."""

OTHERS_SHARE = 64
"""Other tasks run for this multiple of the duration of a slice after it, if they had work since the
slice before. So they keep nine tenths of their rate, including the cost of capturing entries before
they change."""

STOP_SECONDS = 1.0
"""Time that a snapshot has when the daemon stops; then it ends with an error."""

_RUN_BYTES = 300
"""Room for an entry of a run, with its changes: keys are long rarely."""


class SnapshotFailedError(LogFailedError):
    """The snapshot failed, and nothing else: the log is whole."""


class _NoRoomError(SnapshotFailedError):
    """The live index would take of the bytes that are kept free."""


class StoppedError(Exception):
    """The daemon stops."""


class LinkedLog(NamedTuple):
    """Links of all segments as they were when the last one was sealed."""

    links: dict[SegmentInfo, str]
    """Their paths."""
    live_path: str
    """Path of the live index; empty: there was no room for one."""


class _Begun(NamedTuple):
    """A snapshot whose segments are linked."""

    snapshot: PartialSnapshot
    capture: LiveCapture
    segments: list[SegmentInfo]
    now: int


class Snapshots:
    """Takes snapshots of the log, one at a time.

    Args:
        runtime: Engine, log and disk.
        free_space: Makes the engine read-only where the disk is nearly full.
        archive_sealed: Links sealed segments into the archive, if there is one: the archive has
            what the snapshot has.
    """

    def __init__(
        self,
        runtime: Runtime,
        free_space: FreeSpace,
        archive_sealed: Callable[[], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._free_space = free_space
        self._archive_sealed = archive_sealed
        self._one_at_a_time = trio.Lock()
        self._stop_at = math.inf
        self._work = 0
        """``Store.work`` at the end of the last slice."""

    async def take(self, session: Hashable, request: Request) -> bytes:
        """Seal the active segment, link all segments into a new snapshot, and return its path.

        With a count in the request, only the newest ``count`` snapshots are kept.

        Raises:
            LogFailedError: The log itself failed.
        """
        runtime = self._runtime
        engine = runtime.engine
        refusal = engine.refusal(session, request, runtime.clock.now_us())
        if refusal is not None:
            return refusal
        reply = Reply(request.identifier)
        async with self._one_at_a_time:
            # those before it may have taken the last that there was
            self._free_space.check_shortage()
            refusal = engine.refusal(session, request, runtime.clock.now_us())
            if refusal is not None:
                return refusal
            engine.counters.requests[Function.SNAPSHOT] += 1
            path = await self._take(reply)
            if request.count and path is not None:
                # may take long, to free the space of large files: compaction continues
                await self._prune(request.count, path)
        return encode_reply(reply)

    async def _take(self, reply: Reply) -> str | None:
        """Take the snapshot, and put its path or an error into the reply; return the path."""
        runtime = self._runtime
        began = perf_counter()
        try:
            begun = await self._begin(lambda: None)
            reply.timestamp = begun.now
            path = await self._complete(begun)
        except SnapshotFailedError as error:
            no_room = isinstance(error, _NoRoomError)
            code = ErrorCode.READ_ONLY if no_room else ErrorCode.NOT_PERSISTED
            self._failed(reply, code, error)
            return None
        except StoppedError as error:
            self._failed(reply, ErrorCode.SHUTTING_DOWN, error)
            return None
        finally:
            runtime.engine.store.end_capture()
        seconds = perf_counter() - began
        runtime.counters.snapshot_entries = begun.capture.entries
        runtime.counters.snapshot_seconds = seconds
        LOG.info(
            LogEvent(
                "snapshot",
                path=path,
                segments=len(begun.segments),
                entries=begun.capture.entries,
                seconds=f"{seconds:.3f}",
            )
        )
        reply.pairs = [Pair(b"", int(ValueType.STRING), os.fsencode(path))]
        return path

    @asynccontextmanager
    async def linked(self, on_sealed: Callable[[], object]) -> AsyncIterator[LinkedLog]:
        """Give links of the log at an instant, with its live index; they last as long as the block.

        Meanwhile compaction goes on, and what it replaces or removes takes space of the disk: at
        most the size of the log at that instant.

        Args:
            on_sealed: Called at the instant: the sealed segments have the state of the store.

        Raises:
            SnapshotFailedError: The links cannot be made.
            StoppedError: The daemon stops.
            LogFailedError: The log itself failed.
        """
        snapshot: PartialSnapshot | None = None
        try:
            async with self._one_at_a_time:
                try:
                    begun = await self._begin(on_sealed)
                    snapshot, live_path = begun.snapshot, begun.snapshot.live_path
                    try:
                        await self._write_index(begun)
                    except LogFailedError as error:
                        # readers replay the segments then
                        LOG.warning(LogEvent("live-index-failed", error=Sentence(error)))
                        live_path = ""
                finally:
                    self._runtime.engine.store.end_capture()
            links = {info: f"{snapshot.place}/{info.name}" for info in begun.segments}
            yield LinkedLog(links, live_path)
        finally:
            if snapshot is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(snapshot.remove)

    async def _begin(self, on_sealed: Callable[[], object]) -> _Begun:
        """Seal the active segment, link all, and begin the capture, which the caller ends.

        Raises:
            SnapshotFailedError: The links cannot be made.
            LogFailedError: The log itself failed.
        """
        runtime = self._runtime
        store = runtime.engine.store
        self._stop_at, self._work = math.inf, store.work
        async with runtime.segments_free:
            await runtime.commit.wait_committed(runtime.writer.appended)
            segments = await runtime.commit.roll()
            # nothing happens in between: the segments have the state of the store
            on_sealed()
            capture = store.begin_capture(runtime.writer.next_number)
            await self._archive_sealed()
            now = runtime.clock.now_us()
            link = partial(self._link, segments, now)
            with _told_apart():
                snapshot = await trio.to_thread.run_sync(link)
        return _Begun(snapshot, capture, segments, now)

    def _failed(self, reply: Reply, code: ErrorCode, error: Exception) -> None:
        LOG.error(LogEvent("snapshot-failed", error=Sentence(error)))
        reply.error = f"{code} the snapshot failed: {error}"
        self._runtime.engine.counters.count_error(Function.SNAPSHOT, reply.error)

    def _link(self, segments: list[SegmentInfo], now: int) -> PartialSnapshot:
        config, archive = self._runtime.config, self._runtime.archive
        return begin_snapshot(
            self._runtime.disk,
            config.cmdlog_path,
            config.snapshot_directory,
            segments,
            now,
            () if archive is None else archive.gaps,
        )

    # --- live index -----------------------------------------------------------------------------

    async def _complete(self, begun: _Begun) -> str:
        """Write the live index, and give the snapshot its name; return the path.

        Raises:
            SnapshotFailedError: The snapshot was not taken.
            StoppedError: So it was, because the daemon stops.
        """
        snapshot = begun.snapshot
        try:
            with _told_apart():
                written = await self._write_index(begun)
                return await trio.to_thread.run_sync(snapshot.finish, written)
        except BaseException:
            # also where the daemon stops
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(snapshot.remove)
            raise

    async def _write_index(self, begun: _Begun) -> WrittenIndex:
        snapshot, capture, segments, now = begun
        index = await trio.to_thread.run_sync(_IndexFile, snapshot, segments, now)
        while True:
            used = _walk(capture)
            if capture.walked:
                self._runtime.engine.store.end_capture()
            await self._give_way(used)
            for run in capture.take_runs():
                self._check_room(run)
                await self._give_way(await trio.to_thread.run_sync(index.add_run, run))
            if capture.walked:
                return await trio.to_thread.run_sync(index.finish)

    def _check_room(self, run: CapturedRun) -> None:
        """Leave min-free-bytes of the disk to the log.

        Raises:
            _NoRoomError: A run would take of it.
        """
        runtime = self._runtime
        directory = runtime.config.snapshot_directory
        size = _RUN_BYTES * len(run.changes) + 8 * len(run.offsets)
        if room_bytes(runtime, runtime.disk.free_space(directory)) < size:
            raise _NoRoomError(
                "there is no room for the live index: less than min-free-bytes would be free",
                path=directory,
                hint="free some space on this file system, or remove old snapshots",
            )

    async def _give_way(self, used: float) -> None:
        """Yield to other tasks, for most of the time if they have work.

        Args:
            used: Seconds of the event loop used since the last call.

        Raises:
            StoppedError: The daemon stops.
        """
        store = self._runtime.engine.store
        await trio.lowlevel.checkpoint()
        if store.work != self._work:
            await trio.sleep(OTHERS_SHARE * used)
        self._work = store.work
        now = trio.current_time()
        if self._runtime.engine.context.stopping:
            self._stop_at = min(self._stop_at, now + STOP_SECONDS)
        if now >= self._stop_at:
            raise StoppedError("the daemon stops")

    async def _prune(self, keep: int, taken: str) -> None:
        runtime = self._runtime
        try:
            removed = await trio.to_thread.run_sync(
                prune_snapshots, runtime.disk, runtime.config.snapshot_directory, keep, taken
            )
        except LogFailedError as error:
            # the new one is whole, and that is what was asked for
            LOG.error(LogEvent("snapshot-not-removed", error=Sentence(error)))
        else:
            for path in removed:
                LOG.info(LogEvent("snapshot-removed", path=path, keep=keep))


@contextmanager
def _told_apart() -> Iterator[None]:
    """Tell a failure of the snapshot from one of the log."""
    try:
        yield
    except LogFailedError as error:
        if isinstance(error, SnapshotFailedError):
            raise
        raise SnapshotFailedError(error.message, path=error.path, hint=error.hint) from error


def _walk(capture: LiveCapture) -> float:
    """Walk over entries for the time of a slice; return how long it was."""
    began, used = perf_counter(), 0.0
    while not capture.walked and used < SLICE_SECONDS:
        capture.step(STEP_ENTRIES)
        used = perf_counter() - began
    return used


class _IndexFile:
    """File of a live index; its calls are made in threads.

    Args:
        snapshot: The snapshot.
        segments: Its segments.
        now: Its instant.

    Raises:
        LogFailedError: It cannot be created; so do its methods where they cannot write.
    """

    def __init__(self, snapshot: PartialSnapshot, segments: list[SegmentInfo], now: int) -> None:
        self._file = snapshot.create_live_index()
        self._unsynced = 0
        self._writer = LiveIndexWriter(self._write, now, segments)

    def add_run(self, run: CapturedRun) -> float:
        """Write a run; return the seconds of a processor that it took."""
        began = thread_time()
        self._writer.add_run(*run)
        return thread_time() - began

    def finish(self) -> WrittenIndex:
        """Write the end; ``PartialSnapshot.finish`` syncs it."""
        return self._writer.finish()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._unsynced += len(data)
        if self._unsynced >= WRITTEN_BYTES_MAX:
            # a sync of all of it at once would hold up those of the log
            self._file.sync()
            self._unsynced = 0
