"""Cost of a NEXT for any domain, with few and with many domains: ``... [DOMAINS]``.

The engine alone, without sockets and log, with the garbage collector off. Each domain has the same
number of due entries in both runs, at least two, so that no domain empties meanwhile; a NEXT leases
one entry. Batches of the two alternate, and the ratio is the median of theirs: what else the
machine does meanwhile slows both.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time

from fastjournal.protocol import Function, Request
from fastjournald.engine.engine import Engine

FEW = 10
MANY_DEFAULT = 100_000
BATCHES = 40
BATCH = 500
NOW = 1_790_000_000_000_000


def _engine(domains: int) -> Engine:
    """Return an engine with so many domains and enough that is due."""
    engine = Engine()
    each = max(2, 1 + BATCHES * BATCH // domains)
    for number in range(domains * each):
        key = b"domain-%d:128:0:%d" % (number % domains, number)
        engine.handle(0, Request(Function.SET, timestamp=NOW, key=key, value_type=0), NOW)
    return engine


def _batch_us(engine: Engine, now: int) -> float:
    """Return the microseconds of a NEXT, of a batch of them."""
    request = Request(Function.NEXT, timestamp=NOW)
    started = time.perf_counter()
    for number in range(BATCH):
        engine.handle(0, request, now + number)
    return (time.perf_counter() - started) / BATCH * 1e6


def run(many: int) -> dict[str, float]:
    """Return the cost of a NEXT for any domain at few and at many domains, and their ratio."""
    engines = _engine(FEW), _engine(many)
    gc.collect()
    gc.disable()
    try:
        pairs = [
            (_batch_us(engines[0], now), _batch_us(engines[1], now))
            for now in range(NOW, NOW + BATCHES * BATCH, BATCH)
        ]
    finally:
        gc.enable()
    return {
        "few_domains": FEW,
        "many_domains": many,
        "next_us_few": round(statistics.median(few for few, _ in pairs), 2),
        "next_us_many": round(statistics.median(many for _, many in pairs), 2),
        "ratio": round(statistics.median(many / few for few, many in pairs), 2),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else MANY_DEFAULT)))
