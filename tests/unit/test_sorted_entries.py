"""Entries in the order of their keys."""

from __future__ import annotations

import random

import pytest

from tests.door.places import patch_module
from tests.door.tables import Domain, Entry, Order

NOWHERE = Domain(b"")
START_BYTES = 2


def an_entry(key: bytes) -> Entry:
    return Entry(key, key, None, b"", NOWHERE)


class Model:
    """Pairs in one list that is sorted after each change."""

    def __init__(self) -> None:
        self.order = Order()
        self.pairs: list[tuple[bytes, Entry]] = []

    def add(self, key: bytes) -> None:
        entry = an_entry(key)
        self.order.add(key, entry)
        self.pairs.append((key, entry))
        self.check()

    def remove(self, at: int) -> None:
        key, entry = self.pairs.pop(at)
        self.order.remove(key[:START_BYTES], entry)
        self.check()

    def pop(self) -> None:
        _, entry = self.pairs.pop(0)
        assert self.order.pop() is entry
        self.check()

    def renew(self, at: int, key: bytes) -> None:
        _, entry = self.pairs[at]
        self.order.renew(key[:START_BYTES], key, entry)
        self.pairs[at] = (key, entry)
        self.check()

    def check(self) -> None:
        self.pairs.sort(key=lambda pair: pair[0])
        assert len(self.order) == len(self.pairs)
        assert list(self.order.keys()) == [key for key, _ in self.pairs]
        assert [id(entry) for entry in self.order] == [id(entry) for _, entry in self.pairs]
        if self.pairs:
            assert self.order.first_key() == self.pairs[0][0]
            assert self.order.first() is self.pairs[0][1]
        # also from between the keys
        for at, (key, entry) in enumerate(self.pairs):
            behind = self.pairs[at + 1][1] if at + 1 < len(self.pairs) else None
            assert self.order.first_from(key) is entry
            assert self.order.first_from(key + bytes(1)) is behind
            assert self.order.at(at) is entry


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_module(monkeypatch, "order.CHUNK_MAX", 8)
    patch_module(monkeypatch, "order._CHUNK_MIN", 2)


@pytest.mark.parametrize("seed", range(20))
def test_any_changes_keep_the_order(seed: int) -> None:
    draw = random.Random(seed)
    model = Model()
    unused = [number.to_bytes(START_BYTES) + draw.randbytes(2) for number in range(1000)]
    draw.shuffle(unused)
    for growing in (0.8, 0.2, 0.6, 0.1):
        for _ in range(150):
            if not model.pairs or draw.random() < growing:
                model.add(unused.pop())
                continue
            at = draw.choice((0, -1, draw.randrange(len(model.pairs))))
            if draw.random() < 0.3:
                model.renew(at, model.pairs[at][0][:START_BYTES] + draw.randbytes(3))
            elif draw.random() < 0.5:
                model.pop()
            else:
                model.remove(at)
    while model.pairs:
        model.pop()


def test_what_comes_in_order_fills_its_chunks() -> None:
    model = Model()
    for number in range(50):
        model.add(number.to_bytes(START_BYTES))
    for number in range(50):
        assert model.order.first_from(number.to_bytes(START_BYTES)) is model.pairs[number][1]
    assert model.order.first_from((50).to_bytes(START_BYTES)) is None
    while model.pairs:
        model.remove(-1)
    assert list(model.order) == []


def test_entries_whose_keys_begin_alike_are_told_apart() -> None:
    model = Model()
    for number in range(30):
        model.add(b"ab" + bytes((number,)))
    for at in (29, 0, 14, 20, 3):
        model.remove(at)
    assert len(model.order) == 25


@pytest.mark.parametrize("number", [0, 1, 8, 9, 100])
def test_what_is_loaded_at_once_is_as_if_it_had_come(number: int) -> None:
    model = Model()
    keys = [b"%03d" % serial for serial in range(number)]
    model.pairs = [(key, an_entry(key)) for key in keys]
    model.order.load(keys, [entry for _, entry in model.pairs])
    model.check()
    model.add(b"0500")
    model.add(b"999")
    model.remove(0)


def test_the_first_from_a_key_on_is_found_between_keys() -> None:
    model = Model()
    for number in range(0, 100, 2):
        model.add(number.to_bytes(START_BYTES))
    for number in range(98):
        found = model.order.first_from(number.to_bytes(START_BYTES))
        assert found is model.pairs[(number + 1) // 2][1]
