"""Missing segments: ranges of numbers that are nowhere, and the reason of an archive. Pure.

Nothing here takes as long as a range is: a number in a name may be any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fastjournal.cmdlog.archive_format import Gap

MISSING = "missing"
"""Reason of a gap of which the archive says nothing."""


def gaps_between(
    present: Iterable[tuple[int, int]], known: Sequence[Gap], last: int
) -> list[tuple[int, int, int | None, int | None, str]]:
    """Return the gaps up to a segment: first and last number, first and last time, reason.

    Args:
        present: First and last numbers of segments that are there, or are in a gap already.
        known: Gaps that the archive knows; the first of two that overlap counts.
        last: Number of the last segment.
    """
    spans = sorted(present)
    first = min([*(begin for begin, _ in spans), *(gap.first for gap in known)])
    absent = list(_absent(spans, first, last))
    found: list[tuple[int, int, int | None, int | None, str]] = []
    for gap in known:
        rest = []
        for begin, end in absent:
            low, high = max(begin, gap.first), min(end, gap.last)
            if low > high:
                rest.append((begin, end))
                continue
            found.append((low, high, gap.first_us, gap.last_us, gap.reason))
            rest += [part for part in ((begin, low - 1), (high + 1, end)) if part[0] <= part[1]]
        absent = rest
    found += [(begin, end, None, None, MISSING) for begin, end in absent]
    return sorted(found, key=lambda gap: gap[0])


def missing_text(first: int, last: int) -> str:
    """Return what an error tells of a range of missing segments."""
    if first == last:
        return f"segment {first} is not there"
    return f"segments {first} to {last} are not there"


def _absent(spans: Iterable[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of numbers from ``first`` to ``last`` that are in no span, in order."""
    number = first
    for begin, end in spans:
        if begin > number and number <= last:
            yield number, min(begin - 1, last)
        number = max(number, end + 1)
    if number <= last:
        yield number, last
