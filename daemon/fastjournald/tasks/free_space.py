"""Free space: makes the engine read-only before the disk is full, and writable again.

The free space is compared with min-free-bytes at intervals, because others fill the disk too, and
whenever the log itself has taken half of the room that was left at the last look. Free inodes are
compared with ``FREE_INODES_MIN`` at the same time: bytes do not help where a segment, which is a
file, cannot be created.
"""

from __future__ import annotations

import logging
import sys

import trio

from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.disk import DiskSpace
from fastjournal.limits import FREE_INODES_MIN
from fastjournal.loglines import LogEvent, Sentence
from fastjournald.runtime import Runtime

LOG = logging.getLogger("fastjournald")

SPACE_SECONDS = 0.25
"""Time between two checks of the free space."""

LOOK_BYTES_MIN = 16_384
"""Least bytes appended between two looks because of the log's growth."""

LOOK_BYTES_MAX = 262_144
"""Bytes appended from which on there is another look where the log is looked at anyway: others may
have filled the disk since the timer's."""


COPY_INODES = 2
"""Free inodes with which compaction still writes a copy: one is for that, and comes back with the
segment that it replaces, and one for a segment that is begun meanwhile."""


def _space(runtime: Runtime) -> DiskSpace:
    return runtime.disk.free_space(runtime.config.cmdlog_path)


def _has_few_inodes(space: DiskSpace) -> bool:
    return space.inodes is not None and space.inodes < FREE_INODES_MIN


def room_bytes(runtime: Runtime, space: DiskSpace) -> int:
    """Return how many bytes may be written before the disk has less than min-free-bytes left."""
    writer = runtime.writer
    return space.bytes - (writer.appended - writer.written) - runtime.config.min_free_bytes


def may_rewrite(runtime: Runtime, info: SegmentInfo) -> bool:
    """Whether compaction may copy the live bytes of a segment before it removes the rest.

    Half of min-free-bytes may be used for that, since more is free afterwards, and few inodes are
    enough: so the read-only mode ends by itself if there is garbage. A segment that a snapshot or
    the archive links too is excluded: the other link keeps its space and its inode.

    Raises:
        LogFailedError: The file system cannot be asked.
    """
    live_bytes = runtime.engine.journal.usage.live[info.number]
    if not live_bytes:
        return True
    space = _space(runtime)
    short = live_bytes - room_bytes(runtime, space)
    if short <= 0 and not _has_few_inodes(space):
        return True
    config = runtime.config
    if short > config.min_free_bytes // 2:
        return False
    if space.inodes is not None and space.inodes < COPY_INODES:
        return False
    return runtime.disk.link_count(f"{config.cmdlog_path}/{info.name}") == 1


class FreeSpace:
    """Compares the free space with min-free-bytes, and the free inodes with what is kept of them.

    Args:
        runtime: Engine, disk and options.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._look_at = 0
        """Bytes appended from which on the file system is asked again."""
        self.shortage = ""
        """Why the engine is read-only; empty: it is not."""

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
        self._look(ends=True)
        if not self.shortage and runtime.engine.context.read_only:
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
        if runtime.writer.appended >= self._look_at and not runtime.engine.context.read_only:
            self.check_shortage()

    def check_shortage(self) -> None:
        """Set the read-only mode, and never end it.

        Raises:
            LogFailedError: The file system cannot be asked.
        """
        self._look(ends=False)

    def _look(self, *, ends: bool) -> None:
        """Check the free space: set the read-only mode, or end it if allowed."""
        runtime = self._runtime
        space = runtime.counters.disk_space = _space(runtime)
        room = room_bytes(runtime, space)
        self._look_after(room)
        shortage = ""
        if room < 0:
            shortage = "less than min-free-bytes is free"
        elif _has_few_inodes(space):
            shortage = f"fewer than {FREE_INODES_MIN} inodes are free"
        if shortage == self.shortage or not (shortage or ends):
            return
        self.shortage = shortage
        if shortage:
            runtime.engine.context.read_only = True
        LOG.warning(
            LogEvent(
                "read-only" if shortage else "writable",
                free_bytes=room + runtime.config.min_free_bytes,
                min_free_bytes=runtime.config.min_free_bytes,
                free_inodes="unbounded" if space.inodes is None else space.inodes,
                reason=Sentence(shortage or "enough is free"),
            )
        )

    def _look_after(self, room: int) -> None:
        """Have the log's growth checked again in time."""
        runtime = self._runtime
        appended = runtime.writer.appended
        mark = sys.maxsize
        if room >= 0:
            mark = appended + max(room // 2, LOOK_BYTES_MIN)
        self._look_at = min(mark, appended + LOOK_BYTES_MAX)
        runtime.backpressure.look_no_later(mark)
