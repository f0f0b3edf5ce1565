"""Group commit: one write and one sync for all sessions that wait.

The first session that waits is the commit leader: it lets every other session that has work at this
moment go first (one checkpoint), then writes and syncs what all of them appended; the others park
until it is done. While a sync takes well under a millisecond it runs in the event loop, because
handing it to a thread costs as much as the sync itself; on a slower disk it runs in a thread, and
the next batch gathers meanwhile.

After the first failure the log is dead: the leader and all that wait get the same error, which ends
the daemon, and no client is told OK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import trio

from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournald.histogram import Histogram

INLINE_SECONDS_MAX = 0.001
"""Mean time of a sync from which on it runs in a thread: longer would hold up other clients."""

MEAN_WEIGHT = 0.1
"""Weight of the newest sync in the moving mean: a single one under 10 ms changes nothing, and after
a slower one the thread is left again when some 20 have been fast."""


class GroupCommit:
    """Makes appended records as durable as the sync policy says.

    Args:
        writer: The log.
        policy: When written bytes are synced.
    """

    def __init__(self, writer: LogWriter, policy: SyncPolicy) -> None:
        self.writer = writer
        self._policy = policy
        self.batch_bytes = Histogram(26)
        """Histogram of bytes per write, up to 64 MiB."""
        self.sync_us = Histogram(24)
        """Histogram of microseconds per sync, up to 16.8 s."""
        self._mean_seconds = 0.0
        self._led = False
        self._others = trio.lowlevel.ParkingLot()

    async def wait_settled(self, mark: int) -> None:
        """Wait until the first ``mark`` appended bytes are as durable as the policy says.

        Raises:
            LogFailedError: A write or sync failed, this one or one before.
        """
        while self.writer.settled < mark:
            if self._led:
                await self._others.park()
                continue
            self._led = True
            try:
                await trio.lowlevel.checkpoint()
                await self._write()
                if self._policy is SyncPolicy.ALWAYS:
                    await self._sync()
            finally:
                self._end_leading()

    async def wait_durable(self, mark: int) -> None:
        """Wait until the first ``mark`` appended bytes survive a power loss, under every policy.

        Raises:
            LogFailedError: A write or sync failed, this one or one before.
        """
        await self.wait_settled(mark)
        while self.writer.durable < mark:
            async with self.exclusive():
                await self._write()
                await self._sync_in_thread()

    async def sync_every(self, seconds: float) -> None:
        """Sync what was written, again and again: the policy ``interval``.

        Raises:
            LogFailedError: A write or sync failed.
        """
        while True:
            await trio.sleep(seconds)
            if self.writer.dirty:
                async with self.exclusive():
                    await self._write()
                    await self._sync()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Keep all others from writing and syncing, for a roll of the segment."""
        while self._led:
            await self._others.park()
        self._led = True
        try:
            yield
        finally:
            self._end_leading()

    def _end_leading(self) -> None:
        self._led = False
        if self._others:
            self._others.unpark_all()

    async def roll(self) -> list[SegmentInfo]:
        """Write everything, seal the active segment, and return all that are sealed.

        Raises:
            LogFailedError: A write or sync failed.
        """
        async with self.exclusive():
            await self._write()
            await self._sync_in_thread()
            self.writer.roll()
            return list(self.writer.sealed)

    async def _write(self) -> None:
        if self.writer.seals_next:
            await self._sync_in_thread()
        written = self.writer.written
        self.writer.write()
        if self.writer.written > written:
            self.batch_bytes.add(self.writer.written - written)

    async def _sync_in_thread(self) -> None:
        # Sealing syncs the whole segment. Unless the policy is ``always``, little of it is on the
        # disk yet, and the event loop would stand still for that long.
        if self.writer.durable < self.writer.written:
            await trio.to_thread.run_sync(self.writer.sync)

    async def _sync(self) -> None:
        started = perf_counter()
        if self._mean_seconds < INLINE_SECONDS_MAX:
            self.writer.sync()
        else:
            await trio.to_thread.run_sync(self.writer.sync)
        seconds = perf_counter() - started
        self.sync_us.add(round(seconds * 1_000_000))
        self._mean_seconds += MEAN_WEIGHT * (seconds - self._mean_seconds)
