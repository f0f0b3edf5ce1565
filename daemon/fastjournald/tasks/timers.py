"""What happens by the clock: leases and lives that end, delays that are over, a disk that fills."""

from __future__ import annotations

import gc
import logging
from itertools import count
from typing import TYPE_CHECKING

import trio

from fastjournal.limits import REPLIES_BYTES_MAX
from fastjournald.histogram import Histogram
from fastjournald.tables.domain import NEVER

if TYPE_CHECKING:
    from fastjournald.server import Server

LOG = logging.getLogger("fastjournald")

SLEEP_SECONDS_MAX = 1.0
"""The machine's clock may be set at any time: so long at most until that is noticed."""

SPACE_SECONDS = 0.25
"""Between two looks at the free space: one process appends less than the default min-free-bytes
(64 MiB) in that time."""

CLOCK_BEHIND_US = 1_000_000
"""A clock that is set back by more than this is worth a word: leases and delays stand still."""

FULL_COLLECTION_SECONDS = 3600
"""Between two full garbage collections, which take 25 ms for a million entries."""


class Timers:
    """Wakes the engine when its next instant has come.

    Args:
        server: Engine, commit and clock.
    """

    def __init__(self, server: Server) -> None:
        self.lag_us = Histogram(24)
        """How much later than asked for the event loop wakes this task, up to 16.8 s."""
        self._server = server
        self._sleeping_until = NEVER
        self._sooner = trio.Event()
        self._behind = False

    def look(self) -> None:
        """The engine changed: wake sooner if its next instant is sooner."""
        instant = self._server.engine.next_wake()
        if instant is not None and instant < self._sleeping_until:
            self._sooner.set()

    async def run(self) -> None:
        """Advance the engine, again and again.

        Raises:
            LogFailedError: The log failed.
        """
        server = self._server
        engine = server.engine
        while True:
            now = server.clock.now_us()
            instant = engine.next_wake()
            if instant is not None and instant <= now:
                engine.advance(now)
                server.deliver(engine.serve_waiters(now))
                server.notifier.look()
                await server.notifier.wait_room()
                unsettled = server.writer.appended - server.writer.settled
                if unsettled and (unsettled > REPLIES_BYTES_MAX or not engine.store.behind):
                    await server.commit.wait_settled(server.writer.appended)
                else:
                    await trio.lowlevel.checkpoint()
                continue
            seconds = SLEEP_SECONDS_MAX
            if instant is not None:
                seconds = min(seconds, (instant - now) / 1_000_000)
            self._sleeping_until = now + int(seconds * 1_000_000)
            self._sooner = trio.Event()
            with trio.move_on_after(seconds):
                await self._sooner.wait()

    async def collect_garbage(self) -> None:
        """Free reference cycles of tasks and exceptions; automatic collection is off."""
        for second in count(1):
            await trio.sleep(1)
            gc.collect(2 if second % FULL_COLLECTION_SECONDS == 0 else 1)

    def check_clock(self) -> None:
        """Tell, once, that the machine's clock was set back.

        Until it has caught up, the engine's time stands still: no lease, delay or life ends.
        """
        behind = self._server.engine.now - self._server.clock.now_us()
        if behind > CLOCK_BEHIND_US and not self._behind:
            self._behind = True
            LOG.warning(
                "event=clock-behind seconds=%.1f "
                "what='the clock was set back: no lease or delay ends until it has caught up'",
                behind / 1_000_000,
            )
        elif behind <= 0 and self._behind:
            self._behind = False
            LOG.info("event=clock-caught-up")

    async def watch_space(self) -> None:
        """Make the engine read-only in time, and writable again, as the disk fills and empties.

        Raises:
            LogFailedError: The file system cannot be asked.
        """
        server = self._server
        while True:
            server.check_space()
            self.check_clock()
            asleep_until = trio.current_time() + SPACE_SECONDS
            await trio.sleep_until(asleep_until)
            self.lag_us.add(round((trio.current_time() - asleep_until) * 1_000_000))
