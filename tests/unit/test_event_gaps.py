"""Gaps between archived segments: each number that is nowhere is in one, with its reason."""

from __future__ import annotations

import random

import pytest

from fastjournal.cmdlog.archive import MISSING, Gap, gaps_between


def known(first: int, last: int, reason: str = "dropped") -> Gap:
    return Gap(first, last, 1, 1, first * 10, last * 10, reason)  # type: ignore[arg-type] # any


@pytest.mark.parametrize("seed", range(50))
def test_gaps_are_those_that_a_look_at_each_number_finds(seed: int) -> None:
    draw = random.Random(seed)
    present = [
        (begin, begin + draw.randrange(3)) for begin in draw.sample(range(1, 60), draw.randrange(9))
    ]
    present.append((60, 60))
    gaps = [
        known(begin, begin + draw.randrange(8), draw.choice(("dropped", "not-linked")))
        for begin in draw.sample(range(1, 60), draw.randrange(4))
    ]
    there = {number for begin, end in present for number in range(begin, end + 1)}
    first = min(there | {gap.first for gap in gaps})
    expected = {}
    for number in set(range(first, 61)) - there:
        told = next((gap for gap in gaps if gap.first <= number <= gap.last), None)
        facts = (
            (None, None, MISSING) if told is None else (told.first_us, told.last_us, told.reason)
        )
        expected[number] = facts
    found = gaps_between(present, gaps, 60)
    assert [gap[0] for gap in found] == sorted(gap[0] for gap in found)
    numbers = [number for gap in found for number in range(gap[0], gap[1] + 1)]
    assert len(numbers) == len(set(numbers))
    assert {n: gap[2:] for gap in found for n in range(gap[0], gap[1] + 1)} == expected


def test_gaps_of_absurd_numbers_are_found_at_once() -> None:
    gaps = [known(5, 2**62), known(1, 2)]
    assert gaps_between([(3, 3), (2**61, 2**61)], gaps, 2**61) == [
        (1, 2, 10, 20, "dropped"),
        (4, 4, None, None, MISSING),
        (5, 2**61 - 1, 50, 2**62 * 10, "dropped"),
    ]
