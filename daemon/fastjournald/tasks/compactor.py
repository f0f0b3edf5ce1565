"""Keeps the log small while requests go on: cleans sealed segments, one at a time.

How a segment is compacted: ``compaction.compact_segment``. Reading, writing and syncing run in
threads; looking at records runs in the event loop, in slices of about a millisecond, with others'
turns between them (``Pace``). A thread for that would not be kinder: it would hold the interpreter
for as long, and at moments that nobody chooses.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournal.errors import (
    FastjournalError,
    LogCorruptError,
    LogFailedError,
    LogLockedError,
)
from fastjournald.compaction.compact_segment import clean_segment
from fastjournald.compaction.policy import bytes_usual, candidates
from fastjournald.compaction.replace_segment import DURABLE, NOW, TURN, Blocking, Cleaning

if TYPE_CHECKING:
    from fastjournald.server import Server

LOOK_SECONDS = 1.0
"""Between two looks at how large the log is."""

OTHERS_SHARE = 3
"""So many times as long as a slice takes, others have their turn behind it."""

LATE_SHARE = 4
"""So many times as long as it is woken too late, cleaning gives way in addition: the event loop has
other work."""

LATE_WEIGHT = 0.2
"""Of the newest wake-up in the moving mean."""

LATE_SECONDS = 0.001
"""What timers are late by on an idle machine."""

TURN_SECONDS_MAX = 0.003
"""For which others wait at most while the log is far too large."""


PRESSURE_SECONDS = 0.1
"""Between two looks at how much cleaning has to hurry."""

OUTCOMES = ("removed", "moved", "rewritten", "left", "failed")
"""What becomes of a segment; ``failed``: it is damaged, or is being read, or there is no room."""


class Pace:
    """Shares the event loop between cleaning and everybody else.

    Where there is little else to do cleaning has a quarter of it. The more others have to do, the
    later it is woken, and the longer it stays away: so those who wait for their replies hardly
    notice it. It may fall behind by that, for a while. The further the log has outgrown the size at
    which cleaning begins, up to twice that, the less it gives way: in the end it takes half as much
    of the loop as all others, and they are slowed down by what they leave behind.
    """

    def __init__(self) -> None:
        self._late = 0.0
        self._used = 0.0
        self._entitled = 0.0

    async def give_way(self, used: float, pressure: float) -> None:
        """Let others have their turn, if it is theirs.

        Args:
            used: Seconds for which the event loop was taken since the last call.
            pressure: 0 while cleaning keeps up, 1 when it has to.
        """
        self._used += used
        if self._used < self._entitled:
            return
        kindness = 1 - pressure
        seconds = kindness * (OTHERS_SHARE * self._used + LATE_SHARE * self._late)
        slept_at = trio.current_time()
        await trio.sleep(seconds)
        slept = trio.current_time() - slept_at
        late = max(slept - seconds - LATE_SECONDS, 0.0)
        self._late += LATE_WEIGHT * (late - self._late)
        self._entitled = min(pressure * slept / 2, TURN_SECONDS_MAX)
        self._used = 0.0


class Cleaner:
    """Cleans the log every ``cmdlog-clean-int``, and sooner where it grows fast.

    Args:
        server: Engine, log and clock.
    """

    def __init__(self, server: Server) -> None:
        self.outcomes: Counter[str] = Counter()
        """How the cleanings of segments ended."""
        self.freed_bytes = 0
        """By which segments became smaller, or went."""
        self._server = server
        self._pace = Pace()
        self._weighed = 0.0
        self._weighed_at = -math.inf

    async def run(self) -> None:
        """Clean, again and again; 0 as interval: never.

        Raises:
            LogFailedError: A segment could not be replaced or unlinked.
        """
        seconds = self._server.config.cmdlog_clean_int / 1000
        if not seconds:
            return
        pressure = self._server.backpressure
        due = trio.current_time() + seconds
        while True:
            with trio.move_on_after(min(LOOK_SECONDS, seconds)):
                await pressure.wait_needed()
            freed = self.freed_bytes
            if trio.current_time() >= due:
                await self.clean()
                due = trio.current_time() + seconds
            elif self._excess() > 0:
                await self.clean(only_excess=True)
            pressure.look()
            if pressure.needed and self.freed_bytes == freed:
                pressure.give_up()

    def _excess(self) -> float:
        """Return by which part the log is larger than it should be. O(number of segments)."""
        writer = self._server.writer
        return writer.log_bytes / bytes_usual(self._server.engine.store, writer) - 1

    def _pressure(self) -> float:
        """Return how much cleaning has to hurry, from 0 to 1."""
        if self._server.backpressure.closed:
            return 1.0
        now = trio.current_time()
        if now >= self._weighed_at + PRESSURE_SECONDS:
            self._weighed_at = now
            self._weighed = min(max(self._excess(), 0.0), 1.0)
        return self._weighed

    async def clean(self, *, only_excess: bool = False) -> None:
        """Clean segments that are worth it, the oldest first.

        Args:
            only_excess: No more than it takes to make the log as small as it should be: what dies
                until the others' turn has not to be copied.

        Raises:
            LogFailedError: A segment could not be replaced or unlinked.
        """
        server = self._server
        engine = server.engine
        now = server.clock.now_us()
        for info in candidates(engine.store, server.writer, now, merge=not only_excess):
            # on a full disk there is room for what frees room at once, and for no more
            if engine.read_only and engine.journal.usage.live[info.number]:
                continue
            if only_excess and self._excess() <= 0:
                break
            await self._clean(info)

    async def _clean(self, info: SegmentInfo) -> None:
        server = self._server
        started = perf_counter()
        cleaning = clean_segment(
            server.engine.store,
            server.writer,
            server.disk,
            server.config.cmdlog_path,
            info,
            server.clock.now_us(),
        )
        outcome = await self._drive(cleaning)
        left = (each.bytes for each in server.writer.sealed if each.number == info.number)
        freed = info.bytes - next(left, 0)
        self.freed_bytes += freed
        server.backpressure.freed(freed)
        self.outcomes[outcome if outcome in OUTCOMES else "failed"] += 1
        server.log.info(
            "event=cleaned segment=%s outcome=%r bytes=%d freed=%d milliseconds=%d",
            info.name,
            outcome,
            info.bytes,
            freed,
            (perf_counter() - started) * 1000,
        )

    async def _drive(self, cleaning: Cleaning) -> str:
        server = self._server
        answer: object = None
        failure: FastjournalError | None = None
        used = 0.0
        async with AsyncExitStack() as held:
            while True:
                started = perf_counter()
                try:
                    wanted = cleaning.send(answer) if failure is None else cleaning.throw(failure)
                except StopIteration as stop:
                    return str(stop.value)
                used += perf_counter() - started
                await held.aclose()
                answer = failure = None
                if wanted is TURN:
                    server.timers.look()
                    await self._pace.give_way(used, self._pressure())
                    used = 0.0
                    answer = server.clock.now_us()
                elif wanted is NOW:
                    answer = server.clock.now_us()
                elif wanted is DURABLE:
                    await server.commit.wait_durable(server.writer.appended)
                else:
                    assert isinstance(wanted, Blocking)
                    if wanted.exclusive:
                        await held.enter_async_context(server.segments_free)
                    try:
                        answer = await trio.to_thread.run_sync(wanted.call)
                    except (LogFailedError, LogLockedError, LogCorruptError) as error:
                        failure = error
