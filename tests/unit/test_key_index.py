"""Key index: sorted runs, merges in bounded steps, and readers that wait for none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournald.tables.interval_index import FIRST, TOP, Intervals
from fastjournald.tables.key_index import KeyIndex, KeyRuns


class Keys:
    """Keys that stand, and their index, to which they are noted as by the key table."""

    def __init__(self, *keys: bytes) -> None:
        self.stand = set(keys)
        self.index = KeyIndex(lambda noted: [key for key in noted if key in self.stand])
        self.index.pending += keys

    def add(self, key: bytes) -> None:
        if key not in self.stand:
            self.stand.add(key)
            self.index.fresh[key] = True

    def remove(self, key: bytes) -> None:
        if key in self.stand:
            self.stand.discard(key)
            if key in self.index.fresh:
                self.index.fresh[key] = False
            else:
                self.index.gone.append(key)

    def merge_all(self) -> None:
        while self.index.merge(100):
            pass
        assert self.index.idle()
        assert self.index.unmerged() == set()

    def standing(self) -> list[bytes]:
        return sorted(self.stand)


def numbered(*numbers: int) -> list[bytes]:
    return [b"%06d" % number for number in numbers]


def test_runs_are_few_however_small_they_come() -> None:
    runs = KeyRuns()
    for number in range(500):
        runs.add(numbered(number * 7919 % 500))
    assert len(runs) <= 9
    assert list(runs) == numbered(*range(500))


def test_key_that_comes_and_goes_while_it_is_fresh_leaves_nothing_to_merge() -> None:
    keys = Keys(*numbered(*range(100)))
    keys.merge_all()
    for number in range(1000, 4000):
        keys.add(b"%06d" % number)
        keys.remove(b"%06d" % number)
    assert not keys.index.gone
    assert keys.index.sort_pending(10_000) == 3000
    assert keys.index.idle()
    assert list(keys.index) == keys.standing()


def test_key_that_comes_and_goes_beside_runs_is_merged_in_bounded_steps() -> None:
    keys = Keys(*numbered(*range(5_000)))
    keys.index.sort_pending(5_000)
    for _ in range(300):
        keys.add(b"one")
        assert keys.index.sort_pending(10) == 1
        keys.remove(b"one")
    assert keys.index.run_keys > 5_000
    while number := keys.index.merge(77):
        assert number <= 77
    assert list(keys.index) == keys.standing()


def test_blocks_that_were_emptied_are_not_kept() -> None:
    keys = Keys()
    for start in range(0, 100_000, 10_000):
        for number in range(start, start + 10_000):
            keys.add(b"%09d" % number)
        keys.merge_all()
        for number in range(start, start + 9_900):
            keys.remove(b"%09d" % number)
        keys.merge_all()
        assert list(keys.index) == keys.standing()
    assert len(keys.index._blocks) < 20
    for key in keys.standing():
        keys.remove(key)
    keys.merge_all()
    assert list(keys.index) == []
    assert len(keys.index._blocks) == 1


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3000)),
        st.tuples(st.just("remove"), st.integers(0, 3000)),
        st.tuples(st.sampled_from(["merge", "merge_gone", "sort_pending"]), st.integers(1, 400)),
        st.tuples(st.just("many"), st.integers(0, 3000)),
        st.tuples(st.just("none"), st.integers(0, 3000)),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(
    st.sets(st.integers(0, 3000), max_size=50),
    st.sampled_from([0, 0, 0, 300, 3000]),
    CHANGES,
    st.sampled_from([2, 8, 1024]),
)
def test_index_lists_what_stands_whatever_comes_and_goes_between(
    before: set[int], many_before: int, changes: list[tuple[str, int]], size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastjournald.tables.key_index.BLOCK_KEYS_MAX", size)
        patch.setattr("fastjournald.tables.key_index.BLOCK_KEYS_MIN", size // 8)
        patch.setattr("fastjournald.tables.key_index.PART_KEYS_MIN", max(3, size // 16))
        patch.setattr("fastjournald.tables.key_index.RUN_KEYS_MAX", 4 * size)
        patch.setattr("fastjournald.tables.key_index._TAKEN_KEYS_MIN", size)
        keys = Keys(*numbered(*before, *range(many_before)))
        for what, number in changes:
            if what in ("merge", "merge_gone", "sort_pending"):
                getattr(keys.index, what)(number)
            elif what in ("add", "remove"):
                getattr(keys, what)(b"%06d" % number)
            else:
                for other in range(number, number + 1500):
                    (keys.add if what == "many" else keys.remove)(b"%06d" % other)
            listed = list(keys.index)
            assert listed == sorted(set(listed))
            assert keys.stand <= set(listed)
            assert set(listed) - keys.stand <= keys.index.unmerged()
            keys.index.check(keys.stand)
        keys.merge_all()
        assert list(keys.index) == keys.standing()


# --- interval index -------------------------------------------------------------------------------
# The interval index finds what a naive list finds, and looks at few nodes.


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
