"""Archiver: links sealed segments into the archive, in a thread, before compaction changes them.

A failed link is tried again, and compaction waits for it. It does not wait for ever: when the log
is so large that writers would be slowed down, or the disk is nearly full, the oldest waiting
segments are skipped. Each of them is a gap, reported in metrics, log lines, the state of the
archive and the manifests of snapshots. Requests never wait for a link.
"""

from __future__ import annotations

import logging

import trio

from fastjournal.cmdlog.archive import Archive, Gap
from fastjournal.errors import LogFailedError
from fastjournal.limits import ARCHIVE_LOOK_SECONDS, ARCHIVE_RETRY_SECONDS
from fastjournal.loglines import LogEvent, Sentence
from fastjournald.compaction.policy import bytes_slowed
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")


class Archiver:
    """Brings the archive up to date.

    Args:
        runtime: Engine, log and archive.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._one_at_a_time = trio.Lock()
        self._failed_at = -ARCHIVE_RETRY_SECONDS

    async def run(self) -> None:
        """Link what was sealed, again and again; without an archive, return at once."""
        archive = self._runtime.archive
        if archive is None:
            return
        counted_at = -ARCHIVE_RETRY_SECONDS
        while True:
            await self.archive_sealed()
            # a reader removes files at any time
            if trio.current_time() >= counted_at + ARCHIVE_RETRY_SECONDS:
                counted_at = trio.current_time()
                async with self._one_at_a_time:
                    await self._enforce_bound(archive)
            await trio.sleep(ARCHIVE_LOOK_SECONDS)

    async def archive_sealed(self) -> None:
        """Link the segments that were sealed until now, or skip some."""
        archive = self._runtime.archive
        if archive is None or not archive.waiting(self._runtime.writer.sealed):
            return
        async with self._one_at_a_time:
            if not self._waits_to_retry:
                await self._link(archive)
            if self._waits_to_retry:
                await self._skip_refused(archive)

    @property
    def _waits_to_retry(self) -> bool:
        return trio.current_time() < self._failed_at + ARCHIVE_RETRY_SECONDS

    async def _link(self, archive: Archive) -> None:
        runtime = self._runtime
        infos = archive.waiting(runtime.writer.sealed)
        if not infos:
            return
        before = archive.gaps
        try:
            await trio.to_thread.run_sync(archive.take, infos)
        except LogFailedError as error:
            self._failed(archive, error)
            return
        runtime.engine.journal.usage.archived_before = archive.next
        LOG.info(
            LogEvent(
                "archived",
                segment=infos[-1].name,
                segments=len(infos),
                bytes=sum(info.bytes for info in infos),
            )
        )
        for gap in archive.gaps:
            if gap not in before:
                _log_gap("archive-gap", gap)
        await self._enforce_bound(archive)

    async def _enforce_bound(self, archive: Archive) -> None:
        try:
            dropped = await trio.to_thread.run_sync(archive.enforce_bound)
        except LogFailedError as error:
            self._failed(archive, error)
        else:
            for gap in dropped:
                _log_gap("archive-dropped", gap)

    async def _skip_refused(self, archive: Archive) -> None:
        """Skip segments that cannot be linked, if compaction must continue."""
        engine, writer = self._runtime.engine, self._runtime.writer
        usage = engine.journal.usage
        excess = writer.log_bytes - bytes_slowed(engine.store, writer)
        skipped = []
        for info in archive.waiting(writer.sealed):
            if excess <= 0 and not (engine.context.read_only and not usage.live[info.number]):
                break
            skipped.append(info)
            excess -= info.bytes
        if skipped:
            await trio.to_thread.run_sync(archive.skip, skipped)
            usage.archived_before = archive.next
            _log_gap("archive-gap", archive.gaps[-1])

    def _failed(self, archive: Archive, error: LogFailedError) -> None:
        self._failed_at = trio.current_time()
        archive.failures += 1
        LOG.error(
            LogEvent(
                "archive-failed", error=Sentence(error), retry_seconds=int(ARCHIVE_RETRY_SECONDS)
            )
        )


def _log_gap(event: str, gap: Gap) -> None:
    LOG.warning(
        LogEvent(
            event,
            reason=gap.reason,
            first=gap.first,
            last=gap.last,
            segments=gap.segments,
            bytes=gap.bytes,
            from_us=gap.first_us,
            to_us=gap.last_us,
        )
    )
