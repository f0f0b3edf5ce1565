"""Processor time of a SET while ten thousand and while a million entries wait, side by side.

    python -m tests.bench.bench_growth [--entries N] [--rounds N]

Two engines in one process, without sockets and log: one with ten thousand waiting entries, one with
a million. Windows of 256 SETs with a URI go to them in turns, so that both have the same share of
the machine; then each window is removed. The entries come last in the order of work, or at random
places in it. The two tables whose time depends on their size are measured alone in the same way:
the key table (two look-ups and two insertions for each entry) and the ready list.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.protocol import Flag, Function, Request, ServerConnection, encode_request
from fastjournald.engine.engine import Engine
from fastjournald.tables.entry import Entry

FEW = 10_000
MANY = 1_000_000
WINDOW = 256
ROUNDS = 200
NOW_US = 1_790_000_000_000_000
INSTANTS = 10**12
"""The first so many microseconds of time: all are over, so everything is ready."""
NAME = b"www.example.org"


class Load:
    """An engine with waiting entries, and the next ones for it.

    Args:
        entries: How many wait.
        ascending: Whether each comes last in the order of work.
    """

    def __init__(self, entries: int, *, ascending: bool) -> None:
        self._ascending = ascending
        self._draw = random.Random(1)
        self._number = 0
        self._engine = Engine()
        self._connection = ServerConnection()
        for _ in range(0, entries, WINDOW):
            self._put(self._window())

    def put(self) -> float:
        """Set new entries and remove them; return the seconds of the SETs."""
        window = self._window()
        seconds = self._put(window)
        for entry in window:
            delete = Request(Function.DELETE, 0, Flag.OVERWRITE, NOW_US, entry.key)
            self._engine.handle(None, delete, NOW_US)
        return seconds

    def put_keys(self) -> float:
        """Put the keys of new entries into the key table, and remove them; return the seconds."""
        window, keys = self._window(), self._engine.store.keys
        started = time.thread_time()
        for entry in window:
            keys.get(entry.key)
            keys.get(entry.uri or b"")
            keys.add_new(entry, uri_stands=False)
        seconds = time.thread_time() - started
        for entry in window:
            keys.remove(entry)
        return seconds

    def put_ready(self) -> float:
        """Put new entries into the ready list, and remove them; return the seconds."""
        window, ready = self._window(), self._engine.store.scheduler.domain_of(NAME).ready
        started = time.thread_time()
        ready.add_all(window)
        seconds = time.thread_time() - started
        for entry in window:
            ready.remove(entry)
        return seconds

    def _put(self, window: list[Entry]) -> float:
        data = b"".join(
            encode_request(
                Request(Function.SET, 0, Flag.PERSIST, NOW_US, entry.key, entry.uri, 1, entry.value)
            )
            for entry in window
        )
        started = time.thread_time()
        self._connection.receive_data(data)
        replies = self._engine.handle_bulk("one", self._connection.next_events(), NOW_US)
        seconds = time.thread_time() - started
        if len(replies) != WINDOW:
            raise RuntimeError(f"{len(replies)} SETs of {WINDOW} were carried out")
        return seconds

    def _window(self) -> list[Entry]:
        entries = []
        domain = self._engine.store.scheduler.domain_of(NAME)
        for _ in range(WINDOW):
            self._number += 1
            number = self._number
            instant = number if self._ascending else self._draw.randrange(INSTANTS)
            facts = pack_facts(128, instant, number, NOW_US, NOW_US, 1)
            key = b"%s:128:%016d:%013d" % (NAME, instant, number)
            uri = b"https://www.example.org/pages/%010d.html" % number
            entries.append(Entry(facts, key, uri, b"%0100d" % number, domain))
        return entries


MEASURES: dict[str, Callable[[Load], float]] = {
    "SET": Load.put,
    "its keys in the key table": Load.put_keys,
    "its place in the ready list": Load.put_ready,
}


def main() -> None:
    """Measure in turns, and print medians."""
    parser = argparse.ArgumentParser(description="Measure how a SET depends on the entries.")
    parser.add_argument("--entries", type=int, default=MANY)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    gc.disable()
    for ascending in (True, False):
        few = Load(FEW, ascending=ascending)
        many = Load(given.entries, ascending=ascending)
        for what, measure in MEASURES.items():
            pairs = [(measure(few), measure(many)) for _ in range(given.rounds)]
            small, large = (
                statistics.median(seconds) / WINDOW * 1e6 for seconds in zip(*pairs, strict=True)
            )
            print(
                f"{what}, {'last in order' if ascending else 'at random'}: "
                f"{small:.2f} us with {FEW:,} entries, {large:.2f} us with {given.entries:,}: "
                f"{small / large:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
