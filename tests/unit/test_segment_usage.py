"""Segment usage table: live bytes in each segment of the log."""

from __future__ import annotations

from fastjournald.wal.segment_usage import SegmentScore, SegmentUsage

RUN = b"run one:"
OTHER = b"another:"


def job(number: int, run: bytes = RUN) -> bytes:
    return run + number.to_bytes(8)


def space_of_three() -> SegmentUsage:
    """Jobs 10 to 19 are in segment 1, 20 to 29 in 2, all later ones in 3."""
    space = SegmentUsage()
    for number in (1, 2, 3):
        space.begins(job(10 * number), number)
    return space


PRESENT = frozenset((1, 2, 3))


def test_id_tells_the_segment_of_its_record() -> None:
    space = space_of_three()
    segments = [space.segment_of(job(number)) for number in (9, 10, 19, 20, 29, 30, 1000)]
    assert segments == [None, 1, 1, 2, 2, 3, 3]


def test_segment_usage_distinguishes_two_runs_in_one_segment() -> None:
    space = space_of_three()
    space.begins(job(5, OTHER), 3)
    assert space.segment_of(job(4, OTHER)) is None
    assert space.segment_of(job(5, OTHER)) == 3
    assert space.segment_of(job(25)) == 2


def test_first_id_of_a_segment_counts() -> None:
    space = space_of_three()
    space.begins(job(35), 3)
    space.begins(job(40), 4)
    assert space.segment_of(job(34)) == 3
    assert space.segment_of(job(40)) == 4


def test_dead_job_may_return_until_its_segment_was_cleaned_in_a_later_one() -> None:
    space = space_of_three()
    assert space.may_return(job(10), 2, PRESENT) == 1
    space.was_compacted(1, 2, emptied=False)
    assert space.may_return(job(10), 2, PRESENT) == 1, "it may have died behind the cleaning"
    space.was_compacted(1, 3, emptied=False)
    assert space.may_return(job(10), 2, PRESENT) is None
    assert space.may_return(job(10), 3, PRESENT) == 1


def test_job_of_a_segment_that_is_gone_or_emptied_cannot_return() -> None:
    space = space_of_three()
    assert space.may_return(job(10), 3, frozenset((2, 3))) is None
    space.was_compacted(1, 1, emptied=True)
    assert space.may_return(job(10), 3, PRESENT) is None


def test_job_is_in_no_other_segment_than_its_own_or_a_later_one() -> None:
    space = space_of_three()
    assert space.may_return(job(30), 3, PRESENT) is None
    assert space.may_return(job(30), 2, PRESENT) is None, "a removal stands behind its job"


def test_job_of_another_program_may_be_in_any_segment_of_that() -> None:
    space = space_of_three()
    space.foreign_last = 2
    assert space.may_return(b"x" * 16, 3, PRESENT) in (1, 2)
    space.was_compacted(1, 4, emptied=False)
    assert space.may_return(b"x" * 16, 3, PRESENT) == 2
    space.was_compacted(2, 4, emptied=False)
    assert space.may_return(b"x" * 16, 3, PRESENT) is None


def test_segment_is_looked_at_again_when_half_of_what_was_live_has_died() -> None:
    space = SegmentUsage()
    space.scores[1] = SegmentScore(100, live=1000)
    space.live[1] = 500
    assert not space.is_changed(1, 99, PRESENT)
    space.live[1] = 499
    assert space.is_changed(1, 99, PRESENT)
    space.live[1] = 1000
    assert space.is_changed(1, 100, PRESENT), "what ends by itself has ended"


def test_segment_is_looked_at_again_when_half_of_what_it_waits_for_is_clean() -> None:
    space = SegmentUsage()
    space.scores[3] = SegmentScore(100, waits=(1, 2))
    assert not space.is_changed(3, 0, PRESENT)
    space.was_compacted(1, 4, emptied=False)
    assert not space.is_changed(3, 0, PRESENT)
    space.was_compacted(2, 4, emptied=False)
    assert space.is_changed(3, 0, PRESENT)


def test_segment_that_could_not_be_cleaned_rests() -> None:
    space = SegmentUsage()
    space.scores[1] = SegmentScore(100, live=1000, failed=True)
    assert not space.is_changed(1, 99, PRESENT)
    assert space.is_changed(1, 100, PRESENT)


def test_pauses_are_known_by_segment_until_they_are_over() -> None:
    space = SegmentUsage()
    space.paused(1, b"d", 50)
    space.paused(1, b"d", 40)
    assert space.pauses_before(2, b"d", 49)
    assert not space.pauses_before(2, b"d", 50)
    assert not space.pauses_before(1, b"d", 0)
    assert not space.pauses_before(2, b"other", 0)
    space.remove_segment(1)
    assert not space.pauses_before(2, b"d", 0)


def test_segment_with_ends_of_pauses_is_looked_at_again_when_half_of_these_are_gone() -> None:
    space = SegmentUsage()
    space.paused(1, b"d", 50)
    space.paused(2, b"e", 50)
    space.scores[3] = SegmentScore(100, pauses=(b"d", b"e"))
    assert not space.is_changed(3, 49, PRESENT)
    space.remove_segment(1)
    assert not space.is_changed(3, 49, PRESENT)
    space.remove_segment(2)
    assert space.is_changed(3, 49, PRESENT)


def test_segment_usage_drops_removed_segments_and_entries() -> None:
    space = space_of_three()
    space.live[1] = 0
    space.previous[2] = 1
    space.scores[1] = SegmentScore(1)
    space.was_compacted(1, 3, emptied=True)
    assert space.is_named(1, PRESENT)
    space.remove_segment(1)
    assert (dict(space.live), space.scores, space.compacted, space.emptied) == ({}, {}, {}, set())
    assert space.segment_of(job(10)) == 1, "as gone"
    space.remove_segment(2)
    assert not space.is_named(1, PRESENT)
