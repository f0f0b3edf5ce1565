"""Cost of a change while others listen: ``... [RANGES]``.

The engine alone, without sockets and log, with the garbage collector off: microseconds for each SET
of a new key of 40 bytes, and for finding out whom it concerns. Only the last is notified.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable

from fastjournal.protocol import Function, Request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Query
from fastjournald.engine.engine import Engine, Scan

RANGES_DEFAULT = 100_000
EACH = 1000
"""Subscriptions of one session."""
CHANGES = 400
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure a change while others listen.")
    parser.add_argument("ranges", nargs="?", type=int, default=RANGES_DEFAULT)
    given = parser.parse_args()
    print(json.dumps(run(given.ranges), indent=1))
