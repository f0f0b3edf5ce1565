"""Processor time of a SET while ten thousand and while a million entries wait, side by side.

    python -m tests.bench.bench_growth [--entries N] [--rounds N] [--lists]

Two engines in one process, without sockets and log: one with ten thousand waiting entries, one with
a million. Windows of 256 SETs with a URI go to them in turns, so that both have the same share of
the machine; then each window is removed. The entries come last in the order of work, or at random
places in it.

``--lists`` compares whole requests, from their bytes to those of the replies, with
``SortedEntries`` and with ``SortedKeyList`` of sortedcontainers as the ready list: two engines of
each size and order, in turns. A SET is one of a window, a job one of a NEXT of 64 and its DELETE.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Any
from unittest.mock import patch

from sortedcontainers import SortedKeyList

from fastjournal.cmdlog.format.packed_entry import pack_facts
from fastjournal.protocol import (
    ClientConnection,
    Flag,
    Function,
    Request,
    ServerConnection,
    encode_request,
)
from fastjournald.engine.engine import Engine
from fastjournald.tables.entry import Entry
from tests.bench.one_connection import DELETE, WORKED_ON

FEW = 10_000
MANY = 1_000_000
WINDOW = 256
JOBS = 64
ROUNDS = 200
NOW_US = 1_790_000_000_000_000
INSTANTS = 10**12
"""The first so many microseconds of time: all are over, so everything is ready."""
NAME = b"www.example.org"


class KeyList:
    """Ready list of sortedcontainers, with the methods that these loads take."""

    def __init__(self) -> None:
        self._list: SortedKeyList = SortedKeyList(key=attrgetter("facts"))
        self.add = self._list.add
        self.add_all = self.update = self._list.update
        self.remove = self._list.remove

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list)

    def first(self) -> Any:
        return self._list[0]

    def last(self) -> Any:
        return self._list[-1]

    def pop_first(self) -> Any:
        return self._list.pop(0)

    def first_from(self, key: bytes) -> Any:
        return next(self._list.irange_key(key), None)


class Load:
    """An engine with waiting entries, and the next ones for it.

    Args:
        entries: How many wait.
        ascending: Whether each comes last in the order of work.
        ready: Type of the ready list; None: the daemon's.
    """

    def __init__(
        self, entries: int, *, ascending: bool, ready: type[KeyList] | None = None
    ) -> None:
        self._ascending = ascending
        self._draw = random.Random(1)
        self._number = 0
        self._engine = Engine()
        self._connection = ServerConnection()
        if ready is not None:
            with patch("fastjournald.tables.domain.SortedEntries", ready):
                self._engine.store.scheduler.domain_of(NAME)
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

    def set_only(self) -> float:
        """Set new entries; return the seconds."""
        return self._put(self._window())

    def work(self) -> float:
        """Lease and complete as many entries; return the seconds."""
        seconds = 0.0
        for _ in range(0, WINDOW, JOBS):
            asked = encode_request(Request(Function.NEXT, 0, Flag.DATA, NOW_US, count=JOBS))
            started = time.thread_time()
            self._connection.receive_data(asked)
            (request,) = self._connection.next_events()
            data = self._engine.handle("one", request, NOW_US)
            seconds += time.thread_time() - started
            client = ClientConnection()
            client.receive_data(data)
            (leased,) = client.next_events()
            done = b"".join(
                encode_request(
                    Request(DELETE, 0, WORKED_ON, NOW_US, pair.key, timeout=leased.timeout)
                )
                for pair in leased.pairs
            )
            started = time.thread_time()
            self._connection.receive_data(done)
            replies = self._engine.handle_bulk("one", self._connection.next_events(), NOW_US)
            seconds += time.thread_time() - started
            if len(replies) != JOBS:
                raise RuntimeError(f"{len(replies)} DELETEs of {JOBS} were carried out")
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


def compare_lists(entries: int, rounds: int) -> None:
    """Measure whole requests with both lists in turns, and print medians and their ratio."""
    for ascending in (True, False):
        ours = Load(entries, ascending=ascending)
        theirs = Load(entries, ascending=ascending, ready=KeyList)
        sets, jobs = [], []
        for number in range(rounds):
            pair = (ours, theirs) if number % 2 else (theirs, ours)
            in_order = slice(None, None, 1 if number % 2 else -1)
            sets.append([load.set_only() for load in pair][in_order])
            jobs.append([load.work() for load in pair][in_order])
        order = "last in order" if ascending else "at random"
        for what, pairs in (("SET", sets), ("NEXT and DELETE", jobs)):
            own, other = (
                statistics.median(each) / WINDOW * 1e6 for each in zip(*pairs, strict=True)
            )
            ratio = statistics.median(mine / other for mine, other in pairs)
            print(
                f"{what}, {order}, {entries:,} entries: {own:.2f} us with SortedEntries, "
                f"{other:.2f} us with SortedKeyList: {ratio:.3f}",
                flush=True,
            )


def main() -> None:
    """Measure in turns, and print medians."""
    parser = argparse.ArgumentParser(description="Measure how a SET depends on the entries.")
    parser.add_argument("--entries", type=int, default=MANY)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lists", action="store_true", help="compare the ready lists")
    given = parser.parse_args()
    gc.disable()
    if given.lists:
        for entries in (FEW, given.entries):
            compare_lists(entries, given.rounds)
        return
    for ascending in (True, False):
        few = Load(FEW, ascending=ascending)
        many = Load(given.entries, ascending=ascending)
        pairs = [(few.put(), many.put()) for _ in range(given.rounds)]
        small, large = (
            statistics.median(seconds) / WINDOW * 1e6 for seconds in zip(*pairs, strict=True)
        )
        print(
            f"SET, {'last in order' if ascending else 'at random'}: "
            f"{small:.2f} us with {FEW:,} entries, {large:.2f} us with {given.entries:,}: "
            f"{small / large:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
