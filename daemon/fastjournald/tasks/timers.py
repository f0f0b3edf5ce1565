"""Timers: advance the engine when a lease, life or delay ends, and watch the clock."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable

import trio

from fastjournal.clock import WatchedClock
from fastjournal.limits import CLOCK_STEP_US_MIN, REPLIES_BYTES_MAX, TOMBSTONES_DROPPED_MAX
from fastjournal.loglines import LogEvent
from fastjournald.runtime import Runtime
from fastjournald.tables.domain import NEVER
from fastjournald.tasks.turn_scheduler import pay_back

LOG = logging.getLogger("fastjournald")

SLEEP_SECONDS_MAX = 1.0
"""The machine's clock may be set at any time: so long at most until that is noticed."""

CLOCK_SECONDS = 0.25
"""Time between two checks of the clock."""

COLLECTION_SECONDS = 0.2
"""Between two garbage collections of young objects. One takes the longer, the more lists and
dictionaries came since: the blocks of the key index, while it is built."""

FULL_COLLECTION_SECONDS = 3600
"""Between two full garbage collections, which take 25 ms for a million entries."""

FULL_COLLECTION_SECONDS_MAX = 24 * 3600
"""The same for a daemon that is never idle; else a full collection waits for an idle moment."""


class Timers:
    """Wakes the engine when its next instant has come.

    Args:
        runtime: Engine and commit.
        clock: The runtime's.
        wait_matched: Returns when no longer so many changes wait to be matched that no more should
            come.
    """

    def __init__(
        self, runtime: Runtime, clock: WatchedClock, wait_matched: Callable[[], Awaitable[None]]
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        clock.on_step = self._stepped
        self._wait_matched = wait_matched
        self._sleeping_until = NEVER
        self._sooner = trio.Event()
        self._behind = False
        self._has_moved = False
        """A step of the clock has moved ends of durations."""

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
                before = engine.store.work
                engine.advance(now)
                runtime.deliver(engine.serve_waiters(now))
                work = engine.store.work - before
                runtime.wake_tasks()
                await self._wait_matched()
                waiting = writer.appended - writer.committed
                if waiting and (waiting > REPLIES_BYTES_MAX or not engine.deadlines.behind):
                    await runtime.commit.wait_committed(writer.appended)
                await pay_back(runtime.turns, work)
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

    def _stepped(self, now: int, step_us: int) -> None:
        """The clock was set, or the machine was suspended: durations do not notice."""
        runtime = self._runtime
        ends = runtime.engine.clock_stepped(now, step_us)
        ahead = step_us > 0
        runtime.counters.clock_steps["ahead" if ahead else "back"] += 1
        LOG.warning(
            LogEvent(
                "clock-stepped",
                seconds=f"{step_us / 1_000_000:+.1f}",
                leases=ends.leases,
                delays=ends.delays,
                pauses=ends.pauses,
                expiries=ends.expiries,
                what="it was set ahead, or the machine was suspended: leases end as much later"
                if ahead
                else "it was set back: what lasts for a time ends as much earlier by it",
            )
        )
        self._has_moved = ends.total() > 0
        self._sooner.set()

    def check_clock(self) -> None:
        """Log once that the clock was set back, and once that it has caught up.

        Meanwhile instants that clients sent come again, and records of the log are in the future.
        """
        context = self._runtime.engine.context
        behind = context.behind_us(self._clock.look())
        if behind > CLOCK_STEP_US_MIN and not self._behind:
            self._behind = True
            LOG.warning(
                LogEvent(
                    "clock-behind",
                    seconds=f"{behind / 1_000_000:.1f}",
                    what="the clock was set back: the log has later records, and what waits for an"
                    " instant waits until the clock has come there",
                )
            )
        elif behind <= 0 and self._behind:
            self._behind = False
            LOG.info(LogEvent("clock-caught-up"))

    def drop_tombstones(self) -> None:
        """Drop tombstones whose time is over, a part of them: a deletion drops a few only."""
        engine = self._runtime.engine
        tombstones, before = engine.store.tombstones, len(engine.store.tombstones)
        tombstones.drop_expired(self._runtime.clock.now_us(), TOMBSTONES_DROPPED_MAX)
        engine.store.work += before - len(tombstones)

    async def watch_clock(self) -> None:
        """Look at the clock, and measure how late the event loop wakes this task.

        Raises:
            LogFailedError: The log failed.
        """
        runtime = self._runtime
        while True:
            self.check_clock()
            if self._has_moved:
                # no client waits for their records
                self._has_moved = False
                await runtime.commit.wait_committed(runtime.writer.appended)
            self.drop_tombstones()
            asleep_until = trio.current_time() + CLOCK_SECONDS
            await trio.sleep_until(asleep_until)
            lag = trio.current_time() - asleep_until
            runtime.counters.lag_us.add(round(lag * 1_000_000))
