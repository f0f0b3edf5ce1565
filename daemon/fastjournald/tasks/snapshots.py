"""Snapshots: takes one where a client asks for it, and removes the oldest on request."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Hashable

import trio

from fastjournal.cmdlog.snapshot import prune_snapshots, take_snapshot
from fastjournal.errors import LogFailedError
from fastjournal.loglines import field_text
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
from fastjournald.tasks.free_space import FreeSpace

LOG = logging.getLogger("fastjournald")


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

    async def take(self, session: Hashable, request: Request) -> bytes:
        """Seal the active segment, link all segments into a new snapshot, and tell its path.

        Where the request has a count, only so many snapshots are kept, the newest.

        Raises:
            LogFailedError: The log itself failed.
        """
        runtime = self._runtime
        engine = runtime.engine
        refusal = engine.may_snapshot(session, request, runtime.clock.now_us())
        if refusal is not None:
            return refusal
        reply = Reply(request.identifier)
        async with self._one_at_a_time:
            # those before it may have taken the last that there was
            self._free_space.check_shortage()
            refusal = engine.may_snapshot(session, request, runtime.clock.now_us())
            if refusal is not None:
                return refusal
            engine.counters.requests[Function.SNAPSHOT] += 1
            async with runtime.segments_free:
                path = await self._link(reply)
            if request.count and path is not None:
                # may take long, for the space of large files: compaction goes on
                await self._prune(request.count, path)
        return encode_reply(reply)

    async def _link(self, reply: Reply) -> str | None:
        """Take the snapshot, and put its path or an error into the reply; return the path."""
        runtime = self._runtime
        await runtime.commit.wait_settled(runtime.writer.appended)
        segments = await runtime.commit.roll()
        await self._archive_sealed()
        now = reply.timestamp = runtime.clock.now_us()
        try:
            path = await trio.to_thread.run_sync(
                take_snapshot,
                runtime.disk,
                runtime.config.cmdlog_path,
                runtime.config.snapshot_directory,
                segments,
                now,
                () if runtime.archive is None else runtime.archive.gaps,
            )
        except LogFailedError as error:
            # the log is whole: only the snapshot failed
            LOG.error("event=snapshot-failed error=%r", str(error))
            reply.error = f"{ErrorCode.NOT_PERSISTED} the snapshot failed: {error}"
            runtime.engine.counters.count_error(Function.SNAPSHOT, reply.error)
            return None
        LOG.info("event=snapshot path=%s segments=%d", field_text(path), len(segments))
        reply.pairs = [Pair(b"", int(ValueType.STRING), os.fsencode(path))]
        return path

    async def _prune(self, keep: int, taken: str) -> None:
        runtime = self._runtime
        try:
            removed = await trio.to_thread.run_sync(
                prune_snapshots, runtime.disk, runtime.config.snapshot_directory, keep, taken
            )
        except LogFailedError as error:
            # the new one is whole, and that is what was asked for
            LOG.error("event=snapshot-not-removed error=%r", str(error))
        else:
            for path in removed:
                LOG.info("event=snapshot-removed path=%s keep=%d", field_text(path), keep)
