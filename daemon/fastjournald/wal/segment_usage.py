"""Segment usage table: live bytes by segment, and other input of the compaction policy. Pure.

Compaction of a segment pays if few of its bytes are live. ``compaction.liveness`` decides about
each record. It needs these facts of other segments:

- the segment of a job's record, by the job id: the ids of one run of the daemon ascend, so the
  first id in each segment is enough;
- the last compaction of a segment, as the number of the active segment at that time: a record that
  removes a job can be dropped once the segment of that job was compacted in a later segment than
  its own. Then the record of the job is no longer on disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection

import msgspec

from fastjournal.cmdlog.format.layout import RUN_BYTES
from fastjournal.cmdlog.recovery.replay_state import pause_name


class SegmentScore(msgspec.Struct, frozen=True, gc=False):
    """Result of the last filtering of a segment, so that it is not filtered again in vain."""

    again_at: int
    """The segment is a candidate again from this instant on."""
    live: int = 0
    """Bytes of live entries in it at that time."""
    waits: tuple[int, ...] = ()
    """Segments with records of dead jobs that are removed by records in it; perhaps not all."""
    failed: bool = False
    """Whether it could not be compacted."""
    appended: int = 0
    """Bytes appended to the log until then, in this run."""
    pauses: tuple[bytes, ...] = ()
    """Domains with ends of pauses in it that are in force before it; perhaps not all."""
    fixed: bool = False
    """Whether something in it cannot be moved to the end of the log."""


class SegmentUsage:
    """Live bytes and other facts by segment."""

    def __init__(self) -> None:
        self.live: defaultdict[int, int] = defaultdict(int)
        """Segment number to the bytes of the records in it that carry live entries."""
        self.compacted: dict[int, int] = {}
        """Segment number to the number of the active segment when it was compacted last."""
        self.dead_in: dict[int, int] = {}
        """Segment number to the number of the active segment at the end of its last compaction."""
        self.emptied: set[int] = set()
        """Segments in which compaction left no record of any job."""
        self.limited_in: dict[int, set[bytes]] = {}
        """Segment number to the ``pause_name`` of each domain with a limit record in it."""
        self.scores: dict[int, SegmentScore] = {}
        """Segment number to its last score."""
        self.paused_until: dict[int, dict[bytes, int]] = {}
        """Segment number and ``pause_name`` to the last end of a pause that a record names."""
        self.previous: dict[int, int] = {}
        """Segment number to the number of the one before it, by its first record."""
        self.seals_in: dict[int, set[int]] = {}
        """Segment number to the segments with records of its size and checksum (seals)."""
        self.moved: set[int] = set()
        """Segments without live records that another process was reading when they were to be
        removed."""
        self.merging: frozenset[int] = frozenset()
        """Small segments that are moved to the end of the log, because there are many of them."""
        self.archived_before: int | None = None
        """First segment without a durable link in the archive; None: no archive."""
        self.sealed_as: dict[int, tuple[int, int]] = {}
        """Segment number to size and CRC-32C when it was sealed, by the log at the start."""
        self.foreign_last = 0
        """Last segment that another program wrote; 0: none."""
        self.replaced: dict[int, bytes] = {}
        """Segment number to its former content, while entries still have positions in it."""
        self.changes = 0
        """Number of replaced or removed segments: a search for a record restarts after a change."""
        self._runs: dict[bytes, tuple[list[int], list[int]]] = {}
        """Prefix of ids to the counters in ascending order, and the segments that begin with
        them."""

    def begins(self, job_id: bytes, number: int) -> None:
        """Note the id of the first job of its run in a segment. O(1), in the order of writing."""
        counters, numbers = self._runs.setdefault(job_id[:RUN_BYTES], ([], []))
        if numbers and numbers[-1] == number:
            return
        counters.append(int.from_bytes(job_id[RUN_BYTES:], "big"))
        numbers.append(number)

    def segment_of(self, job_id: bytes) -> int | None:
        """Return the segment with the record of a job, if it is on disk. O(log n).

        None: it is not, or another program wrote the job.
        """
        run = self._runs.get(job_id[:RUN_BYTES])
        if run is None:
            return None
        at = bisect_right(run[0], int.from_bytes(job_id[RUN_BYTES:], "big"))
        return run[1][at - 1] if at else None

    def was_compacted(
        self, number: int, compacted_in: int, *, emptied: bool, dead_in: int | None = None
    ) -> None:
        """Note a compaction: only jobs that died in ``compacted_in`` or later are dead here. O(1).

        Jobs changed by its records all died in ``dead_in`` or before; None: ``compacted_in``.
        """
        self.compacted[number] = compacted_in
        self.dead_in[number] = compacted_in if dead_in is None else dead_in
        if emptied:
            self.emptied.add(number)

    def may_still_hold(self, job_id: bytes) -> int | None:
        """Note that a dead job's record may have survived the last compaction. O(log n).

        Returns:
            Its segment, which counts as not compacted until it is again; None: there is none.
        """
        number = self.segment_of(job_id)
        if number is not None and number not in self.emptied:
            self.compacted.pop(number, None)
        return number

    def compacted_since(self, number: int, since: int) -> bool:
        """Whether a segment was compacted after the segment ``since`` was sealed. O(1)."""
        return self.compacted.get(number, 0) > since

    def blocks(self, number: int, since: int, present: frozenset[int]) -> bool:
        """Whether a segment may have records of jobs that ``since`` removes. O(1)."""
        if number not in present or number in self.emptied:
            return False
        return not self.compacted_since(number, since)

    def is_changed(
        self, number: int, now: int, present: frozenset[int], scored_before: int = -1
    ) -> bool:
        """Whether a segment should be filtered again. O(1).

        Args:
            number: Number of the segment.
            now: Present instant.
            present: Numbers of the sealed segments on disk.
            scored_before: True if at most so many bytes had been appended when it was scored.
        """
        score = self.scores.get(number)
        if score is None or score.again_at <= now:
            return True
        if score.failed:
            return False
        if score.appended <= scored_before:
            return True
        # live records have died, or removal records became unnecessary: at least half of them, so
        # that no segment is filtered again and again for little
        if 2 * self.live[number] < score.live:
            return True
        waits = sum(self.blocks(other, number, present) for other in score.waits)
        waits += sum(self.pauses_before(number, domain, now) for domain in score.pauses)
        return 2 * waits < len(score.waits) + len(score.pauses)

    def awaits_archive(self, number: int) -> bool:
        """Whether compaction must wait, because a segment is not archived yet. O(1)."""
        return self.archived_before is not None and number >= self.archived_before

    def paused(self, number: int, domain: bytes, until: int) -> None:
        """Note a record in a segment that pauses a domain. O(1)."""
        paused = self.paused_until.setdefault(number, {})
        name = pause_name(domain)
        if until > paused.get(name, 0):
            paused[name] = until

    def pauses_before(self, number: int, domain: bytes, now: int) -> bool:
        """Whether an earlier segment on disk may have a pause of a domain that is in force.

        O(segments).
        """
        name = pause_name(domain)
        return any(
            paused.get(name, 0) > now
            for other, paused in self.paused_until.items()
            if other < number
        )

    def limited(self, number: int, domain: bytes) -> None:
        """Note a record in a segment that sets the limits of a domain. O(1)."""
        self.limited_in.setdefault(number, set()).add(pause_name(domain))

    def limits_around(self, number: int, domain: bytes) -> tuple[bool, bool]:
        """Return whether limit records of a domain are in earlier and in later segments.

        O(segments).
        """
        name = pause_name(domain)
        others = [other for other, names in self.limited_in.items() if name in names]
        return min(others, default=number) < number, max(others, default=number) > number

    def may_return(self, job_id: bytes, removed_in: int, present: frozenset[int]) -> int | None:
        """Return another segment that may have the record of a dead job on disk.

        Args:
            job_id: Id of the job.
            removed_in: The segment with the record that removed it.
            present: Numbers of the sealed segments on disk.

        Returns:
            One of the segments; None: there is no such record.
        """
        number = self.segment_of(job_id)
        if number is not None:
            suspects = [number] if number < removed_in else []
        else:
            # another program's log is not in order: a job's record may come after its removal
            suspects = [other for other in present if other <= self.foreign_last]
        for other in suspects:
            if other != removed_in and self.blocks(other, removed_in, present):
                return other
        return None

    def may_stand(self, job_id: bytes, changed_in: int, present: frozenset[int]) -> bool:
        """Whether another segment may have the dead record of a job changed in this segment.

        A changed job may die much later, at an unknown time. It was dead when the segment of the
        change was compacted last.
        """
        number = self.segment_of(job_id)
        if number is None:
            return any(other <= self.foreign_last for other in present - self.emptied)
        if number == changed_in or number not in present or number in self.emptied:
            return False
        dead_in = self.dead_in.get(changed_in)
        return dead_in is None or not self.compacted_since(number, dead_in)

    def overrides(self, number: int, present: frozenset[int]) -> bool:
        """Whether a record in this segment may undo an earlier one that is on disk."""
        return any(not self.compacted_since(other, number) for other in present if other < number)

    def is_named(self, number: int, present: frozenset[int]) -> bool:
        """Whether a segment on disk names this one as the one before it."""
        return any(self.previous.get(other) == number for other in present)

    def add_seal(self, number: int, segment: int) -> None:
        """Note a record of size and checksum of segment ``number`` in another segment. O(1)."""
        self.seals_in.setdefault(number, set()).add(segment)

    def is_newest_seal(self, number: int, segment: int) -> bool:
        """Whether the newest record of size and checksum of a segment is in that one. O(records)"""
        return max(self.seals_in.get(number, ()), default=0) == segment

    def keep_seals(self, segment: int, numbers: Collection[int]) -> None:
        """Note the only segments whose size and checksum are in the kept records of a segment."""
        for number in [n for n, holding in self.seals_in.items() if segment in holding]:
            if number not in numbers:
                self.seals_in[number].discard(segment)
                if not self.seals_in[number]:
                    del self.seals_in[number]

    def replacing(self, number: int, data: bytes) -> None:
        """Note that a segment with this content is about to be replaced. O(1)."""
        self.changes += 1
        self.replaced[number] = data

    def has_replaced(self, number: int) -> None:
        """Note that all entries have their new positions in a segment. O(1)."""
        self.changes += 1
        del self.replaced[number]

    def remove_segment(self, number: int) -> None:
        """Remove a segment that is no longer on disk. Its ids are still known, as removed."""
        self.changes += 1
        self.emptied.discard(number)
        self.moved.discard(number)
        self.keep_seals(number, ())
        for known in (self.live, self.compacted, self.dead_in, self.scores, self.previous):
            known.pop(number, None)
        self.paused_until.pop(number, None)
        self.limited_in.pop(number, None)
