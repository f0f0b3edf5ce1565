"""Scans beside everything else: one slice of one of them in every few rounds of the event loop.

A scan takes as long as it takes; what is bounded is how long it keeps others waiting. All scans
share one turnstile, so that fifty of them hold the loop no longer than one: whoever waits in a
round waits for one slice at most. They take their slices in turns, so a short scan is not behind a
long one. Only so many gather replies at a time, because these are memory; the others wait to begin.

The index that they go through is also brought up to date here, while nobody asks for anything.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, TypeGuard

import trio

from fastjournal import limits
from fastjournal.protocol import ErrorCode, encode_error
from fastjournald.engine.engine import LongMatches, Missing, Scan
from fastjournald.histogram import Histogram
from fastjournald.net.hangup import is_lost
from fastjournald.tasks.turn_budget import Share

if TYPE_CHECKING:
    from fastjournald.server import Server

SLICE_WORK = 2500
"""A slice ends with the first step that ends with so much work done: steps are far shorter."""

SLICE_SECONDS = 0.001
"""So long is the index brought up to date at a time, where nobody asks for anything."""

REST_ROUNDS = 3
"""Rounds of the event loop without a slice after each that has one. A request takes some rounds
from its first byte to its reply; so it meets one slice or two, and not one in each of them. Where
nobody else has work these rounds take a tenth of a slice."""

STOP_SECONDS = 1.0
"""How long scans go on when the daemon stops; then they are told so."""

IDLE_LOOK_SECONDS = 0.05
"""The daemon is idle when so long no request came: then the index is brought up to date."""

HANG_UP_SLICES = 100
"""Between two looks whether the client is still there."""


class Scanning:
    """Carries out the scans of all sessions.

    Args:
        server: Engine and clock.
    """

    def __init__(self, server: Server) -> None:
        self.slice_us = Histogram(24)
        """How long the slices took, up to 16.8 s."""
        self.count = 0
        """Scans that are being carried out or wait to begin."""
        self._server = server
        self._gathering = trio.CapacityLimiter(limits.SCANS_MAX)
        self._turn = trio.Lock()
        self._matching = trio.CapacityLimiter(1)
        """Of its own: what hangs elsewhere does not hold it up. One processor at the most."""
        self._stop_at = math.inf
        self._scanned = trio.Event()
        self._requested = False

    # --- scans ----------------------------------------------------------------------------------

    async def run(self, scan: Scan, stream: trio.abc.Stream, share: Share) -> bytes:
        """Carry out a scan and return the encoded reply.

        Args:
            scan: As the engine returned it.
            stream: To the client.
            share: What the client has of the turns.

        Raises:
            BrokenResourceError: The client is not there any more.
        """
        self._scanned.set()
        self.count += 1
        done = False
        scheduler, store = self._server.scheduler, self._server.engine.store
        try:
            async with self._gathering:
                slices = 0
                fetch = self._server.fetching.fetch
                missing: Missing | None = None
                matches: LongMatches | None = None
                while True:
                    if matches is not None:
                        await trio.to_thread.run_sync(
                            matches.run, abandon_on_cancel=True, limiter=self._matching
                        )
                    if missing is not None:
                        await fetch(missing)
                    if not scheduler.admits(share):
                        # not in its turn, where the scans of those who have had less would wait too
                        await scheduler.wait(share, SLICE_WORK)
                    async with self._turn:
                        share.began = store.work
                        reply = self._slice(scan)
                        if _is_in_vain(reply, missing):
                            # what was read left memory before its turn: so within it
                            await fetch(reply)
                            reply = self._slice(scan)
                        scheduler.charge(share)
                        missing = reply if isinstance(reply, Missing) else None
                        matches = reply if isinstance(reply, LongMatches) else None
                        if isinstance(reply, bytes):
                            done = True
                            return reply
                        for _ in range(REST_ROUNDS):
                            await trio.lowlevel.checkpoint()
                    if trio.current_time() > self._stop_at:
                        return self._stop_short(scan)
                    slices += 1
                    if slices % HANG_UP_SLICES == 0 and is_lost(stream):
                        raise trio.BrokenResourceError
        finally:
            self.count -= 1
            if not done:
                self._server.give_back(scan.leased)

    def _slice(self, scan: Scan) -> bytes | Missing | LongMatches | None:
        server = self._server
        step = server.engine.step
        store = server.engine.store
        now = server.clock.now_us()
        begin = perf_counter()
        work_over = store.work + SLICE_WORK
        reply = step(scan, now)
        while reply is None and store.work < work_over:
            reply = step(scan, now)
        self.slice_us.add(round((perf_counter() - begin) * 1_000_000))
        if not isinstance(reply, bytes):
            # else the session goes on at once: nothing comes between its work and its reply
            server.after_requests(now)
        return reply

    def _stop_short(self, scan: Scan) -> bytes:
        error = ErrorCode.SHUTTING_DOWN
        self._server.engine.end(scan, error)
        return encode_error(scan.request.identifier, self._server.clock.now_us(), error)

    def stop(self) -> None:
        """The daemon stops: scans that are not done soon are not carried out."""
        self._stop_at = trio.current_time() + STOP_SECONDS

    # --- the index ------------------------------------------------------------------------------

    def after_requests(self) -> None:
        """Note that the daemon is not idle; where too much is pending, merge some of it."""
        self._requested = True
        index = self._server.engine.store.keys.index
        if index is not None and len(index.pending) > limits.PENDING_KEYS_MAX:
            index.relieve(limits.RELIEVED_KEYS)
            self._server.engine.store.work += limits.RELIEVED_KEYS * limits.MERGE_WORK

    async def keep_index(self) -> None:
        """Bring the index up to date whenever no request came for a while."""
        await self._scanned.wait()
        while True:
            self._requested = False
            await trio.sleep(IDLE_LOOK_SECONDS)
            index = self._server.engine.store.keys.sorted_keys()
            while not self._requested and not index.idle():
                begin = perf_counter()
                while perf_counter() - begin < SLICE_SECONDS and index.merge(limits.MERGED_KEYS):
                    pass
                await trio.lowlevel.checkpoint()


def _is_in_vain(reply: object, missing: Missing | None) -> TypeGuard[Missing]:
    """Whether a scan that had values read needs the same ones again."""
    return (
        missing is not None
        and isinstance(reply, Missing)
        and reply.entries[0] is missing.entries[0]
    )
