"""Value loader and evictor: evicts values above the memory limit, and reads them back when needed.

The loader reads evicted values in threads, for the requests that miss them. Requests that need the
same value share one read (single-flight). The position of a record can change during the read:
compaction moves records and replaces segments. So a failed read is repeated while positions have
changed since; otherwise the record is damaged.

The evictor drops the least recently used values while memory exceeds the limit.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import trio

from fastjournal import limits
from fastjournal.cmdlog.read_value import Whereabouts, read_values
from fastjournal.loglines import LogEvent, Sentence
from fastjournald.engine.value_memory import evict_values, fill_value, memory_bytes
from fastjournald.runtime import Runtime
from fastjournald.tables.entry import Cold, Entry
from fastjournald.tables.value_cache import Missing, Unreadable
from fastjournald.tasks.turn_scheduler import pay_back

LOG = logging.getLogger("fastjournald")

LOGGED_MAX = 1000
"""Unreadable records that are remembered, so that each is logged only once."""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""With these the system says that it has no room for one more open file, and nothing of the log."""

NO_ROOM_SECONDS = 0.1
"""Until it is asked again."""


class ValueLoader:
    """Brings values back into memory.

    Args:
        runtime: Engine, log and disk.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reading = trio.CapacityLimiter(limits.FETCHES_MAX)
        self._threads = trio.CapacityLimiter(limits.FETCHES_MAX)
        """Threads of their own, which reads that hang keep: syncs must not wait for them."""
        self._under_way: dict[bytes, trio.Event] = {}
        """Job id of what is being read, to the event of its end."""
        self._awaited = trio.Event()
        self._logged: set[int] = set()

    async def fetch(self, missing: Missing, earlier: Iterable[Entry] = ()) -> Unreadable:
        """Read values; the caller asks for what it wanted again, with nothing in between.

        Args:
            missing: Values that it needs.
            earlier: Values that were read for it before, where some of them left memory while the
                rest was read: they are read once more, together with these.

        Returns:
            The reads that failed, for the caller's next question and for no other.
        """
        engine = self._runtime.engine
        started = perf_counter()
        unreadable: dict[bytes, str] = {}
        engine.context.fetching += 1
        try:
            async with self._reading:
                entries = missing.entries
                while entries:
                    entries = await self._read(entries, earlier, unreadable)
        finally:
            engine.context.fetching -= 1
            self._runtime.counters.value_read_us.add(round((perf_counter() - started) * 1_000_000))
        return unreadable

    async def _read(
        self, entries: list[Entry], earlier: Iterable[Entry], unreadable: dict[bytes, str]
    ) -> list[Entry]:
        """Read the values of entries; return those that have to be read again."""
        runtime = self._runtime
        engine = runtime.engine
        usage = engine.journal.usage
        changes = usage.changes
        # another request may have read it meanwhile
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
                    runtime.disk,
                    runtime.config.cmdlog_path,
                    places,
                    dict(usage.replaced),
                ),
                # the end of the daemon does not wait for a disk that hangs
                abandon_on_cancel=True,
                limiter=self._threads,
            )
        again: list[Entry] = []
        no_room = False
        for entry, place, value in zip(entries, places, found, strict=True):
            if isinstance(value, bytes):
                runtime.counters.values_read += 1
                fill_value(engine.store, entry, place.job_id, value)
            elif engine.store.find(entry.key) is not entry or not isinstance(entry.value, Cold):
                # it is not needed any more, and compaction may have taken its record away
                continue
            elif isinstance(value.__cause__, OSError) and value.__cause__.errno in _NO_ROOM:
                no_room = True
                again.append(entry)
            elif usage.changes != changes or entry.position != place.position:
                again.append(entry)
            else:
                runtime.counters.values_unreadable += 1
                self._log_failed_read(place, str(value))
                unreadable[place.job_id] = f"its value cannot be read: {value}"
        if no_room:
            await trio.sleep(NO_ROOM_SECONDS)
        return again

    @contextmanager
    def _flight(self, places: list[Whereabouts]) -> Iterator[None]:
        """Share the reads of these values with other requests."""
        landed = trio.Event()
        self._under_way.update((place.job_id, landed) for place in places)
        try:
            yield
        finally:
            for place in places:
                self._under_way.pop(place.job_id, None)
            landed.set()

    def _log_failed_read(self, place: Whereabouts, why: str) -> None:
        if place.position not in self._logged:
            if len(self._logged) >= LOGGED_MAX:
                self._logged.clear()
            self._logged.add(place.position)
            LOG.error(LogEvent("not-readable", job=place.job_id.hex(), error=Sentence(why)))

    # --- for waiting requests -------------------------------------------------------------------

    def look(self) -> None:
        """The engine changed: perhaps waiting requests need values."""
        if self._runtime.engine.dispatcher.awaited:
            self._awaited.set()

    async def serve(self) -> None:
        """Read the values of entries to deliver to waiting requests, again and again."""
        runtime = self._runtime
        engine = runtime.engine
        while True:
            if not engine.dispatcher.awaited:
                self._awaited = trio.Event()
                await self._awaited.wait()
            missing = Missing(list(engine.dispatcher.awaited.values()))
            unreadable = await self.fetch(missing)
            engine.dispatcher.values_read()
            # now, before other work: no later serving has the failed reads
            before = engine.store.work
            runtime.deliver(engine.serve_waiters(runtime.clock.now_us(), unreadable))
            runtime.wake_tasks()
            await pay_back(runtime.turns, engine.store.work - before)


EVICTED_MAX = 1000
"""Values evicted in one pass, in about a millisecond."""

REST_SECONDS = 0.25
"""Time between two checks of the memory limit without requests."""


class Evictor:
    """Keeps the value cache within its bound.

    Args:
        runtime: Engine and log.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def evict(self) -> bool:
        """Evict values above the limit; return whether there is more to do."""
        store = self._runtime.engine.store
        more = evict_values(store, self._runtime.writer.durable_at, EVICTED_MAX)
        if more:
            store.work += EVICTED_MAX
        return more

    async def run(self) -> None:
        """Evict values, also without requests.

        Raises:
            LogFailedError: A write or sync failed.
        """
        runtime = self._runtime
        store = runtime.engine.store
        values = store.values
        if values is None:
            return
        is_logged = False
        while True:
            await trio.sleep(REST_SECONDS)
            while self.evict():
                await trio.lowlevel.checkpoint()
            over = memory_bytes(store) > values.bytes_max
            if over and values.can_evict and runtime.writer.dirty:
                # the first one to leave is not durable, and under the policy ``os`` that may last
                await runtime.commit.wait_durable(runtime.writer.appended)
            elif over and not values.can_evict and not is_logged:
                is_logged = True
                LOG.warning(
                    LogEvent(
                        "over-memory-limit",
                        bytes=memory_bytes(store),
                        limit=values.bytes_max,
                        what="keys, indexes and what is not on the disk take more",
                    )
                )
            is_logged = is_logged and over
