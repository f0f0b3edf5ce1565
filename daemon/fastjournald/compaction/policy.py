"""Compaction policy: compaction debt, and which sealed segments are compaction candidates. Pure.

A segment is a candidate when less than half of it is live, when too many small ones wait for it, or
when there are too many of about its size: these are *merged*, by moving what they hold to the end
of the log. Sizes are compared in tiers, each a quarter of the one above, so that a byte is copied
once a tier, and not at each snapshot, which seals a segment however small it is.

A segment that waits for its link in the archive is no candidate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fastjournal.cmdlog.format.layout import SegmentInfo
from fastjournal.limits import LIMIT_BYTES, PAUSE_BYTES, UNDERSIZED_SEGMENTS_MAX

if TYPE_CHECKING:
    from fastjournald.engine.store import Store

LIVE_MAX = 0.5
"""Share of live bytes below which a segment is a compaction candidate."""

GARBAGE_MAX = 2
"""A log of more than so many times its live bytes, and two segments, is too large: it is compacted
at once, for the usual time may be long and the load heavy."""

GARBAGE_SLOWED = 3
"""From so many times its live bytes and so many segments on, writers are slowed down: with what is
on its way then, the log stays under four times and four segments."""

DOMAIN_RECORD_BYTES = 96
"""Bytes of the smallest record of a pause, limit or delivery, without the name of its domain."""

CHANGE_RECORD_BYTES = 37
"""Bytes of the smallest record that a changed entry has besides its own: that of an attempt."""

MOVED_RECORD_BYTES = 142
"""Bytes that the move of an entry to the end of the log appends besides its record: those of the
head of a batch and of the removal of its old id."""

TURNED_OVER = 1 / 2
"""Share of the bytes of a log that is too large: when so many were appended since a segment was
scored, it is a candidate again."""

UNDERSIZED = 1 / 8
"""Share of the usual size of a segment: one with fewer kept bytes is moved to the end of the
log."""

MERGED_BELOW = 1 / 2
"""Share of the usual size of a segment: smaller ones are merged where there are many."""

MERGED_MIN = 4
"""Segments of one tier that are merged."""

TIERS = 7
"""Number of size tiers of small segments; the last one has all that are smaller still."""


class LogFigures(Protocol):
    """Figures of the log that its writer has (``cmdlog.writer``)."""

    @property
    def sealed(self) -> Sequence[SegmentInfo]:
        """Sealed segments, oldest first."""

    @property
    def log_bytes(self) -> int:
        """Bytes of all segments."""

    @property
    def segment_bytes_max(self) -> int:
        """Usual bytes of a segment."""

    @property
    def appended(self) -> int:
        """Bytes that were appended so far."""


def candidates(
    store: Store, writer: LogFigures, now: int, *, merge: bool = True
) -> list[SegmentInfo]:
    """Return the compaction candidates, oldest first. O(number of segments).

    Args:
        store: Store whose log it is.
        writer: Figures of the log.
        now: The present instant.
        merge: Whether small ones are merged.
    """
    usage = store.journal.usage
    present = frozenset(info.number for info in writer.sealed)
    awaited = awaited_most(store, writer, present, now)
    bytes_now = writer.log_bytes
    # tombstones and pauses without a table also end before their time
    scored_before = -1
    if bytes_now > bytes_usual(store, writer):
        scored_before = writer.appended - round(TURNED_OVER * bytes_now)
    usage.merging = _merging(store, writer, present, now) if merge else frozenset()
    return [
        info
        for info in writer.sealed
        if not usage.awaits_archive(info.number)
        and (
            info.number == awaited
            or info.number in usage.merging
            or (
                usage.live[info.number] < LIVE_MAX * info.bytes
                and usage.is_changed(info.number, now, present, scored_before)
            )
        )
    ]


def live_bytes(store: Store) -> int:
    """Return the live bytes of the log, those of records that compaction keeps. O(1).

    Records of entries and deletions are counted exactly, the others by their smallest size. Leases,
    burials and other changes of an entry count as one record: compaction copies it forward.
    """
    pauses, limits = store.rules.pauses, store.rules.limits
    domains = pauses.bytes + (DOMAIN_RECORD_BYTES - PAUSE_BYTES) * len(pauses)
    domains += limits.bytes + (DOMAIN_RECORD_BYTES - LIMIT_BYTES) * len(limits)
    domains += DOMAIN_RECORD_BYTES * (limits.intervals - len(limits.unlogged))
    records = store.journal.records
    changes = CHANGE_RECORD_BYTES * len(records.amended)
    return records.live_bytes + store.tombstones.record_bytes + domains + changes


def bytes_usual(store: Store, writer: LogFigures) -> int:
    """Return the bytes from which on a log is too large. O(1)."""
    return GARBAGE_MAX * live_bytes(store) + 2 * writer.segment_bytes_max


def excess(store: Store, writer: LogFigures) -> float:
    """Return by which part the log is larger than it should be; negative: smaller. O(segments)."""
    return writer.log_bytes / bytes_usual(store, writer) - 1


def bytes_slowed(store: Store, writer: LogFigures) -> int:
    """Return the bytes of a log from which on writers are slowed down. O(1)."""
    return round(GARBAGE_SLOWED * (live_bytes(store) + writer.segment_bytes_max))


def awaited_most(store: Store, writer: LogFigures, present: frozenset[int], now: int) -> int:
    """Return the segment for which most of too many small files wait, perhaps; 0: there is none."""
    usage = store.journal.usage
    undersized = 0
    waits: Counter[int] = Counter()
    for info in writer.sealed:
        score = usage.scores.get(info.number)
        if score is None or not score.waits or info.bytes >= UNDERSIZED * writer.segment_bytes_max:
            continue
        awaited = [other for other in score.waits if usage.blocks(other, info.number, present)]
        undersized += bool(awaited)
        waits.update(awaited)
    if undersized <= UNDERSIZED_SEGMENTS_MAX:
        return 0
    for number, _ in waits.most_common():
        score = usage.scores.get(number)
        if score is None or not score.failed or score.again_at <= now:
            return number
    return 0


def _merging(store: Store, writer: LogFigures, present: frozenset[int], now: int) -> frozenset[int]:
    """Return the small segments of a tier that has too many."""
    usage = store.journal.usage
    tiers: defaultdict[int, list[int]] = defaultdict(list)
    for info in writer.sealed:
        tier, below = 0, MERGED_BELOW * writer.segment_bytes_max
        if info.bytes >= below:
            continue
        score = usage.scores.get(info.number)
        fixed = score is not None and (score.fixed or score.failed)
        if fixed and not usage.is_changed(info.number, now, present):
            continue
        while info.bytes < below / 4 and tier < TIERS - 1:
            tier, below = tier + 1, below / 4
        tiers[tier].append(info.number)
    return frozenset(
        number for tier in tiers.values() if len(tier) >= MERGED_MIN for number in tier
    )
