"""Free space: makes the engine read-only before the disk is full, and writable again.

The free space is compared with min-free-bytes at intervals, because others fill the disk too, and
whenever the log itself has taken half of the room that was left at the last look.
"""

from __future__ import annotations

import logging
import sys

import trio

from fastjournal.cmdlog.format.segments import SegmentInfo
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")

SPACE_SECONDS = 0.25
"""Between two looks at the free space."""

LOOK_BYTES_MIN = 16_384
"""Least bytes appended between two looks because of the log's growth."""

LOOK_BYTES_MAX = 262_144
"""Bytes appended from which on there is another look where the log is looked at anyway: others may
have filled the disk since the timer's."""


def room_bytes(runtime: Runtime) -> int:
    """Return how many bytes may be written before the disk has less than min-free-bytes left.

    Raises:
        LogFailedError: The file system cannot be asked.
    """
    writer, config = runtime.writer, runtime.config
    free = runtime.disk.free_bytes(config.cmdlog_path)
    return free - (writer.appended - writer.written) - config.min_free_bytes


def may_rewrite(runtime: Runtime, info: SegmentInfo) -> bool:
    """Whether compaction may write the live bytes of a segment anew before it removes the rest.

    Half of min-free-bytes may be used for that, since more is free behind it: so the read-only mode
    ends by itself where there is garbage. A segment that a snapshot or the archive links too has no
    part in that: the other link keeps its space.

    Raises:
        LogFailedError: The file system cannot be asked.
    """
    live_bytes = runtime.engine.journal.usage.live[info.number]
    if not live_bytes:
        return True
    short = live_bytes - room_bytes(runtime)
    if short <= 0:
        return True
    config = runtime.config
    if short > config.min_free_bytes // 2:
        return False
    return runtime.disk.link_count(f"{config.cmdlog_path}/{info.name}") == 1


class FreeSpace:
    """Compares the free space with min-free-bytes.

    Args:
        runtime: Engine, disk and options.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._look_at = 0
        """Bytes appended from which on the file system is asked again."""

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
        room = room_bytes(runtime)
        self._look_after(room)
        short = room < 0
        if short == runtime.engine.context.read_only:
            return
        self._set(short, room)
        if not short:
            runtime.deliver(runtime.engine.resume(runtime.clock.now_us()))
            runtime.wake_tasks()

    def check_growth(self) -> None:
        """Set the read-only mode if the log has grown by so much, and never end it. O(1).

        The file system is asked only where the log has taken half of the room of the last look, or
        has grown by 256 KiB: during a write stall this is called for each batch.

        Raises:
            LogFailedError: The file system cannot be asked.
        """
        runtime = self._runtime
        if runtime.writer.appended < self._look_at or runtime.engine.context.read_only:
            return
        room = room_bytes(runtime)
        self._look_after(room)
        if room < 0:
            self._set(True, room)

    def _look_after(self, room: int) -> None:
        """Have the log's growth checked again in time."""
        runtime = self._runtime
        appended = runtime.writer.appended
        mark = sys.maxsize
        if room >= 0:
            mark = appended + max(room // 2, LOOK_BYTES_MIN)
        self._look_at = min(mark, appended + LOOK_BYTES_MAX)
        runtime.backpressure.look_no_later(mark)

    def _set(self, short: bool, room: int) -> None:
        runtime = self._runtime
        runtime.engine.context.read_only = short
        least = runtime.config.min_free_bytes
        LOG.warning(
            "event=%s free_bytes=%d min_free_bytes=%d",
            "read-only" if short else "writable",
            room + least,
            least,
        )
