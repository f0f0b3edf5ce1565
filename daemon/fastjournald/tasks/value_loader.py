"""Reads values that are on disk only, in threads, for the requests that need them.

Where a record is can change while it is read: cleaning moves records and replaces segments. So what
cannot be read is tried again as long as something has changed since; only then it is damaged.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from fastjournal import limits
from fastjournal.cmdlog.read_value import Whereabouts, read_values
from fastjournald.histogram import Histogram
from fastjournald.tables.value_cache import Cold, Missing

if TYPE_CHECKING:
    from fastjournald.server import Server
    from fastjournald.tables.entry import Entry

LOG = logging.getLogger("fastjournald")

TOLD_MAX = 1000
"""Records that cannot be read of which the log tells once only."""

EVICTED_MAX = 1000
"""Values that leave memory in one go, in about a millisecond."""

REST_SECONDS = 0.25
"""Between two looks whether values have to leave memory where no request comes."""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""With these the system says that it has no room for one more open file, and nothing of the log."""

NO_ROOM_SECONDS = 0.1
"""Until it is asked again."""


class Fetching:
    """Brings values back into memory, and sends others out of it.

    Args:
        server: Engine, log and disk.
    """

    def __init__(self, server: Server) -> None:
        self.read_us = Histogram(24)
        """How long requests waited for values, those that others read too, up to 16.8 s."""
        self.count = 0
        """Values read so far."""
        self.failed = 0
        """Values that could not be read so far."""
        self._server = server
        self._reading = trio.CapacityLimiter(limits.FETCHES_MAX)
        self._threads = trio.CapacityLimiter(limits.FETCHES_MAX)
        """Of their own, which those that hang keep: syncs must not wait for them."""
        self._under_way: dict[bytes, trio.Event] = {}
        """Job id of what is being read, to the event of its end."""
        self._awaited = trio.Event()
        self._told: set[int] = set()

    async def fetch(self, missing: Missing, earlier: Iterable[Entry] = ()) -> None:
        """Read values; the caller asks for what it wanted again, with nothing in between.

        Args:
            missing: What it needs.
            earlier: What was read for it before, where some of that left memory while the rest was
                read: it is read once more together with that.
        """
        engine = self._server.engine
        started = perf_counter()
        engine.fetching += 1
        try:
            async with self._reading:
                entries = missing.entries
                while entries:
                    entries = await self._read(entries, earlier)
        finally:
            engine.fetching -= 1
            self.read_us.add(round((perf_counter() - started) * 1_000_000))

    async def _read(self, entries: list[Entry], earlier: Iterable[Entry]) -> list[Entry]:
        """Read the values of entries; return those that have to be read again."""
        server = self._server
        engine = server.engine
        usage = engine.journal.usage
        changes = usage.changes
        # somebody else may have read it meanwhile
        cold = [entry for entry in entries if isinstance(entry.value, Cold)]
        entries = [entry for entry in cold if entry.job_id not in self._under_way]
        if not entries:
            if cold:
                # or is about to: perhaps for a request that takes it away
                await self._under_way[cold[0].job_id].wait()
            return []
        entries += [entry for entry in earlier if not isinstance(entry.value, Cold)]
        places = [
            Whereabouts(entry.position, entry.record_bytes, entry.job_id) for entry in entries
        ]
        with self._flight(places):
            found = await trio.to_thread.run_sync(
                partial(
                    read_values,
                    server.disk,
                    server.config.cmdlog_path,
                    places,
                    dict(usage.replaced),
                ),
                # who stops does not wait for a disk that hangs
                abandon_on_cancel=True,
                limiter=self._threads,
            )
        again: list[Entry] = []
        no_room = False
        for entry, place, value in zip(entries, places, found, strict=True):
            if isinstance(value, bytes):
                self.count += 1
                engine.store.warm_up(entry, place.job_id, value)
            elif engine.store.find(entry.key) is not entry or not isinstance(entry.value, Cold):
                # nobody needs it any more, and cleaning may have taken its record away
                continue
            elif isinstance(value.__cause__, OSError) and value.__cause__.errno in _NO_ROOM:
                no_room = True
                again.append(entry)
            elif usage.changes != changes or entry.position != place.position:
                again.append(entry)
            else:
                self.failed += 1
                self._tell(place, str(value))
                engine.store.warm_up(entry, place.job_id, f"its value cannot be read: {value}")
        if no_room:
            await trio.sleep(NO_ROOM_SECONDS)
        return again

    @contextmanager
    def _flight(self, places: list[Whereabouts]) -> Iterator[None]:
        """Let others wait for what is being read here."""
        landed = trio.Event()
        self._under_way.update((place.job_id, landed) for place in places)
        try:
            yield
        finally:
            for place in places:
                self._under_way.pop(place.job_id, None)
            landed.set()

    def _tell(self, place: Whereabouts, why: str) -> None:
        if place.position not in self._told:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told.add(place.position)
            LOG.error("event=not-readable job=%s error=%r", place.job_id.hex(), why)

    # --- for those who wait ---------------------------------------------------------------------

    def look(self) -> None:
        """The engine changed: perhaps those who wait need values."""
        if self._server.engine.awaited:
            self._awaited.set()

    async def serve(self) -> None:
        """Read what is to be handed out to those who wait, again and again."""
        server = self._server
        engine = server.engine
        while True:
            if not engine.awaited:
                self._awaited = trio.Event()
                await self._awaited.wait()
            missing = Missing(list(engine.awaited.values()))
            await self.fetch(missing)
            engine.awaited.clear()
            server.after_requests(server.clock.now_us())
            if engine.store.values is not None:
                # also where nobody waits any more who could be told
                engine.store.values.unreadable.clear()
            await trio.lowlevel.checkpoint()

    # --- out of memory --------------------------------------------------------------------------

    def evict(self) -> bool:
        """Let values leave memory, if there are too many; whether there is more to do."""
        server = self._server
        store = server.engine.store
        more = store.evict(server.writer.durable_at, EVICTED_MAX)
        if more:
            store.work += EVICTED_MAX
        return more

    async def keep_limit(self) -> None:
        """Let values leave memory, also where no request comes.

        Raises:
            LogFailedError: A write or sync failed.
        """
        server = self._server
        store = server.engine.store
        values = store.values
        if values is None:
            return
        told = False
        while True:
            await trio.sleep(REST_SECONDS)
            while self.evict():
                await trio.lowlevel.checkpoint()
            over = store.memory_bytes > values.bytes_max
            if over and values.may_leave and server.writer.dirty:
                # the first one to leave is not durable, and under the policy ``os`` that may last
                await server.commit.wait_durable(server.writer.appended)
            elif over and not values.may_leave and not told:
                told = True
                LOG.warning(
                    "event=over-memory-limit bytes=%d limit=%d "
                    "what='keys, indexes and what is not on the disk take more'",
                    store.memory_bytes,
                    values.bytes_max,
                )
            told = told and over
