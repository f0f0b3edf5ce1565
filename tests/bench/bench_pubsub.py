"""Cost of a change while others listen: ``... [RANGES] [--indexes]``.

The engine alone, without sockets and log, with the garbage collector off: microseconds for each SET
of a new key of 40 bytes, and for finding out whom it concerns. Only the last is notified.

``--indexes`` compares the interval index with a ``SortedDict`` of the bounds, and with intervaltree
of PyPI where that is installed: the same SETs beside ranges before the key, none of which has it,
in turns; and the LISTEN of one more range.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from statistics import median
from typing import Any
from unittest.mock import patch

from sortedcontainers import SortedDict

from fastjournal.protocol import Function, Request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Query
from fastjournald.engine.engine import Engine, Scan
from fastjournald.tables.interval_index import TOP, Bounds, Intervals

RANGES_DEFAULT = 100_000
EACH = 1000
"""Subscriptions of one session."""
CHANGES = 400
BLOCK = 20
"""Changes of one index in a row: it is in the processor's cache as in a daemon."""
NOW = 1_790_000_000_000_000


def listen(engine: Engine, session: int, identifier: int, query: Query, *keys: bytes) -> None:
    """Subscribe to a range or an expression."""
    flags = Flag.LISTEN | query << QUERY_SHIFT
    asked = Request(Function.GET, identifier=identifier, flags=flags, timestamp=NOW, key=keys[0])
    if query == Query.RANGE:
        asked.second_key, asked.count = keys[1], 1
    before = len(engine.subscriptions)
    reply = engine.handle(session, asked, NOW)
    while isinstance(reply, Scan):
        done = engine.step(reply, NOW)
        assert isinstance(done, bytes | None)
        reply = reply if done is None else done
    assert len(engine.subscriptions) == before + 1


def nobody(engine: Engine) -> None:
    """No session listens."""


def ranges(engine: Engine, number: int) -> None:
    """Subscribe to ranges in which nothing changes."""
    for at in range(number):
        bounds = b"other-%07d" % at, b"other-%07d" % (at + 5)
        listen(engine, at // EACH, at % EACH, Query.RANGE, *bounds)


def expressions(engine: Engine, form: bytes) -> None:
    """Subscribe to expressions that match nothing."""
    for at in range(EACH):
        listen(engine, -1, at, Query.REGEX, form % at)


def everything(engine: Engine) -> None:
    """Let 100 sessions listen to each key."""
    for session in range(100):
        listen(engine, session, 1, Query.RANGE, b"", b"")


def cost_us(prepare: Callable[[Engine], object]) -> float:
    """Return the microseconds of a change and of finding out whom it concerns."""
    engine = Engine()
    prepare(engine)
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    for number in range(CHANGES):
        key = b"example.org:128:0001790000000000:%07d" % number
        asked = Request(Function.SET, timestamp=NOW, key=key, value_type=1, value=b"v")
        engine.handle("writer", asked, NOW)
        while engine.notifications.unmatched:
            engine.notifications.match()
    spent = time.perf_counter() - started
    gc.enable()
    return round(spent / CHANGES * 1e6, 1)


def run(many: int) -> dict[str, float]:
    """Return the cost of a change beside various listeners."""

    def both(engine: Engine) -> None:
        ranges(engine, EACH)
        expressions(engine, b"item%d.*[a-f]+x")

    return {
        "nobody_us": cost_us(nobody),
        "ranges_1000_us": cost_us(lambda engine: ranges(engine, EACH)),
        f"ranges_{many}_us": cost_us(lambda engine: ranges(engine, many)),
        "expressions_with_prefix_1000_us": cost_us(
            lambda engine: expressions(engine, b"^item%d.*[a-f]+x")
        ),
        "expressions_1000_us": cost_us(lambda engine: expressions(engine, b"item%d.*[a-f]+x")),
        "ranges_and_expressions_1000_us": cost_us(both),
        "told_100_us": cost_us(everything),
    }


class SortedBounds(Intervals[Any]):
    """Index of a sorted list: it looks at each range that begins before the key."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: SortedDict = SortedDict()
        self._by_bounds = self._sorted

    def add(self, start: bytes, stop: bytes | None, item: Any) -> None:
        self._sorted.setdefault((start, TOP if stop is None else stop), {})[item] = None

    def stab(self, key: bytes, behind: Bounds, number_max: int) -> list[tuple[Bounds, Any]]:
        began = self._sorted.irange(behind, (key, TOP), inclusive=(False, True))
        hits = (bounds for bounds in began if bounds[1] > key)
        return [(bounds, self._sorted[bounds]) for bounds in islice(hits, number_max)]


class TreeOfPyPI(SortedBounds):
    """Index of intervaltree: it returns all ranges that contain a key, in no order."""

    def __init__(self) -> None:
        super().__init__()
        self._tree = import_module("intervaltree").IntervalTree()

    def add(self, start: bytes, stop: bytes | None, item: Any) -> None:
        bounds = start, TOP if stop is None else stop
        if bounds not in self._sorted:
            self._tree.addi(*bounds)
        super().add(start, stop, item)

    def stab(self, key: bytes, behind: Bounds, number_max: int) -> list[tuple[Bounds, Any]]:
        found = sorted(bounds for each in self._tree.at(key) if (bounds := each[:2]) > behind)
        return [(bounds, self._sorted[bounds]) for bounds in found[:number_max]]


def compare_indexes(many: int) -> dict[str, dict[str, float]]:
    """Return the microseconds of a SET and of a LISTEN with each index."""
    kinds = [Intervals, SortedBounds, *([TreeOfPyPI] if find_spec("intervaltree") else [])]
    figures: dict[str, dict[str, float]] = {}
    for number in (EACH, many):
        engines = []
        for kind in kinds:
            with patch("fastjournald.engine.pubsub.subscription.Intervals", kind):
                engine = Engine()
            started = time.thread_time()
            for at in range(number):
                bounds = b"a-%07d" % at, b"a-%07d" % (at + 5)
                listen(engine, at // EACH, at % EACH, Query.RANGE, *bounds)
            listens = (time.thread_time() - started) / number * 1e6
            figures[f"{kind.__name__}, {number:,} ranges"] = {"listen_us": round(listens, 1)}
            engines.append(engine)
        gc.collect()
        gc.disable()
        times: dict[str, list[float]] = {}
        for block in range(0, CHANGES, BLOCK):
            for kind, engine in zip(kinds, engines, strict=True):
                spent = times.setdefault(f"{kind.__name__}, {number:,} ranges", [])
                for change in range(block, block + BLOCK):
                    key = b"example.org:128:0001790000000000:%07d" % change
                    asked = Request(Function.SET, timestamp=NOW, key=key, value_type=1, value=b"v")
                    started = time.thread_time()
                    engine.handle("writer", asked, NOW)
                    while engine.notifications.unmatched:
                        engine.notifications.match()
                    spent.append(time.thread_time() - started)
        gc.enable()
        for name, each in times.items():
            figures[name]["set_us"] = round(median(each) * 1e6, 1)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure a change while others listen.")
    parser.add_argument("ranges", nargs="?", type=int, default=RANGES_DEFAULT)
    parser.add_argument("--indexes", action="store_true", help="compare interval indexes")
    given = parser.parse_args()
    print(json.dumps((compare_indexes if given.indexes else run)(given.ranges), indent=1))
