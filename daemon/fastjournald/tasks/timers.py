"""Timers: advance the engine when a lease, life or delay ends, and watch the clock."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable

import trio

from fastjournal.limits import REPLIES_BYTES_MAX
from fastjournald.runtime import Runtime
from fastjournald.tables.domain import NEVER

LOG = logging.getLogger("fastjournald")

SLEEP_SECONDS_MAX = 1.0
"""The machine's clock may be set at any time: so long at most until that is noticed."""

CLOCK_SECONDS = 0.25
"""Between two looks at the clock."""

CLOCK_BEHIND_US = 1_000_000
"""A clock that is set back by more than this is worth a message: leases and delays stop."""

COLLECTION_SECONDS = 0.2
"""Between two garbage collections of young objects. One takes the longer, the more lists and
dictionaries came since: the blocks of the key index, while it is built."""

FULL_COLLECTION_SECONDS = 3600
"""Between two full garbage collections, which take 25 ms for a million entries."""

FULL_COLLECTION_SECONDS_MAX = 24 * 3600
"""The same for a daemon that is never idle; else a full collection waits until no request came."""


class Timers:
    """Wakes the engine when its next instant has come.

    Args:
        runtime: Engine, commit and clock.
        wait_matched: Returns when no longer so many changes wait to be matched that no more should
            come.
    """

    def __init__(self, runtime: Runtime, wait_matched: Callable[[], Awaitable[None]]) -> None:
        self._runtime = runtime
        self._wait_matched = wait_matched
        self._sleeping_until = NEVER
        self._sooner = trio.Event()
        self._behind = False

    def look(self) -> None:
        """The engine changed: wake sooner if its next instant is sooner."""
        instant = self._runtime.engine.next_wake()
        if instant is not None and instant < self._sleeping_until:
            self._sooner.set()

    async def run(self) -> None:
        """Advance the engine, again and again.

        Raises:
            LogFailedError: The log failed.
        """
        runtime = self._runtime
        engine, writer = runtime.engine, runtime.writer
        while True:
            now = runtime.clock.now_us()
            instant = engine.next_wake()
            if instant is not None and instant <= now:
                engine.advance(now)
                runtime.deliver(engine.serve_waiters(now))
                runtime.wake_tasks()
                await self._wait_matched()
                unsettled = writer.appended - writer.settled
                if unsettled and (unsettled > REPLIES_BYTES_MAX or not engine.deadlines.behind):
                    await runtime.commit.wait_settled(writer.appended)
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
        requests = self._runtime.engine.counters.requests
        full = trio.current_time()
        while True:
            before = sum(requests.values())
            await trio.sleep(COLLECTION_SECONDS)
            since = trio.current_time() - full
            if since >= FULL_COLLECTION_SECONDS_MAX or (
                since >= FULL_COLLECTION_SECONDS and sum(requests.values()) == before
            ):
                gc.collect()
                full = trio.current_time()
            else:
                gc.collect(1)

    def check_clock(self) -> None:
        """Tell, once, that the machine's clock was set back.

        Until it has caught up, the engine's time stops: no lease, delay or life ends.
        """
        behind = self._runtime.engine.now - self._runtime.clock.now_us()
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

    async def watch_clock(self) -> None:
        """Look at the clock, and measure how late the event loop wakes this task."""
        while True:
            self.check_clock()
            asleep_until = trio.current_time() + CLOCK_SECONDS
            await trio.sleep_until(asleep_until)
            lag = trio.current_time() - asleep_until
            self._runtime.counters.lag_us.add(round(lag * 1_000_000))
