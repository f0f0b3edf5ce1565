"""Scan runner and scan queue: range and regex scans in slices, beside all other work.

The duration of a scan is not bounded; the delay that it causes is. All scans share one turnstile,
so fifty scans use the loop no longer than one: a request waits for at most one slice in a round.
Scans take their slices in turns, so a short scan does not wait for the end of a long one.

The number of scans that build replies at the same time is bounded, because replies are memory. Each
scan needs a place in the queue. It yields the place while it waits for its turn, and while a thread
matches for it, unless its reply is too large to be kept meanwhile. One scan at a time uses the
thread, in turns too. Beside others, or where a scan waits for a place, a page ends after a few
slices.

A connection has one scan at a time, so turns of scans are turns of connections. New scans and
continued scans get alternate places: a short scan ends soon, and a long one never starves. A client
that has closed its sending side may have disconnected, or may still read; the daemon cannot know.
Its scan gets a place if no other scan waits.

The scan runner also merges the key index: in slices while no request arrives, otherwise in a slice
of a turn, as if the index were a client.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TypeGuard

import trio

from fastjournal import limits
from fastjournal.protocol import ErrorCode, encode_error
from fastjournald.admission.turn_budget import Share
from fastjournald.engine.engine import LongMatches, Missing, Scan
from fastjournald.runtime import Runtime
from fastjournald.tables.key_index import KeyIndex
from fastjournald.tables.value_cache import ALL_READABLE, Unreadable


class _QueuedScan:
    """Scan in the queue."""

    __slots__ = ("granted", "has_ended", "left")

    def __init__(self, has_ended: Callable[[], bool]) -> None:
        self.has_ended = has_ended
        self.granted = trio.Event()
        self.left = False


class ScanQueue:
    """Places, and the queue of scans that want one.

    Args:
        places: Number of the places.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._beginning: deque[_QueuedScan] = deque()
        self._going_on: deque[_QueuedScan] = deque()
        self._ended: deque[_QueuedScan] = deque()
        """Scans of clients that have ended their requests."""
        self._prefers_beginning = True
        """Whether the next place is for a scan that begins."""

    @property
    def is_awaited(self) -> bool:
        """Whether a scan wants a place of one that has one."""
        return bool(self._beginning or self._going_on)

    async def enter(self, has_ended: Callable[[], bool], *, begins: bool) -> None:
        """Take a place, until ``leave`` is called.

        Args:
            has_ended: Whether the client of the scan has ended its requests.
            begins: Whether the scan had no place before.
        """
        client = _QueuedScan(has_ended)
        (self._beginning if begins else self._going_on).append(client)
        self._grant()
        try:
            await client.granted.wait()
        except trio.Cancelled:
            client.left = True
            if client.granted.is_set():
                self.leave()
            raise

    def leave(self) -> None:
        """Give the place to the next scan."""
        self._free += 1
        self._grant()

    def _grant(self) -> None:
        while self._free and (client := self._next()) is not None:
            self._free -= 1
            client.granted.set()

    def _next(self) -> _QueuedScan | None:
        """Take the next scan out of the queue, and return it; None: there is none."""
        while self.is_awaited:
            queues = (self._beginning, self._going_on)
            queue = queues[not self._prefers_beginning] or queues[self._prefers_beginning]
            client = queue.popleft()
            if client.left:
                continue
            if client.has_ended():
                self._ended.append(client)
                continue
            self._prefers_beginning = queue is not self._beginning
            return client
        while self._ended:
            client = self._ended.popleft()
            if not client.left:
                return client
        return None


class Place:
    """Place of one scan, which it may give back and take again.

    Args:
        queue: Queue of the scans.
        has_ended: Whether the client of the scan has closed its sending side.
    """

    def __init__(self, queue: ScanQueue, has_ended: Callable[[], bool]) -> None:
        self._queue = queue
        self.has_ended = has_ended
        self._is_held = False
        self._begins = True

    async def enter(self) -> None:
        """Take it, unless that was done."""
        if not self._is_held:
            await self._queue.enter(self.has_ended, begins=self._begins)
            self._is_held, self._begins = True, False

    def leave(self) -> None:
        """Give the place back, unless that was done."""
        if self._is_held:
            self._is_held = False
            self._queue.leave()


class Others:
    """Work of others beside scans. It is remembered from one slice or page to the next ones."""

    def __init__(self) -> None:
        self._work = 0
        """At most twice what is enough; half of it counts on after each ``OTHERS_SECONDS``."""
        self._halved_at = -math.inf

    def note(self, work: int) -> bool:
        """Add work that others have just done; return whether scans are beside others.

        Args:
            work: In units of about a microsecond.
        """
        now = trio.current_time()
        if now >= self._halved_at:
            self._work = self._work // 2 if now < self._halved_at + OTHERS_SECONDS else 0
            self._halved_at = now + OTHERS_SECONDS
        self._work = min(self._work + max(0, work), 2 * limits.SCAN_OTHERS_WORK)
        return self._work >= limits.SCAN_OTHERS_WORK


SHARED_SLICES = 3
"""Slices after which a scan ends its page if others work meanwhile: a slice whose values are read
or whose keys are matched first takes long, whatever its work is."""

OTHERS_SECONDS = 1.0
"""How long scans remember that others worked, at least. So a slice or a page without others, as
during a sync for which all of them wait, makes no page longer. What a few requests a second add up
to is forgotten."""

SLICE_SECONDS = 0.001
"""Length of one slice of merging the index while no request arrives."""

REST_ROUNDS = 1
"""Rounds of the event loop without a slice after each that has one. A request takes some rounds
from its first byte to its reply; so it does not meet a slice in each of them."""

STOP_SECONDS = 1.0
"""How long scans go on when the daemon stops; then they end with an error."""

IDLE_LOOK_SECONDS = 0.05
"""Time without a request after which the daemon is idle, and merges the index."""

RUNS_PAUSE_SECONDS = 0.01
"""The same while sorted runs have many keys, and the pause between two slices where it is not
idle."""

REST_SECONDS = 1.0
"""Time until the next check of the index if nothing waits to be merged."""


class ScanRunner:
    """Carries out the scans of all sessions.

    Args:
        runtime: Engine and clock.
        fetch: Reads values that are missing, and returns the reads that failed.
        wait_turn: Waits for a client's turn, for an expected work.
    """

    def __init__(
        self,
        runtime: Runtime,
        fetch: Callable[[Missing], Awaitable[Unreadable]],
        wait_turn: Callable[[Share, int], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._fetch = fetch
        self._wait_turn = wait_turn
        self._gathering = ScanQueue(limits.SCANS_MAX)
        self._turn = trio.Lock()
        self._matching = ScanQueue(1)
        self._matching_threads = trio.CapacityLimiter(1)
        """Threads of its own: what hangs elsewhere does not hold it up. One processor at most."""
        self._stop_at = math.inf
        self._many_gone = trio.Event()
        self._others = Others()
        self._merged = 0
        """Work of merging the index in turns. It is nobody's for whom a page should end."""

    # --- scans ----------------------------------------------------------------------------------

    async def run(
        self,
        scan: Scan,
        is_lost: Callable[[], bool],
        has_ended: Callable[[], bool],
        share: Share,
    ) -> bytes:
        """Carry out a scan and return the encoded reply.

        Args:
            scan: As the engine returned it.
            is_lost: Whether nothing reaches the client any more.
            has_ended: Whether the client has ended its requests.
            share: The client's account of the turns.

        Raises:
            BrokenResourceError: The client is not there any more.
        """
        runtime = self._runtime
        runtime.counters.scans += 1
        reply: bytes | None = None
        place = Place(self._gathering, has_ended)
        try:
            reply = await self._run_slices(scan, place, is_lost, share)
            return reply
        finally:
            place.leave()
            runtime.counters.scans -= 1
            if reply is None:
                runtime.release_undelivered(scan.leased)

    async def _run_slices(
        self, scan: Scan, place: Place, is_lost: Callable[[], bool], share: Share
    ) -> bytes:
        outcome: bytes | Missing | LongMatches | None = None
        store = self._runtime.engine.store
        of_page = slices = 0
        before = store.work - self._merged
        while True:
            unreadable = ALL_READABLE
            if isinstance(outcome, LongMatches):
                await self._match(scan, outcome, place, is_lost)
            elif isinstance(outcome, Missing):
                unreadable = await self._fetch(outcome)
            expected = self._runtime.turns.slice_work
            if not self._runtime.turns.admits(share, expected):
                if not scan.holds_much:
                    place.leave()
                # not in its turn, where the scans of clients that have had less would wait too
                await self._wait_turn(share, expected)
            await place.enter()
            if is_lost():
                raise trio.BrokenResourceError
            async with self._turn:
                begin = store.work
                outcome = await self._take_turn(scan, outcome, share, unreadable)
                if isinstance(outcome, bytes):
                    return outcome
                work = store.work - begin
                for _ in range(REST_ROUNDS):
                    await trio.lowlevel.checkpoint()
            if trio.current_time() > self._stop_at:
                return self._stop_short(scan)
            of_page, slices = of_page + work, slices + 1
            after = store.work - self._merged
            is_shared = self._others.note(after - before - work) or self._gathering.is_awaited
            before = after
            has_had_much = of_page >= limits.SCAN_SHARED_PAGE_WORK or slices >= SHARED_SLICES
            if has_had_much and is_shared and scan.end_page():
                outcome = None

    async def _match(
        self, scan: Scan, matches: LongMatches, place: Place, is_lost: Callable[[], bool]
    ) -> None:
        """Have a thread match keys, when it is the scan's turn; others have its place meanwhile."""
        if not scan.holds_much:
            place.leave()
        elif self._gathering.is_awaited:
            scan.end_page()
            return
        turn = Place(self._matching, place.has_ended)
        await turn.enter()
        try:
            if is_lost():
                raise trio.BrokenResourceError
            await trio.to_thread.run_sync(
                matches.run, abandon_on_cancel=True, limiter=self._matching_threads
            )
        finally:
            turn.leave()
        if scan.holds_much and self._gathering.is_awaited:
            scan.end_page()

    async def _take_turn(
        self,
        scan: Scan,
        before: bytes | Missing | LongMatches | None,
        share: Share,
        unreadable: Unreadable,
    ) -> bytes | Missing | LongMatches | None:
        """Carry out one slice, after the one that had the outcome ``before`` and these reads."""
        runtime = self._runtime
        share.began = runtime.engine.store.work
        outcome = self._slice(scan, unreadable)
        if _is_in_vain(outcome, before):
            # values that were read left memory before its turn: so read within it
            unreadable = await self._fetch(outcome)
            outcome = self._slice(scan, unreadable)
        runtime.turns.charge(share)
        return outcome

    def _slice(self, scan: Scan, unreadable: Unreadable) -> bytes | Missing | LongMatches | None:
        runtime = self._runtime
        step = runtime.engine.step
        store = runtime.engine.store
        now = runtime.clock.now_us()
        begin = perf_counter()
        work_over = store.work + runtime.turns.slice_work
        reply = step(scan, now, unreadable)
        while reply is None and store.work < work_over:
            reply = step(scan, now)
        runtime.counters.scan_slice_us.add(round((perf_counter() - begin) * 1_000_000))
        if not isinstance(reply, bytes):
            # otherwise the session continues at once: nothing is between its work and its reply
            runtime.after_requests(now)
        return reply

    def _stop_short(self, scan: Scan) -> bytes:
        error = ErrorCode.SHUTTING_DOWN
        self._runtime.engine.end(scan, error)
        return encode_error(scan.request.identifier, self._runtime.clock.now_us(), error)

    def stop(self) -> None:
        """The daemon stops: scans that are not done soon are not carried out."""
        self._stop_at = trio.current_time() + STOP_SECONDS

    # --- the index ------------------------------------------------------------------------------

    def relieve_index(self) -> None:
        """Sort or delete some of the keys that wait for the index, if there are many."""
        store = self._runtime.engine.store
        index = store.keys.index
        if index is not None:
            # there may be fewer than when that was noted
            if len(index.fresh) > limits.FRESH_KEYS_MAX:
                store.work += index.sort_pending(limits.SORTED_KEYS) // limits.SORTED_KEYS_A_UNIT
            many = len(index.gone) - limits.GONE_KEYS_KEPT
            if many > limits.GONE_KEYS_LEFT or (
                many > 0 and index.gone_bytes() > limits.GONE_BYTES_LEFT
            ):
                store.work += index.merge_gone(limits.RELIEVED_KEYS) * limits.MERGE_WORK
            if many > 0:
                self._many_gone.set()

    @property
    def _requests(self) -> int:
        return sum(self._runtime.engine.counters.requests.values())

    def _is_idle_since(self, requests: int) -> bool:
        """Whether there are no scans, and no requests but the first so many."""
        return not self._runtime.counters.scans and self._requests == requests

    async def keep_index(self) -> None:
        """Merge what the index has not merged yet: in idle slices, or in its turn among clients.

        In a daemon that is never idle it has the share of a client, as far as keys wait.
        """
        index = self._runtime.engine.store.keys.sorted_keys()
        share = Share()
        while True:
            requests = self._requests
            with trio.move_on_after(self._pause(index)):
                await self._many_gone.wait()
            self._many_gone = trio.Event()
            if len(index.gone) > limits.GONE_KEYS_KEPT or _has_many_runs(index):
                await self._merge_in_turn(index, share)
            while not index.idle() and self._is_idle_since(requests):
                await trio.lowlevel.checkpoint()
                self._merge_slice(index)

    def _pause(self, index: KeyIndex) -> float:
        """Return the seconds until the next check of the index, if few keys were removed."""
        if index.idle():
            return REST_SECONDS
        return RUNS_PAUSE_SECONDS if _has_many_runs(index) else IDLE_LOOK_SECONDS

    async def _merge_in_turn(self, index: KeyIndex, share: Share) -> None:
        """Merge some keys as a client's slice of a turn: removed keys, and keys of many runs."""
        turns, store = self._runtime.turns, self._runtime.engine.store
        work = turns.slice_work
        if not turns.admits(share, work):
            await self._wait_turn(share, work)
        number = work // limits.MERGE_WORK
        many = max(len(index.gone) - limits.GONE_KEYS_KEPT, 0)
        if _has_many_runs(index):
            merged = index.merge_gone(min(many, number // 2))
            merged += index.merge(number - merged)
        else:
            merged = index.merge_gone(min(many, number))
        work = merged * limits.MERGE_WORK
        store.work += work
        self._merged += work
        turns.charge(share, is_client=False)

    def _merge_slice(self, index: KeyIndex) -> None:
        """Merge keys, but no more than a turn has budget for, or clients would wait for later."""
        store = self._runtime.engine.store
        begin = perf_counter()
        work_over = store.work + limits.TURN_WORK - limits.MERGED_KEYS * limits.MERGE_WORK
        while store.work <= work_over and perf_counter() - begin < SLICE_SECONDS:
            merged = index.merge(limits.MERGED_KEYS)
            if not merged:
                break
            store.work += merged * limits.MERGE_WORK


def _has_many_runs(index: KeyIndex) -> bool:
    """Whether keys of runs are merged also where there is no idle moment."""
    return index.run_keys > limits.RUN_KEYS_KEPT or index.run_bytes > limits.RUN_BYTES_KEPT


def _is_in_vain(outcome: object, before: object) -> TypeGuard[Missing]:
    """Whether a scan that had values read needs the same ones again."""
    return (
        isinstance(before, Missing)
        and isinstance(outcome, Missing)
        and outcome.entries[0] is before.entries[0]
    )
