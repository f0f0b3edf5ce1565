"""Keeps the log small while requests go on: cleans sealed segments, one at a time.

What is done to a segment: ``fastjournald.cleaning``. Reading, writing and syncing run in threads;
looking at records runs in the event loop, in slices of about a millisecond with three times as long
for everybody else between them. A thread for that would not be kinder: it would hold the
interpreter for as long, and at moments that nobody chooses.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from fastjournal.cmdlog.segments import SegmentInfo
from fastjournal.errors import FastjournalError, LogFailedError, LogLockedError
from fastjournald.cleaning import DURABLE, TURN, Blocking, Cleaning, candidates, clean_segment

if TYPE_CHECKING:
    from fastjournald.server import Server

LOOK_SECONDS = 1.0
"""Between two looks at how large the log is."""

OTHERS_SHARE = 3
"""So many times as long as a slice takes, others have their turn behind it."""

GARBAGE_MAX = 2
"""A log of more than so many times its live bytes, and two segments, is cleaned at once: the usual
time may be long, and the load heavy."""


OUTCOMES = ("removed", "moved", "rewritten", "left", "failed")
"""What becomes of a segment; ``failed``: it is damaged, or is being read, or there is no room."""


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

    async def run(self) -> None:
        """Clean, again and again; 0 as interval: never.

        Raises:
            LogFailedError: A segment could not be replaced or unlinked.
        """
        seconds = self._server.config.cmdlog_clean_int / 1000
        if not seconds:
            return
        due = trio.current_time() + seconds
        while True:
            await trio.sleep(min(LOOK_SECONDS, seconds))
            if trio.current_time() >= due or self._is_large():
                await self.clean()
                due = trio.current_time() + seconds

    def _is_large(self) -> bool:
        server = self._server
        writer, journal = server.writer, server.engine.journal
        size = sum(info.bytes for info in writer.sealed)
        size += writer.active.bytes if writer.active else 0
        return size > GARBAGE_MAX * journal.live_bytes + 2 * writer.segment_bytes_max

    async def clean(self) -> None:
        """Clean every segment that is worth it, the oldest first.

        Raises:
            LogFailedError: A segment could not be replaced or unlinked.
        """
        server = self._server
        engine = server.engine
        for info in candidates(engine.store, server.writer, server.clock.now_us()):
            # on a full disk there is room for what frees room at once, and for no more
            if engine.read_only and engine.journal.space.live[info.number]:
                continue
            await self._clean(info)

    async def _clean(self, info: SegmentInfo) -> None:
        server = self._server
        started = perf_counter()
        before = sum(segment.bytes for segment in server.writer.sealed)
        cleaning = clean_segment(
            server.engine.store,
            server.writer,
            server.disk,
            server.config.cmdlog_path,
            info,
            server.clock.now_us(),
        )
        outcome = await self._drive(cleaning)
        freed = before - sum(segment.bytes for segment in server.writer.sealed)
        self.freed_bytes += max(freed, 0)
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
        async with AsyncExitStack() as held:
            while True:
                started = perf_counter()
                try:
                    wanted = cleaning.send(answer) if failure is None else cleaning.throw(failure)
                except StopIteration as stop:
                    return str(stop.value)
                await held.aclose()
                answer = failure = None
                if wanted is TURN:
                    server.timers.look()
                    await trio.sleep(OTHERS_SHARE * (perf_counter() - started))
                    answer = server.clock.now_us()
                elif wanted is DURABLE:
                    await server.commit.wait_durable(server.writer.appended)
                else:
                    assert isinstance(wanted, Blocking)
                    if wanted.exclusive:
                        await held.enter_async_context(server.segments_free)
                    try:
                        answer = await trio.to_thread.run_sync(wanted.call)
                    except (LogFailedError, LogLockedError) as error:
                        failure = error
