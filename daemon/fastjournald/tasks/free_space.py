"""Free space: makes the engine read-only before the disk is full, and writable again."""

from __future__ import annotations

import logging

import trio

from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")

SPACE_SECONDS = 0.25
"""Between two looks at the free space: one process appends less than the default min-free-bytes
(64 MiB) in that time."""


class FreeSpace:
    """Compares the free space with min-free-bytes.

    Args:
        runtime: Engine, disk and options.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def run(self) -> None:
        """Check, again and again.

        Raises:
            LogFailedError: The file system cannot be asked.
        """
        while True:
            self.check()
            await trio.sleep(SPACE_SECONDS)

    def check(self) -> None:
        """Set or end the read-only mode.

        Raises:
            LogFailedError: The file system cannot be asked.
        """
        runtime = self._runtime
        config, engine = runtime.config, runtime.engine
        free = runtime.disk.free_bytes(config.cmdlog_path)
        short = free < config.min_free_bytes
        if short == engine.context.read_only:
            return
        engine.context.read_only = short
        LOG.warning(
            "event=%s free_bytes=%d min_free_bytes=%d",
            "read-only" if short else "writable",
            free,
            config.min_free_bytes,
        )
        if not short:
            runtime.deliver(engine.resume(runtime.clock.now_us()))
            runtime.wake_tasks()
