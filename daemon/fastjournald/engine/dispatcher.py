"""Dispatcher: delivers newly ready entries to waiting requests. Pure.

NEXTs with LISTEN wait in the order of their arrival. Each newly ready domain is queued; the
dispatcher serves the oldest request that the domain matches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from fastjournal.limits import (
    DOMAIN_WORK,
    HANG_UP_LOOK_WORK,
    READY_DOMAINS_MAX,
    REPLIES_BYTES_MAX,
    SERVED_MAX,
    WAIT_END_WORK,
)
from fastjournal.protocol import ErrorCode, Reply
from fastjournald.engine.context import Context
from fastjournald.engine.handlers.next import next_work, nothing_due
from fastjournald.engine.waiters import Waiter
from fastjournald.tables.domain import Domain
from fastjournald.tables.entry import Entry
from fastjournald.tables.signals import READY, VALUES
from fastjournald.tables.value_cache import ALL_READABLE, Missing, Unreadable

Answer: TypeAlias = tuple[Hashable, bytes]
"""The session that gets a reply, and the bytes of it."""


class Dispatcher:
    """Server of the NEXTs that wait.

    Args:
        context: Waiting requests, and the entries for them.
    """

    def __init__(self, context: Context) -> None:
        self.awaited: dict[bytes, Entry] = {}
        """By primary key, what those who wait would get, if its value were in memory."""
        self._context = context
        self._store = context.store
        self._waiters = context.waiters
        self._newly_ready = context.store.scheduler.round_robin.newly_ready
        self._parked: dict[bytes, Domain] = {}
        """By name, domains whose next work is awaited from the disk."""

    @property
    def has_more(self) -> bool:
        """Whether more may be served at once than the last ``serve`` did. O(1)."""
        return bool(self._newly_ready.domains) and not self._awaits_enough()

    def serve(
        self, now: int, work_over: int, unreadable: Unreadable = ALL_READABLE
    ) -> list[Answer]:
        """Answer requests with ready entries, and those whose wait has ended.

        If there are many, a part of them, and ``has_more`` is set. Entries with evicted values are
        in ``awaited`` then: fill the cache with these, call ``values_read`` and serve again, with
        the reads that failed. Until then their domains are skipped.

        Args:
            now: Present instant.
            work_over: After so much work no more are answered.
            unreadable: The reads that failed.
        """
        context = self._context
        answers: list[Answer] = []
        ready = self._newly_ready.domains
        if self._parked and not self.awaited:
            ready.extend(self._parked.values())
            self._parked.clear()
        if context.read_only or self._store.rules.pauses.everything_until:
            # where this ends, all domains are served again
            ready.clear()
        elif ready:
            self._serve_ready(ready, now, answers, work_over, unreadable)
        for waiter in self._waiters.overdue(now, SERVED_MAX):
            answers.append(context.answer(waiter, nothing_due(context, waiter.request), now))
        return answers

    def _serve_ready(
        self,
        ready: deque[Domain],
        now: int,
        answers: list[Answer],
        work_over: int,
        unreadable: Unreadable,
    ) -> None:
        """Answer who asked first, as long as one of the domains has something for somebody.

        Args:
            ready: The domains; those stay in it that may have something for more.
            now: The present.
            answers: Get the answers.
            work_over: With so much work done no more are answered.
            unreadable: The reads that failed.
        """
        context, store, waiters = self._context, self._store, self._waiters
        turns = store.scheduler.round_robin.turns
        room = REPLIES_BYTES_MAX
        looks = min(len(ready), READY_DOMAINS_MAX)
        store.work += DOMAIN_WORK * looks
        asked = [
            (waiter.serial, name)
            for name in {ready.popleft().name for _ in range(looks)}
            if name in turns and (waiter := waiters.first_for(name)) is not None
        ]
        heapify(asked)
        while asked:
            if room < 0 or len(answers) >= SERVED_MAX or store.work >= work_over:
                break
            serial, name = heappop(asked)
            waiter = waiters.first_for(name)
            if name not in turns or waiter is None:
                continue
            if waiter.serial == serial:
                store.work += HANG_UP_LOOK_WORK
                if self._context.has_hung_up(waiter.session):
                    self.end_waits(waiter.session)
                    self._ask_next(asked, name)
                    continue
                reply = next_work(context, waiter.session, waiter.request, now, unreadable)
                if isinstance(reply, Missing):
                    if self._awaits_enough():
                        heappush(asked, (serial, name))
                        break
                    self._park(name, reply)
                    continue
                if isinstance(reply, Reply) and not reply.error:
                    # the values of all that was ready cannot be read: it waits on
                    continue
                answer = context.answer(waiter, reply, now)
                answers.append(answer)
                room -= len(answer[1])
            self._ask_next(asked, name)
        if waiters:
            ready.extendleft(turns[name] for _, name in asked if name in turns)

    def _ask_next(self, asked: list[tuple[int, bytes]], name: bytes) -> None:
        """Put a domain at the place of the next request that it matches."""
        waiter = self._waiters.first_for(name)
        if waiter is not None:
            heappush(asked, (waiter.serial, name))

    def _park(self, name: bytes, missing: Missing) -> None:
        """Leave a domain out until the values of its next work were read."""
        self.awaited.update((entry.key, entry) for entry in missing.entries)
        self._store.signals.bits |= VALUES
        self._parked[name] = self._store.scheduler.domains[name]

    def values_read(self) -> None:
        """Look again at the domains whose values were awaited: they have been read."""
        self.awaited.clear()
        self._store.signals.bits |= READY

    def _awaits_enough(self) -> bool:
        """Whether no more values should be awaited until some were read."""
        return (
            len(self.awaited) >= SERVED_MAX
            or sum(len(entry.value) for entry in self.awaited.values()) >= REPLIES_BYTES_MAX
        )

    def end_waits(self, session: Hashable) -> None:
        """Cancel all waits of a session whose client has disconnected, without replies."""
        waiting = self._waiters.of_session(session)
        self._store.work += WAIT_END_WORK * len(waiting)
        for waiter in waiting:
            self._waiters.remove(waiter)

    def refuse(self, waiting: list[Waiter], error: str, now: int) -> list[Answer]:
        """Answer waiting requests with an error."""
        return [self._context.answer(waiter, Reply(error=error), now) for waiter in waiting]

    def shut_down(self, now: int) -> list[Answer]:
        """Answer all waiting requests, because the daemon stops."""
        return self.refuse(self._waiters.all(), ErrorCode.SHUTTING_DOWN, now)
