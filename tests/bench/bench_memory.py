"""Memory of an entry: ``python -m tests.bench.bench_memory [ENTRIES] [--random|--parts|--leased]``.

Entries with a canonical journal key of 50 bytes, a URI of 45 bytes and a value of 100 bytes go
through decoder, handlers and journal as in the daemon; the log itself is left out. Measured is the
resident memory of the process, less what it was before, over the number of entries: keys, values,
all indexes and the allocator's losses included. Each entry comes after all others in the order of
work, or with ``--random`` anywhere. With ``--parts`` each object of an entry is listed: the bytes
that it has, and those that the allocator takes for it. With ``--leased`` each entry is leased by a
NEXT of its own then, and what that adds is measured.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
from collections import Counter
from pathlib import Path

from fastjournal.protocol import Flag, Function, Request, ServerConnection, encode_request
from fastjournald.engine.engine import Engine

ENTRIES_DEFAULT = 1_000_000
WINDOW = 256
NOW_US = 1_790_000_000_000_000
PAGE_BYTES = 4096
ALLOCATED_STEP = 16


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def frame(number: int, instant: int) -> bytes:
    """Return a SET as it comes over the wire."""
    key = b"www.example.org:128:%016d:%013d" % (instant, number)
    uri = b"https://www.example.org/pages/%010d.html" % number
    return encode_request(
        Request(Function.SET, 0, Flag.PERSIST, NOW_US, key, uri, 1, b"%0100d" % number)
    )


def allocated_bytes(size: int) -> int:
    """Return what the allocator takes for an object: of small ones whole steps of 16 bytes."""
    return -(-size // ALLOCATED_STEP) * ALLOCATED_STEP


def parts_of(engine: Engine) -> dict[str, tuple[float, float]]:
    """Return the bytes of an entry by object, and what the allocator takes for it."""
    sizes: Counter[str] = Counter()
    taken: Counter[str] = Counter()

    def count(what: str, held: object) -> None:
        size = sys.getsizeof(held)
        sizes[what] += size
        taken[what] += allocated_bytes(size)

    for entry in engine.store.keys:
        for what, held in (
            ("value", entry.value),
            ("key", entry.key),
            ("URI", entry.uri),
            ("packed facts", entry.facts),
            ("entry object", entry),
        ):
            count(what, held)
    for shard in engine.store.keys._shards:
        count("key table: slots of key and URI", shard)
    for domain in engine.store.scheduler.domains.values():
        for sublist in (*domain.ready._sublists, *filter(None, domain.ready._ranks)):
            count("ready list: references to entries, ranks", sublist)
    number = engine.store.entries
    return {what: (size / number, taken[what] / number) for what, size in sizes.items()}


def measure(entries: int, *, in_order: bool) -> tuple[float, Engine]:
    """Return bytes for each entry, and the engine that holds them."""
    gc.disable()
    instants = [NOW_US - entries + number for number in range(entries)]
    if not in_order:
        random.Random(1).shuffle(instants)
    engine = Engine()
    connection = ServerConnection()
    before = resident_bytes()
    for first in range(0, entries, WINDOW):
        numbers = range(first, min(first + WINDOW, entries))
        window = b"".join(frame(number, instants[number]) for number in numbers)
        connection.receive_data(window)
        for request in connection.next_events():
            engine.handle(None, request, NOW_US)
    if engine.store.entries != entries:
        raise RuntimeError(f"{engine.store.entries} entries, not {entries}")
    return (resident_bytes() - before) / entries, engine


def measure_leases(engine: Engine) -> float:
    """Lease every entry by a NEXT of its own; return how many bytes each lease adds."""
    entries = engine.store.entries
    before = resident_bytes()
    for number in range(entries):
        now = NOW_US + number
        lease = Request(Function.NEXT, timestamp=now, count=1, timeout=3_600_000_000)
        engine.handle("worker", lease, now)
    if engine.store.leases.count != entries:
        raise RuntimeError(f"{engine.store.leases.count} leases, not {entries}")
    return (resident_bytes() - before) / entries


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the memory of waiting entries.")
    parser.add_argument("entries", type=int, nargs="?", default=ENTRIES_DEFAULT)
    parser.add_argument("--random", action="store_true", help="in no order")
    parser.add_argument("--leased", action="store_true", help="lease each entry by itself")
    parser.add_argument("--parts", action="store_true", help="list each object of an entry")
    given = parser.parse_args()
    each, engine = measure(given.entries, in_order=not given.random)
    print(f"{given.entries:,} waiting entries with a 100-byte value: {each:,.0f} bytes each")
    if given.leased:
        print(f"each leased by itself: {measure_leases(engine):,.0f} bytes more")
    if given.parts:
        parts = parts_of(engine)
        for what, (size, taken) in parts.items():
            print(f"  {what}: {size:,.1f}, allocated {taken:,.1f}")
        named = sum(taken for _, taken in parts.values())
        print(f"  all else (pools, arenas, buffers): {each - named:,.1f}")


if __name__ == "__main__":
    main()
