"""The interval index finds what a naive list finds, and looks at few nodes."""

from __future__ import annotations

import random
from math import log2

from hypothesis import given
from hypothesis import strategies as st

from fastjournald.tables.interval_index import FIRST, TOP, Intervals

KEYS = st.binary(max_size=3) | st.sampled_from([b"a", b"a\0", b"b", b"\xff", b"\xff\xff"])
RANGES = st.tuples(KEYS, KEYS | st.none())


def found(index: Intervals[int], key: bytes, number_max: int) -> list[int]:
    """All items whose range contains a key, asked for in parts."""
    behind = FIRST
    items: list[int] = []
    while part := index.stab(key, behind, number_max):
        assert len(part) <= number_max
        items += [item for _, of_range in part for item in of_range]
        behind = part[-1][0]
    return items


@given(
    st.lists(st.tuples(st.booleans(), RANGES), max_size=60),
    st.lists(KEYS, max_size=10),
    st.integers(1, 4),
)
def test_interval_index_finds_what_a_list_finds(
    steps: list[tuple[bool, tuple[bytes, bytes | None]]], keys: list[bytes], number_max: int
) -> None:
    index: Intervals[int] = Intervals()
    naive: list[tuple[bytes, bytes | None, int]] = []
    for number, (removes, (start, stop)) in enumerate(steps):
        if removes and naive:
            index.remove(*naive.pop(number % len(naive)))
        else:
            index.add(start, stop, number)
            naive.append((start, stop, number))
        index.check()
    for key in keys:
        expected = sorted(
            (start, TOP if stop is None else stop, item)
            for start, stop, item in naive
            if start <= key and (stop is None or key < stop)
        )
        assert sorted(found(index, key, number_max)) == sorted(item for *_, item in expected)


def test_interval_index_goes_on_behind_a_range_while_others_come_and_go() -> None:
    index: Intervals[int] = Intervals()
    for number in range(10):
        index.add(b"%d" % number, None, number)
    (first, _), *_ = index.stab(b"x", FIRST, 1)
    index.remove(b"0", None, 0)
    index.remove(b"1", None, 1)
    index.add(b"00", None, 10)
    index.add(b"", None, 11)
    assert [item for _, items in index.stab(b"x", first, 100) for item in items] == [
        10,
        *range(2, 10),
    ]


def test_interval_index_stays_flat_whatever_the_order() -> None:
    chance = random.Random(5)
    number = 4096
    for order in (
        list(range(number)),
        list(reversed(range(number))),
        chance.sample(range(number), number),
    ):
        index: Intervals[int] = Intervals()
        for at in order:
            index.add(b"%04d" % at, b"%04d" % (at + 1), at)
        index.check()
        for at in chance.sample(range(number), 100):
            before = index.looks
            assert found(index, b"%04dx" % at, 100) == [at]
            assert index.looks - before <= 4 * log2(number)


def test_interval_index_looks_at_few_ranges_that_do_not_contain_a_key() -> None:
    looks = []
    for number in (100, 10_000):
        index: Intervals[int] = Intervals()
        for at in range(number):
            # some long, some short, some without an end, and none with the key
            index.add(b"a%05d" % at, b"a%05d" % (number + at % 7), at)
            index.add(b"c%05d" % at, None, at)
        for at in range(5):
            index.add(b"", b"b%d" % at, -at)
        before = index.looks
        assert found(index, b"b3", 100) == [-4]
        looks.append(index.looks - before)
    assert looks[1] <= 4 * looks[0]
