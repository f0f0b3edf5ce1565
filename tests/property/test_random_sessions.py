"""1,000 random sessions of 200 requests: the engine answers all of them as the naive model does.

Between the requests time passes, the daemon wakes too late, is killed and recovers, its clock is
set, connections end, and NEXTs that wait are served. FASTJOURNAL_SESSIONS=5000 plays more sessions.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from fastjournal import _native
from fastjournal.protocol.constants import Flag, Function, ValueType
from fastjournald.tables.entry import CAUSES, Cause, Entry, EntryState
from tests.property.model import Model
from tests.property.model_parts import U64_MAX, Rules
from tests.property.random_sessions import (
    END,
    FURTHER,
    LIMITS,
    RESTART,
    STEP_CLOCK,
    Choices,
    Step,
    check_session,
    draw_session,
    play,
)
from tests.property.side_by_side import SideBySide
from tests.property.subject import SECOND, START, EngineSubject, comparable, request

SESSIONS = int(os.environ.get("FASTJOURNAL_SESSIONS", "1000"))
REQUESTS = 200
PARTS = 20
CHOICES = Choices(START, events=True)
BOTH = Flag.DATA | Flag.META
LATE = 2 * SECOND
"""Longest wait before a step that the daemon sleeps through, but for one thing that happens."""
RESTARTING = replace(CHOICES, restarts=True)


class Session:
    """The engine and its model side by side at one instant, while time passes for both.

    Args:
        rules: Settings of both.
        cold: Whether values leave memory.
        checks: Whether every invariant is checked after each request.
    """

    def __init__(self, rules: Rules, *, cold: bool, checks: bool) -> None:
        self.model = Model(rules)
        self.engine = EngineSubject(rules, checks=checks, cold=cold)
        self.both = SideBySide(self.engine, self.model)
        self.now = START

    def wake(self) -> None:
        """Do what the daemon does by itself: it applies what is over, and serves those who wait."""
        self.model.advance(self.now)
        self.engine.advance(self.now)
        self.serve()

    def serve(self) -> None:
        expected = self.model.serve_waiters(self.now)
        got = self.engine.serve_waiters(self.now)
        assert [(s, comparable(r)) for s, r in got] == [(s, comparable(r)) for s, r in expected]
        self.both.settle(self.now)

    def pass_time(self, wait: int) -> int:
        """Let the daemon wake whenever something happens; or, now and then, a little too late."""
        event, wake = self.model.next_wake(), self.engine.engine.next_wake()
        if event is not None and event < U64_MAX:
            assert wake is not None
            assert wake <= max(event, self.now)
        end = self.now + wait
        if wait == LATE:
            self.now = min(end, self._second_event())
            return self.now
        while (at := self.model.next_event()) is not None and at <= end:
            self.now = max(self.now, at)
            self.wake()
        self.now = end
        if wait > 1:
            self.wake()
        return self.now

    def _second_event(self) -> int:
        """Return the last instant at which no more than one thing has happened unseen."""
        preview = copy.deepcopy(self.model)
        if (first := preview.next_event()) is not None:
            preview.advance(max(first, self.now))
            if (second := preview.next_event()) is not None:
                return max(second - 1, self.now)
        return self.now + LATE

    def happens(self, step: Step) -> None:
        """Restart the daemon, set its clock, or end a connection."""
        self.wake()
        if step.function == RESTART:
            assert step.ttl is not None
            self.now += step.ttl
            self.both.set_back = self.both.set_back or step.ttl < 0
            # of too many, replay drops the oldest at its end, and so may keep what live dropped
            rules = self.model.rules
            few = rules.tombstones_max < 1000 or rules.tombstones_bytes_max < 1_000_000
            self.both.restart(self.now, has_all_tombstones=not few)
        elif step.function == END:
            self.model.end_session(step.session)
            self.engine.end_session(step.session)
        else:
            assert step.ttl is not None
            if step.ttl < 0:
                self.now += step.ttl
                self.both.step_clock(self.now, step.ttl)
            else:
                # a step ahead brings what it ends, one after the other
                self.both.step_clock(self.now + step.ttl, step.ttl)
                self.pass_time(step.ttl)
        self.wake()

    def compare_everything(self) -> None:
        """Compare what is told of each key and each domain."""
        self.wake()
        for key in (*CHOICES.keys(), *FURTHER):
            for function, flags in ((Function.GET, BOTH), (Function.STATS, BOTH)):
                self.both.ask("one", request(function, key, flags=flags), self.now)
        for domain in (b"", b"a", b"b"):
            self.both.ask("one", request(Function.STATS, domain), self.now)
            if domain:
                self.both.dead_letters(domain, count=2, now=self.now)
            self.both.ask("one", request(Function.NEXT, domain, count=0), self.now)
        self.engine.engine.check()


def run(steps: Sequence[Step], seed: int, *, checks: bool = False) -> None:
    """Play a session under settings that its seed stands for."""
    draw = random.Random(seed)
    rules = Rules(
        reply_bytes_max=draw.choice((500, 4 * 1024 * 1024, 4 * 1024 * 1024)),
        lease_us_default=5 * SECOND,
        attempts_max=draw.choice((0, 1, 2)),
        tombstone_ttl_us=draw.choice((2 * SECOND, 60 * SECOND, 3600 * SECOND)),
        tombstones_max=draw.choice((1, 3, 1000, 1000)),
        tombstones_bytes_max=draw.choice((1, 700, 1_000_000, 1_000_000)),
        clock_skew_us_max=3 * SECOND,
        postpone_us_max=draw.choice((0, SECOND, SECOND, 3600 * SECOND)),
        interval_us_default=draw.choice((0, 0, 0, SECOND)),
        jobs_default=draw.choice((0, 0, 0, 1)),
    )
    session = Session(rules, cold=seed % 4 > 1, checks=checks)
    play(steps, session.both, session.pass_time, session.happens)
    session.compare_everything()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_sessions_pass_with_the_model_beside(part: int) -> None:
    for seed in range(part, SESSIONS, PARTS):
        steps = draw_session(seed, REQUESTS, RESTARTING if seed % 2 else CHOICES)
        assert len(steps) == REQUESTS
        check_session(steps, partial(run, seed=seed, checks=seed % 10 == 0), START, seed)


def test_random_sessions_make_every_legal_transition_of_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {id(cause): name for name, cause in CAUSES.items()}
    legal = {
        (name, before, after)
        for name, cause in CAUSES.items()
        for before, row in enumerate(cause)
        for after in row
    }
    # by a restart after the end of a lease that other work waits for: test_bulk_load
    unmade = {("REQUEUE", EntryState.READY, EntryState.READY)}
    made: set[tuple[str, int, int]] = set()
    move_to = Entry.move_to

    def recorded(entry: Entry, state: int, cause: Cause) -> None:
        made.add((names[id(cause)], entry.state, state))
        move_to(entry, state, cause)

    def all_recorded(entries: Iterable[Entry], state: int, cause: Cause) -> None:
        for entry in entries:
            recorded(entry, state, cause)

    # native leaves lease and complete without these functions
    monkeypatch.setattr(_native, "leaves", None)
    monkeypatch.setattr(Entry, "move_to", recorded)
    monkeypatch.setattr(Entry, "move_all", staticmethod(all_recorded))
    # from here on half as many make all of them as from 0 on
    for seed in range(58, 58 + max(SESSIONS, 1000)):
        run(draw_session(seed, REQUESTS, RESTARTING), seed)
        if legal - made == unmade:
            break
    assert legal - made == unmade


FOUND = {
    "a link that a SET takes as URI leads elsewhere after a restart too": [
        Step(Function.SET, b"a:1:0:y", value=b"x", flags=Flag.PERSIST, wait=1),
        Step(Function.LINK, b"a:1:0:y", b"l", flags=Flag.PERSIST, wait=1),
        Step(Function.NEXT, flags=Flag.PERSIST, timeout=5 * SECOND, wait=2),
        Step(Function.SET, b"b:1:0:x", b"l", b"y", flags=Flag.PERSIST, wait=2),
        Step(RESTART, ttl=0, wait=2),
        Step(Function.NEXT, flags=Flag.META),
        Step(Function.NEXT, flags=Flag.META, wait=6 * SECOND),
    ],
    "an interval begins anew at each start, where a LIMIT that changes nothing is behind a step": [
        Step(Function.LIMIT, b"a", value=LIMITS[3], kind=ValueType.STRING),
        Step(Function.SET, b"a:1:0:x", value=b"1", flags=Flag.PERSIST, wait=SECOND),
        Step(Function.NEXT, flags=Flag.PERSIST | Flag.OVERWRITE, wait=1),
        Step(Function.SET, b"a:1:0:y", value=b"2", flags=Flag.PERSIST, wait=1),
        Step(STEP_CLOCK, ttl=-100 * SECOND, wait=1),
        Step(Function.LIMIT, b"a", value=LIMITS[3], kind=ValueType.STRING, wait=1),
        Step(RESTART, ttl=0, wait=2),
        Step(Function.NEXT, b"a", count=0),
        Step(Function.LIMIT, b"a", value=LIMITS[3], kind=ValueType.STRING, wait=500),
        Step(RESTART, ttl=0, wait=500),
        Step(Function.NEXT, b"a", count=0),
    ],
    "a superseded entry is not renamed to the URI that it has lost": [
        Step(Function.SET, b"q", b"l", b"1", wait=1),
        Step(Function.GET, b"q", timeout=60 * SECOND, wait=1),
        Step(Function.SET, b"a:1:0:x", b"l", b"2", timeout=1000, wait=1),
        Step(Function.RENAME, b"q", b"l", wait=SECOND),
        Step(Function.LINK, b"q", b"l", wait=1),
        Step(Function.GET, b"l", flags=Flag.META),
    ],
    "a SET over the same key and URI does not end the chain that bounds how far it is put off": [
        Step(Function.SET, b"b:7:%d:x" % (START + 240 * SECOND), b"u", b"1"),
        Step(Function.SET, b"a:2:0:x", b"u", b"2", wait=1),
        Step(Function.SET, b"a:2:0:x", b"u", b"3", flags=Flag.OVERWRITE, wait=1),
        Step(Function.SET, b"a:1:%d:x" % (START + 240 * SECOND), b"u", b"4", wait=1),
        Step(Function.GET, b"u", flags=Flag.META),
    ],
}


@pytest.mark.parametrize("name", FOUND)
def test_random_sessions_that_differed_once_do_not_any_more(name: str) -> None:
    run(FOUND[name], 0)


def test_page_leaves_room_for_a_cursor_with_the_key_that_it_ends_before() -> None:
    session = Session(Rules(reply_bytes_max=500), cold=False, checks=True)
    for key, size in ((b"v", 143), (b"w" * 60, 144)):
        asked = request(Function.SET, key, b"y" * size, kind=ValueType.STRING)
        session.both.ask("one", asked, START)
    asked = request(Function.GET, b"v", uri=b"", count=0, flags=Flag.DATA)
    page = session.engine.handle("one", asked, START)
    assert page is not None
    assert [pair.key for pair in page.pairs or ()] == [b"v"]
    session.both.scan("one", asked, START, pages=50)
