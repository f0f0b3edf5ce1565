"""Evictor: lets the least recently used values leave memory while they take more than allowed."""

from __future__ import annotations

import logging

import trio

from fastjournald.engine.value_memory import evict_values, memory_bytes
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")

EVICTED_MAX = 1000
"""Values that leave memory in one go, in about a millisecond."""

REST_SECONDS = 0.25
"""Between two looks whether values have to leave memory where no request comes."""


class Evictor:
    """Keeps the value cache within its bound.

    Args:
        runtime: Engine and log.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def evict(self) -> bool:
        """Let values leave memory, if there are too many; whether there is more to do."""
        store = self._runtime.engine.store
        more = evict_values(store, self._runtime.writer.durable_at, EVICTED_MAX)
        if more:
            store.work += EVICTED_MAX
        return more

    async def run(self) -> None:
        """Let values leave memory, also where no request comes.

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
            if over and values.may_leave and runtime.writer.dirty:
                # the first one to leave is not durable, and under the policy ``os`` that may last
                await runtime.commit.wait_durable(runtime.writer.appended)
            elif over and not values.may_leave and not is_logged:
                is_logged = True
                LOG.warning(
                    "event=over-memory-limit bytes=%d limit=%d "
                    "what='keys, indexes and what is not on the disk take more'",
                    memory_bytes(store),
                    values.bytes_max,
                )
            is_logged = is_logged and over
