"""Interval index: which ranges of keys contain a key. A balanced tree (AVL) by the bounds. Pure.

Each node knows how far the ranges of its subtree reach, so a search leaves out what ends before the
key, and what begins after it. n is the number of different ranges.

It is here instead of a library (``tests.bench.bench_pubsub --indexes``): a SET beside 100,000
ranges takes 11 us; 19 us with intervaltree of PyPI, which returns all ranges that contain a key at
once and in no order; 4,200 us with a sorted list of the bounds, which reads all that begin before
the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar

from fastjournal.limits import KEY_BYTES_MAX

TOP = b"\xff" * (KEY_BYTES_MAX + 1)
"""Upper bound of a range without end: later than every key."""

Bounds: TypeAlias = tuple[bytes, bytes]
"""Lower bound of a range, included, and upper bound, excluded."""

FIRST: Bounds = (b"", b"")
"""Before the bounds of every range that is not empty."""

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("bounds", "height", "items", "left", "reach", "right")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.items: dict[T, None] = {}
        self.left: _Node[T] | None = None
        self.right: _Node[T] | None = None
        self.height = 1
        self.reach = bounds[1]


class Intervals(Generic[T]):
    """Items, each under a range of keys from ``start`` up to ``stop``; None: no upper end."""

    def __init__(self) -> None:
        self._root: _Node[T] | None = None
        self._by_bounds: dict[Bounds, dict[T, None]] = {}
        self.looks = 0
        """Nodes visited by searches so far."""

    def __len__(self) -> int:
        return len(self._by_bounds)

    def __iter__(self) -> Iterator[T]:
        for items in self._by_bounds.values():
            yield from items

    def add(self, start: bytes, stop: bytes | None, item: T) -> None:
        """Add an item; a range without keys holds nothing. O(log n)."""
        bounds = start, TOP if stop is None else stop
        if bounds[0] >= bounds[1]:
            return
        items = self._by_bounds.get(bounds)
        if items is None:
            self._root = _insert(self._root, node := _Node[T](bounds))
            items = self._by_bounds[bounds] = node.items
        items[item] = None

    def remove(self, start: bytes, stop: bytes | None, item: T) -> None:
        """Take an item out that was added under this range. O(log n)."""
        bounds = start, TOP if stop is None else stop
        if bounds[0] >= bounds[1]:
            return
        items = self._by_bounds[bounds]
        del items[item]
        if not items:
            del self._by_bounds[bounds]
            self._root = _delete(self._root, bounds)

    def stab(
        self, key: bytes, behind: Bounds, number_max: int
    ) -> list[tuple[Bounds, dict[T, None]]]:
        """Return the next ranges that contain a key, in the order of their bounds, and their items.

        O(log n) if there are none; each found one costs O(log n) at the worst, if others lie
        between.

        Args:
            key: The key.
            behind: Bounds of the last range that was returned; ``FIRST``: from the beginning.
            number_max: Most ranges.
        """
        found: list[tuple[Bounds, dict[T, None]]] = []
        path: list[_Node[T]] = []
        node = self._root
        looks = 0
        while len(found) < number_max:
            while node is not None:
                looks += 1
                if node.reach <= key:
                    break
                bounds = node.bounds
                if bounds <= behind:
                    # the ranges left of it end before too
                    node = node.right
                    continue
                if bounds[0] <= key:
                    path.append(node)
                node = node.left
            if not path:
                break
            node = path.pop()
            if node.bounds[1] > key:
                found.append((node.bounds, node.items))
            node = node.right
        self.looks += looks
        return found

    def check(self) -> None:
        """Assert order, balance and reach. O(n), for tests."""
        bounds: list[Bounds] = []
        _check(self._root, bounds)
        assert bounds == sorted(self._by_bounds)


def _update(node: _Node[T]) -> None:
    left, right = node.left, node.right
    height, reach = 0, node.bounds[1]
    if left is not None:
        height = left.height
        reach = max(reach, left.reach)
    if right is not None:
        height = max(height, right.height)
        reach = max(reach, right.reach)
    node.height = height + 1
    node.reach = reach


def _lean(node: _Node[T]) -> int:
    """By how much the left side is higher than the right one."""
    left, right = node.left, node.right
    return (0 if left is None else left.height) - (0 if right is None else right.height)


def _turn_right(node: _Node[T]) -> _Node[T]:
    top = node.left
    assert top is not None
    node.left, top.right = top.right, node
    _update(node)
    _update(top)
    return top


def _turn_left(node: _Node[T]) -> _Node[T]:
    top = node.right
    assert top is not None
    node.right, top.left = top.left, node
    _update(node)
    _update(top)
    return top


def _balance(node: _Node[T]) -> _Node[T]:
    _update(node)
    lean = _lean(node)
    if lean > 1:
        assert node.left is not None
        if _lean(node.left) < 0:
            node.left = _turn_left(node.left)
        return _turn_right(node)
    if lean < -1:
        assert node.right is not None
        if _lean(node.right) > 0:
            node.right = _turn_right(node.right)
        return _turn_left(node)
    return node


def _insert(node: _Node[T] | None, new: _Node[T]) -> _Node[T]:
    if node is None:
        return new
    if new.bounds < node.bounds:
        node.left = _insert(node.left, new)
    else:
        node.right = _insert(node.right, new)
    return _balance(node)


def _delete(node: _Node[T] | None, bounds: Bounds) -> _Node[T] | None:
    assert node is not None
    if bounds < node.bounds:
        node.left = _delete(node.left, bounds)
    elif bounds > node.bounds:
        node.right = _delete(node.right, bounds)
    elif node.left is None or node.right is None:
        return node.right if node.left is None else node.left
    else:
        following = node.right
        while following.left is not None:
            following = following.left
        node.bounds, node.items = following.bounds, following.items
        node.right = _delete(node.right, following.bounds)
    return _balance(node)


def _check(node: _Node[T] | None, bounds: list[Bounds]) -> None:
    if node is None:
        return
    _check(node.left, bounds)
    bounds.append(node.bounds)
    _check(node.right, bounds)
    height, reach = node.height, node.reach
    _update(node)
    assert (height, reach) == (node.height, node.reach)
    assert abs(_lean(node)) <= 1
    assert node.items
