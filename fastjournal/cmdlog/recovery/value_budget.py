"""Value budget: memory-bounded replay, which leaves the oldest values on the disk. Pure.

The log does not have the last access of a value. So those go that were written first, by
segments: that is as exact as it has to be, for the daemon reads back what is asked for.
"""

from __future__ import annotations

from collections import deque

import msgspec

from fastjournal.cmdlog.format.layout import OFFSET_BITS
from fastjournal.cmdlog.recovery.replay_state import ReplayState
from fastjournal.cmdlog.recovery.replayed_entry import ReplayedEntry


class ValueLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Memory limit of live entries in a replay."""

    bytes_max: int
    entry_bytes: int
    """Memory of a live job without its value."""
    value_bytes_min: int
    """Smaller values stay in memory."""
    types_kept: tuple[int, ...] = ()
    """So do values of these types, which another record than that of the job may have changed."""
    bytes_kept: int = 0
    """If they have so many bytes at most."""


class ValueBudget:
    """Leaves values on the disk while what is live takes too much memory.

    Args:
        state: Live state that the log leaves.
        limit: How much memory it may take.
    """

    def __init__(self, state: ReplayState, limit: ValueLimit) -> None:
        self._state = state
        self._limit = limit
        self._segments: deque[tuple[int, list[ReplayedEntry]]] = deque()
        """Bytes of the values of each segment in memory, and their jobs; dead ones too."""
        self._bytes = 0

    def after_segment(self, number: int) -> None:
        """Evict values after all records of a segment. O(its jobs, and evicted values)."""
        jobs: list[ReplayedEntry] = []
        size = 0
        for job in reversed(self._state.jobs.values()):
            if job.position >> OFFSET_BITS != number:
                break
            if self._may_leave(job):
                jobs.append(job)
                size += len(job.value)
        self._segments.append((size, jobs))
        self._bytes += size
        bytes_max = self._limit.bytes_max - self._limit.entry_bytes * len(self._state.jobs)
        while self._bytes > bytes_max and self._segments:
            self._shed()

    def _shed(self) -> None:
        size, jobs = self._segments.popleft()
        self._bytes -= size
        for job in jobs:
            # it may have another value now
            if self._may_leave(job):
                job.own().cold_bytes = len(job.value)
                job.value = b""

    def _may_leave(self, job: ReplayedEntry) -> bool:
        return len(job.value) >= self._limit.value_bytes_min and (
            job.value_type not in self._limit.types_kept or len(job.value) > self._limit.bytes_kept
        )
