"""No domain starves another: with 10,000 of them, each is at most one round away from its turn."""

from __future__ import annotations

import gc
import random
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from fastjournal.protocol import Function, Reply, Request, decode_reply
from fastjournald.engine.engine import Engine

NOW = 1_790_000_000_000_000
SECOND = 1_000_000
DOMAINS = 10_000
BATCH = 1000


class Daemon:
    """An engine, and short ways to ask it."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.now = NOW

    def ask(self, function: Function, key: bytes = b"", **fields: Any) -> Reply:
        self.now += 1
        request = Request(function, timestamp=self.now, key=key, **fields)
        data = self.engine.handle("s", request, self.now)
        assert data is not None
        reply = decode_reply(data)
        assert reply.error == ""
        return reply

    def add(self, domain: bytes, count: int = 1) -> None:
        """Work for a domain that is due."""
        for number in range(count):
            self.now += 1
            key = b"%b:1:0:%d-%d" % (domain, self.now, number)
            request = Request(Function.SET, timestamp=self.now, key=key, value_type=0)
            assert self.engine.handle("s", request, self.now) is not None
        assert not self.engine.counters.errors

    def next(self, count: int = BATCH) -> list[bytes]:
        """The domains whose entries a NEXT for any domain delivers, in order."""
        pairs = self.ask(Function.NEXT, count=count).pairs
        assert pairs is not None
        return [pair.key.partition(b":")[0] for pair in pairs]

    def serve_all(self) -> list[bytes]:
        """The domains of all that is due, as it is delivered."""
        served: list[bytes] = []
        while got := self.next():
            served += got
        return served


def name(number: int) -> bytes:
    return b"d%06d" % number


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.mark.rule("NEXT: Round robin")
def test_scheduler_lets_one_due_entry_wait_at_most_one_round(daemon: Daemon) -> None:
    daemon.add(b"greedy", 5 * BATCH)
    for number in range(DOMAINS):
        daemon.add(name(number))
    daemon.add(b"late")
    served = daemon.next(1) + daemon.serve_all()
    others = DOMAINS + 1
    assert served.index(b"late") <= others
    assert set(served[: others + 1]) == {b"greedy", b"late", *map(name, range(DOMAINS))}
    assert len(served) == 5 * BATCH + DOMAINS + 1


def test_round_robin_lets_a_newcomer_wait_one_round_at_most(daemon: Daemon) -> None:
    """Domains come, are empty, come again, and are refilled faster than they are served."""
    draw = random.Random(7)
    waits_since: dict[bytes, int] = {}
    served = 0
    longest = 0
    for _ in range(60):
        for number in draw.sample(range(2 * BATCH), BATCH):
            waits_since.setdefault(name(number), served)
            daemon.add(name(number))
        for domain in daemon.next(BATCH // 2):
            served += 1
            longest = max(longest, served - waits_since.pop(domain))
            found = daemon.engine.store.scheduler.domains.get(domain)
            if found is not None and found.ready:
                waits_since[domain] = served
    assert longest <= 2 * BATCH
    assert len(waits_since) == len(daemon.engine.store.scheduler.round_robin.turns)


def test_domain_whose_only_entry_is_replaced_over_and_over_keeps_its_place(
    daemon: Daemon,
) -> None:
    uri = b"http://example.org/"
    daemon.ask(Function.SET, b"page:1:0:0", second_key=uri, value_type=0)
    for number in range(100):
        daemon.add(name(number), 3)
    served: list[bytes] = []
    for number in range(1, 50):
        daemon.ask(Function.SET, b"page:1:0:%d" % number, second_key=uri, value_type=0)
        served += daemon.next(1)
    assert served[0] == b"page"


def test_scheduler_serves_each_domain_once_in_every_round(daemon: Daemon) -> None:
    for number in range(500):
        daemon.add(name(number), 1 + number % 5)
    served = daemon.serve_all()
    for start, deep in ((0, 1), (500, 2), (900, 3)):
        size = sum(1 + number % 5 >= deep for number in range(500))
        assert set(Counter(served[start : start + size]).values()) == {1}


def test_round_robin_takes_the_same_of_a_domain_whatever_the_batch(daemon: Daemon) -> None:
    for number in range(10):
        daemon.add(name(number), 10)
    by_ones = [domain for _ in range(35) for domain in daemon.next(1)]
    assert by_ones + daemon.next(65) == [name(number) for _ in range(10) for number in range(10)]


# --- what a NEXT costs ----------------------------------------------------------------------------


NEXTS = 10


def operations(daemon: Daemon) -> int:
    """Lines and calls, of C too, that one NEXT for any domain executes: the most of ten."""
    counted = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal counted
        counted += event == "line"
        return trace

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "c_call"

    most = 0
    before = sys.gettrace(), sys.getprofile()
    for _ in range(NEXTS):
        request = Request(Function.NEXT, timestamp=daemon.now, timeout=10 * SECOND)
        counted = 0
        # callbacks of the collector are Python, and would be counted
        gc.disable()
        sys.settrace(trace)
        sys.setprofile(profile)
        try:
            daemon.engine.handle("s", request, daemon.now)
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])
            gc.enable()
        most = max(most, counted)
    return most


def with_domains(count: int, *, paused: int = 0) -> Daemon:
    daemon = Daemon()
    for number in range(paused):
        daemon.ask(Function.PAUSE, b"p%d" % number, ttl=3600 * SECOND)
        daemon.add(b"p%d" % number)
    add_domains(daemon, count)
    return daemon


def add_domains(daemon: Daemon, count: int) -> None:
    """Work for so many domains; those that are asked have more than one NEXT takes."""
    for number in range(count):
        daemon.add(name(number), 2 if number < NEXTS else 1)


def test_next_for_any_domain_does_the_same_whatever_the_number_of_domains() -> None:
    few, many = operations(with_domains(NEXTS)), operations(with_domains(DOMAINS))
    assert few > 50
    assert many <= few + 5


def test_scheduler_costs_the_same_for_any_number_of_paused_domains() -> None:
    few, many = with_domains(0), with_domains(0, paused=2_000)
    assert operations(many) <= operations(few) + 5
    for daemon in (few, many):
        add_domains(daemon, NEXTS)
    assert operations(many) <= operations(few) + 5
