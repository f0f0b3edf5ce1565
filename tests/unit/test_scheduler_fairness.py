"""No domain starves another: with 10,000 of them, each is at most one round away from its turn."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest

from fastjournal.protocol import Function, Reply, Request, decode_reply
from fastjournald.engine.engine import Engine

NOW = 1_790_000_000_000_000
SECOND = 1_000_000
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


def name(number: int) -> bytes:
    return b"d%06d" % number


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


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


def test_scheduler_costs_the_same_for_any_number_of_paused_domains() -> None:
    few, many = with_domains(0), with_domains(0, paused=2_000)
    assert operations(many) <= operations(few) + 5
    for daemon in (few, many):
        add_domains(daemon, NEXTS)
    assert operations(many) <= operations(few) + 5
