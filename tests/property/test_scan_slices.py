"""Scans while everything changes between their steps and between their pages."""

from __future__ import annotations

import random
import re
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.protocol import decode_reply, decode_request, encode_request
from fastjournal.protocol.constants import QUERY_SHIFT, Flag, Function, Query
from fastjournal.protocol.messages import Reply, Request
from fastjournald.engine.engine import Engine, Scan, Settings
from tests.property.subject import SECOND, START, request

CURSOR = Query.CURSOR << QUERY_SHIFT
REGEX = Query.REGEX << QUERY_SHIFT

# half of the changes move a URI
CHANGES = [
    (what, number)
    for what in (
        "set",
        "delete",
        "lease",
        "expire",
        "pop",
        "merge",
        "take out",
        "sort",
        *["uri"] * 6,
    )
    for number in range(60)
]
CHECK_STEPS = 6
"""Steps of scans between two checks: what does not fit stays until its entry changes again."""

# thousands of changes come in one example: a seed for all of them, not a choice for each
seeds = st.integers(0, 2**32 - 1)


class World:
    """An engine, its clock, and the keys that stood there throughout."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reply_bytes_max: int) -> None:
        # a step looks at one key or two, so that much may come between
        monkeypatch.setattr("fastjournal.limits.SCAN_STEP_WORK", 8)
        monkeypatch.setattr("fastjournald.engine.handlers.scan.leasing._LEASE_WORK", 8)
        self.engine = Engine(Settings(reply_bytes_max=reply_bytes_max))
        self.now = START
        self.steps = 0

    def ask(self, req: Request) -> Reply:
        answer = self.engine.handle("writer", decode_request(encode_request(req)), self.now)
        assert isinstance(answer, bytes)
        return decode_reply(answer)

    def keys(self) -> set[bytes]:
        return set(map(itemgetter(0), self.engine.store.keys.items()))

    def change(self, what: str, number: int) -> None:
        self.now += 1
        key = b"k%02d" % number
        if what == "set":
            self.ask(request(Function.SET, key, b"new", at=self.now, flags=Flag.OVERWRITE))
        elif what == "uri":
            job = b"a:1:0:%d" % self.now
            self.ask(request(Function.SET, job, b"job", uri=b"m%02d" % (number % 9), at=self.now))
        elif what == "delete":
            self.ask(request(Function.DELETE, key, at=self.now))
        elif what == "lease":
            self.ask(request(Function.GET, key, timeout=SECOND))
        elif what == "expire":
            bits = Flag.UPDATE_TIMEOUT
            self.ask(request(Function.GET, key, timeout=self.now + 1, flags=bits))
        elif what == "merge":
            self.engine.store.keys.sorted_keys().merge(number)
        elif what == "gone":
            self.engine.store.keys.sorted_keys().merge_gone(number)
        elif what == "sort":
            self.engine.store.keys.sorted_keys().sort_pending(number)
        else:
            self.ask(request(Function.NEXT, b"a", flags=Flag.OVERWRITE))

    def scan(
        self, req: Request, draw: random.Random, throughout: set[bytes] | None = None
    ) -> Reply:
        """Carry a scan out, with changes between its steps.

        Args:
            req: The request.
            draw: Draws the changes.
            throughout: Keys; those that are away at any time are taken out.
        """
        scan = self.engine.handle("reader", decode_request(encode_request(req)), self.now)
        assert isinstance(scan, Scan)
        steps = 0
        while True:
            if steps % 3 == 0:
                for what, number in draw.choices(CHANGES, k=draw.randint(0, 4)):
                    self.change(what, number)
                    if throughout is not None:
                        throughout &= self.keys()
            reply = self.engine.step(scan, self.now)
            self.steps += 1
            if self.steps % CHECK_STEPS == 0:
                self.engine.check()
            if reply is not None:
                if throughout is not None:
                    throughout &= self.keys()
                return decode_reply(reply)
            steps += 1
            assert steps < 5000


@settings(max_examples=60)
@given(
    seeds,
    st.sampled_from([b"", b"k2"]),
    st.sampled_from([b"", b"k4", b"m"]),
    st.sampled_from([0, 1, 7]),
    st.sampled_from([500, 1 << 22]),
    st.sampled_from([None, b"[02468]$", b"^k[1-3]", b"^(a|m)"]),
)
def test_scan_finds_once_what_stands_throughout_and_nothing_twice(
    seed: int,
    first: bytes,
    last: bytes,
    count: int,
    reply_bytes_max: int,
    expression: bytes | None,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world, draw = World(patch, reply_bytes_max), random.Random(seed)
        for number in range(0, 60, 2):
            world.change("set", number)
            world.change("uri", number)
        if expression is None:
            req = request(Function.GET, first, uri=last, count=count, flags=Flag.META)
        else:
            req = request(Function.GET, expression, count=count, flags=REGEX | Flag.META)
        throughout, ever = world.keys(), set(world.keys())
        found: list[bytes] = []
        while True:
            reply = world.scan(req, draw, throughout)
            ever |= world.keys()
            assert reply.error == ""
            found += [pair.key for pair in reply.pairs or ()]
            if reply.cursor is None:
                break
            req = request(Function.GET, reply.cursor, flags=CURSOR | Flag.META)
        wanted = {
            key
            for key in throughout
            if (
                first <= key and (not last or key <= last)
                if expression is None
                else re.search(expression, key)
            )
        }
        assert found == sorted(set(found))
        assert wanted <= set(found)
        world.engine.check()


@settings(max_examples=60)
@given(seeds, st.sampled_from([0, 5]), st.sampled_from([400, 1 << 22]))
def test_scan_leases_entries_that_nobody_else_has(
    seed: int, count: int, reply_bytes_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world, draw = World(patch, reply_bytes_max), random.Random(seed)
        for number in range(0, 60, 2):
            world.change("set", number)
            world.change("uri", number)
        req = request(Function.GET, b"", uri=b"", count=count, timeout=9 * SECOND)
        leased: list[bytes] = []
        while True:
            reply = world.scan(req, draw)
            assert reply.error == ""
            for pair in reply.pairs or ():
                assert reply.timeout is not None
                entry = world.engine.store.find(pair.key)
                if entry is not None and entry.token:
                    assert entry.token == reply.timeout or entry.token < reply.timeout
            leased += [pair.key for pair in reply.pairs or ()]
            assert bool(reply.pairs) == (reply.timeout is not None)
            if reply.cursor is None:
                break
            req = request(Function.GET, reply.cursor, flags=CURSOR, timeout=9 * SECOND)
        assert len(leased) == len(set(leased))
        world.engine.check()
