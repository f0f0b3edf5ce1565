"""Gaps of the history: segments that are missing, and what else its events lack.

Gaps are ranges, and nothing here takes as long as a range is: a number in a name may be any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from fastjournal.cmdlog.archive_format import MISSING, Gap, missing_text
from fastjournal.spark.history.commits import Commit, MissingSegments, TakenSegment
from fastjournal.spark.history.extraction_tasks import DAMAGED, ReadSegment
from fastjournal.spark.records.stream_segments import Sealed

LATE = "late"
"""Reason of a gap whose segments are in the table, but were taken behind later ones."""


def adjoining_gaps(known: Iterable[Gap], first: int, last: int) -> list[Gap]:
    """Return the gaps among and beside the segments of an archive that nobody has taken from it.

    Segments between a gap and the first segment were taken and unlinked: that gap is their
    reader's matter. Segments that were compacted before the first one are older than the archive.

    Args:
        known: Gaps that the archive knows.
        first: Number of the first segment.
        last: Number of the last one.
    """
    found = list[Gap]()
    begin, end = first, last
    ordered = sorted(known, key=lambda gap: gap.first)
    for gap in reversed(ordered):
        if gap.first < begin <= gap.last + 1 and gap.reason != "compacted":
            begin = gap.first
            found.append(gap)
    for gap in ordered:
        if gap.first >= first and gap.first <= end + 1:
            end = max(end, gap.last)
            found.append(gap)
    return found


def gap_text(first: int, last: int, reason: str) -> str:
    """Return what an error, or a row, tells of a gap."""
    if reason == LATE:
        named = f"segment {first} was" if first == last else f"segments {first} to {last} were"
        return f"{named} taken behind later ones ({reason})"
    return missing_text(first, last) + ("" if reason == MISSING else f" ({reason})")


def gaps_of(commits: Iterable[Commit]) -> list[MissingSegments]:
    """Return the gaps of a table: what its commits name, and of that what came behind it.

    A segment that is put back is taken behind later ones, over a state that has these. So a gap
    stays, of reason ``LATE``.
    """
    found, taken = list[MissingSegments](), dict[int, TakenSegment]()
    for commit in reversed(list(commits)):
        for gap in reversed(commit.gaps):
            found += reversed(list(_parts(gap, taken)))
        taken |= {segment.number: segment for segment in commit.segments}
    return found[::-1]


def _parts(gap: MissingSegments, later: Mapping[int, TakenSegment]) -> Iterator[MissingSegments]:
    """Yield the parts of a gap: segments that are missing still, and those that came later."""
    number = gap.first
    for late in sorted(one for one in later if gap.first <= one <= gap.last):
        if number < late:
            yield MissingSegments(number, late - 1, None, None, gap.reason)
        one = later[late]
        yield MissingSegments(late, late, one.first_us, one.last_us, LATE)
        number = late + 1
    if number == gap.first:
        yield gap
    elif number <= gap.last:
        yield MissingSegments(number, gap.last, None, None, gap.reason)


def lost_segments(
    read: Iterable[ReadSegment], known: Sequence[Gap], named: Collection[MissingSegments]
) -> list[MissingSegments]:
    """Return the gaps of segments of which nothing was read.

    Args:
        read: Segments in order, a longer version of one behind a shorter.
        known: Gaps that the archive knows: only these were dropped by the daemon.
        named: Gaps that the table names already.
    """
    lost = dict[int, str]()
    for one in read:
        # a longer version has all that a shorter one had
        lost.pop(one.file.number, None)
        if one.lost:
            lost[one.file.number] = one.lost
    return [
        MissingSegments(
            number, number, None, None, DAMAGED if why == DAMAGED else _reason(number, known)
        )
        for number, why in lost.items()
        if not any(_covers(gap, number) for gap in named)
    ]


def _covers(gap: MissingSegments, number: int) -> bool:
    return gap.first <= number <= gap.last


def _reason(number: int, known: Sequence[Gap]) -> str:
    """Return why a segment that was listed is not there any more."""
    return next((gap.reason for gap in known if gap.first <= number <= gap.last), MISSING)


def grown_segments(
    read: Iterable[ReadSegment], taken: Iterable[TakenSegment], known: Iterable[MissingSegments]
) -> list[MissingSegments]:
    """Return the gaps of segments that were taken, but not as they were when they were sealed.

    Args:
        read: Segments; each may say how the one before it was.
        taken: All segments whose events are in the table.
        known: Gaps that the table names already.
    """
    versions = defaultdict[int, set[Sealed]](set)
    for segment in taken:
        version = Sealed(segment.number, segment.bytes, int(segment.crc32c, 16))
        versions[segment.number].add(version)
    named = {gap.first for gap in known if gap.first == gap.last}
    told = {one.before for one in read if one.before.bytes}
    grown = {one.number for one in told if versions[one.number] and one not in versions[one.number]}
    return [MissingSegments(one, one, None, None, MISSING) for one in sorted(grown - named)]
