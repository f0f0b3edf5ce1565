"""Group commit: a commit leader does one write and one sync for all sessions that wait.

The first session that waits is the commit leader. It yields once (one checkpoint), so that all
other sessions with work run first. Then it writes and syncs everything that was appended; the
others park until it is done. On a fast disk a sync runs in the event loop, on a slower disk in a
thread (``SyncEstimate``, ``SyncThread``). During that sync the next requests are received, handled
and appended, and written if a session waits for it. Bytes that were written after a sync began need
the next sync.

Clients that wait for each reply send again right after the sync. So after a sync in the thread a
leader waits until as much was appended as that sync made durable, or for a part of the duration of
a sync: otherwise the few requests that arrived during the sync use the next sync alone, and all
others wait for two.

After the first failure the log is dead: the leader and all waiting sessions get the same error. It
ends the daemon, and no client gets OK.

``SyncThread`` is one persistent thread for the fdatasyncs of a slow disk. A thread pool needs
locks, limiters and a task switch for each call, which take longer than a fast fdatasync. This
thread waits on a queue, and wakes the event loop by an eventfd. It starts with ``start``, at the
latest with the first call, and ends with ``close``; the next call starts another one.

Committed: as safe in the directory of the log as the policy asks. Settled: safe enough for OK. Both
are the same without a remote log. With one whose store has to acknowledge (``remote_commit``), the
remote log leads: it writes and syncs once for each of its requests, and releases who waits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol

import trio

from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.cmdlog.writer import LogWriter, SyncPolicy
from fastjournald.histogram import Histogram


class _ThreadCall:
    """One call, and how it ended."""

    __slots__ = ("call", "done", "error")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.done = False
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        """Keep any error for the task that waits, which raises it."""
        self.error = error
        self.done = True
        return True


class SyncThread:
    """Runs one call at a time beside the event loop."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._done = -1
        """The eventfd."""

    async def run(self, call: Callable[[], object]) -> None:
        """Run ``call`` in the thread and wait for its end, also where the task is cancelled.

        One task at a time may call this.

        Raises:
            BaseException: The error that ``call`` raised.
        """
        self.start()
        pending = _ThreadCall(call)
        self._calls.put(pending)
        # a half-done sync is of no use to anyone: the wait has no checkpoint for a cancellation
        with trio.CancelScope(shield=True):
            while not pending.done:
                await trio.lowlevel.wait_readable(self._done)
                os.eventfd_read(self._done)
        if pending.error is not None:
            raise pending.error

    def close(self) -> None:
        """End the thread, once a call that it carries out has ended; twice does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join()
            os.close(self._done)
            self._done = -1

    def start(self) -> None:
        """Start the thread, if it does not run: later the system may have no descriptor for it."""
        if self._thread is not None:
            return
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(
            target=_work, args=(self._calls, self._done), name="fastjournald-sync", daemon=True
        )
        self._thread.start()


def _work(calls: SimpleQueue[_ThreadCall | None], done: int) -> None:
    while (pending := calls.get()) is not None:
        with pending:
            pending.call()
        os.eventfd_write(done, 1)


INLINE_SECONDS_MAX = 0.001
"""Mean from which on syncs run in the thread: longer would hold up clients that wait for none."""

ALONE_SECONDS_MAX = 2 * INLINE_SECONDS_MAX
"""The same while one client has the daemon to itself: it waits for the sync in any case. The way to
the thread and back costs it twice the processor time. Another client may wait so long for it."""

INLINE_AGAIN_SHARE = 0.75
"""Hysteresis: part of that limit under which the mean has to fall before syncs leave the thread.
The thread waits up to half a millisecond for the interpreter (``main.SWITCH_SECONDS``) while the
event loop is busy, and this waiting has to stay below the limit."""

MEAN_WEIGHT = 0.1
"""Weight of the newest sync in the mean."""

SAMPLE_SECONDS_MAX = 4 * INLINE_SECONDS_MAX
"""Most that one sync counts for. So a single sync, however slow, moves the mean by less than half
of the limit, and a disk that is slow each time needs three to exceed it: seven where one client has
the daemon to itself."""

GATHER_SHARE = 0.25
"""Longest wait for the clients of the last batch, as a part of the mean time of a sync."""

GATHER_TURNS_MAX = 64
"""The same in turns of the event loop."""

WRITE_BYTES_MIN = 65_536
"""Bytes that are written at once while a thread syncs, if nobody waits for the write alone: each
write is a system call, and is better made for many requests."""


class SyncEstimate:
    """Moving mean of the time of a sync: chooses where the next one runs. Pure.

    In the event loop on a fast disk, because the way to a thread and back costs as much as the sync
    itself; in a thread on a slow one, because it would block the event loop.
    """

    __slots__ = ("in_thread", "mean_seconds")

    def __init__(self) -> None:
        self.mean_seconds = 0.0
        """Mean of the last ten or so; each counts for at most ``SAMPLE_SECONDS_MAX``."""
        self.in_thread = False
        """The last choice."""

    def add(self, seconds: float) -> None:
        """Count the time of a sync, without that of the way to the thread and back."""
        counted = min(seconds, SAMPLE_SECONDS_MAX)
        self.mean_seconds += MEAN_WEIGHT * (counted - self.mean_seconds)

    def choose(self, *, alone: bool = False) -> bool:
        """Return whether the next sync runs in the thread.

        Args:
            alone: One client has the daemon to itself, and waits for this sync.
        """
        limit = ALONE_SECONDS_MAX if alone else INLINE_SECONDS_MAX
        if self.in_thread:
            limit *= INLINE_AGAIN_SHARE
        self.in_thread = self.mean_seconds >= limit
        return self.in_thread


class Remote(Protocol):
    """A remote log: see ``remote_commit``."""

    @property
    def leads(self) -> bool:
        """Whether it has to acknowledge, and leads the commit of what clients wait for."""

    def look(self) -> None:
        """Note that somebody waits for what was appended."""

    def test_lease(self) -> None:
        """Withhold all replies, if this node may not be the primary any more."""


class GroupCommit:
    """Makes appended records as durable as the sync policy says.

    Args:
        writer: The log.
        policy: When written bytes are synced.
    """

    def __init__(self, writer: LogWriter, policy: SyncPolicy) -> None:
        self.writer = writer
        self.remote: Remote | None = None
        """The remote log; None: there is none."""
        self._syncs_always = policy is SyncPolicy.ALWAYS
        self.batch_bytes = Histogram(26)
        """Histogram of bytes per write, up to 64 MiB."""
        self.sync_us = Histogram(24)
        """Histogram of microseconds per sync, up to 16.8 s."""
        self.estimate = SyncEstimate()
        """Chooses where the next sync runs."""
        self._thread = SyncThread()
        self._led = False
        self._writable = False
        """Whether tasks other than the leader may write now: the leader waits for the thread."""
        self._writing = False
        """Whether one of these tasks has begun to write."""
        self._others = trio.lowlevel.ParkingLot()
        self._unsettled = trio.lowlevel.ParkingLot()
        """Tasks that wait for the remote log."""
        self._claimants = trio.lowlevel.ParkingLot()
        """Tasks that wait for ``exclusive``, in order; they lead before all others."""
        self._expected = 0
        """Position that ``appended`` reaches when the clients of the last batch sent as much again.

        The next leader waits for it, at the longest until ``_gather_until``."""
        self._gather_until = 0.0

    async def wait_settled(self, mark: int) -> None:
        """Wait until the first ``mark`` appended bytes are safe enough for OK.

        Raises:
            LogFailedError: A write or sync failed, this one or one before.
        """
        remote = self.remote
        if remote is None or not remote.leads:
            await self.wait_committed(mark)
        if remote is not None:
            while self.writer.settled < mark:
                remote.look()
                await self._unsettled.park()

    def release(self) -> None:
        """Wake the tasks that wait for the remote log."""
        self._unsettled.unpark_all()

    def releasable(self) -> int:
        """Return up to which mark replies may be sent at this moment."""
        if self.remote is not None:
            self.remote.test_lease()
        return self.writer.settled

    async def wait_committed(self, mark: int) -> None:
        """Wait until the first ``mark`` appended bytes are as durable as the policy says.

        Raises:
            LogFailedError: A write or sync failed, this one or one before.
        """
        while self.writer.committed < mark:
            if not self._led:
                await self._lead()
            elif self._may_write() and not self._writing:
                await self._write_meanwhile()
            else:
                await self._others.park()

    def settle_now(self, *, alone: bool = False) -> bool:
        """Make all that was appended safe enough for OK, at once, where that is quick.

        Args:
            alone: One client has the daemon to itself, and waits for this.

        Returns:
            Whether it is. Else somebody else writes, or it takes so long that it is to be waited
            for: ``wait_settled``.

        Raises:
            LogFailedError: A write or sync failed, this one or one before.
        """
        writer = self.writer
        if writer.settled >= writer.appended:
            return True
        if self.remote is not None and self.remote.leads:
            self.remote.look()
            return False
        syncs = self._syncs_always
        if self._led or writer.seals_next or (syncs and self.estimate.choose(alone=alone)):
            return False
        self._write_now()
        if syncs:
            self._sync_now()
        return writer.settled >= writer.appended

    async def wait_durable(self, mark: int) -> None:
        """Wait until the first ``mark`` appended bytes survive a power loss, under every policy.

        Raises:
            LogFailedError: A write or sync failed, this one or one before.
        """
        await self.wait_committed(mark)
        while self.writer.durable < mark:
            async with self.exclusive():
                await self._write()
                await self._sync_in_thread(writable=True)

    async def write(self) -> None:
        """Write everything.

        Raises:
            LogFailedError: A write or sync failed.
        """
        if self._writable and not self.writer.seals_next:
            # while a thread syncs
            self._write_now()
            return
        async with self.exclusive():
            await self._write()

    async def sync_written(self) -> None:
        """Sync what is written, where the policy is to sync always.

        Raises:
            LogFailedError: A write or sync failed.
        """
        if self._syncs_always:
            async with self.exclusive():
                if self.writer.durable < self.writer.written:
                    await self._sync()

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
        """Keep all others from writing and syncing, for a roll of the segment.

        The lead is handed over in the order of the calls. Else a task that leads again as soon as
        it has led, for clients that always wait, would keep it from all others.
        """
        if self._led:
            await self._claimants.park()
        self._led = True
        try:
            yield
        finally:
            self._end_leading()

    async def roll(self) -> list[SegmentInfo]:
        """Write everything, seal the active segment, and return all that are sealed.

        Raises:
            LogFailedError: A write or sync failed.
        """
        async with self.exclusive():
            await self._write()
            await self._sync_in_thread(writable=False)
            self.writer.roll()
            return list(self.writer.sealed)

    def start(self) -> None:
        """Take what a slow sync needs of the system, while it has that."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; before the writer is closed, whose file the thread syncs."""
        self._thread.close()

    # --- the leader -----------------------------------------------------------------------------

    async def _lead(self) -> None:
        self._led = True
        try:
            await self._gather()
            await self._write()
            if self._syncs_always:
                durable = self.writer.durable
                await self._sync()
                if self.estimate.in_thread:
                    self._expected = self.writer.appended + self.writer.durable - durable
                    seconds = GATHER_SHARE * self.estimate.mean_seconds
                    self._gather_until = perf_counter() + seconds
        finally:
            self._end_leading()

    def _end_leading(self) -> None:
        if self._claimants:
            # no other task may lead before it runs: the commit stays led
            self._claimants.unpark()
        else:
            self._led = False
        if self._others:
            self._others.unpark_all()

    async def _gather(self) -> None:
        """Yield to all sessions that have work, and to those released by the last sync."""
        await trio.lowlevel.checkpoint()
        writer, turns = self.writer, 1
        while (
            writer.appended < self._expected
            and turns < GATHER_TURNS_MAX
            and perf_counter() < self._gather_until
        ):
            await trio.lowlevel.checkpoint()
            turns += 1

    async def _write(self) -> None:
        # Sealing syncs the whole segment. Unless the policy is ``always``, little of it is on the
        # disk yet, and the sync would block the event loop for that long.
        if self.writer.seals_next:
            await self._sync_in_thread(writable=False)
        self._write_now()

    def _write_now(self) -> None:
        writer = self.writer
        before = writer.written
        writer.write()
        if size := writer.written - before:
            self.batch_bytes.add(size)

    async def _sync(self) -> None:
        if self.estimate.choose():
            self._note(await self._sync_in_thread(writable=True))
        else:
            self._sync_now()

    def _sync_now(self) -> None:
        self._note(_timed(self.writer.sync))

    def _note(self, seconds: float) -> None:
        self.estimate.add(seconds)
        self.sync_us.add(round(seconds * 1_000_000))

    async def _sync_in_thread(self, *, writable: bool) -> float:
        """Sync in the thread, and return its seconds without the way there and back.

        Args:
            writable: Whether others may write meanwhile.
        """
        seconds = 0.0
        if self.writer.durable < self.writer.written:
            with self.writer.syncing() as sync:

                def timed() -> None:
                    nonlocal seconds
                    seconds = _timed(sync)

                self._writable = writable
                try:
                    await self._thread.run(timed)
                finally:
                    self._writable = False
        return seconds

    # --- others, while the leader waits for the thread ------------------------------------------

    def _may_write(self) -> bool:
        """Whether to write while a thread syncs."""
        waiting = self.writer.appended - self.writer.written
        enough = WRITE_BYTES_MIN if self._syncs_always else 1
        return self._writable and waiting >= enough and not self.writer.seals_next

    async def _write_meanwhile(self) -> None:
        """Write what all sessions with work at this moment appended; the next sync is theirs."""
        self._writing = True
        try:
            await trio.lowlevel.checkpoint()
            if self._may_write():
                self._write_now()
        finally:
            self._writing = False
            if not self._syncs_always:
                self._others.unpark_all()


def _timed(sync: Callable[[], None]) -> float:
    """Return the seconds that a sync takes, without the way to the thread and back."""
    started = perf_counter()
    sync()
    return perf_counter() - started
