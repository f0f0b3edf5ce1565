"""Days of the nightly run: which one is reported, computed again, covered and pruned."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from fastjournal.errors import BadRequestError
from fastjournal.spark.history.coverage import (
    MissingSegments,
    Span,
    covered_share,
    extended,
    gaps_of,
    joined,
    on_day,
    spans,
)
from fastjournal.spark.history.days import (
    DAY_US,
    begin_us,
    checked_day,
    days_to_prune,
    stale_days,
    trend_days,
)
from fastjournal.spark.history.event_files import SegmentBefore, SegmentFacts, TakenSegment

MIDNIGHT_US = int(datetime(2026, 11, 21, tzinfo=UTC).timestamp()) * 1_000_000
DAY = date(2026, 11, 20)


@pytest.mark.parametrize("text", ["2026-11-21", "2027-01-01"])
def test_date_that_has_not_ended_is_refused(text: str) -> None:
    assert checked_day("2026-11-20", MIDNIGHT_US) == DAY
    with pytest.raises(BadRequestError, match=r"has not ended in UTC .*2026-11-20"):
        checked_day(text, MIDNIGHT_US)


@pytest.mark.parametrize(
    "text", ["yesterday", "2026-02-30", "", "20.11.2026", "2026-W47-5", "20261120", "2026-11-20\n"]
)
def test_date_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="is no date"):
        checked_day(text, MIDNIGHT_US)


def test_stale_days_are_those_whose_events_came_and_not_those_that_were_pruned() -> None:
    days = trend_days(DAY)[-5:]
    sources = {"2026-11-17": ["1-a"], "2026-11-18": ["1-a", "2-b"], "2026-11-19": ["3-d"]}
    computed = {"2026-11-17": ["1-a"], "2026-11-18": ["1-a"], "2026-11-20": ["4-a"]}
    assert stale_days(days, sources, computed) == [date(2026, 11, 18), date(2026, 11, 19)]
    # one of its segments was put back behind the pruning: the others are missing
    assert stale_days(days, {"2026-11-20": ["5-a"]}, computed) == []
    # a segment that grew has another checksum
    assert stale_days(days, {"2026-11-20": ["4-a", "4-b"]}, computed) == [DAY]


@pytest.mark.parametrize(
    ("keep", "pruned"),
    [(None, []), (1, ["2026-11-18", "2026-11-19"]), (2, ["2026-11-18"]), (3, []), (100, [])],
)
def test_pruning_keeps_the_last_days_and_those_behind_them(
    keep: int | None, pruned: list[str]
) -> None:
    present = ["2026-11-21", "2026-11-19", "2026-11-20", "2026-11-18"]
    assert days_to_prune(present, DAY, keep) == pruned


def taken(
    number: int, first_us: int, last_us: int, before: SegmentBefore | None = None
) -> TakenSegment:
    return TakenSegment(SegmentFacts(number, f"{number:08x}", 100, first_us, last_us, before, {}))


def test_gap_is_between_segments_or_where_one_is_another_than_the_next_one_tells() -> None:
    segments = [taken(2, 0, 1), taken(3, 1, 2, SegmentBefore(2, 100, f"{2:08x}"))]
    assert gaps_of(segments) == []
    assert gaps_of([]) == []
    segments += [taken(7, 5, 6, SegmentBefore(6, 100, "00000006"))]
    assert gaps_of(segments) == [MissingSegments(4, 6, None, None, "missing")]
    known = [
        MissingSegments(1, 1, 0, 0, "compacted"),
        MissingSegments(5, 5, 3, 4, "dropped"),
        MissingSegments(8, 8, 7, 8, "not-linked"),
    ]
    assert gaps_of(segments, known, 9) == [
        MissingSegments(4, 4, None, None, "missing"),
        known[1],
        MissingSegments(6, 6, None, None, "missing"),
        known[2],
        MissingSegments(9, 9, None, None, "missing"),
    ]
    for before in (SegmentBefore(2, 99, f"{2:08x}"), SegmentBefore(2, 100, "00000000")):
        found = gaps_of([taken(2, 0, 1), taken(3, 1, 2, before)])
        assert found == [MissingSegments(2, 2, None, None, "missing")]


def test_spans_of_pruned_days_are_joined_as_their_reports_have_shown_them() -> None:
    begin = begin_us(DAY)
    shown = [Span(begin - DAY_US, begin, 1, 4), Span(begin - 9, begin, 5, 5, "dropped")]
    found = [Span(begin, begin + 9, 5, 5, "dropped"), Span(begin + 9, begin + 99, 6, 8)]
    assert joined([*shown, *found]) == [
        shown[0],
        Span(begin - 9, begin + 9, 5, 5, "dropped"),
        found[1],
    ]


def test_coverage_joins_segments_side_by_side_and_names_gaps() -> None:
    begin = MIDNIGHT_US - DAY_US
    hour = DAY_US // 24
    segments = [taken(1, begin, begin + 2 * hour), taken(2, begin + 4 * hour, begin + 6 * hour)]
    segments += [taken(5, begin + 12 * hour, begin + 18 * hour)]
    found = spans(segments, [MissingSegments(3, 4, None, None, "dropped")])
    assert found == [
        Span(begin, begin + 6 * hour, 1, 2),
        Span(begin + 6 * hour, begin + 12 * hour, 3, 4, "dropped"),
        Span(begin + 12 * hour, begin + 18 * hour, 5, 5),
    ]
    assert covered_share(found, DAY) == 0.5
    # the snapshot sealed segment 5: nothing was written until then
    longer = extended(found, [(2, begin + 5 * hour), (5, begin + 30 * hour)])
    assert longer[0] == found[0]
    assert longer[2].last_us == begin + 30 * hour
    assert covered_share(longer, DAY) == 0.75


def test_coverage_has_the_time_to_which_the_clock_was_set_back() -> None:
    begin = begin_us(DAY)
    hour = DAY_US // 24
    # two days later, back to this day, and forward again
    segments = [
        taken(1, begin + 2 * DAY_US, begin + 2 * DAY_US + hour),
        taken(2, begin + 6 * hour, begin + 12 * hour),
        taken(3, begin + 2 * DAY_US + hour, begin + 2 * DAY_US + 2 * hour),
    ]
    assert spans(segments, []) == [Span(begin + 6 * hour, begin + 2 * DAY_US + 2 * hour, 1, 3)]
    assert covered_share(spans(segments, []), DAY) == 0.75
    # a gap ends before it begins: what is missing may be of any time between the two
    behind = taken(3, begin + 12 * hour, begin + 18 * hour)
    for gap in (
        MissingSegments(2, 2, begin + 2 * DAY_US + hour, begin + 12 * hour, "dropped"),
        MissingSegments(2, 2, None, None, "dropped"),
    ):
        found = spans([segments[0], behind], [gap])
        assert found[1] == Span(begin + 12 * hour, begin + 2 * DAY_US + hour, 2, 2, "dropped")
        assert covered_share(found, DAY) == 0.0
        assert on_day(found, DAY)[0] == Span(begin + 12 * hour, begin + DAY_US, 2, 2, "dropped")


def test_gap_beside_a_clock_that_was_ahead_lasts_between_its_neighbours() -> None:
    begin = begin_us(DAY)
    hour = DAY_US // 24
    segments = [
        taken(1, begin, begin + 300 * DAY_US),
        taken(2, begin + hour, begin + 2 * hour),
        taken(4, begin + 3 * hour, begin + 4 * hour),
    ]
    found = spans(segments, [MissingSegments(3, 3, None, None, "missing")])
    assert found[1] == Span(begin + 2 * hour, begin + 3 * hour, 3, 3, "missing")
