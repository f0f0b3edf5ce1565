"""Coverage of the history: spans of time that the events really cover, and gaps. Pure."""

from __future__ import annotations

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
    is not known lasts from the covered span before it to the one behind it.
    """
    covered = list[Span]()
    timed = [one for one in taken if one.first_us is not None and one.last_us is not None]
    for one in sorted(timed, key=lambda one: (one.number, one.bytes)):
        assert one.first_us is not None
        assert one.last_us is not None
        span = Span(one.first_us, one.last_us, one.number, one.number)
        before = covered[-1] if covered else None
        if before is not None and one.number <= before.last_segment + 1:
            covered[-1] = Span(
                # the clock may have been set back
                min(before.first_us, one.first_us),
                max(before.last_us, one.last_us),
                before.first_segment,
                one.number,
            )
        else:
            covered.append(span)
    return sorted(
        [*covered, *(_gap(gap, covered) for gap in gaps)],
        key=lambda span: (span.first_segment, span.first_us),
    )


def _gap(gap: MissingSegments, covered: Sequence[Span]) -> Span:
    first_us, last_us = gap.first_us, gap.last_us
    if first_us is None:
        ends = [span.last_us for span in covered if span.last_segment < gap.first]
        first_us = max(ends, default=0)
    if last_us is None:
        begins = [span.first_us for span in covered if span.first_segment > gap.last]
        last_us = min(begins, default=first_us)
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
        for span in found
        if span.first_us <= end and span.last_us >= begin
    ]


def covered_share(found: Iterable[Span], day: date) -> float:
    """Return the part of a UTC day that is covered, 0 to 1; the time of a gap is not."""
    pieces = on_day(found, day)
    lost = [(first, last) for first, last, reason in pieces if reason is not None]
    every = _length((first, last) for first, last, _ in pieces)
    return (every - _length(lost)) / DAY_US


def _length(pieces: Iterable[tuple[int, int]]) -> int:
    """Return how long the time of pieces is, of which some may overlap."""
    ordered = sorted(pieces)
    length, end = 0, ordered[0][0] if ordered else 0
    for first, last in ordered:
        length += max(last - max(first, end), 0)
        end = max(end, last)
    return length
