"""Key index: sorted runs, merges in bounded steps, and readers that wait for none."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournald.tables.key_index import KEY_BYTES, KeyIndex, KeyRuns


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


@pytest.mark.parametrize("order", ["ascending", "descending", "random", "each run has all"])
def test_keys_of_sorted_runs_are_read_at_once_and_merged_in_bounded_steps(order: str) -> None:
    numbers = list(range(6_000))
    if order == "descending":
        numbers.reverse()
    elif order == "random":
        random.Random(1).shuffle(numbers)
    elif order == "each run has all":
        numbers.sort(key=lambda number: number % 20)
    keys = Keys()
    for at in range(0, 6_000, 300):
        keys.index.pending += numbered(*numbers[at : at + 300])
        assert keys.index.sort_pending(300) == 300
    keys.stand.update(numbered(*numbers))
    assert keys.index.run_keys
    assert list(islice(keys.index.between(b"003000", None), 3)) == numbered(3000, 3001, 3002)
    assert list(keys.index) == keys.standing()
    steps = 0
    while number := keys.index.merge(77):
        assert number <= 77
        steps += 1
        if steps % 20 == 0:
            assert list(keys.index) == keys.standing()
    assert 6_000 / 77 <= steps <= 220, "some steps look for how many keys there are"
    assert list(keys.index) == keys.standing()
    assert keys.index.idle()
    assert 6_000 / 1024 <= len(keys.index._blocks) <= 6_000 / 128


def test_runs_are_few_however_small_they_come() -> None:
    runs = KeyRuns()
    for number in range(500):
        runs.add(numbered(number * 7919 % 500))
    assert len(runs) <= 9
    assert list(runs) == numbered(*range(500))


def test_memory_of_the_key_index_is_that_of_keys_that_no_entry_has() -> None:
    """Keys of a load are in runs and belong to entries: they take no memory of their own."""
    names = [number * 200 for number in numbered(*range(300))]
    size = 200 * 6 + KEY_BYTES
    keys = Keys(*names)
    index = keys.index
    index.sort_pending(1000)
    assert (index.run_bytes, index.dead_bytes()) == (300 * size, 0)
    for name in names[:100]:
        keys.remove(name)
    assert index.gone_bytes() == index.dead_bytes() == 100 * size
    # they are in a run still: taken out of no block, they are dead there
    assert index.merge_gone(40) == 40
    assert (index.gone_bytes(), index.dead_bytes()) == (60 * size, 100 * size)
    assert index.merge_gone(100) == 60
    assert (index.gone_bytes(), index.dead_bytes()) == (0, 100 * size)
    keys.add(b"fresh")
    keys.add(b"gone")
    keys.remove(b"gone")
    assert index.dead_bytes() == 100 * size + 4 + KEY_BYTES
    index.check(keys.stand)
    assert index.merge(30) == 30
    assert (index.run_bytes, index.dead_bytes()) == (270 * size, 70 * size + 4 + KEY_BYTES)
    index.check(keys.stand)
    keys.merge_all()
    assert (index.run_bytes, index.dead_bytes()) == (0, 0)


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


def test_fresh_keys_get_into_a_run_the_oldest_first() -> None:
    keys = Keys()
    for number in range(300):
        keys.add(b"%06d" % number)
    assert keys.index.sort_pending(200) == 200
    assert list(keys.index.fresh) == numbered(*range(200, 300))
    assert keys.index.run_keys == 200
    # the first of them is not fresh any more, the last one is
    keys.remove(b"000000")
    keys.remove(b"000299")
    assert keys.index.gone == [b"000000"]
    assert keys.standing() == list(keys.index)[1:-1], "a reader may find some that have gone"
    keys.merge_all()
    assert list(keys.index) == keys.standing()


@pytest.mark.parametrize("merge", ["merge_gone", "merge"])
def test_key_that_returns_while_it_is_to_be_taken_out_is_noted_when_it_goes_again(
    merge: str,
) -> None:
    keys = Keys(b"key")
    if merge == "merge_gone":
        keys.merge_all()
    else:
        # as a sorted run
        keys.index.sort_pending(1)
    keys.remove(b"key")
    keys.add(b"key")
    assert getattr(keys.index, merge)(10) == 1
    keys.remove(b"key")
    keys.index.check(keys.stand)
    keys.merge_all()
    assert list(keys.index) == []


class CountedKey(bytes):
    """Key that counts how often it is hashed."""

    hashed = 0

    def __hash__(self) -> int:
        CountedKey.hashed += 1
        return bytes.__hash__(self)


def test_merge_of_keys_none_of_which_has_gone_looks_each_up_once() -> None:
    """Beside the look whether it stands, a key is hashed to leave out what was noted twice."""
    keys = Keys()
    for key in map(CountedKey, numbered(*range(2_000))):
        keys.add(key)
    CountedKey.hashed = 0
    assert keys.index.merge(2_000) == 2_000
    assert CountedKey.hashed <= 2 * 2_000
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


@pytest.mark.parametrize("change", ["merge", "merge_gone", "sort_pending"])
def test_version_changes_with_each_key_that_comes_or_is_merged(change: str) -> None:
    keys = Keys(*numbered(*range(10)))
    versions = {keys.index.version}
    keys.add(b"more")
    versions.add(keys.index.version)
    # one goes and another one comes: as many are fresh as if one had come
    keys.remove(b"more")
    keys.add(b"other")
    versions.add(keys.index.version)
    for number in range(3):
        keys.index.gone.append(b"absent")
        assert getattr(keys.index, change)(1) == 1
        keys.add(b"%d" % number)
        versions.add(keys.index.version)
    assert len(versions) == 6


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
