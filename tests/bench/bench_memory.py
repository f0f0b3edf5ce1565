"""Memory of a waiting entry: ``python -m tests.bench.bench_memory [ENTRIES] [--random]``.

Entries with a canonical journal key of 50 bytes, a URI of 45 bytes and a value of 100 bytes go
through decoder, handlers and journal as in the daemon; the log itself is left out. Measured is the
resident memory of the process, less what it was before, over the number of entries: keys, values,
all indexes and the allocator's losses included. Each entry comes before all others in the order of
work, or with ``--random`` anywhere.
"""

from __future__ import annotations

import argparse
import gc
import random
from pathlib import Path

from fastjournal.protocol import Flag, Function, Request, ServerConnection, encode_request
from tests.door.engine import Engine

ENTRIES_DEFAULT = 1_000_000
WINDOW = 256
NOW_US = 1_790_000_000_000_000
PAGE_BYTES = 4096


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


def measure(entries: int, *, in_order: bool) -> dict[str, float]:
    """Return bytes for each entry."""
    gc.disable()
    instants = [NOW_US - number for number in range(entries)]
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
    return {"entries": entries, "bytes_per_entry": (resident_bytes() - before) / entries}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the memory of waiting entries.")
    parser.add_argument("entries", type=int, nargs="?", default=ENTRIES_DEFAULT)
    parser.add_argument("--random", action="store_true", help="in no order")
    given = parser.parse_args()
    result = measure(given.entries, in_order=not given.random)
    print(
        f"{result['entries']:,} waiting entries with a 100-byte value: "
        f"{result['bytes_per_entry']:,.0f} bytes each"
    )


if __name__ == "__main__":
    main()
