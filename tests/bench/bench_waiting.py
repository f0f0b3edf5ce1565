"""Instructions of SET, of NEXT + DELETE and of scans while many entries wait, in and out of order.

    python -m tests.bench.bench_waiting [--entries N] [--vs OTHER/bin/python]

The entries wait in one domain; those that are set and delivered while instructions are counted
come in the order of work (ascending), or at random places in it, by a priority and an instant drawn
for each. NEXT always takes the first ones. Counted as in bench_instructions.py, in windows of 256
and batches of 64; the log is not synced. This is what the sorted lists of a domain cost.

Then a client scans: a GET of a range makes the key index, and from then on each window of SETs is
followed by a GET of the first 64 keys, which has to merge the new keys and URIs into it. This is
what the key index costs: the whole first scan, for each key; and a SET with its share of a GET.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from fastjournal.protocol import (
    QUERY_SHIFT,
    ClientConnection,
    Flag,
    Function,
    Query,
    Reply,
    Request,
    encode_request,
)
from tests.bench.bench_instructions import CountedDaemon
from tests.bench.one_connection import BATCH, BODY, DELETE, WINDOW, WORKED_ON, Connection

ENTRIES_DEFAULT = 100_000
COUNTED = 10 * WINDOW
INSTANTS = 10**9
"""The first so many microseconds of time: all are over, so everything is ready."""


class Producer(Connection):
    """A client whose SETs come in the order of work, or in none.

    Args:
        address: Where the daemon listens.
        ascending: Whether they come in order.
    """

    def __init__(self, address: str, *, ascending: bool) -> None:
        super().__init__(address)
        self._ascending = ascending
        self._draw = random.Random(1)
        self._connection = ClientConnection()

    def windows(self, count: int, window: int = WINDOW) -> list[bytes]:
        """Encode SETs, each of a resource of its own, in windows of so many."""
        return [
            b"".join(self._set() for _ in range(min(window, count - at)))
            for at in range(0, count, window)
        ]

    def take(self, count: int, batch: int = BATCH) -> float:
        """Return entries leased and completed a second: one NEXT, then their DELETEs at once."""
        ask = encode_request(Request(Function.NEXT.value, 0, Flag.DATA.value, count=batch))
        started = time.perf_counter()
        for _ in range(0, count, batch):
            (leased,) = self._answers(ask, 1)
            now = time.time_ns() // 1000
            frames = [
                encode_request(Request(DELETE, 1, WORKED_ON, now, pair.key, timeout=leased.timeout))
                for pair in leased.pairs or ()
            ]
            self._answers(b"".join(frames), batch)
        return count / (time.perf_counter() - started)

    def scan(self) -> None:
        """Ask for the first keys in byte order."""
        flags = Query.RANGE << QUERY_SHIFT
        self._answers(
            encode_request(Request(Function.GET.value, 0, flags, second_key=b"", count=BATCH)), 1
        )

    def put_and_scan(self, count: int) -> None:
        """Set entries, with a scan after each window."""
        for _ in range(0, count, WINDOW):
            self.put(WINDOW)
            self.scan()

    def _answers(self, requests: bytes, number: int) -> list[Reply]:
        self._socket.sendall(requests)
        replies: list[Reply] = []
        while len(replies) < number:
            replies += self._replies(self._connection)
        assert not any(reply.error for reply in replies)
        return replies

    def _set(self) -> bytes:
        self._serial += 1
        number = self._serial
        priority, instant = 128, number
        if not self._ascending:
            priority, instant = self._draw.randrange(256), self._draw.randrange(INSTANTS)
        return encode_request(
            Request(
                Function.SET.value,
                number & 0xFFFF,
                Flag.PERSIST.value,
                time.time_ns() // 1000,
                b"example.org:%03d:%016d:%d" % (priority, instant, number),
                b"https://example.org/some/page/%d.html" % number,
                1,
                BODY,
            )
        )


def measure(python: str, entries: int, *, ascending: bool) -> dict[str, float]:
    """Return the instructions of one request or job of each kind."""
    order = "ascending" if ascending else "random"
    with tempfile.TemporaryDirectory() as directory:
        daemon = CountedDaemon(python, Path(directory), counting=False)
        try:
            client = Producer(daemon.wait_ready(), ascending=ascending)
            client.put(entries // WINDOW * WINDOW)
            client.take(WINDOW)
            daemon.start_counting()
            client.put(WINDOW)
            daemon.count()
            client.put(COUNTED)
            put = daemon.count() / COUNTED
            client.take(COUNTED)
            taken = daemon.count() / COUNTED
            client.scan()
            first = daemon.count() / (2 * entries)
            client.put_and_scan(COUNTED)
            scanned = daemon.count() / COUNTED
            client.close()
        finally:
            daemon.stop()
    return {
        f"SET, {order}": put,
        f"a job of a NEXT of 64 and its DELETE, {order}": taken,
        f"a key in the first scan, {order}": first,
        f"SET with its share of a scan, {order}": scanned,
    }


def main() -> None:
    """Count, and print a line for each kind of request."""
    parser = argparse.ArgumentParser(description="Count instructions while many entries wait.")
    parser.add_argument("--entries", type=int, default=ENTRIES_DEFAULT)
    parser.add_argument("--vs", metavar="PYTHON", help="interpreter of another checkout")
    given = parser.parse_args()
    print(f"{given.entries:,} entries wait")
    for ascending in (True, False):
        ours = measure(sys.executable, given.entries, ascending=ascending)
        theirs = measure(given.vs, given.entries, ascending=ascending) if given.vs else {}
        for what, figure in ours.items():
            other = theirs.get(what)
            against = f"  against {other:,.0f}: {figure / other:.3f}" if other else ""
            print(f"{what}: {figure:,.0f} instructions{against}", flush=True)


if __name__ == "__main__":
    main()
