"""Coverage of the history: spans of time that the events cover completely, and gaps. Pure.

Gaps are not stored. Each segment names the one before it, with its size and its checksum, so one
that is missing, or not as it was sealed, is a gap until it arrives. Gaps are ranges, and no step
takes time in proportion to the length of a range, because a number in a name may have any value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any, NamedTuple, TypeVar

import msgspec

from fastjournal.cmdlog.archive import MISSING, Gap, gaps_between, missing_text
from fastjournal.spark.history.days import DAY_US, begin_us
from fastjournal.spark.history.event_files import TakenSegment


class MissingSegments(NamedTuple):
    """Adjacent segments without events, or without some of them."""

    first: int
    last: int
    first_us: int | None
    """Known begin of the gap, in microseconds since the Unix epoch; None: not known."""
    last_us: int | None
    reason: str
    """Reason that the archive gives, else ``missing`` or ``damaged``."""


AnyGap = TypeVar("AnyGap", Gap, MissingSegments)


class Span(msgspec.Struct, frozen=True):
    """A span of time. Instants are microseconds since the Unix epoch."""

    first_us: int
    last_us: int
    first_segment: int
    last_segment: int
    reason: str | None = None
    """Reason of a gap; None: it is covered."""


# --- gaps -----------------------------------------------------------------------------------------


def gaps_of(
    taken: Sequence[TakenSegment], known: Iterable[MissingSegments] = (), last: int = 0
) -> list[MissingSegments]:
    """Return the gaps of a history, in the order of the segments.

    Args:
        taken: Its segments.
        known: Gaps that the archive names; those before the first segment count where they adjoin.
        last: Number of the last segment that the archive had.
    """
    if not taken:
        return []
    numbers = sorted({one.number for one in taken})
    adjoining: list[Any] = adjoining_gaps(known, numbers[0], numbers[-1])
    end = max([last, numbers[-1], *(gap.last for gap in adjoining)])
    between = gaps_between([(number, number) for number in numbers], adjoining, end)
    return sorted([*(MissingSegments(*gap) for gap in between), *_parts(taken)])


def _parts(taken: Sequence[TakenSegment]) -> Iterator[MissingSegments]:
    """Yield the missing parts of segments that are there.

    The file of a day, if no longer version has it; and the rest of one that the next segment knows
    as another one: it grew, or another log goes on there.
    """
    versions = defaultdict[int, set[tuple[int, int, str]]](set)
    whole = defaultdict[int, int](int)
    for one in taken:
        versions[one.number].add(one.version)
        if not one.lacking:
            whole[one.number] = max(whole[one.number], one.facts.bytes)
    named = set[int]()
    for one in taken:
        before = one.facts.before
        if before is not None and before.bytes and before.number not in named:
            there = versions.get(before.number)
            if there and (before.number, before.bytes, before.crc32c) not in there:
                named.add(before.number)
                yield MissingSegments(before.number, before.number, None, None, MISSING)
        if one.lacking and whole[one.number] < one.facts.bytes:
            begin, end = (begin_us(date.fromisoformat(one.lacking[at])) for at in (0, -1))
            yield MissingSegments(one.number, one.number, begin, end + DAY_US, MISSING)


def adjoining_gaps(known: Iterable[AnyGap], first: int, last: int) -> list[AnyGap]:
    """Return the gaps among and beside the segments of an archive that nobody has taken from it.

    Segments between a gap and the first segment were taken and unlinked: that gap is their
    reader's matter. Segments that were compacted before the first one are older than the archive.

    Args:
        known: Gaps that the archive knows.
        first: Number of the first segment.
        last: Number of the last one.
    """
    found = list[AnyGap]()
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
    """Return the text of an error, or of a row, about a gap."""
    return missing_text(first, last) + ("" if reason == MISSING else f" ({reason})")


# --- spans ----------------------------------------------------------------------------------------


def spans(taken: Iterable[TakenSegment], gaps: Sequence[MissingSegments]) -> list[Span]:
    """Return covered spans and gaps, in the order of the segments.

    A gap of unknown time lasts from the segment before it to the one after it. A segment that was
    taken may be in a gap, too: the part after its taken one when it was sealed.
    """
    timed = [
        Span(facts.first_us, facts.last_us, facts.number, facts.number)
        for facts in (one.facts for one in sorted(taken, key=lambda one: one.version))
        if facts.first_us is not None and facts.last_us is not None
    ]
    numbers = [one.first_segment for one in timed]
    return joined([*timed, *(_gap(gap, timed, numbers) for gap in gaps)])


def joined(found: Iterable[Span]) -> list[Span]:
    """Return spans in the order of their segments, those of segments side by side as one.

    These cover the time between them: nothing was written then. Parts of a gap become one, too.
    """
    covered, gaps = list[Span](), list[Span]()
    for one in sorted(
        found, key=lambda span: (span.first_segment, span.last_segment, span.first_us)
    ):
        before = covered[-1] if covered else None
        if one.reason is not None:
            part = gaps[-1] if gaps else None
            if part is not None and _is_part(part, one):
                gaps[-1] = msgspec.structs.replace(part, last_us=max(part.last_us, one.last_us))
            else:
                gaps.append(one)
        elif before is not None and one.first_segment <= before.last_segment + 1:
            covered[-1] = Span(
                # the clock may have been set back
                min(before.first_us, one.first_us),
                max(before.last_us, one.last_us),
                before.first_segment,
                max(before.last_segment, one.last_segment),
            )
        else:
            covered.append(one)
    return sorted([*covered, *gaps], key=lambda span: (span.first_segment, span.first_us))


def _is_part(gap: Span, other: Span) -> bool:
    """Whether a gap continues in another one, which begins after it."""
    named = (gap.first_segment, gap.last_segment, gap.reason)
    return (
        named == (other.first_segment, other.last_segment, other.reason)
        and other.first_us <= gap.last_us
    )


def _gap(gap: MissingSegments, timed: Sequence[Span], numbers: Sequence[int]) -> Span:
    """Return the span of a gap between segments, which are in order."""
    first_us, last_us = gap.first_us, gap.last_us
    if first_us is None:
        before = bisect_right(numbers, gap.first)
        first_us = timed[before - 1].last_us if before else 0
    if last_us is None:
        behind = bisect_right(numbers, gap.last)
        last_us = timed[behind].first_us if behind < len(timed) else first_us
    # the clock was set back where it ends before it begins: it may be anywhere between the two
    begin, end = min(first_us, last_us), max(first_us, last_us)
    return Span(begin, end, gap.first, gap.last, gap.reason)


def extended(found: Iterable[Span], seals: Sequence[tuple[int, int]]) -> list[Span]:
    """Return spans that last until the log was sealed: nothing was written before that instant.

    Args:
        found: Spans.
        seals: Number of the last segment of a snapshot, and the instant at which it was taken.
    """
    spans = list[Span]()
    for span in found:
        ends = [at for number, at in seals if span.last_segment == number and span.reason is None]
        spans.append(msgspec.structs.replace(span, last_us=max([span.last_us, *ends])))
    return spans


def on_day(found: Iterable[Span], day: date) -> list[Span]:
    """Return the parts on a UTC day of the spans that touch it."""
    begin = begin_us(day)
    end = begin + DAY_US
    return [
        msgspec.structs.replace(
            span, first_us=max(span.first_us, begin), last_us=min(span.last_us, end)
        )
        for span in spans_between(found, begin, end)
    ]


def spans_between(found: Iterable[Span], first_us: int, last_us: int) -> list[Span]:
    """Return the spans that touch the time from one instant to another."""
    return [span for span in found if span.first_us <= last_us and span.last_us >= first_us]


def gaps_on_day(found: Iterable[Span], day: date) -> list[Span]:
    """Return the gaps that touch a UTC day; the length of one may not be known, and is 0 then."""
    begin = begin_us(day)
    return [one for one in spans_between(found, begin, begin + DAY_US) if one.reason is not None]


def gaps_us(found: Iterable[Span], day: date) -> int:
    """Return how many microseconds of a UTC day the gaps on it last."""
    return _length(span for span in on_day(found, day) if span.reason is not None)


def is_covered(found: Iterable[Span], first_us: int, last_us: int) -> bool:
    """Whether any time between two instants is covered: what has no event there, did not happen."""
    return any(
        one.reason is None and one.first_us < last_us and one.last_us > first_us for one in found
    )


def covered_share(found: Iterable[Span], day: date) -> float:
    """Return the part of a UTC day that is covered, 0 to 1; the time of a gap is not."""
    spans = list(found)
    every = _length(on_day(spans, day))
    return (every - gaps_us(spans, day)) / DAY_US


def _length(pieces: Iterable[Span]) -> int:
    """Return the total time of pieces, some of which may overlap."""
    ordered = sorted((span.first_us, span.last_us) for span in pieces)
    length, end = 0, ordered[0][0] if ordered else 0
    for first, last in ordered:
        length += max(last - max(first, end), 0)
        end = max(end, last)
    return length
