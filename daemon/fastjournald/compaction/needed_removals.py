"""Removals that must stay: else a dead job whose own record is on the disk would return. Pure."""

from __future__ import annotations

from fastjournal.limits import AWAITED_SEGMENTS_MAX
from fastjournald.wal.segment_usage import SegmentUsage


class NeededRemovals:
    """Tells which removals in one segment must stay; nothing else is compacted meanwhile.

    Args:
        usage: Segment usage table.
        number: Number of the segment.
        present: Numbers of all sealed segments on the disk.

    Attributes:
        waits: Some of the segments with records of jobs that are removed here.
        any: Whether a removal must stay.
    """

    def __init__(self, usage: SegmentUsage, number: int, present: frozenset[int]) -> None:
        self._gone_in: set[int | None] = {number}
        """Segments in which no record can be of a job that this one removes."""
        self._held_in: set[int] = set()
        """Segments in which one may be."""
        self.waits: set[int] = set()
        self.any = False
        self._usage = usage
        self._number = number
        self._present = present

    def is_needed(self, job_id: bytes) -> bool:
        """Whether the record that removes a job must stay where it is.

        It cannot be moved to the end of the log: a record behind it may use the key.
        """
        number = self._usage.segment_of(job_id)
        if number in self._gone_in:
            return False
        if number in self._held_in:
            return True
        waits = self._usage.may_return(job_id, self._number, self._present)
        if waits is None:
            if number is not None:
                self._gone_in.add(number)
            return False
        if number is not None:
            self._held_in.add(number)
        self.any = True
        if len(self.waits) < AWAITED_SEGMENTS_MAX:
            self.waits.add(waits)
        return True

    def may_hold(self, job_id: bytes) -> None:
        """The record of a dead job may have outlived the last compaction of its segment."""
        self._gone_in.discard(self._usage.may_still_hold(job_id))
