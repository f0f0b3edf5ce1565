"""Checkpoints: uploads the log to the object store, at once or when one is due, and collects.

Rules C1, G1 and G3 of docs/remote-log.md, as ``fastjournal.remote.checkpoints`` has them. The links
of a checkpoint hold the space of what compaction replaces meanwhile: at most the size of the log at
its instant. A checkpoint is given up where the disk is nearly full, and another one is due later.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TypeVar

import trio

from fastjournal.cmdlog.format.layout import pack_position
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
from fastjournal.remote.checkpoints import (
    Collector,
    Retention,
    checkpoint_due,
    restore_missing,
    upload_checkpoint,
)
from fastjournal.remote.objects import ChunkId, SegmentRef
from fastjournal.remote.store import Delete, Steps, run_async
from fastjournal.remote.store import Request as StoreRequest
from fastjournald.compaction.policy import live_bytes
from fastjournald.group_commit.remote_commit import RemoteCommit
from fastjournald.runtime import Runtime
from fastjournald.tasks.snapshots import SnapshotFailedError, Snapshots, StoppedError

LOG = logging.getLogger("fastjournald")

CHECKPOINT, HANDOVER = b"checkpoint", b"handover"
"""Keys of REMOTE."""

LOOK_SECONDS = 1.0
"""Time between two looks whether a checkpoint is due."""

RETRY_SECONDS = 60.0
"""Time after which a failed checkpoint is tried again."""

DELETES_AT_ONCE = 6
"""Deletions under way: a writer that is never idle stores a chunk in the time of a request, so one
at a time would never catch up. Other threads stay free for chunks."""

Result = TypeVar("Result")


class _GivenUpError(Exception):
    """The disk is nearly full, and the links hold what compaction would free."""


class Checkpoints:
    """Takes checkpoints of the log of a primary, one at a time.

    Args:
        runtime: Engine, log and disk.
        remote: The remote log of this epoch.
        snapshots: Links the log at an instant.
        retention: Which checkpoints are kept.
    """

    def __init__(
        self, runtime: Runtime, remote: RemoteCommit, snapshots: Snapshots, retention: Retention
    ) -> None:
        primary = remote.primary
        self.last: ChunkId = primary.base
        """The chunk behind which the newest checkpoint is."""
        self.handover = trio.Event()
        """A client asked that another node takes over: the daemon has to end."""
        self.on_handover: Callable[[], object] = lambda: None
        """Called before the epoch is sealed, where a client asked for that."""
        runtime.counters.checkpoint_us = primary.base_us
        self._runtime = runtime
        self._remote = remote
        self._snapshots = snapshots
        self._epoch = primary.chunks.epoch
        self._collector = Collector(self._epoch, primary.uploads, retention)
        self._one_at_a_time = trio.Lock()
        self._under_way = trio.CancelScope()
        self._stopping = False
        self._links_held = False
        self._ended_by: Exception | None = None
        self._taken_us = 0
        """When the last one was taken, by the clock that never steps."""
        self._taken_at = 0
        """How much was appended then."""
        self._failed_at = -math.inf

    # --- due, or asked for ----------------------------------------------------------------------

    async def run(self) -> None:
        """Take those that are due.

        Raises:
            RemoteLogCorruptError: Somebody deleted parts of the remote log.
            LogFailedError: The log itself failed.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_space)
            await self._take_due()
            nursery.cancel_scope.cancel()

    async def _watch_space(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self._links_held and self._runtime.engine.context.read_only:
                self._end(_GivenUpError("the checkpoint is given up: the disk is nearly full"))

    async def _take_due(self) -> None:
        while True:
            # one that a client has asked for is under way: it may be the one that is due
            if self._is_due() and not self._one_at_a_time.locked():
                try:
                    await self.take()
                except (SnapshotFailedError, _GivenUpError) as error:
                    self._failed(error)
                except StoppedError:
                    return
            await trio.sleep(LOOK_SECONDS)

    def _is_due(self) -> bool:
        runtime = self._runtime
        if runtime.engine.context.read_only:
            return False
        if trio.current_time() < self._failed_at + RETRY_SECONDS:
            return False
        return self.last.epoch != self._epoch.epoch or checkpoint_due(
            runtime.clock.monotonic_us() - self._taken_us,
            self._remote.stored - self._taken_at,
            runtime.writer.segment_bytes_max,
            live_bytes(runtime.engine.store),
        )

    def _failed(self, error: Exception) -> None:
        self._failed_at = trio.current_time()
        LOG.error(
            LogEvent("checkpoint-failed", error=Sentence(error), retry_seconds=int(RETRY_SECONDS))
        )

    async def carry_out(self, request: Request) -> bytes:
        """Return the reply to a REMOTE that is allowed.

        Raises:
            RemoteLogCorruptError: Somebody deleted parts of the remote log.
            LogFailedError: The log itself failed.
        """
        reply = Reply(request.identifier, timestamp=self._runtime.clock.now_us())
        if request.key == CHECKPOINT:
            try:
                taken = await self.take()
            except SnapshotFailedError as error:
                self._failed(error)
                reply.error = f"{ErrorCode.NOT_PERSISTED} the checkpoint failed: {error}"
            except _GivenUpError as error:
                reply.error = f"{ErrorCode.READ_ONLY} {error}"
            except StoppedError as error:
                reply.error = f"{ErrorCode.SHUTTING_DOWN} {error}"
            else:
                name = b"%d-%d" % taken
                reply.pairs = [Pair(b"", int(ValueType.STRING), name)]
        elif request.key == HANDOVER:
            self._remote.before_seal = self.on_handover
            self.handover.set()
        else:
            reply.error = f"{ErrorCode.BAD_KEY} REMOTE takes the keys checkpoint and handover"
        if reply.error:
            self._runtime.engine.counters.count_error(Function.REMOTE, reply.error)
        return encode_reply(reply)

    def stop(self) -> None:
        """End the checkpoint under way, and take no more: the daemon stops."""
        self._stopping = True
        self._end(StoppedError("the daemon stops"))

    def _end(self, error: Exception) -> None:
        self._ended_by = error
        self._under_way.cancel()

    # --- one checkpoint -------------------------------------------------------------------------

    async def take(self) -> ChunkId:
        """Store a checkpoint, and collect; return the chunk behind which it is.

        Raises:
            SnapshotFailedError: Its links cannot be made.
            _GivenUpError: The disk is nearly full.
            StoppedError: The daemon stops.
            RemoteLogCorruptError: Somebody deleted parts of the remote log.
            LogFailedError: The log itself failed.
        """
        async with self._one_at_a_time:
            if self._stopping:
                raise StoppedError("the daemon stops")
            with trio.CancelScope() as self._under_way:
                return await self._take()
            assert self._ended_by is not None
            raise self._ended_by

    async def _take(self) -> ChunkId:
        runtime, remote, uploads = self._runtime, self._remote, self._remote.primary.uploads
        began_us = runtime.clock.monotonic_us()
        appended = 0

        def cut() -> None:
            nonlocal appended
            appended = runtime.writer.appended
            last = runtime.writer.sealed[-1:]
            remote.cut(pack_position(last[0].number, last[0].bytes) if last else 0)

        self._links_held = True
        try:
            async with self._snapshots.linked(cut) as log:
                links = {
                    SegmentRef(info.number, info.bytes, info.crc32c): path
                    for info, path in log.links.items()
                }
                behind, time_us = await remote.cut_at()
                upload = upload_checkpoint(behind, time_us, links, uploads, live_path=log.live_path)
                checkpoint = await self._carry_out(upload)
                if checkpoint is not None:
                    look = restore_missing(self._epoch, checkpoint, links, uploads)
                    self._tell(await self._carry_out(look))
        finally:
            self._links_held = False
        self.last, runtime.counters.checkpoint_us = behind, time_us
        self._taken_us, self._taken_at = began_us, appended
        deleted = 0
        if checkpoint is not None:
            deleted = await self._carry_out(self._collector.collect(runtime.clock.now_us()))
        LOG.info(
            LogEvent(
                "checkpoint",
                behind=f"{behind.epoch}-{behind.number}",
                segments=len(links),
                bytes=sum(segment.bytes for segment in links),
                deleted=deleted,
                seconds=f"{(runtime.clock.monotonic_us() - began_us) / 1e6:.3f}",
            )
        )
        return behind

    def _tell(self, missing: list[SegmentRef]) -> None:
        self._runtime.counters.segments_missing += len(missing)
        for segment in missing:
            LOG.error(
                LogEvent(
                    "segment-was-missing",
                    segment=segment.file_name,
                    epoch=self._epoch.epoch,
                    reason="somebody deletes parts of the remote log; it was uploaded again",
                )
            )

    # --- requests -------------------------------------------------------------------------------

    async def _carry_out(self, steps: Steps[Result]) -> Result:
        """Carry out a rule. Deletions without another request between them run together."""
        deletions: list[Delete] = []

        async def answer(request: StoreRequest) -> object:
            if isinstance(request, Delete):
                deletions.append(request)
                return None
            await self._delete(deletions)
            return await self._remote.answer(request)

        result = await run_async(steps, answer)
        await self._delete(deletions)
        return result

    async def _delete(self, deletions: list[Delete]) -> None:
        room = trio.Semaphore(DELETES_AT_ONCE)

        async def delete(request: Delete) -> None:
            async with room:
                await self._remote.answer(request)

        async with trio.open_nursery() as nursery:
            for request in deletions:
                nursery.start_soon(delete, request)
        deletions.clear()
