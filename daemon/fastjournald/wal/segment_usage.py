"""Segment usage table: live bytes by segment, and what else compaction goes by. Pure.

A segment is worth compacting when little of it is live. Whether a record may go is decided by
looking at it (``compaction.liveness``); what that needs to know of other segments stands here:

- in which segment the record of a job is, by its id: the ids of one run of the daemon ascend, so
  the first one in each segment is enough;
- when a segment was last compacted, as the number of the segment that was active at that moment:
  a record that removes a job may go once the segment of that job was compacted in a later segment
  than its own, for then the record of the job is gone from the disk.
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
    """From this instant on the segment is a candidate again."""
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
    """Live bytes by segment, and what is known of each."""

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
        """Segment number to that of the one before it, as its first record says."""
        self.seals_in: dict[int, set[int]] = {}
        """Segment number to the segments with records of its size and checksum (seals)."""
        self.moved: set[int] = set()
        """Segments of which nothing matters any more, that were being read when they were to go."""
        self.merging: frozenset[int] = frozenset()
        """Small segments that are moved to the end of the log, because there are many of them."""
        self.archived_before: int | None = None
        """Segments from this number on wait for their link in the archive; None: there is none."""
        self.sealed_as: dict[int, tuple[int, int]] = {}
        """Segment number to size and CRC-32C when it was sealed, as the log told at the start."""
        self.foreign_last = 0
        """The last segment that another program wrote; 0: there is none."""
        self.replaced: dict[int, bytes] = {}
        """Segment number to what was in it, while not all entries know that it was replaced."""
        self.changes = 0
        """How often segments were replaced or removed: a search for a record begins anew then."""
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

    def was_compacted(
        self, number: int, compacted_in: int, *, emptied: bool, dead_in: int | None = None
    ) -> None:
        """Nothing dead is in this segment but what died in ``compacted_in`` or later. O(1).

        And of what is changed by records in it, all died in ``dead_in`` or before; None: the same.
        """
        self.compacted[number] = compacted_in
        self.dead_in[number] = compacted_in if dead_in is None else dead_in
        if emptied:
            self.emptied.add(number)

    def may_still_hold(self, job_id: bytes) -> int | None:
        """The record of a job that is dead by now may have outlived the compaction of its segment.

        O(log n).

        Returns:
            The segment, which counts as not compacted until it is again; None: there is none.
        """
        number = self.segment_of(job_id)
        if number is not None and number not in self.emptied:
            self.compacted.pop(number, None)
        return number

    def compacted_since(self, number: int, since: int) -> bool:
        """Whether a segment was compacted after the segment ``since`` was sealed. O(1)."""
        return self.compacted.get(number, 0) > since

    def blocks(self, number: int, since: int, present: frozenset[int]) -> bool:
        """Whether records of jobs that ``since`` removes may still be in a segment. O(1)."""
        if number not in present or number in self.emptied:
            return False
        return not self.compacted_since(number, since)

    def is_changed(
        self, number: int, now: int, present: frozenset[int], scored_before: int = -1
    ) -> bool:
        """Whether a segment is worth filtering again. O(1).

        Args:
            number: Number of the segment.
            now: The present.
            present: Numbers of the sealed segments on the disk.
            scored_before: Where no more than this had been appended when it was scored, it is.
        """
        score = self.scores.get(number)
        if score is None or score.again_at <= now:
            return True
        if score.failed:
            return False
        if score.appended <= scored_before:
            return True
        # live records have died, or records removed here have gone; half of them, so that no
        # segment is filtered again and again for little
        if 2 * self.live[number] < score.live:
            return True
        waits = sum(self.blocks(other, number, present) for other in score.waits)
        waits += sum(self.pauses_before(number, domain, now) for domain in score.pauses)
        return 2 * waits < len(score.waits) + len(score.pauses)

    def awaits_archive(self, number: int) -> bool:
        """Whether compaction may not touch a segment, because it is not archived yet. O(1)."""
        return self.archived_before is not None and number >= self.archived_before

    def paused(self, number: int, domain: bytes, until: int) -> None:
        """A record in this segment pauses a domain. O(1)."""
        paused = self.paused_until.setdefault(number, {})
        name = pause_name(domain)
        if until > paused.get(name, 0):
            paused[name] = until

    def pauses_before(self, number: int, domain: bytes, now: int) -> bool:
        """Whether a pause of a domain that is not over may be on the disk before this segment.

        O(segments).
        """
        name = pause_name(domain)
        return any(
            paused.get(name, 0) > now
            for other, paused in self.paused_until.items()
            if other < number
        )

    def limited(self, number: int, domain: bytes) -> None:
        """A record in this segment sets the limits of a domain. O(1)."""
        self.limited_in.setdefault(number, set()).add(pause_name(domain))

    def limits_around(self, number: int, domain: bytes) -> tuple[bool, bool]:
        """Return whether limit records of a domain are in segments before this one, and behind it.

        O(segments).
        """
        name = pause_name(domain)
        others = [other for other, names in self.limited_in.items() if name in names]
        return min(others, default=number) < number, max(others, default=number) > number

    def may_return(self, job_id: bytes, removed_in: int, present: frozenset[int]) -> int | None:
        """Return a segment with the record of a dead job that may be on the disk, but this one.

        Args:
            job_id: Id of the job.
            removed_in: The segment with the record that removed it.
            present: Numbers of the sealed segments on the disk.

        Returns:
            One of the segments; None: there is no such record.
        """
        number = self.segment_of(job_id)
        if number is not None:
            suspects = [number] if number < removed_in else []
        else:
            # in the disorder of another program's log, a job may be added behind its removal
            suspects = [other for other in present if other <= self.foreign_last]
        for other in suspects:
            if other != removed_in and self.blocks(other, removed_in, present):
                return other
        return None

    def may_stand(self, job_id: bytes, changed_in: int, present: frozenset[int]) -> bool:
        """Whether the record of a job that is changed in a segment may be in another one, dead.

        A job that changes may die long after that. When it did is not known; that it was dead when
        the segment of the change was compacted last is.
        """
        number = self.segment_of(job_id)
        if number is None:
            return any(other <= self.foreign_last for other in present - self.emptied)
        if number == changed_in or number not in present or number in self.emptied:
            return False
        dead_in = self.dead_in.get(changed_in)
        return dead_in is None or not self.compacted_since(number, dead_in)

    def overrides(self, number: int, present: frozenset[int]) -> bool:
        """Whether a record in this segment may undo one that is on the disk before it."""
        return any(not self.compacted_since(other, number) for other in present if other < number)

    def is_named(self, number: int, present: frozenset[int]) -> bool:
        """Whether a segment on the disk names this one as the one before it."""
        return any(self.previous.get(other) == number for other in present)

    def add_seal(self, number: int, segment: int) -> None:
        """A record in that segment has size and checksum of this one. O(1)."""
        self.seals_in.setdefault(number, set()).add(segment)

    def is_newest_seal(self, number: int, segment: int) -> bool:
        """Whether the newest record of size and checksum of a segment is in that one. O(records)"""
        return max(self.seals_in.get(number, ()), default=0) == segment

    def keep_seals(self, segment: int, numbers: Collection[int]) -> None:
        """Note that records of size and checksum are left in that segment of these ones only."""
        for number in [n for n, holding in self.seals_in.items() if segment in holding]:
            if number not in numbers:
                self.seals_in[number].discard(segment)
                if not self.seals_in[number]:
                    del self.seals_in[number]

    def replacing(self, number: int, data: bytes) -> None:
        """A segment, which holds this, is about to be replaced. O(1)."""
        self.changes += 1
        self.replaced[number] = data

    def has_replaced(self, number: int) -> None:
        """All entries know where their records in a segment are. O(1)."""
        self.changes += 1
        del self.replaced[number]

    def remove_segment(self, number: int) -> None:
        """Drop a segment that is gone from the disk. The ids that it held stay known as gone."""
        self.changes += 1
        self.emptied.discard(number)
        self.moved.discard(number)
        self.keep_seals(number, ())
        for known in (self.live, self.compacted, self.dead_in, self.scores, self.previous):
            known.pop(number, None)
        self.paused_until.pop(number, None)
        self.limited_in.pop(number, None)
