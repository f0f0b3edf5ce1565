"""Key index: its build in slices, what a merged batch promises, bounded work of each call."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.door.places import patch_module
from tests.door.tables import KeyIndex

PIECES = 8


class Keys:
    """Keys in pieces, like those of the key table, and their index."""

    def __init__(self, *keys: bytes) -> None:
        self.pieces: list[set[bytes]] = [set() for _ in range(PIECES)]
        for key in keys:
            self.piece_of(key).add(key)
        self.index = KeyIndex(self.pieces, lambda key: key in self.piece_of(key))

    def piece_of(self, key: bytes) -> set[bytes]:
        return self.pieces[hash(key) % PIECES]

    def add(self, key: bytes) -> None:
        self.piece_of(key).add(key)
        self.index.pending.append(key)

    def remove(self, key: bytes) -> None:
        self.piece_of(key).discard(key)
        self.index.pending.append(key)

    def merge_all(self) -> None:
        while self.index.merge(100):
            pass
        assert self.index.idle()

    def standing(self) -> list[bytes]:
        return sorted(key for piece in self.pieces for key in piece)


def numbered(*numbers: int) -> list[bytes]:
    return [b"%06d" % number for number in numbers]


def test_it_is_built_in_slices_from_what_stands_in_the_store() -> None:
    keys = Keys(*numbered(*range(20_000)))
    assert list(keys.index) == []
    batch = keys.index.mark()
    slices = 0
    while not keys.index.merged(batch):
        assert keys.index.building
        # one block may be sorted, which counts as a sixteenth
        assert keys.index.merge(77) <= 77 + 1 + 2048 // 16
        slices += 1
    assert slices >= 20_000 / 77
    assert list(keys.index) == keys.standing()
    assert keys.index.idle()
    assert not keys.index.building
    assert keys.index.merge(77) == 0


@pytest.mark.parametrize("order", ["ascending", "all in one piece", "first piece empty"])
def test_build_from_keys_that_are_no_good_sample_has_blocks_of_bounded_size(order: str) -> None:
    keys = Keys()
    for number in range(20_000):
        piece = {"ascending": number // 2500, "all in one piece": 3}.get(order, number % 7)
        keys.pieces[piece].add(b"%06d" % number)
    while keys.index.merge(100):
        pass
    listed = list(keys.index)
    assert listed == keys.standing()
    assert 20_000 / 1024 <= keys.index.block_count() <= 20_000 / 32


def test_key_that_comes_or_goes_while_it_is_built_is_right_in_the_end() -> None:
    keys = Keys(*numbered(*range(1000)))
    keys.index.merge(500)
    keys.remove(b"000007")
    keys.add(b"new")
    keys.remove(b"000900")
    keys.add(b"000900")
    keys.merge_all()
    assert list(keys.index) == keys.standing()


def test_batch_ends_although_more_and_more_is_pending() -> None:
    keys = Keys(*numbered(*range(100)))
    batch = keys.index.mark()
    calls = 0
    while not keys.index.merged(batch):
        keys.index.merge(50)
        calls += 1
        for number in range(60):
            keys.add(b"%06d" % (calls * 100 + number))
        assert calls < 100
    assert set(numbered(*range(100))) <= set(keys.index)
    batch = keys.index.mark()
    promised = keys.standing()
    while not keys.index.merged(batch):
        keys.index.merge(50)
        keys.add(b"more %d" % random.randrange(10**9))
    assert set(promised) <= set(keys.index)


def test_range_is_returned_from_any_key_to_any_other() -> None:
    keys = Keys(*numbered(*range(0, 10_000, 2)))
    keys.merge_all()
    standing = keys.standing()
    for start, stop in [(0, 1), (0, 2), (1, 1), (3, 7000), (4000, 4001), (9998, 9999), (10**5, 0)]:
        low, high = b"%06d" % start, b"%06d" % stop
        assert list(keys.index.between(low, high)) == [k for k in standing if low <= k < high]
    assert list(keys.index.between(b"", None)) == standing
    assert list(keys.index.between(b"009990", None)) == numbered(9990, 9992, 9994, 9996, 9998)
    assert list(keys.index.between(b"", b"")) == []


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
    assert keys.index.block_count() < 20
    for key in keys.standing():
        keys.remove(key)
    keys.merge_all()
    assert list(keys.index) == []
    assert keys.index.block_count() == 1


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3000)),
        st.tuples(st.just("remove"), st.integers(0, 3000)),
        st.tuples(st.sampled_from(["merge", "relieve"]), st.integers(1, 400)),
        st.tuples(st.just("many"), st.integers(0, 3000)),
        st.tuples(st.just("none"), st.integers(0, 3000)),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(st.sets(st.integers(0, 3000), max_size=50), st.sampled_from([0, 0, 0, 300, 3000]), CHANGES)
def test_it_says_what_stands_whatever_comes_and_goes_between(
    before: set[int], many_before: int, changes: list[tuple[str, int]]
) -> None:
    keys = Keys(*numbered(*before, *range(many_before)))
    for what, number in changes:
        if what == "merge":
            keys.index.merge(number)
        elif what == "relieve":
            keys.index.relieve(number)
        elif what in ("add", "remove"):
            getattr(keys, what)(b"%06d" % number)
        else:
            for other in range(number, number + 1500):
                (keys.add if what == "many" else keys.remove)(b"%06d" % other)
        listed = list(keys.index)
        assert listed == sorted(set(listed))
        assert set(listed) ^ set(keys.standing()) <= keys.index.unmerged()
    keys.merge_all()
    assert list(keys.index) == keys.standing()


@settings(max_examples=200)
@given(
    st.integers(0, 400),
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 500)),
            st.tuples(st.sampled_from(["merge", "relieve"]), st.integers(0, 60)),
            st.tuples(st.just("mark"), st.just(0)),
        ),
        min_size=5,
        max_size=200,
    ),
    st.sampled_from([2, 8, 1024]),
)
def test_merged_batch_has_what_stood_throughout(
    before: int, changes: list[tuple[str, int]], block_keys_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch_module(patch, "build.BLOCK_KEYS_MAX", block_keys_max)
        patch_module(patch, "build._UNSORTED_KEYS_MAX", 2 * block_keys_max)
        patch_module(patch, "index.BLOCK_KEYS_MAX", block_keys_max)
        patch_module(patch, "BLOCK_KEYS_MIN", block_keys_max // 8)
        patch_module(patch, "RUN_KEYS_MIN", 3)
        keys = Keys(*numbered(*range(before)))
        promised: list[tuple[int, set[bytes]]] = []
        for what, number in changes:
            if what == "mark":
                promised.append((keys.index.mark(), set(keys.standing())))
            elif what in ("merge", "relieve"):
                getattr(keys.index, what)(number)
            else:
                getattr(keys, what)(b"%06d" % number)
                for _, standing in promised:
                    if what == "remove":
                        standing.discard(b"%06d" % number)
            listed = list(keys.index)
            assert listed == sorted(set(listed))
            assert set(listed) ^ set(keys.standing()) <= keys.index.unmerged()
            for batch, standing in promised:
                assert not keys.index.merged(batch) or standing <= set(listed)
        keys.merge_all()
        assert list(keys.index) == keys.standing()
