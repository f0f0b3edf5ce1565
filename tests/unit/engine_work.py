"""An engine whose calls are held to bounded work: what it counts, and the lines it executes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from fastjournal import limits
from fastjournal.limits import CALL_WORK_MAX
from fastjournal.protocol import Flag, Function, Request
from fastjournald.engine.engine import Engine, Scan, Settings, new_journal
from tests.unit.lines import lines_of

NOW = 1_790_000_000_000_000
LATER = NOW + 60_000_000
LINES_A_UNIT = 20
"""A unit is about a microsecond."""
LINES_BESIDE = 1000
"""Lines that a call executes which does hardly any work."""

LINKS = limits.LINKS_PER_ENTRY_MAX
NEXT = limits.NEXT_ENTRIES_MAX
MANY = 2 * NEXT
LARGE = limits.VALUE_BYTES_MAX


class Daemon:
    """An engine with a log that keeps nothing."""

    def __init__(self, **settings: int) -> None:
        known = Settings(**settings)
        journal = new_journal(known, lambda data, records, now: 0, bytes(8))
        self.engine = Engine(known, journal)
        self.store = self.engine.store
        self.now = NOW
        self.stamp = NOW

    def ask(
        self,
        function: int,
        key: bytes = b"",
        second_key: bytes | None = None,
        *,
        session: Hashable = "s",
        flags: int = Flag.PERSIST,
        **fields: Any,
    ) -> bytes | Scan | None:
        self.stamp += 1
        request = Request(function, 0, int(flags), self.stamp, key, second_key, **fields)
        return self.engine.handle(session, request, self.now)

    def set(self, key: bytes, uri: bytes | None = None, value: bytes = b"v", **fields: Any) -> None:
        self.ask(Function.SET, key, uri, value_type=1, value=value, **fields)

    def jobs(self, number: int, uri: bytes | None = None, **fields: Any) -> None:
        for at in range(number):
            self.set(key_of(at), None if uri is None else b"%b/%d" % (uri, at), **fields)

    def domains(self, number: int) -> None:
        """SET a job in each of so many domains."""
        for at in range(number):
            self.set(b"d%d:1:0:x" % at)

    def lock(self, number: int) -> None:
        for at in range(number):
            self.ask(Function.LOCK, key_of(at))

    def lease(self, number: int, timeout: int = LATER - NOW) -> None:
        for _ in range(0, number, NEXT):
            self.ask(Function.NEXT, count=min(number, NEXT), timeout=timeout)

    def links(self, key: bytes, number: int = LINKS) -> None:
        for at in range(number):
            self.ask(Function.LINK, key, b"%b/%d" % (key, at))

    def bury(self, number: int) -> None:
        for at in range(number):
            self.ask(Function.BURY, key_of(at))


def key_of(number: int) -> bytes:
    return b"d:1:0:%06d" % number


def do_bounded(daemon: Daemon, call: Callable[[], object], work_max: int = CALL_WORK_MAX) -> object:
    """Make a call of the engine; return what that returns.

    Raises:
        AssertionError: It does more work than it may, or more than it counts.
    """
    before = daemon.store.work
    with lines_of(LINES_A_UNIT * CALL_WORK_MAX) as lines:
        result = call()
    work = daemon.store.work - before
    assert work <= work_max
    assert lines.count <= LINES_A_UNIT * work + LINES_BESIDE, (lines.count, work)
    return result
