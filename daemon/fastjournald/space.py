"""What the segments of the log hold that still matters: the account that cleaning goes by. Pure.

A segment is worth cleaning when little of it is live. Whether a record may go is decided by looking
at it (``fastjournald.sifting``); what that needs to know of other segments stands here:

- in which segment the record of a job is, by its id: the ids of one run of the daemon ascend, so
  the first one in each segment is enough;
- when a segment was last cleaned, as the number of the segment that was appended to at that moment:
  a record that removes a job may go once the segment of that job was cleaned in a later segment
  than its own, for then the record of the job is gone from the disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from fastjournal.cmdlog.records import RUN_BYTES


class Space:
    """Live bytes by segment, and what is known of each."""

    def __init__(self) -> None:
        self.live: defaultdict[int, int] = defaultdict(int)
        """Segment number to the bytes of the records in it that carry live entries."""
        self.cleaned: dict[int, int] = {}
        """Segment number to the number of the active segment when it was cleaned last."""
        self.look_again: dict[int, int] = {}
        """Segment number to the instant before which a look at it is of no use."""
        self.previous: dict[int, int] = {}
        """Segment number to that of the one before it, as its first record says."""
        self.foreign_last = 0
        """The last segment that another program wrote; 0: there is none."""
        self._runs: dict[bytes, tuple[list[int], list[int]]] = {}
        """Prefix of ids to counters, ascending, and the segments that begin with them."""

    def begins(self, job_id: bytes, number: int) -> None:
        """The first job of its run in this segment has this id. O(1), in the order of writing."""
        counters, numbers = self._runs.setdefault(job_id[:RUN_BYTES], ([], []))
        if numbers and numbers[-1] == number:
            return
        counters.append(int.from_bytes(job_id[RUN_BYTES:], "big"))
        numbers.append(number)

    def segment_of(self, job_id: bytes) -> int | None:
        """Return the segment with the record of a job, if that is on the disk. O(log n).

        None: it is not, or the job is another program's.
        """
        run = self._runs.get(job_id[:RUN_BYTES])
        if run is None:
            return None
        at = bisect_right(run[0], int.from_bytes(job_id[RUN_BYTES:], "big"))
        return run[1][at - 1] if at else None

    def cleaned_since(self, number: int, since: int) -> bool:
        """Whether a segment was cleaned after the segment ``since`` was sealed. O(1)."""
        return self.cleaned.get(number, 0) > since

    def may_return(self, job_id: bytes, removed_in: int, present: frozenset[int]) -> bool:
        """Whether the record of a dead job may be on the disk, outside of this segment.

        Args:
            job_id: Of the job.
            removed_in: The segment with the record that removed it.
            present: Numbers of the sealed segments on the disk.
        """
        number = self.segment_of(job_id)
        if number is not None:
            suspects = [number] if number in present and number < removed_in else []
        else:
            # in the disorder of another program's log, a job may be added behind its removal
            suspects = [other for other in present if other <= self.foreign_last]
        return any(
            other != removed_in and not self.cleaned_since(other, removed_in) for other in suspects
        )

    def overrides(self, number: int, present: frozenset[int]) -> bool:
        """Whether a record in this segment may undo one that is on the disk before it."""
        return any(not self.cleaned_since(other, number) for other in present if other < number)

    def is_named(self, number: int, present: frozenset[int]) -> bool:
        """Whether a segment on the disk names this one as the one before it."""
        return any(self.previous.get(other) == number for other in present)

    def forget(self, number: int) -> None:
        """The segment is gone from the disk. The ids that it held stay known as gone."""
        for known in (self.live, self.cleaned, self.look_again, self.previous):
            known.pop(number, None)
