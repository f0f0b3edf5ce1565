"""Compactor: keeps the log small while requests go on, one sealed segment at a time.

``compaction.compact_segment`` has the steps of a segment. Reading, writing and syncing run in
threads; looking at records runs in the event loop, in slices of about a millisecond, with others'
turns between them (``CompactionPace``). A thread for that would delay requests no less: it would
hold the interpreter for as long, and at moments that cannot be chosen.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from time import perf_counter

import trio

from fastjournal.cmdlog.format.layout import SegmentInfo, pack_position
from fastjournal.errors import (
    FastjournalError,
    LogCorruptError,
    LogFailedError,
    LogLockedError,
)
from fastjournal.loglines import LogEvent, Sentence
from fastjournal.remote.writer import may_compact
from fastjournald.compaction.compact_segment import (
    DURABLE,
    NOW,
    TURN,
    Blocking,
    Compaction,
    CompactionResult,
    CompactionStoppedError,
    compact_segment,
)
from fastjournald.compaction.policy import candidates, excess
from fastjournald.runtime import Runtime
from fastjournald.tasks.free_space import may_rewrite

LOG = logging.getLogger("fastjournald")

LOOK_SECONDS = 1.0
"""Time between two checks of the log size."""

OTHERS_SHARE = 3
"""Other tasks run for this multiple of the duration of a slice after it."""

LATE_SHARE = 4
"""So many times as long as it is woken too late, compaction gives way in addition: the event loop
has other work."""

LATE_WEIGHT = 0.2
"""Weight of the newest wake-up in the moving mean."""

LATE_SECONDS = 0.001
"""Delay of timers on an idle machine."""

TURN_SECONDS_MAX = 0.003
"""Longest time for which others wait while the log is far too large."""

DEBT_SECONDS = 0.1
"""Time between two checks of the compaction debt."""


class CompactionPace:
    """Shares the event loop between compaction and all other tasks.

    With little other work compaction gets a quarter of it. The more work the others have, the later
    compaction is woken and the longer it pauses: so waiting requests are hardly delayed. Compaction
    may fall behind for a while. The further the log exceeds the size at which compaction begins, up
    to twice that, the shorter it yields: in the end it gets half as much of the loop as all others,
    and they are slowed down by the garbage that they produce.
    """

    def __init__(self) -> None:
        self._late = 0.0
        self._used = 0.0
        self._entitled = 0.0

    async def give_way(self, used: float, compaction_debt: float) -> None:
        """Yield to other tasks, if it is their turn.

        Args:
            used: Seconds of the event loop used since the last call.
            compaction_debt: 0 while compaction keeps up, 1 when it must catch up.
        """
        self._used += used
        if self._used < self._entitled:
            return
        yield_factor = 1 - compaction_debt
        seconds = yield_factor * (OTHERS_SHARE * self._used + LATE_SHARE * self._late)
        slept_at = trio.current_time()
        await trio.sleep(seconds)
        slept = trio.current_time() - slept_at
        late = max(slept - seconds - LATE_SECONDS, 0.0)
        self._late += LATE_WEIGHT * (late - self._late)
        self._entitled = min(compaction_debt * slept / 2, TURN_SECONDS_MAX)
        self._used = 0.0


class Compactor:
    """Compacts the log every ``cmdlog-clean-int``, and sooner where it grows fast.

    Args:
        runtime: Engine, log and clock.
        archive_sealed: Links sealed segments into the archive, if there is one: compaction touches
            none before.
    """

    def __init__(self, runtime: Runtime, archive_sealed: Callable[[], Awaitable[None]]) -> None:
        self._runtime = runtime
        self._archive_sealed = archive_sealed
        self._pace = CompactionPace()
        self._debt = 0.0
        self._debt_at = -math.inf

    async def run(self) -> None:
        """Compact, again and again; 0 as interval: never.

        Raises:
            LogFailedError: A segment could not be sealed, replaced or unlinked.
        """
        seconds = self._runtime.config.cmdlog_clean_int / 1000
        if not seconds:
            return
        counters, backpressure = self._runtime.counters, self._runtime.backpressure
        due = trio.current_time() + seconds
        while True:
            with trio.move_on_after(min(LOOK_SECONDS, seconds)):
                await backpressure.wait_needed()
            # a pass that began before writers waited says nothing of what the next one frees
            needed, freed = backpressure.needed, counters.compaction_freed_bytes
            if trio.current_time() >= due:
                await self.compact()
                due = trio.current_time() + seconds
            elif self._excess() > 0:
                await self.compact(only_excess=True)
            backpressure.look()
            if needed and self._was_in_vain(freed) and await self._seal_unsealed():
                await self.compact(only_excess=True)
                backpressure.look()
            if needed and self._was_in_vain(freed):
                backpressure.stop_slowing()

    def _was_in_vain(self, freed: int) -> bool:
        """Whether writers wait, and compaction has freed no more than so many bytes since."""
        runtime = self._runtime
        return runtime.backpressure.needed and runtime.counters.compaction_freed_bytes == freed

    async def _seal_unsealed(self) -> bool:
        """Seal what is at least a segment, and not sealed because a sync takes long; whether so.

        Meanwhile all that clients append goes into one or two segments, however large they get.

        Raises:
            LogFailedError: A write or sync failed.
        """
        writer = self._runtime.writer
        unsealed = writer.log_bytes - sum(info.bytes for info in writer.sealed)
        if unsealed < writer.segment_bytes_max:
            return False
        await self._runtime.commit.roll()
        return True

    def _excess(self) -> float:
        """Return by which part the log is larger than it should be. O(number of segments)."""
        return excess(self._runtime.engine.store, self._runtime.writer)

    def _compaction_debt(self) -> float:
        """Return how much compaction has to hurry, from 0 to 1."""
        if self._runtime.backpressure.closed:
            return 1.0
        now = trio.current_time()
        if now >= self._debt_at + DEBT_SECONDS:
            self._debt_at = now
            self._debt = min(max(self._excess(), 0.0), 1.0)
        return self._debt

    async def compact(self, *, only_excess: bool = False) -> None:
        """Compact segments that are worth it, the oldest first; in read-only mode, the dead ones.

        Args:
            only_excess: No more than it takes to make the log as small as it should be: records
                that die until the others' turn have not to be copied.

        Raises:
            LogFailedError: A segment could not be replaced or unlinked.
        """
        await self._archive_sealed()
        engine, writer = self._runtime.engine, self._runtime.writer
        now = self._runtime.clock.now_us()
        found = candidates(engine.store, writer, now, merge=not only_excess)
        if engine.context.read_only:
            # segments that only have to be removed make room for copies of the others
            found.sort(key=lambda info: engine.journal.usage.live[info.number] > 0)
        for info in found:
            if not may_rewrite(self._runtime, info) or not self._is_stored(info):
                continue
            if only_excess and self._excess() <= 0:
                break
            await self._compact(info)

    def _is_stored(self, info: SegmentInfo) -> bool:
        """Return whether a remote log, if there is one, has all of a segment."""
        remote, end = self._runtime.remote, pack_position(info.number, info.bytes)
        return remote is None or may_compact(end, remote.stored_position)

    async def _compact(self, info: SegmentInfo) -> None:
        runtime = self._runtime
        started = perf_counter()
        compaction = compact_segment(
            runtime.engine.store,
            runtime.writer,
            runtime.disk,
            runtime.config.cmdlog_path,
            info,
            runtime.clock.now_us(),
        )
        try:
            result = await self._drive(compaction)
        except trio.Cancelled:
            with suppress(CompactionStoppedError):
                compaction.throw(CompactionStoppedError())
            raise
        left = (each.bytes for each in runtime.writer.sealed if each.number == info.number)
        freed = info.bytes - next(left, 0)
        runtime.counters.compaction_freed_bytes += freed
        runtime.backpressure.freed(freed)
        runtime.counters.compaction_outcomes[result.outcome] += 1
        LOG.info(
            LogEvent(
                "cleaned",
                segment=info.name,
                outcome=Sentence(result),
                bytes=info.bytes,
                freed=freed,
                milliseconds=int((perf_counter() - started) * 1000),
            )
        )

    async def _drive(self, compaction: Compaction) -> CompactionResult:
        """Carry out what the compaction of a segment waits for, until it ends; return how."""
        runtime = self._runtime
        answer: object = None
        failure: FastjournalError | None = None
        used = 0.0
        async with AsyncExitStack() as held:
            while True:
                started = perf_counter()
                try:
                    if failure is None:
                        wanted = compaction.send(answer)
                    else:
                        wanted = compaction.throw(failure)
                except StopIteration as stop:
                    result: CompactionResult = stop.value
                    return result
                used += perf_counter() - started
                if not runtime.engine.journal.usage.replaced:
                    # else not all entries know where their records are: no snapshot begins
                    await held.aclose()
                answer = failure = None
                if wanted is TURN:
                    runtime.wake_tasks()
                    await self._pace.give_way(used, self._compaction_debt())
                    used = 0.0
                    answer = runtime.clock.now_us()
                elif wanted is NOW:
                    answer = runtime.clock.now_us()
                elif wanted is DURABLE:
                    await runtime.commit.wait_durable(runtime.writer.appended)
                else:
                    assert isinstance(wanted, Blocking)
                    if wanted.exclusive:
                        await held.enter_async_context(runtime.segments_free)
                    try:
                        answer = await trio.to_thread.run_sync(wanted.call)
                    except (LogFailedError, LogLockedError, LogCorruptError) as error:
                        failure = error
