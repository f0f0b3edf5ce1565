"""Backpressure: clients that grow the log wait while compaction cannot keep up.

While the log is far larger than it should be (``policy.bytes_slowed``), a session carries out a
batch of requests that grow it only in its turn. A quarter of the bytes that compaction frees is
shared out, in the order of the sessions, because records are larger than small requests: so the log
shrinks while all continue slowly. A client that reads, completes or deletes is not slowed. If
compaction frees nothing, because another process reads the log or its disk fails, no writer waits:
that would not help.

The same queue bounds the lag of a remote log that need not acknowledge: writers share out the room
below the bound, until the store has the rest.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable

import trio

from fastjournal.cmdlog.writer import LogWriter
from fastjournal.loglines import LogEvent
from fastjournald.compaction.policy import bytes_slowed, live_bytes
from fastjournald.engine.engine import Engine

LOG = logging.getLogger("fastjournald")

GRANTED = 1 / 4
"""Share of the bytes that compaction frees which may be taken from clients meanwhile."""

RELIEF = 15 / 16
"""Share of the size from which on writers are slowed down: below it they are free again."""

LOOKS = 16
"""Checks of the log size, at least, during the writing of one segment."""


class Backpressure:
    """Queue of writers while the log is far too large.

    Args:
        engine: Its live bytes are compared with the log.
        writer: The log.
        compacts: Whether the log is compacted at all.
        lag: Returns the bytes that a remote log has not stored yet; None: nobody waits for it.
        lag_bytes_max: Their bound.
    """

    def __init__(
        self,
        engine: Engine,
        writer: LogWriter,
        *,
        compacts: bool,
        lag: Callable[[], int] | None = None,
        lag_bytes_max: int = 0,
    ) -> None:
        self.closed = False
        """Whether writers wait for their turns."""
        self.waiting = 0
        """Sessions that wait."""
        self.waited = 0
        """How often a session had to."""
        self.waited_seconds = 0.0
        """How long, all together."""
        self.look_at = 0
        """Appended bytes at which the next check of the log, or of its disk, is useful."""
        self._engine = engine
        self._writer = writer
        self._compacts = compacts
        self._lag = lag
        self._lag_bytes_max = lag_bytes_max
        self._disk_look_at = sys.maxsize
        self._asked = 0
        self._granted = 0
        self._gone = 0
        self._going = 0
        """Bytes of the batches whose turn it is."""
        self._turns: deque[tuple[int, int, trio.Event]] = deque()
        self._needed = trio.Event()
        self._ended = False

    # --- for sessions -----------------------------------------------------------------------------

    async def wait_turn(self, size: int) -> None:
        """Wait until a batch of so many bytes may be carried out; ``turn_over`` ends the turn."""
        self._asked += size
        if not self.closed:
            # writers were released after the session decided to wait: it would never be admitted
            self._granted = max(self._granted, self._asked)
        if self._asked <= self._granted:
            self._gone = self._asked
            self._going += size
            return
        turn, ticket = trio.Event(), self._asked
        self._turns.append((ticket, size, turn))
        self.waited += 1
        self.waiting += 1
        began = trio.current_time()
        try:
            await turn.wait()
        except BaseException:  # cancelled while it waits: its turn goes to the next one
            if turn.is_set():
                self.turn_over(size)
            else:
                self._turns.remove((ticket, size, turn))
            raise
        finally:
            self.waiting -= 1
            self.waited_seconds += trio.current_time() - began

    def turn_over(self, size: int, unused: int = 0) -> None:
        """A batch of ``size`` bytes was carried out; other batches may use the ``unused`` bytes."""
        self._going -= size
        self._granted += unused
        self._admit()

    @property
    def needed(self) -> bool:
        """Whether writers wait for compaction, and not only for each other."""
        return self._needed.is_set()

    # --- for compaction ---------------------------------------------------------------------------

    async def wait_needed(self) -> None:
        """Wait until writers wait for compaction."""
        await self._needed.wait()

    def look(self) -> None:
        """Compare the size of the log with what it should be. O(number of segments)."""
        writer, store = self._writer, self._engine.store
        size, most = writer.log_bytes, bytes_slowed(store, writer)
        room, step = most - size, writer.segment_bytes_max // LOOKS
        relieved, is_free = size < RELIEF * most, not self._helps()
        if is_free:
            room, relieved = max(room, step), True
        if relieved:
            self._rest()
        elif room <= 0:
            self._needed.set()
        if self._lag is not None and not self._ended:
            lag, bound = self._lag(), self._lag_bytes_max
            room, step = min(room, bound - lag), min(step, bound // LOOKS)
            relieved, is_free = relieved and lag < RELIEF * bound, False
        if is_free:
            self._open(size)
        elif room <= 0:
            self._close(size)
        elif self.closed:
            self._share(room, relieved)
            if not self._turns and relieved:
                self._open(size)
        # writers that are admitted may fill what room there is
        self._look_again(0 if self.closed else max(room, step))

    def look_no_later(self, appended: int) -> None:
        """Lower ``look_at`` to this many appended bytes: the disk usage is checked then."""
        self._disk_look_at = appended
        self.look_at = min(self.look_at, appended)

    def freed(self, size: int) -> None:
        """Compaction has freed so many bytes."""
        if not self.closed or self._lags():
            return
        spare = self._writer.segment_bytes_max
        granted = self._granted + int(GRANTED * max(size, 0))
        self._granted = min(granted, self._asked + spare)
        self._admit()
        self.look()

    def stop_slowing(self) -> None:
        """Stop slowing writers until the log has grown by much: compaction frees nothing."""
        writer = self._writer
        size = writer.log_bytes
        LOG.warning(LogEvent("writers-not-slowed", log_bytes=size))
        if self._lags():
            self._rest()
            return
        self._open(size)
        self._look_again(max(size // LOOKS, writer.segment_bytes_max))

    def end(self) -> None:
        """Admit all that wait: the daemon stops."""
        self._ended = True
        self.look()

    # --- inside -----------------------------------------------------------------------------------

    def _helps(self) -> bool:
        """Whether compaction runs at all, and writers can wait for it."""
        return self._compacts and not self._engine.context.read_only and not self._ended

    def _lags(self) -> bool:
        """Whether writers wait for a remote log."""
        return self._lag is not None and self._lag() >= self._lag_bytes_max and not self._ended

    def _look_again(self, grown: int) -> None:
        self.look_at = min(self._writer.appended + grown, self._disk_look_at)

    def _close(self, size: int) -> None:
        if not self.closed:
            live = live_bytes(self._engine.store)
            lag = {} if self._lag is None else {"lag_bytes": self._lag()}
            LOG.warning(LogEvent("writers-slowed", log_bytes=size, live_bytes=live, **lag))
            self.closed = True
            self._granted = self._gone = self._asked

    def _open(self, size: int) -> None:
        self._rest()
        if self.closed:
            LOG.warning(
                LogEvent(
                    "writers-free",
                    log_bytes=size,
                    waited=self.waited,
                    seconds=f"{self.waited_seconds:.3f}",
                )
            )
            self.closed = False
            self._granted = self._asked
            self._admit()

    def _share(self, room: int, relieved: bool) -> None:
        """Admit writers that fit into the room there is, and one in any case if there is enough."""
        self._granted = max(self._granted, self._gone + int(GRANTED * room) - self._going)
        if relieved and self._turns and not self._going:
            self._granted = max(self._granted, self._turns[0][0])
        self._admit()

    def _rest(self) -> None:
        if self._needed.is_set():
            self._needed = trio.Event()

    def _admit(self) -> None:
        while self._turns and self._turns[0][0] <= self._granted:
            ticket, size, turn = self._turns.popleft()
            self._gone = ticket
            self._going += size
            turn.set()
