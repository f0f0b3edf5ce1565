"""Coverage of the history: spans of time that the events really cover, and gaps. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import date

import msgspec

from fastjournal.spark.history.commits import MissingSegments, TakenSegment
from fastjournal.spark.history.days import DAY_US, begin_us


class Span(msgspec.Struct, frozen=True):
    """A span of time. Instants are microseconds since the Unix epoch."""

    first_us: int
    last_us: int
    first_segment: int
    last_segment: int
    reason: str | None = None
    """Reason of a gap; None: it is covered."""


def spans(taken: Iterable[TakenSegment], gaps: Sequence[MissingSegments]) -> list[Span]:
    """Return covered spans and gaps, in the order of the segments.

    Segments side by side cover the time between them: nothing was written then. A gap whose time
    is not known lasts from the segment before it to the one behind it. A segment that was taken
    may be in a gap, too: what it had behind its taken part when it was sealed.
    """
    covered = list[Span]()
    timed = [
        Span(one.first_us, one.last_us, one.number, one.number)
        for one in sorted(taken, key=lambda one: (one.number, one.bytes))
        if one.first_us is not None and one.last_us is not None
    ]
    for one in timed:
        before = covered[-1] if covered else None
        if before is not None and one.first_segment <= before.last_segment + 1:
            covered[-1] = Span(
                # the clock may have been set back
                min(before.first_us, one.first_us),
                max(before.last_us, one.last_us),
                before.first_segment,
                one.first_segment,
            )
        else:
            covered.append(one)
    numbers = [one.first_segment for one in timed]
    return sorted(
        [*covered, *(_gap(gap, timed, numbers) for gap in gaps)],
        key=lambda span: (span.first_segment, span.first_us),
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


def on_day(found: Iterable[Span], day: date) -> list[tuple[int, int, str | None]]:
    """Return first and last instant on a UTC day, and reason, of the spans that touch it."""
    begin = begin_us(day)
    end = begin + DAY_US
    return [
        (max(span.first_us, begin), min(span.last_us, end), span.reason)
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
    pieces = on_day(found, day)
    return _length((first, last) for first, last, reason in pieces if reason is not None)


def is_covered(found: Iterable[Span], first_us: int, last_us: int) -> bool:
    """Whether any time between two instants is covered: what has no event there, did not happen."""
    return any(
        one.reason is None and one.first_us < last_us and one.last_us > first_us for one in found
    )


def covered_share(found: Iterable[Span], day: date) -> float:
    """Return the part of a UTC day that is covered, 0 to 1; the time of a gap is not."""
    spans = list(found)
    every = _length((first, last) for first, last, _ in on_day(spans, day))
    return (every - gaps_us(spans, day)) / DAY_US


def _length(pieces: Iterable[tuple[int, int]]) -> int:
    """Return how long the time of pieces is, of which some may overlap."""
    ordered = sorted(pieces)
    length, end = 0, ordered[0][0] if ordered else 0
    for first, last in ordered:
        length += max(last - max(first, end), 0)
        end = max(end, last)
    return length
